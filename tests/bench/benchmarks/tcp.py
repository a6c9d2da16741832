"""Our sockets against Gloo by itself, PyTorch's gloo and two raw sockets:
collectives of float32 alone, over loopback, each rank a process. What
encryption costs, and what finding the order of a ring takes.

`tcp_tls_*`: in an all-reduce of two ranks each sends as many bytes as it has,
and receives as many; with TLS it encrypts the ones and decrypts the others. The
AES limit is that work alone, of one rank on its own core while the other one
does the same on its own: OpenSSL's EVP interface, the cipher of the back end's
TLS (AES-128-GCM), records of 16 KiB, from the memory of the one buffer to that
of another. `tcp_tls_*` is against the slower of plain connections and the
limit; `tcp_tls_sum_*` against the time of both, as each rank has one core, on
which one follows the other. All three are measured in turns."""

import contextlib
import statistics

import ranks
from measure import Benchmark, Result, Row

ROUNDS = 15
WARM_UP = 2
KIB = 1 << 10
MIB = 1 << 20
# (ranks, bytes, name, calls a sample, at least so many times Gloo)
SIZES = [
    (2, 4 * KIB, "4k", 300, None),
    (2, 64 * KIB, "64k", 200, None),
    (2, 1 * MIB, "1m", 40, None),
    (2, 64 * MIB, "64m", 3, 1.15),
    (4, 4 * KIB, "4k", 60, 20),
    (4, 1 * MIB, "1m", 20, 4),
    (4, 64 * MIB, "64m", 3, 1.5),
]
# Of two ranks: at most 1.2 times as long as the bytes alone.
RAW_GOALS = {"64m": 1 / 1.2}
# Against PyTorch: (ranks, call, bytes, name, calls a sample, goal).
TORCH = [
    (2, "allreduce", 4 * KIB, "4k", 300, 2),
    (2, "allreduce", 64 * KIB, "64k", 200, 2),
    (2, "allreduce", 64 * MIB, "64m", 3, 1.15),
    (2, "reducescatter", 16 * MIB, "16m", 9, 1.8),
    (4, "allreduce", 4 * KIB, "4k", 60, 20),
    (4, "allreduce", 1 * MIB, "1m", 20, 4),
    (4, "allreduce", 64 * MIB, "64m", 3, 1.5),
]

# (hosts, rings a sample, at most so many us)
RINGS = [(12, 20, 100e3), (256, 5, 1e6)]

WORDS = {"allreduce": "an all-reduce", "reducescatter": "a reduce-scatter"}


def _of_peers(peers, job_of):
    """Measures rows; `peers` has (row, name of a job, our command, the peer's)
    for each, and `job_of` makes the job of a name. "tcp" is ours."""

    def measure(context):
        rounds = context.samples or ROUNDS
        ours = [[] for _ in peers]
        theirs = [[] for _ in peers]
        names = sorted({"tcp"} | {name for _, name, _, _ in peers})
        with contextlib.ExitStack() as stack:
            jobs = {
                name: stack.enter_context(job_of(context, name))
                for name in names
            }
            for number in range(WARM_UP + rounds):
                context.progress(
                    "round %d of %d" % (number + 1, WARM_UP + rounds)
                )
                for i, (_, name, command, other) in enumerate(peers):
                    mine = jobs["tcp"].slowest(command, "median")
                    peer = jobs[name].slowest(other, "median")
                    if number >= WARM_UP:
                        ours[i].append(1e6 * mine)
                        theirs[i].append(1e6 * peer)
        return [
            Result(row, ours[i], theirs[i])
            for i, (row, _, _, _) in enumerate(peers)
        ]

    return Benchmark([row for row, _, _, _ in peers], measure)


