"""A step of a pipeline whose stages sleep, against torch.distributed.pipelining
and against the formula of its schedule: 4 processes, 8 micro-batches, 5 ms
forward and 10 ms backward, 1024 elements between stages. They share no core by
sleeping, so that bubbles show on any machine."""

import os
import sys

import ranks
from measure import Benchmark, Result, Row, milliseconds

ROUNDS = 7
WARM_UP = 1
RANKS, MICRO_BATCHES, ELEMENTS = 4, 8, 1024
FORWARD, BACKWARD = 5000, 10000  # us
STEPS = 3
# (our name, the schedule, what the formula gives in ms, at least so many times
# as fast as torch)
SCHEDULES = [
    ("gpipe", "gpipe", 165.0, 1.1),
    ("1f1b", "1f1b", 165.0, 1.05),
    ("interleaved", "interleaved(chunks=2)", 142.5, 1.3),
]
FORMULA_GOAL = 1 / 1.1

_OF = (
    "a step of %s, 4 processes that sleep 5 ms forward and 10 ms backward for "
    "each of 8 micro-batches; "
)


def _rows():
    rows = []
    for name, _, _, goal in SCHEDULES:
        rows.append(
            Row(
                "pipeline_" + name,
                "torch.distributed.pipelining",
                "ms",
                _OF % name + "ours over shm, their gloo",
                goal,
            )
        )
        rows.append(
            Row(
                "pipeline_%s_formula" % name,
                "its formula",
                "ms",
                _OF % name + "without transfers",
                FORMULA_GOAL,
            )
        )
    return rows


ROWS = _rows()


def measure(context):
    rounds = context.samples or ROUNDS
    peer = os.path.join(ranks.FOLDER, "torch_pipeline.py")
    ours = {name: [] for name, _, _, _ in SCHEDULES}
    theirs = {name: [] for name, _, _, _ in SCHEDULES}
    with ranks.communicator(context, RANKS, "shm") as mine, ranks.Ranks(
        ["env", "GLOO_SOCKET_IFNAME=lo", sys.executable, peer],
        size=RANKS,
        cores=context.cores,
    ) as torch:
        for number in range(WARM_UP + rounds):
            context.progress(
                "round %d of %d" % (number + 1, WARM_UP + rounds)
            )
            for name, schedule, _, _ in SCHEDULES:
                command = "pipeline %s %d %d %d %d %d" % (
                    *(schedule, MICRO_BATCHES, FORWARD, BACKWARD),
                    *(ELEMENTS, STEPS),
                )
                own = mine.slowest(command, "median")
                other = torch.slowest(command, "median")
                if number >= WARM_UP:
                    ours[name].append(own)
                    theirs[name].append(other)
    results = []
    for number, (name, _, formula, _) in enumerate(SCHEDULES):
        own = milliseconds(ours[name])
        results.append(
            Result(ROWS[2 * number], own, milliseconds(theirs[name]))
        )
        results.append(
            Result(ROWS[2 * number + 1], own, [formula] * len(own))
        )
    return results


BENCHMARKS = [Benchmark(ROWS, measure)]
