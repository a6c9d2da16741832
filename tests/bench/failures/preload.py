"""A process of each interpreter that has loaded torch, from which workers are
forked: on a busy machine loading it takes longer than all that is measured.
"""

import os
import subprocess
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.dirname(os.path.abspath(__file__))
)))
SERVER = os.path.join(ROOT, "tests", "python", "preloaded.py")


class Preload:
    """A context manager. `command` gives commands, and what they need in their
    environment."""

    def __init__(self, python, modules):
        self._python = python
        self._folder = tempfile.TemporaryDirectory(
            prefix="coxswain-preload-", ignore_cleanup_errors=True
        )
        self._socket = os.path.join(self._folder.name, "socket")
        self._process = subprocess.Popen(
            [python, SERVER, "serve", self._socket, *modules],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            start_new_session=True,
            env=dict(
                os.environ, PYTHONPATH=os.path.join(ROOT, "python"),
                OMP_NUM_THREADS="1", PYTHONDONTWRITEBYTECODE="1",
            ),
        )

    def wait(self):
        if b"PRELOADED" not in self._process.stdout.readline():
            raise RuntimeError("%s could not load torch" % self._python)

    @property
    def prefix(self):
        """The beginning of a command that runs a program."""
        return [self._python, "-I", "-S", SERVER]

    @property
    def environment(self):
        return {"PRELOADED": self._socket}

    def close(self):
        self._process.stdin.close()
        self._process.wait()
        self._folder.cleanup()


class Plain:
    """In its place: each worker loads torch itself."""

    environment = {}

    def __init__(self, python):
        self.prefix = [python]

    def wait(self):
        pass

    def close(self):
        pass