def _against_gloo(size):
    """With two ranks also against raw sockets, in the same rounds."""
    peers = []
    for _, bytes_, name, count, goal in (s for s in SIZES if s[0] == size):
        command = "allreduce %d %d" % (bytes_, count)
        row = Row(
            "tcp_allreduce_%s_%d" % (name, size),
            "gloo",
            "us",
            "an all-reduce of %s bytes of float32, %d ranks over loopback"
            % (name, size),
            goal,
        )
        fewer = "allreduce %d %d" % (bytes_, max(count // 10, 3))
        peers.append((row, "gloo", command, fewer))
        if size == 2:
            raw = Row(
                "tcp_raw_%s_2" % name,
                "raw sockets",
                "us",
                "the same, against two sockets that exchange as many bytes",
                RAW_GOALS.get(name),
            )
            exchange = "exchange %d %d" % (bytes_, count)
            peers.append((raw, "tcp", command, exchange))
    return _of_peers(
        peers, lambda context, name: ranks.communicator(context, size, name)
    )


def _against_torch(size):
    peers = []
    for _, call, bytes_, name, count, goal in (
        row for row in TORCH if row[0] == size
    ):
        row = Row(
            "tcp_torch_%s_%s_%d" % (call, name, size),
            "torch gloo",
            "us",
            "%s of %s bytes of float32, %d ranks over loopback"
            % (WORDS[call], name, size),
            goal,
        )
        arguments = "%s %d %d" % (call, bytes_, count)
        peers.append((row, "torch", arguments, "collective " + arguments))

    def job_of(context, name):
        if name == "tcp":
            return ranks.communicator(context, size, name)
        return ranks.Ranks(
            ranks.torch("--shapes", "10"),
            size=size,
            cores=context.cores,
        )

    return _of_peers(peers, job_of)


def _encrypted():
    size, name = 64 * MIB, "64m"
    row = Row(
        "tcp_tls_%s_2" % name,
        "plain, or AES alone",
        "us",
        "an all-reduce of %s bytes of float32 with TLS, 2 ranks over loopback, "
        "against the slower of one without and its AES alone" % name,
        0.8,
    )
    both = Row(
        "tcp_tls_sum_%s_2" % name,
        "plain and AES",
        "us",
        "the same, against the time of both",
    )
    commands = {
        "tls": "allreduce %d 3" % size,
        "plain": "allreduce %d 3" % size,
        "aes": "aes %d 3" % size,
    }

    def measure(context):
        rounds = WARM_UP + (context.samples or ROUNDS)
        times = {what: [] for what in commands}
        with ranks.communicator(
            context, 2, "tcp"
        ) as plain, ranks.communicator(
            context, 2, "tcp", "--encrypts"
        ) as encrypted:
            for number in range(rounds):
                context.progress("round %d of %d" % (number + 1, rounds))
                for what, command in commands.items():
                    job = encrypted if what == "tls" else plain
                    seconds = job.slowest(command, "median")
                    if number >= WARM_UP:
                        times[what].append(1e6 * seconds)
        plain_and_aes = list(map(sum, zip(times["plain"], times["aes"])))
        slower = max(times["plain"], times["aes"], key=statistics.median)
        return [
            Result(row, times["tls"], slower),
            Result(both, times["tls"], plain_and_aes),
        ]

    return Benchmark([row, both], measure)


def _rings():
    rows = [
        Row(
            "tcp_ring_%d" % hosts,
            "limit",
            "us",
            "finding the ring of %d hosts whose slowest edge is the fastest"
            % hosts,
            1.0,
        )
        for hosts, _, _ in RINGS
    ]

    def measure(context):
        rounds = context.samples or ROUNDS
        with ranks.communicator(context, 2, "tcp") as job:
            return [
                Result(
                    row,
                    [
                        1e6
                        * job.slowest("ring %d %d" % (hosts, count), "median")
                        for _ in range(rounds)
                    ],
                    [limit] * rounds,
                )
                for row, (hosts, count, limit) in zip(rows, RINGS)
            ]

    return Benchmark(rows, measure)


BENCHMARKS = [
    _against_gloo(2),
    _against_gloo(4),
    _against_torch(2),
    _against_torch(4),
    _encrypted(),
    _rings(),
]
