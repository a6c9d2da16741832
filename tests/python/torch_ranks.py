"""Starts the ranks of scenes with torch, for tests beside it."""

import atexit
import collections
import os
import re
import shutil
import socket
import subprocess
import tempfile
import threading

from program import Program
from torch_python import torch_python

CLI = os.path.abspath("cli/coxswain")
SCENES = os.path.abspath("tests/python")
PRELOADED = os.path.join(SCENES, "preloaded.py")
# A stalled rank is named after progress_timeout=2s; a machine
# that is overloaded has some more.
IN_TIME_S = 2 + 2 + 4


class _Preloaded:
    """The process that has loaded what programs need, from when the first one
    is started."""

    def __init__(self):
        self.modules = ["torch", "torch._dynamo"]  # optimizers load both
        self.socket = None  # once it is there
        self._folder = None
        self._starting = threading.Lock()

    def start(self):
        with self._starting:
            if self._folder is None:
                self._start()

    def _start(self):
        # Not below TEST_TMPDIR: the path of a socket has 107 bytes at most.
        self._folder = tempfile.mkdtemp(dir="/tmp")
        path = os.path.join(self._folder, "socket")
        self._process = subprocess.Popen(
            [torch_python(), PRELOADED, "serve", path, *self.modules],
            env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            start_new_session=True,
        )
        atexit.register(self._end)
        if b"PRELOADED" not in self._process.stdout.readline():
            raise AssertionError("not loaded: %s" % self.modules)
        self.socket = path

    def _end(self):
        self._process.stdin.close()
        self._process.wait()
        shutil.rmtree(self._folder)


_preloaded = _Preloaded()


def preload(*modules):
    """Has programs find these loaded, besides torch."""
    _preloaded.modules += modules


def python(*arguments):
    """Returns a command that runs a program in Python, by the path of its file,
    or by -m and its name: it finds torch loaded, but is a process as any."""
    _preloaded.start()
    return [torch_python(), "-I", "-S", PRELOADED, *arguments]


def environment(**more):
    folder = os.environ.get("TEST_TMPDIR", "/tmp")
    if _preloaded.socket:
        more["PRELOADED"] = _preloaded.socket
    return dict(
        os.environ,
        COXSWAIN_LIBRARY=os.path.abspath("capi/libcoxswain_c.so"),
        COXSWAIN_PYTHON_PACKAGE=os.path.abspath("python/coxswain"),
        PYTHONPATH=os.path.abspath("python"),
        PYTHONDONTWRITEBYTECODE="1",
        ACCELERATE_USE_CPU="true",
        HF_HUB_OFFLINE="1",
        HF_HOME=folder,
        OMP_NUM_THREADS="1",
        TOKENIZERS_PARALLELISM="false",
        COXSWAIN_CLI=CLI,
        **more
    )


def unused_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run(*options, ranks=2):
    """Returns a command that starts ranks of what follows."""
    return [CLI, "run", "--no-prefix", "--log-level", "warning",
            "--nproc", str(ranks), *options, "--"]


def scene(script, *names, options=(), ranks=2, **more):
    """Starts scenes of a script beside this file."""
    return Program(
        run(*options, ranks=ranks)
        + python(os.path.join(SCENES, script), *names),
        environment(**more),
    )


def torchrun_command(job):
    """Returns a command of torchrun that starts two ranks of what follows."""
    return python("-m", "torch.distributed.run") + [
        "--nproc-per-node", "2", "--rdzv-id", job,
        # A port that is free.
        "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0",
        "--no-python",
    ]


def torchrun(script, name, coordinator, **more):
    """Starts a scene by torchrun."""
    return Program(
        torchrun_command("scene")
        + python(os.path.join(SCENES, script), name),
        environment(
            COXSWAIN_COORDINATOR=coordinator.address,
            GLOO_SOCKET_IFNAME="lo", **more
        ),
    )


def named_in(output, what):
    """Returns the output of a rank once it had an error, and how many seconds
    after another one did something."""
    began = float(re.search(what + " (.*)", output).group(1))
    found = re.search("NAMED ([0-9.]+) .*", output)
    took = float(found.group(1)) - began
    print("%s was named after %.2f s" % (what, took))
    return found.group(), took


def named_after(ranks, what):
    """Returns the same of ranks that have it before them."""
    ranks.line("NAMED", timeout=120)
    return named_in(ranks.output, what)


class Serve:
    """A coordinator that may be killed, and started again as it was."""

    def __init__(self, *options):
        self._folder = tempfile.TemporaryDirectory()
        self.state = os.path.join(self._folder.name, "state")
        self._options = options
        self.address = "127.0.0.1:%d" % unused_port()
        self.start()

    def start(self):
        self._program = Program(
            [CLI, "serve", "--listen", self.address,
             "--state-dir", self.state, *self._options],
            environment(),
        )
        # It waits for its address to be free.
        self._program.line("listening", timeout=60)

    def kill(self):
        self._program.kill()
        self._program.__exit__()

    def kill_and_start(self):
        self.kill()
        self.start()

    def set_plan(self, job, *changes):
        with Program(
            [CLI, "plan", "set", job, *changes,
             "--coordinator", self.address, "--timeout", "30s"],
            environment(),
        ) as command:
            if command.end(60) != 0:
                raise AssertionError(command.output)

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self._program.__exit__()
        self._folder.cleanup()


class Scenes:
    """The output of ranks in each of several scenes of a script, which are one
    after the other in processes that are forked once torch is loaded."""

    def __init__(self, script, *names, ranks=2, **more):
        self._ranks = ranks
        with tempfile.TemporaryDirectory() as folder, scene(
            script, *names, ranks=ranks, SCENES_FOLDER=folder, **more
        ) as program:
            program.end()
            self._log = program.output
            self._outputs = {name: self._read(folder, name) for name in names}
            self._reduced = _reduced_in_cpp(folder)

    def _read(self, folder, name):
        output = ""
        for rank in range(self._ranks):
            try:
                with open(os.path.join(folder, "%s.%d" % (name, rank))) as file:
                    output += file.read()
            except FileNotFoundError:
                output += "rank %d did not come to %s: %s\n" % (
                    rank, name, self._log
                )
        return output

    def of(self, name, done=None):
        """Returns the output in a scene. Fails if it is not done by that many
        ranks, all by default."""
        output = self._outputs[name]
        if output.count("DONE") != (self._ranks if done is None else done):
            raise AssertionError(output)
        return output

    def named(self, name, done=None):
        """Returns the errors that ranks printed in a scene."""
        return re.findall("NAMED (.*)", self.of(name, done))

    def reduced_in_cpp(self, name):
        """Returns the hooks with which the reducer in C++ leaves the same bits
        as a scene has left, in the order of its recordings. Fails if it does
        not with one of them."""
        self.of(name)
        hooks = []
        for recording, output in sorted(self._reduced.items()):
            if recording.split("-")[0] != name:
                continue
            found = re.search("EQUAL in .* with (.*)", output)
            if found is None:
                raise AssertionError(recording + ": " + output)
            hooks.append(found.group(1))
        return hooks


def _reduced_in_cpp(folder):
    """Returns what reduce_in_cpp prints of each recording in a folder."""
    files = collections.defaultdict(list)
    for name in sorted(os.listdir(folder)):
        if name.endswith(".recording"):
            files[name.split(".")[0]].append(os.path.join(folder, name))
    return {
        recording: subprocess.run(
            [os.path.join(SCENES, "reduce_in_cpp"), *paths],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            timeout=60,
        ).stdout
        for recording, paths in files.items()
    }
