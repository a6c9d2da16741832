"""ZeRO-1: a step of training with a sharded Adam, and what it sends, against
PyTorch's ZeroRedundancyOptimizer."""

import subprocess

import hosts
import ranks
from measure import Benchmark, Result, Row, milliseconds

ROUNDS = 15
WARM_UP = 3
LAYERS, WIDTH, ROWS = 16, 1024, 8
MODEL = 4 * LAYERS * (WIDTH * WIDTH + WIDTH)
WIRE_STEPS = 5
WIRE_ROUNDS = 3
# Without it gloo looks for an address of the host's name.
LOOPBACK = ["env", "GLOO_SOCKET_IFNAME=lo"]

_OF = (
    "16.8 M parameters (perceptron), 8 samples: forward, backward, exchange, "
    "Adam; 2 ranks on one host, "
)
STEP = Row(
    "zero1_step",
    "torch DDP + ZeroRedundancyOptimizer",
    "ms",
    "a step of %sour shm, their gloo" % _OF,
    goal=1 / 0.65,
)
STEP_WHOLE = Row(
    "zero1_step_whole",
    "zero=0",
    "ms",
    "a step of %sover shm, with Adam sharded and not" % _OF,
    goal=1.25,
)
WIRES = {
    size: Row(
        "zero1_wire_%d" % size,
        "torch DDP + ZeroRedundancyOptimizer",
        "models",
        "what a step of it sends for each of %d ranks, over tcp, in sizes of "
        "the model, as the loopback device counts" % size,
        goal=1 / 0.7,
    )
    for size in (2, 4)
}


def _network():
    return [
        *("--layers", str(LAYERS), "--width", str(WIDTH)),
        *("--rows", str(ROWS), "--view"),
    ]


def _zero(stage):
    return ["--zero", str(stage)]


def measure_step(context):
    def ours(stage):
        return ranks.Ranks(
            ranks.ours(
                context.worker,
                *("--backend", "shm", *_network(), *_zero(stage)),
            ),
            cores=context.cores,
        )

    wanted = context.samples or ROUNDS
    with ours(1) as sharded, ours(0) as whole, ranks.Ranks(
        ranks.torch(*_network(), *_zero(1)), cores=context.cores
    ) as peer:
        subjects = {"sharded": sharded, "whole": whole, "peer": peer}
        times = {name: [] for name in subjects}
        for number in range(WARM_UP + wanted):
            for name, job in subjects.items():
                context.progress(
                    "round %d of %d: %s" % (number + 1, WARM_UP + wanted, name)
                )
                seconds = job.slowest("train")
                if number >= WARM_UP:
                    times[name].append(seconds)
    own = milliseconds(times["sharded"])
    return [
        Result(STEP, own, milliseconds(times["peer"])),
        Result(STEP_WHOLE, own, milliseconds(times["whole"])),
    ]


def _sent(host):
    """Bytes that the loopback device of that host has sent."""
    table = subprocess.run(
        host.within() + ["cat", "/proc/net/dev"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    line = next(l for l in table.splitlines() if l.strip().startswith("lo:"))
    return int(line.split(":")[1].split()[8])


def _models(job, host, size, rounds):
    """Sizes of the model that a step sends for each rank, by round."""
    job.ask("train")  # in which the ranks compare what they have
    result = []
    for _ in range(rounds):
        before = _sent(host)
        for _ in range(WIRE_STEPS):
            job.ask("train")
        sent = _sent(host) - before
        result.append(sent / WIRE_STEPS / size / MODEL)
    return result


def _wire(size):
    def measure(context):
        rounds = context.samples or WIRE_ROUNDS
        taken = []
        with hosts.alone() as host:
            for command in (
                ranks.ours(context.worker, *_network(), *_zero(1)),
                ranks.torch(*_network(), *_zero(1)),
            ):
                with ranks.Ranks(
                    command,
                    size=size,
                    cores=context.cores,
                    prefix=lambda rank: host.within() + LOOPBACK,
                ) as job:
                    taken.append(_models(job, host, size, rounds))
        return [Result(WIRES[size], *taken)]

    return Benchmark([WIRES[size]], measure)


BENCHMARKS = [
    Benchmark([STEP, STEP_WHOLE], measure_step),
    _wire(2),
    _wire(4),
]
