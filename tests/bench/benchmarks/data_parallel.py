"""Three ways of data parallelism in one run, for the same 5 MB of gradients: one
process that has everything, as torch.nn.DataParallel (DP); an all-reduce among
the ranks, as DistributedDataParallel (DDP); and the coordinator (parameter
server). Each rank is a process; nothing is computed but sums. See
docs/parameter-server.md."""

import hosts as networks
import parameter_jobs
from measure import Benchmark, Result, Row

ROUNDS = 5
WARM_UP = 1
STEPS = 10  # a sample
SIZES = (2, 4, 8)
STEP = "step %d" % STEPS
GATHERED = "gathered %d" % STEPS
HOOK = "allreduce"
RATE = "1gbit"

_OF = "steps of 5 MB of gradients, %d ranks: an all-reduce over shm, against "


def _row(name, size, peer, what, **more):
    return Row(
        "data_parallel_%s_%d" % (name, size),
        peer,
        "steps/s",
        _OF % size + what,
        less_is_better=False,
        **more,
    )


def _rounds(context, subjects):
    """The ranks' answers by name; subjects have a job and a command, in turn."""
    rounds = WARM_UP + (context.samples or ROUNDS)
    taken = {name: [] for name in subjects}
    for number in range(rounds):
        for name, (job, command) in subjects.items():
            context.progress("round %d of %d: %s" % (number, rounds, name))
            answers = job.ask(command)
            if number >= WARM_UP:
                taken[name].append(answers)
    return taken


def _speeds(taken):
    return [parameter_jobs.steps_per_second(answers) for answers in taken]


def _on_one_host(size):
    gathered = _row(
        "gathered",
        size,
        "DP over shm",
        "rank 0 that sends inputs and parameters, and gathers outputs and "
        "gradients, over shm",
        # The guide's order where links are fast.
        goal=1,
    )
    server = _row(
        "server", size, "parameter server", "the sum through the coordinator"
    )
    sockets = _row("tcp", size, "DDP over tcp", "the same over tcp")
    load = Row(
        "data_parallel_bytes_%d" % size,
        "DP",
        "MB",
        "in and out of the busiest process in a step of 5 MB of gradients, %d "
        "ranks: of an all-reduce over tcp a rank; the peer: rank 0" % size,
    )

    def measure(context):
        with parameter_jobs.Coordinator(context.coxswain) as coordinator:

            def job(backend):
                return parameter_jobs.job(
                    context, coordinator, size, HOOK, backend
                )

            with job("shm") as shm, job("tcp") as tcp, job(
                "parameter_server"
            ) as through:
                taken = _rounds(
                    context,
                    {
                        "ddp": (shm, STEP),
                        "dp": (shm, GATHERED),
                        "tcp": (tcp, STEP),
                        "server": (through, STEP),
                    },
                )
        own = _speeds(taken["ddp"])
        return [
            Result(gathered, own, _speeds(taken["dp"])),
            Result(server, own, _speeds(taken["server"])),
            Result(sockets, own, _speeds(taken["tcp"])),
            Result(
                load,
                [
                    parameter_jobs.busiest_bytes(answers) / 1e6
                    for answers in taken["tcp"]
                ],
                [
                    max(answer["moved"] for answer in answers) / 1e6
                    for answers in taken["dp"]
                ],
            ),
        ]

    return Benchmark([gathered, server, sockets, load], measure)


SLOW = Row(
    "data_parallel_slow_link_2",
    "DDP over 1 Gbit/s",
    "steps/s",
    "steps of 5 MB of gradients, 2 ranks: rank 0 that gathers everything, over "
    "shm, against an all-reduce over a link of 1 Gbit/s",
    # The guide's order where links are slow.
    goal=1,
    less_is_better=False,
)


def measure_slow_link(context):
    with networks.cable(RATE) as hosts, parameter_jobs.Coordinator(
        context.coxswain
    ) as here, parameter_jobs.Coordinator(
        context.coxswain, hosts[0]
    ) as there, parameter_jobs.job(
        context, here, 2, HOOK, "shm"
    ) as near, parameter_jobs.job(
        context,
        there,
        2,
        HOOK,
        "tcp",
        prefix=lambda rank: hosts[rank].within(),
        arguments=lambda rank: ["--address", hosts[rank].address],
    ) as far:
        taken = _rounds(context, {"dp": (near, GATHERED), "ddp": (far, STEP)})
    return [Result(SLOW, _speeds(taken["dp"]), _speeds(taken["ddp"]))]


BENCHMARKS = [
    *(_on_one_host(size) for size in SIZES),
    Benchmark([SLOW], measure_slow_link),
]
