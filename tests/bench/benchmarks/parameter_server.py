"""The parameter-server mode against the collective one: exchanges of 5 MB of
gradients, each rank a process, all on one host. See docs/parameter-server.md."""

import parameter_jobs
from measure import Benchmark, Result, Row

ROUNDS = 5
WARM_UP = 1
STEPS = 10  # a sample
SIZES = (2, 4, 8)
HOOKS = {
    "allreduce": "allreduce",
    "powersgd": "powersgd(rank=2,start_step=2)",
}


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
        with parameter_jobs.Coordinator(
            context.coxswain
        ) as coordinator, parameter_jobs.job(
            context, coordinator, size, HOOKS[hook], "parameter_server"
        ) as ours, parameter_jobs.job(
            context, coordinator, size, HOOKS[hook], "tcp"
        ) as peer:
            for number in range(WARM_UP + rounds):
                context.progress("round %d of %d" % (number, rounds))
                for name, job in (("ours", ours), ("peer", peer)):
                    answers = job.ask(command)
                    if number < WARM_UP:
                        continue
                    steps[name].append(
                        parameter_jobs.steps_per_second(answers)
                    )
                    loads[name].append(
                        parameter_jobs.busiest_bytes(answers, name == "ours")
                        / 1e6
                    )
        return [
            Result(speed, steps["ours"], steps["peer"]),
            Result(load, loads["ours"], loads["peer"]),
        ]

    return Benchmark([speed, load], measure)


BENCHMARKS = [_compare(hook, size) for hook in HOOKS for size in SIZES]
