"""Coxswain: a coordinator, and a launcher for each worker, as on N hosts."""

import os
import time

from failures.job import FOLDER, Job, children, unused_port, worker

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(FOLDER)))

SETTINGS = {
    "default": {},
    # What a job that wants to notice stopped workers soon sets.
    "tuned": {
        "serve": ["--last-call", "500ms"],
        "run": ["--plan", "stall_timeout=1s"],
    },
    # Coxswain exchanges in place of torch.
    "own exchange": {"worker": ["--exchange", "coxswain"]},
}


class CoxswainJob(Job):
    NAME = "Coxswain"

    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        self._address = "127.0.0.1:%d" % unused_port()
        self._coordinator = None

    def start_coordinator(self):
        self._coordinator = self.begin(
            [self.tools["coxswain"], "serve", "--listen", self._address,
             "--state-dir", os.path.join(self.folder, "state"),
             "--log-level", "info", *self.settings.get("serve", [])],
            "coordinator",
        )

    def kill_coordinator(self):
        self._end(self._coordinator)

    def spawn_slot(self, i):
        return self.begin(
            [self.tools["coxswain"], "run", "--coordinator", self._address,
             "--job", "recovery", "--node", "n%d" % i, "--nproc", "1",
             "--nnodes", "%d:%d" % (self.least, self.ranks), "--no-prefix",
             *self.settings.get("run", []), "--",
             *self.tools["python_workers"].prefix, worker("coxswain_worker.py"),
             "--slot", str(i), "--steps-log", self.log_path,
             "--step-ms", str(self.step_ms), *self.settings.get("worker", [])],
            "slot%d" % i,
            {
                **self.tools["python_workers"].environment,
                "COXSWAIN_LIBRARY": self.tools["c_library"],
                "PYTHONPATH": os.path.join(ROOT, "python"),
            },
        )

    def stand_ins(self, i):
        return children(self.slots[i].process.pid)

    def _end(self, process):
        # A launcher whose worker was killed reports that, and ends by itself:
        # what it reports is to arrive.
        deadline = time.monotonic() + 5
        while (
            process is not self._coordinator
            and not self._closing
            and process.poll() is None
            and time.monotonic() < deadline
        ):
            time.sleep(0.01)
        super()._end(process)

    _closing = False

    def close(self):
        self._closing = True
        super().close()
