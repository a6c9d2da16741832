"""What torchrun_test runs: a coordinator, and torchrun."""

import os
import signal
import tempfile

import torch_ranks
from program import Program
from torch_python import torch_python

WORKER = os.path.abspath("tests/python/torchrun_worker.py")

# As the wheel has it.
_ENTRY_POINTS = """[torchrun.handlers]
coxswain = coxswain.torch.rendezvous:creator
"""


def environment(**more):
    """This process's, without what Coxswain finds a job by."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("COXSWAIN_")
    }
    return dict(kept, **more)


class Scene:
    """A coordinator, and a folder with what its workers write.

    At the end, workers that are still there are killed.
    """

    def __init__(self):
        self._temporary = tempfile.TemporaryDirectory()
        self.folder = self._temporary.name
        self._install()
        self.address = "127.0.0.1:0"
        self.start_coordinator()

    def start_coordinator(self):
        """Starts it, with the state and at the port of the one before."""
        self._coordinator = Program(
            [os.path.abspath("cli/coxswain"), "serve",
             "--listen", self.address,
             "--state-dir", os.path.join(self.folder, "state")],
            environment(),
        )
        self.address = self._coordinator.line(
            r"listening on ([0-9.:]+)", timeout=30
        ).group(1)

    def kill_coordinator(self):
        self._coordinator.kill()

    def _install(self):
        """Makes the folder that a wheel would bring the entry point in."""
        info = os.path.join(self.folder, "site", "coxswain-0.dist-info")
        os.makedirs(info)
        with open(os.path.join(info, "METADATA"), "w") as file:
            file.write("Metadata-Version: 2.1\nName: coxswain\nVersion: 0\n")
        with open(os.path.join(info, "entry_points.txt"), "w") as file:
            file.write(_ENTRY_POINTS)

    def torchrun(self, *options, how, **more):
        """Starts torchrun over torchrun_worker.py, which finds torch loaded."""
        worker = torch_ranks.python(WORKER, how, self.folder)
        return Program(
            [torch_python(), "-m", "torch.distributed.run",
             "--monitor-interval", "0.1", *options, "--no-python", *worker],
            environment(
                PRELOADED=torch_ranks.environment()["PRELOADED"],
                COXSWAIN_LIBRARY=os.path.abspath("capi/libcoxswain_c.so"),
                PYTHONPATH=os.pathsep.join(
                    [os.path.abspath("python"),
                     os.path.join(self.folder, "site")]
                ),
                PYTHONDONTWRITEBYTECODE="1",
                # Gloo looks the host's own name up otherwise.
                GLOO_SOCKET_IFNAME="lo",
                OMP_NUM_THREADS="1",
                **more,
            ),
        )

    def agent(self, name, *options, how, **more):
        """Starts an agent of torchrun that meets others at the coordinator."""
        return self.torchrun(
            "--rdzv-backend", "coxswain", "--rdzv-endpoint", self.address,
            "--rdzv-id", name, "--nproc-per-node", "1", *options, how=how,
            **more,
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
        with open("/proc/%d/comm" % pid) as file:
            return file.read() == "torchrun_worker\n"
    except (FileNotFoundError, ProcessLookupError):
        return False
