"""torchrun: an agent that starts all workers, and all anew when one fails.

Its rendezvous store is a process of its own, so that it can be killed alone: an
agent that loses it ends, and is started again. A newcomer is the worker of a
second agent, --nnodes 1:2.
"""

import os

from failures.job import Job, unused_port, worker

SETTINGS = {
    "default": {},
    # By default workers meet over a store that outlives them, whose keys have,
    # by the source of torch 2.15, no number of the restart: those that start
    # anew may find the addresses of those before ("Connection refused").
    # A worker that does not end by SIGTERM, such as a stopped one, is killed
    # 30 s later: --shutdown-timeout is not for restarts, by the same source.
    "tuned": {
        "environment": {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
        "agent": ["--monitor-interval", "0.01"],
        "rendezvous": "last_call_timeout=1",
        "worker": ["--group-timeout-ms", "1000"],
    },
}

class TorchrunJob(Job):
    NAME = "torchrun"
    RESTARTS_ITSELF = True

    def __init__(self, *arguments, two_agents=False, **named):
        """two_agents: the last slot has an agent of its own."""
        super().__init__(*arguments, **named)
        self._port = unused_port()
        self._coordinator = None
        self._two = two_agents
        self._first = None  # the agent of all slots, or of all but the last

    def start_coordinator(self):
        # That loading torch takes so long is not the store's.
        store = self.tools["torchrun_store"]
        self._coordinator = self.begin(
            [*store.prefix, worker("torchrun_store.py"), str(self._port)],
            "coordinator", store.environment,
        )

    def kill_coordinator(self):
        self._end(self._coordinator)

    def start(self):
        self.start_coordinator()
        self._start_agent()
        if self._two:
            self.start_slot(self.ranks - 1)

    def spawn_slot(self, i):
        """Only of the second agent's worker."""
        return self._agent(i, 1)

    def strike(self, i, signal_number):
        super().strike(i, signal_number)
        if self.slots[i].process is not None:
            # The newcomer leaves with its agent, as a host would.
            self._end(self.slots[i].process)
            self.slots[i].process = None
        else:
            self._absent.discard(i)

    @property
    def has_newcomers(self):
        return self._two

    def newcomers(self, rng):
        return [self.ranks - 1]

    def bring_back(self, i):
        if self._two and i == self.ranks - 1:
            self.start_slot(i)

    def poll(self, *arguments):
        super().poll(*arguments)
        agents = {0: self._first}
        for i, slot in enumerate(self.slots):
            if slot.process is not None and i not in self._absent:
                agents[i] = slot.process
        for i, agent in agents.items():
            if agent is None or agent.poll() is None:
                continue
            self.unexpected.append(
                "the agent of slot %d ended with %d: %s" % (
                    i, agent.returncode,
                    _last_error(self.output("agent%d" % i)),
                )
            )
            if i == 0:
                self._start_agent()
            else:
                self.start_slot(i)

    def _start_agent(self):
        if self._first is not None:
            self._end(self._first)
        self._first = self._agent(0, self.ranks - 1 if self._two else self.ranks)

    def _agent(self, first, count):
        conf = ["is_host=false", "read_timeout=60"]
        if self.settings.get("rendezvous"):
            conf.append(self.settings["rendezvous"])
        return self.begin(
            [self.tools["python"], "-m", "torch.distributed.run",
             "--nnodes", "1:2" if self._two else "1",
             "--nproc-per-node", str(count), "--max-restarts", "100000",
             "--rdzv-backend", "c10d", "--rdzv-id", "recovery",
             "--rdzv-endpoint", "127.0.0.1:%d" % self._port,
             "--rdzv-conf", ",".join(conf),
             *self.settings.get("agent", []),
             worker("torchrun_worker.py"), "--steps-log", self.log_path,
             "--step-ms", str(self.step_ms),
             "--checkpoint", os.path.join(self.folder, "checkpoint"),
             *self.settings.get("worker", [])],
            "agent%d" % first,
            {"FIRST_SLOT": str(first), **self.settings.get("environment", {})},
        )


def _last_error(output):
    lines = [one for one in output.splitlines() if "rror" in one]
    return lines[-1][-200:] if lines else "no error in its output"
