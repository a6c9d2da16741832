"""Shared memory against Gloo by itself, on one host: all-reduces of float32
alone, each rank a process; ours in memory that the back end allocated.

`shm_channel_*`: a block through a channel of two slots to the other rank and
back, of which each way is half; against the most that it may take, and against
a message, whose memory is made for it."""

import ranks
from measure import Benchmark, Result, Row

ROUNDS = 15
WARM_UP = 2
KIB = 1 << 10
MIB = 1 << 20
# (ranks, bytes, name, all-reduces a sample, at least so many times Gloo)
SIZES = [
    (2, 4 * KIB, "4k", 300, 20),
    (2, 1 * MIB, "1m", 40, None),
    (2, 64 * MIB, "64m", 3, 4),
    (4, 4 * KIB, "4k", 60, 5),
    (4, 1 * MIB, "1m", 20, 5),
    (4, 64 * MIB, "64m", 3, 4),
]
FLOOR_BYTES = 64 * MIB
FLOOR_GOAL = 0.7


def _row(size, name, goal):
    return Row(
        "shm_allreduce_%s_%d" % (name, size),
        "gloo",
        "us",
        "an all-reduce of %s bytes of float32, %d ranks on one host"
        % (name, size),
        goal,
    )


FLOOR = Row(
    "shm_floor_64m_2",
    "copying",
    "us",
    "an all-reduce of 64m bytes, 2 ranks on one host, against the time in which "
    "both copy as much at once: the least traffic that it can have",
    FLOOR_GOAL,
)


def _microseconds(values):
    return [1e6 * value for value in values]


def _compare(size):
    sizes = [one for one in SIZES if one[0] == size]
    rows = {one[2]: _row(size, one[2], one[4]) for one in sizes}

    def measure(context):
        rounds = context.samples or ROUNDS
        ours = {name: [] for name in rows}
        theirs = {name: [] for name in rows}
        copies = []
        with ranks.communicator(
            context, size, "shm"
        ) as shm, ranks.communicator(context, size, "gloo") as gloo:
            for number in range(WARM_UP + rounds):
                context.progress(
                    "round %d of %d" % (number + 1, WARM_UP + rounds)
                )
                keep = number >= WARM_UP
                for _, bytes_, name, count, _ in sizes:
                    command = "allreduce %d %d" % (bytes_, count)
                    mine = shm.slowest(command, "median")
                    other = gloo.slowest(
                        "allreduce %d %d" % (bytes_, max(count // 10, 3)),
                        "median",
                    )
                    if keep:
                        ours[name].append(mine)
                        theirs[name].append(other)
                if size == 2:
                    copied = shm.slowest("copy %d 3" % FLOOR_BYTES, "median")
                    if keep:
                        copies.append(copied)
        results = [
            Result(row, _microseconds(ours[name]), _microseconds(theirs[name]))
            for name, row in rows.items()
        ]
        if size == 2:
            results.append(
                Result(
                    FLOOR, _microseconds(ours["64m"]), _microseconds(copies)
                )
            )
        return results

    return Benchmark(
        list(rows.values()) + ([FLOOR] if size == 2 else []), measure
    )


# (bytes, name, blocks a sample, at most so many us)
BLOCKS = [(4 * KIB, "4k", 200, 30.0), (4 * MIB, "4m", 20, 1200.0)]


def _channels():
    of = "a block of %s bytes, one way, 2 ranks on one host"
    limits = {
        name: Row("shm_channel_" + name, "limit", "us", of % name, 1)
        for _, name, _, _ in BLOCKS
    }
    messages = {
        name: Row("shm_channel_%s_message" % name, "message", "us", of % name)
        for _, name, _, _ in BLOCKS
    }

    def measure(context):
        rounds = context.samples or ROUNDS
        ours = {name: [] for name in limits}
        theirs = {name: [] for name in limits}
        with ranks.communicator(context, 2, "shm") as shm:
            for number in range(WARM_UP + rounds):
                context.progress(
                    "round %d of %d" % (number + 1, WARM_UP + rounds)
                )
                for bytes_, name, count, _ in BLOCKS:
                    mine = shm.slowest("channel %d %d" % (bytes_, count), "median")
                    other = shm.slowest("message %d %d" % (bytes_, count), "median")
                    if number >= WARM_UP:
                        ours[name].append(mine)
                        theirs[name].append(other)
        results = []
        for _, name, _, most in BLOCKS:
            mine = _microseconds(ours[name])
            results.append(Result(limits[name], mine, [most] * len(mine)))
            results.append(
                Result(messages[name], mine, _microseconds(theirs[name]))
            )
        return results

    return Benchmark(list(limits.values()) + list(messages.values()), measure)


BENCHMARKS = [_compare(2), _compare(4), _channels()]
