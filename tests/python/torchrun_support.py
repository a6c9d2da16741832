"""What torchrun_test runs: a coordinator, and torchrun."""

import os
import re
import signal
import subprocess
import tempfile
import threading
import time

from torch_python import torch_python

WORKER = os.path.abspath("tests/python/torchrun_worker.py")

# As the wheel has it.
_ENTRY_POINTS = """[torchrun.handlers]
coxswain = coxswain.torch.rendezvous:creator
"""


class Program:
    """A program whose lines are read as they come. It is gone, with all that
    it has started in its session, when the block ends."""

    def __init__(self, command, **environment):
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("COXSWAIN_")
        }
        self._process = subprocess.Popen(
            command,
            env=dict(kept, **environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self.pid = self._process.pid
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
    def said(self):
        with self._changed:
            return "".join(self._lines)

    def line(self, pattern, timeout):
        """Returns the match of the next line that has one."""
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
            % (pattern, timeout, self.said)
        )

    def wait(self, timeout):
        """Returns its exit status."""
        try:
            status = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                "not over within %d s:\n%s" % (timeout, self.said)
            ) from None
        self._reader.join(5)
        return status

    def kill(self):
        """Kills it alone, and waits for its end."""
        self._process.kill()
        self._process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()
        self._reader.join(5)
        self._process.stdout.close()


class Scene:
    """A coordinator, and a folder with what its workers write.

    At the end, workers that are still there are killed.
    """

    def __init__(self):
        self._temporary = tempfile.TemporaryDirectory()
        self.folder = self._temporary.name
        self._install()
        self._coordinator = Program(
            ["cli/coxswain", "serve", "--listen", "127.0.0.1:0",
             "--state-dir", os.path.join(self.folder, "state")]
        )
        self.address = self._coordinator.line(
            r"listening on ([0-9.:]+)", timeout=30
        ).group(1)

    def _install(self):
        """Makes the folder that a wheel would bring the entry point in."""
        info = os.path.join(self.folder, "site", "coxswain-0.dist-info")
        os.makedirs(info)
        with open(os.path.join(info, "METADATA"), "w") as file:
            file.write("Metadata-Version: 2.1\nName: coxswain\nVersion: 0\n")
        with open(os.path.join(info, "entry_points.txt"), "w") as file:
            file.write(_ENTRY_POINTS)

    def torchrun(self, *options, how, **environment):
        """Starts torchrun over torchrun_worker.py."""
        return Program(
            [torch_python(), "-m", "torch.distributed.run",
             "--monitor-interval", "0.1", *options, WORKER, how, self.folder],
            COXSWAIN_LIBRARY=os.path.abspath("capi/libcoxswain_c.so"),
            PYTHONPATH=os.pathsep.join(
                [os.path.abspath("python"), os.path.join(self.folder, "site")]
            ),
            PYTHONDONTWRITEBYTECODE="1",
            # Gloo looks the host's own name up otherwise.
            GLOO_SOCKET_IFNAME="lo",
            OMP_NUM_THREADS="1",
            **environment,
        )

    def agent(self, name, *options, how, **environment):
        """Starts an agent of torchrun that meets others at the coordinator."""
        return self.torchrun(
            "--rdzv-backend", "coxswain", "--rdzv-endpoint", self.address,
            "--rdzv-id", name, "--nproc-per-node", "1", *options, how=how,
            **environment,
        )

    def finish(self):
        """Has workers that train "until" end."""
        with open(os.path.join(self.folder, "finish"), "w"):
            pass

    def workers(self):
        """Returns the workers that are still there."""
        try:
            with open(os.path.join(self.folder, "pids")) as file:
                pids = [int(line) for line in file]
        except FileNotFoundError:
            return []
        return [pid for pid in pids if _is_worker(pid)]

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        for pid in self.workers():
            os.kill(pid, signal.SIGKILL)
        self._coordinator.__exit__()
        self._temporary.cleanup()


def _is_worker(pid):
    try:
        with open("/proc/%d/cmdline" % pid, "rb") as file:
            return WORKER.encode() in file.read()
    except (FileNotFoundError, ProcessLookupError):
        return False
