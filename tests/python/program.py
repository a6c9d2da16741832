"""A program that a test has started, with all that it starts itself."""

import os
import re
import signal
import subprocess
import threading
import time

# On a machine that does other things too.
TIMEOUT_S = 240


class Program:
    """A program whose lines are read as they come. It has ended, with all
    that it has started in its session, when the block ends."""

    def __init__(self, command, environment):
        self._process = subprocess.Popen(
            command,
            env=environment,
            cwd=os.environ.get("TEST_TMPDIR", "/tmp"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._changed = threading.Condition()
        self._lines = []
        self._at = 0
        self._ended = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self._process.stdout:
            with self._changed:
                self._lines.append(line)
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    @property
    def output(self):
        with self._changed:
            return "".join(self._lines)

    def line(self, pattern, timeout=TIMEOUT_S):
        """Returns the match of the next line that has one. Fails if the program
        ends, or the time is over."""
        deadline = time.monotonic() + timeout
        with self._changed:
            while True:
                while self._at < len(self._lines):
                    found = re.search(pattern, self._lines[self._at])
                    self._at += 1
                    if found:
                        return found
                left = deadline - time.monotonic()
                if left <= 0 or self._ended:
                    break
                self._changed.wait(left)
        raise AssertionError(
            "no line with %r within %d s of:\n%s"
            % (pattern, timeout, self.output)
        )

    def end(self, timeout=TIMEOUT_S):
        """Waits for its end; returns the exit status."""
        try:
            status = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                "not over within %d s:\n%s" % (timeout, self.output)
            ) from None
        self._reader.join(5)
        return status

    def children(self):
        """Returns the processes that it has started, and not waited for."""
        path = "/proc/%d/task/%d/children" % ((self._process.pid,) * 2)
        with open(path) as file:
            return [int(pid) for pid in file.read().split()]

    def interrupt(self):
        """As Ctrl-C on a terminal: to all that it has started, too."""
        os.killpg(self._process.pid, signal.SIGINT)

    def terminate(self):
        """Sends it SIGTERM, and nothing that it has started."""
        self._process.terminate()

    def kill(self):
        """Kills it alone, and waits for its end."""
        self._process.kill()
        self._process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()
        self._reader.join(5)
        # What has left its session may write on.
        if not self._reader.is_alive():
            self._process.stdout.close()
