"""torchft: a lighthouse, and a replica group of one process for each slot."""

from failures.job import Job, unused_port, worker

SETTINGS = {
    # Those of the lighthouse program, and of torchft's example train_ddp.py.
    # Without a lighthouse its replicas do nothing for a minute, and end.
    "default": {"at_once": 6},
    # The lowest at which it still trained: heartbeats, and Gloo's timeout.
    "tuned": {
        "lighthouse": [
            "--heartbeat_timeout_ms", "100", "--quorum_tick_ms", "5",
        ],
        "worker": [
            "--heartbeat-ms", "20", "--group-timeout-ms", "500",
            "--timeout-ms", "1000", "--connect-timeout-ms", "10000",
            "--quorum-timeout-ms", "10000", "--quorum-retries", "20",
        ],
    },
    "DistributedDataParallel": {"worker": ["--sync", "ddp"]},
}


class TorchftJob(Job):
    NAME = "torchft"
    # A lighthouse that starts again numbers quorums anew, and replicas, whose
    # stores have the addresses of quorums before by these numbers, try one
    # after the other: each such failure would last longer than the one before.
    ANEW_AFTER = ("coordinator", "both")

    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        self._port = unused_port()
        self._coordinator = None

    def start_coordinator(self):
        self._coordinator = self.begin(
            [self.tools["torchft_python"], worker("torchft_lighthouse.py"),
             "--bind", "[::]:%d" % self._port,
             "--min_replicas", str(self.least),
             *_defaults(self.settings.get("lighthouse", []))],
            "coordinator",
        )

    def kill_coordinator(self):
        self._end(self._coordinator)

    def spawn_slot(self, i):
        return self.begin(
            [*self.tools["torchft_workers"].prefix, worker("torchft_worker.py"),
             "--slot", str(i), "--steps-log", self.log_path,
             "--step-ms", str(self.step_ms),
             "--min-replicas", str(self.least),
             "--lighthouse", "http://localhost:%d" % self._port,
             *self.settings.get("worker", [])],
            "slot%d" % i,
            self.tools["torchft_workers"].environment,
        )

    def stand_ins(self, i):
        return [self.slots[i].process.pid]


def _defaults(given):
    """Returns the lighthouse's options: its own defaults, said again, so that
    they are seen in the list of processes, and what is given."""
    defaults = {
        "--join_timeout_ms": "60000",
        "--quorum_tick_ms": "100",
        "--heartbeat_timeout_ms": "5000",
    }
    defaults.update(zip(given[::2], given[1::2]))
    return [word for pair in defaults.items() for word in pair]
