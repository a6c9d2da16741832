"""Tensor parallelism: a column-parallel linear layer and a row-parallel one behind
it, forward and backward, against PyTorch's of DTensors over gloo. What it costs
to divide them is their time less that of ordinary layers of the sizes that a
rank has, in the same processes."""

import os
import sys

import ranks
from measure import Benchmark, Result, Row, milliseconds

ROUNDS = 15
WARM_UP = 2
PASSES = 20  # of each kind, in a round
WIDTH, INNER, ROWS = 1024, 4096, 64
COMMAND = "tensor_pair %d %d %d %d" % (WIDTH, INNER, ROWS, PASSES)
LEAST = 1  # us
SUBJECTS = ("shm", "tcp", "peer")

_OF = (
    "a forward and a backward pass of linear layers %d -> %d -> %d on %d rows, "
    "float32, "
) % (WIDTH, INNER, WIDTH, ROWS)
_PEER = "torch ColwiseParallel + RowwiseParallel"
OVERHEAD = Row(
    "tensor_pair_overhead",
    _PEER,
    "us",
    _OF + "divided among 2 ranks of one host, less the same without "
    "collectives; ours over shm, theirs over gloo",
    goal=3,
)
OVERHEAD_TCP = Row(
    "tensor_pair_overhead_tcp",
    _PEER,
    "us",
    "the same with ours over tcp",
)
PAIR = Row(
    "tensor_pair",
    _PEER,
    "ms",
    _OF + "divided among 2 ranks of one host; ours over shm, theirs over gloo",
)
LOCAL = Row(
    "tensor_pair_local",
    "torch Linear",
    "ms",
    _OF + "with the half of the inner features, without collectives, on both "
    "cores at once",
)


def _times(job):
    """Seconds by kind, of the rank that took longest."""
    answers = job.ask(COMMAND)
    return {
        kind: max(answer[kind] for answer in answers)
        for kind in ("pair", "local")
    }


def _less(times):
    """Microseconds; a difference of two times may be less than they vary by."""
    return [
        max(LEAST, 1e6 * (each["pair"] - each["local"])) for each in times
    ]


def measure(context):
    def ours(backend):
        return ranks.Ranks(
            ranks.ours(context.worker, "--backend", backend, "--shapes", "10"),
            cores=context.cores,
        )

    rounds = context.samples or ROUNDS
    peer = os.path.join(ranks.FOLDER, "torch_tensor.py")
    taken = {name: [] for name in SUBJECTS}
    with ours("shm") as shm, ours("tcp") as tcp, ranks.Ranks(
        ["env", "GLOO_SOCKET_IFNAME=lo", sys.executable, peer],
        cores=context.cores,
    ) as torch:
        jobs = {"shm": shm, "tcp": tcp, "peer": torch}
        for number in range(WARM_UP + rounds):
            for name, job in jobs.items():
                context.progress(
                    "round %d of %d: %s" % (number + 1, WARM_UP + rounds, name)
                )
                times = _times(job)
                if number >= WARM_UP:
                    taken[name].append(times)

    def result(row, kind):
        return Result(
            row,
            *(
                milliseconds([times[kind] for times in taken[name]])
                for name in ("shm", "peer")
            ),
        )

    return [
        Result(OVERHEAD, _less(taken["shm"]), _less(taken["peer"])),
        Result(OVERHEAD_TCP, _less(taken["tcp"]), _less(taken["peer"])),
        result(PAIR, "pair"),
        result(LOCAL, "local"),
    ]


BENCHMARKS = [Benchmark([OVERHEAD, OVERHEAD_TCP, PAIR, LOCAL], measure)]
