"""Starts the ranks of a scene with torch, for tests beside it."""

import os
import queue
import signal
import subprocess
import threading
import time

from torch_python import torch_python

CLI = os.path.abspath("cli/coxswain")
SCENES = os.path.abspath("tests/python")
# Of a scene, on a machine that does other things too.
TIMEOUT_S = 240


def environment(**more):
    folder = os.environ.get("TEST_TMPDIR", "/tmp")
    return dict(
        os.environ,
        COXSWAIN_LIBRARY=os.path.abspath("capi/libcoxswain_c.so"),
        COXSWAIN_PYTHON_PACKAGE=os.path.abspath("python/coxswain"),
        PYTHONPATH=os.path.abspath("python"),
        ACCELERATE_USE_CPU="true",
        HF_HUB_OFFLINE="1",
        HF_HOME=folder,
        OMP_NUM_THREADS="1",
        TOKENIZERS_PARALLELISM="false",
        COXSWAIN_CLI=CLI,
        **more
    )


class Scene:
    """Processes whose lines are read while they run."""

    def __init__(self, command, **more):
        self.lines = []
        self._queue = queue.Queue()
        self._process = subprocess.Popen(
            command,
            env=environment(**more),
            cwd=os.environ.get("TEST_TMPDIR", "/tmp"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        with self._process.stdout as lines:
            for line in lines:
                self._queue.put(line)
        self._queue.put(None)

    @property
    def said(self):
        return "".join(self.lines)

    def wait_for(self, text, timeout=TIMEOUT_S, times=1):
        """Reads on until `text` was said that often; returns the last line
        that has it. Fails if the processes end, or the time is over."""
        ends = time.monotonic() + timeout
        found = [line for line in self.lines if text in line]
        while len(found) < times:
            line = self._next(ends)
            if line is None:
                raise AssertionError(
                    "%r was not said %d times:\n%s" % (text, times, self.said)
                )
            if text in line:
                found.append(line)
        return found[-1]

    def end(self, timeout=TIMEOUT_S):
        """Reads on to the end; returns the exit status."""
        ends = time.monotonic() + timeout
        while self._next(ends) is not None:
            pass
        try:
            return self._process.wait(max(1, ends - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise AssertionError("it does not end:\n" + self.said) from None

    def _next(self, ends):
        try:
            line = self._queue.get(timeout=max(0.0, ends - time.monotonic()))
        except queue.Empty:
            raise AssertionError(
                "time is over; it said:\n" + self.said
            ) from None
        if line is not None:
            self.lines.append(line)
        return line

    def interrupt(self):
        """As Ctrl-C on a terminal: to the launcher and its workers."""
        os.killpg(self._process.pid, signal.SIGINT)

    def kill(self):
        """Kills the process, and whatever else it has started."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()
        self._reader.join(10)

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.kill()


def run(*options, ranks=2):
    """Returns a command that starts ranks of what follows."""
    return [CLI, "run", "--no-prefix", "--log-level", "warning",
            "--nproc", str(ranks), *options, "--"]


def scene(script, name, *options, ranks=2, **more):
    """Starts a scene of a script beside this file."""
    return Scene(
        run(*options, ranks=ranks)
        + [torch_python(), os.path.join(SCENES, script), name],
        **more
    )
