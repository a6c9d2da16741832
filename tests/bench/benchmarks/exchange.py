"""25 M parameters on two ranks over our sockets, each a process: against
PyTorch's DistributedDataParallel over gloo, and with buckets of several sizes."""

import models
import ranks
from measure import Benchmark, Result, Row, milliseconds

ROUNDS = 21
WARM_UP = 4  # buckets are divided anew after the first step
GOAL = 1.15
ALL_REDUCED = 100 << 20
MIB = 1 << 20
# Of the perceptron: its backward pass takes several times its exchange.
ROWS = 16


def _take(context, asked, rounds):
    """Seconds by name; `asked` has ranks and a command for each, in turn."""
    wanted = context.samples or rounds
    times = {name: [] for name in asked}
    for number in range(WARM_UP + wanted):
        for name, (job, command) in asked.items():
            context.progress(
                "round %d of %d: %s" % (number + 1, WARM_UP + wanted, name)
            )
            seconds = job.slowest(command)
            if number >= WARM_UP:
                times[name].append(seconds)
    return times


def _less(times, step, compute):
    pairs = zip(times[step], times[compute])
    return [1e3 * (whole - part) for whole, part in pairs]


def _against_torch(suffix, how, options):
    def row(name, help_text, goal=None):
        return Row(
            name + suffix,
            "torch DistributedDataParallel",
            "ms",
            help_text,
            goal,
        )

    of = "of 25.6 M parameters (ResNet-50), 2 ranks over tcp, " + how
    exchange = row("ddp_exchange", "a step less its backward " + of, GOAL)
    step = row("ddp_step", "a backward pass with exchange " + of)
    compute = row("ddp_backward", "a backward pass without exchange " + of)

    def measure(context):
        arguments = ["--shapes", ranks.shapes_text(models.resnet50())] + options
        cores = context.cores
        with ranks.Ranks(
            ranks.ours(context.worker, *arguments), cores=cores
        ) as ours, ranks.Ranks(ranks.torch(*arguments), cores=cores) as peer:
            times = _take(
                context,
                {
                    "our backward": (ours, "compute"),
                    "their backward": (peer, "compute"),
                    "our step": (ours, "step"),
                    "their step": (peer, "step"),
                },
                ROUNDS,
            )
        return [
            Result(
                exchange,
                _less(times, "our step", "our backward"),
                _less(times, "their step", "their backward"),
            ),
            Result(
                step,
                milliseconds(times["our step"]),
                milliseconds(times["their step"]),
            ),
            Result(
                compute,
                milliseconds(times["our backward"]),
                milliseconds(times["their backward"]),
            ),
        ]

    return Benchmark([exchange, step, compute], measure)


ALL_REDUCE = Row(
    "ddp_allreduce",
    "torch all_reduce",
    "ms",
    "four all-reduces of 25 MiB, 2 ranks over tcp, without a reducer",
)


def measure_all_reduce(context):
    command = "allreduce %d" % ALL_REDUCED
    arguments = ["--shapes", "10"]
    with ranks.Ranks(
        ranks.ours(context.worker, *arguments), cores=context.cores
    ) as ours, ranks.Ranks(
        ranks.torch(*arguments), cores=context.cores
    ) as peer:
        times = _take(
            context, {"ours": (ours, command), "peer": (peer, command)}, ROUNDS
        )
    return [
        Result(
            ALL_REDUCE, milliseconds(times["ours"]), milliseconds(times["peer"])
        )
    ]


def buckets_command(mebibytes):
    """The first bucket is small, as always."""
    return "buckets %d %d" % (min(mebibytes, 1) * MIB, mebibytes * MIB)


def _buckets(sizes):
    rows = {
        size: Row(
            "buckets_%d" % size,
            "exchange after the backward",
            "ms",
            "a step with exchange during the backward pass, buckets of %d MiB, "
            "perceptron of 25 M parameters, 2 ranks over tcp" % size,
        )
        for size in sizes
    }

    def measure(context):
        results = []
        for size, row in rows.items():
            with ranks.Ranks(
                ranks.ours(context.worker, "--view", "--rows", str(ROWS)),
                cores=context.cores,
            ) as ours:
                ours.ask("step")
                ours.ask(buckets_command(size))
                times = _take(
                    context,
                    {
                        "during": (ours, "step"),
                        "after": (ours, "step_in_turn"),
                    },
                    7,
                )
            results.append(
                Result(
                    row,
                    milliseconds(times["during"]),
                    milliseconds(times["after"]),
                )
            )
        return results

    return Benchmark(list(rows.values()), measure)


BENCHMARKS = [
    *(
        _against_torch(suffix, how, options)
        for suffix, how, options in [
            ("", "gradients outside the buckets", []),
            ("_view", "gradients as views into the buckets", ["--view"]),
        ]
    ),
    Benchmark([ALL_REDUCE], measure_all_reduce),
    _buckets([1, 5, 25, 100]),
]
