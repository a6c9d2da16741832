"""Our sockets against Gloo and against two raw sockets: all-reduces of float32
alone, two ranks over loopback, each a process."""

import ranks
from measure import Benchmark, Result, Row

ROUNDS = 15
WARM_UP = 2
KIB = 1 << 10
MIB = 1 << 20
# (bytes, name, all-reduces a sample, at least so many times Gloo)
SIZES = [
    (4 * KIB, "4k", 300, None),
    (64 * KIB, "64k", 200, None),
    (1 * MIB, "1m", 40, None),
    (64 * MIB, "64m", 3, 1.15),
]
# At most 1.2 times as long as the bytes alone.
RAW_GOALS = {"64m": 1 / 1.2}

GLOO = {
    name: Row(
        "tcp_allreduce_%s_2" % name,
        "gloo",
        "us",
        "an all-reduce of %s bytes of float32, 2 ranks over loopback" % name,
        goal,
    )
    for _, name, _, goal in SIZES
}
RAW = {
    name: Row(
        "tcp_raw_%s_2" % name,
        "raw sockets",
        "us",
        "the same, against two sockets that exchange as many bytes",
        RAW_GOALS.get(name),
    )
    for _, name, _, _ in SIZES
}


def _job(context, backend):
    cores = context.cores if len(context.cores or []) >= 2 else None
    return ranks.Ranks(
        [context.comm_worker, "--backend", backend], size=2, cores=cores
    )


def measure(context):
    rounds = context.samples or ROUNDS
    ours = {name: [] for name in GLOO}
    gloos = {name: [] for name in GLOO}
    raws = {name: [] for name in GLOO}
    with _job(context, "tcp") as tcp, _job(context, "gloo") as gloo:
        for number in range(WARM_UP + rounds):
            context.progress("round %d of %d" % (number + 1, WARM_UP + rounds))
            for bytes_, name, count, _ in SIZES:
                fewer = max(count // 10, 3)
                samples = [
                    tcp.slowest("allreduce %d %d" % (bytes_, count), "median"),
                    gloo.slowest("allreduce %d %d" % (bytes_, fewer), "median"),
                    tcp.slowest("exchange %d %d" % (bytes_, count), "median"),
                ]
                if number < WARM_UP:
                    continue
                for kept, sample in zip((ours, gloos, raws), samples):
                    kept[name].append(1e6 * sample)
    return [
        Result(row, ours[name], peers[name])
        for rows, peers in ((GLOO, gloos), (RAW, raws))
        for name, row in rows.items()
    ]


BENCHMARKS = [Benchmark(list(GLOO.values()) + list(RAW.values()), measure)]
