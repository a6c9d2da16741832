"""The parameter-server mode against the collective one: exchanges of 5 MB of
gradients, each rank a process, all on one host. See docs/parameter-server.md."""

import os
import shutil
import subprocess
import tempfile
import time

import ranks
from measure import Benchmark, Result, Row

ROUNDS = 5
WARM_UP = 1
STEPS = 10  # a sample
SIZES = (2, 4, 8)
HOOKS = {
    "allreduce": "allreduce",
    "powersgd": "powersgd(rank=2,start_step=2)",
}


class _Coordinator:
    """A context manager: one that serves, on a port of its own."""

    def __init__(self, coxswain):
        self._folder = tempfile.mkdtemp(prefix="coxswain-parameter-server-")
        port = os.path.join(self._folder, "port")
        self._process = subprocess.Popen(
            [coxswain, "serve", "--listen", "127.0.0.1:0", "--log-level"]
            + ["warning", "--state-dir", self._folder, "--port-file", port],
            stdout=subprocess.PIPE,
        )
        self._process.stdout.readline()  # its line that it listens
        with open(port) as file:
            self.address = "127.0.0.1:" + file.read().strip()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.terminate()
        self._process.wait()
        self._process.stdout.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def _job(context, coordinator, size, hook, backend):
    command = [context.parameter_worker, "--coordinator", coordinator.address]
    command += ["--backend", backend, "--hook", HOOKS[hook]]
    command += ["--job", "%s-%s-%d-%d" % (backend, hook, size, time.time_ns())]
    return ranks.Ranks(command, size=size)


def _compare(hook, size):
    of = "5 MB of gradients, hook %s, %d ranks on one host" % (hook, size)
    speed = Row(
        "parameter_server_steps_%s_%d" % (hook, size),
        "tcp",
        "steps/s",
        "exchanges of " + of,
        less_is_better=False,
    )
    load = Row(
        "parameter_server_bytes_%s_%d" % (hook, size),
        "tcp",
        "MB",
        "in and out of the busiest process, a step: the coordinator; the peer: "
        "a worker; " + of,
    )

    def measure(context):
        rounds = context.samples or ROUNDS
        command = "step %d" % STEPS
        steps = {"ours": [], "peer": []}
        loads = {"ours": [], "peer": []}
        with _Coordinator(context.coxswain) as coordinator, _job(
            context, coordinator, size, hook, "parameter_server"
        ) as ours, _job(context, coordinator, size, hook, "tcp") as peer:
            for number in range(WARM_UP + rounds):
                context.progress("round %d of %d" % (number, rounds))
                for name, job in (("ours", ours), ("peer", peer)):
                    answers = job.ask(command)
                    if number < WARM_UP:
                        continue
                    slowest = max(answer["median"] for answer in answers)
                    steps[name].append(1 / slowest)
                    # What these hooks send comes back as one sum of its size.
                    sent = [answer["sent"] for answer in answers]
                    busiest = sum(sent) if name == "ours" else max(sent)
                    loads[name].append(2 * busiest / 1e6)
        return [
            Result(speed, steps["ours"], steps["peer"]),
            Result(load, loads["ours"], loads["peer"]),
        ]

    return Benchmark([speed, load], measure)


BENCHMARKS = [_compare(hook, size) for hook in HOOKS for size in SIZES]
