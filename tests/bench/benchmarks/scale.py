"""Large jobs at one coordinator: rendezvous of many workers against torch's
TCPStore, barriers against TCPStore and etcd, memory, and what each phase of a
job's life costs a member. See docs/benchmarks.md."""

import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile

from measure import Benchmark, Result, Row

FOLDER = os.path.join(
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "scale"
)
ROUNDS = 5
BARRIERS = 50  # in a row
AT_BARRIER = 64
LOSE = 10
# The goals.
RENDEZVOUS_SECONDS = 1.0
KIB_PER_WORKER = 32

_PHASES = (
    "join",
    "attach",
    "groups",
    "addresses",
    "heartbeats",
    "barrier",
    "lose",
    "join again",
)


class ScaleError(Exception):
    pass


def _everywhere(context):
    """All processors for everyone."""
    return ["taskset", "-c", ",".join(map(str, context.cores))]


def _run(context, command, **environment):
    """What a program prints, as JSON."""
    done = subprocess.run(
        _everywhere(context) + list(map(str, command)),
        stdout=subprocess.PIPE,
        env={**os.environ, **environment},
        timeout=600,
    )
    if done.returncode != 0:
        raise ScaleError("%s ended with %d" % (command, done.returncode))
    return json.loads(done.stdout)


class _Folder:
    """A context manager: a folder in memory, if there is one, as the peers
    keep nothing on a disk either."""

    def __enter__(self):
        parent = "/dev/shm" if os.path.isdir("/dev/shm") else None
        self._path = tempfile.mkdtemp(prefix="coxswain-scale-", dir=parent)
        return self._path

    def __exit__(self, *_):
        shutil.rmtree(self._path)


def _life(context, workers, *flags, **options):
    with _Folder() as folder:
        command = [context.scale_worker, "life", "--folder", folder]
        command += ["--coxswain", context.coxswain, *flags]
        for name, value in {"workers": workers, **options}.items():
            command += ["--" + name, value]
        return _run(context, command)


def _tcp_store(context, *arguments):
    # Without a name server that answers, each connection of TCPStore to an
    # address that has no name would wait for it.
    return _run(
        context,
        [sys.executable, os.path.join(FOLDER, "tcp_store.py"), *arguments],
        RES_OPTIONS="attempts:0",
    )


def _rendezvous(workers):
    of = (
        "%d clients in one process connect, each over a connection of its own, "
        "and get a rank and the addresses of all" % workers
    )
    against = Row(
        "scale_rendezvous_%d" % workers,
        "TCPStore",
        "ms",
        of + "; the peer adds, sets and reads all keys in one request",
        goal=3 if workers == 1000 else None,
    )
    limit = Row(
        "scale_rendezvous_%d_limit" % workers, "1 s", "ms", of, goal=1
    )
    rows = [against, limit] if workers == 1000 else [against]

    def measure(context):
        rounds = context.samples or ROUNDS
        ours, peer = [], []
        for number in range(rounds):
            context.progress("round %d of %d" % (number + 1, rounds))
            life = _life(context, workers, "--members", phases=2)
            ours.append(1e3 * sum(p["seconds"] for p in life["phases"]))
            # With as many threads as do best.
            peer.append(
                1e3
                * min(
                    _tcp_store(context, "rendezvous", workers, threads)
                    for threads in (1, 4)
                )
            )
        results = [Result(against, ours, peer)]
        if workers == 1000:
            most = [1e3 * RENDEZVOUS_SECONDS] * rounds
            results.append(Result(limit, ours, most))
        return results

    return Benchmark(rows, measure)


def _free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class _Etcd:
    """A context manager: an etcd of one member; HOST:PORT."""

    def __init__(self, folder, prefix):
        client, peer = _free_port(), _free_port()
        self._address = "127.0.0.1:%d" % client
        clients = "http://" + self._address
        peers = "http://127.0.0.1:%d" % peer
        self._command = prefix + [
            shutil.which("etcd") or "/usr/bin/etcd",
            "--data-dir=" + os.path.join(folder, "etcd"),
            "--listen-client-urls=" + clients,
            "--advertise-client-urls=" + clients,
            "--listen-peer-urls=" + peers,
            "--initial-advertise-peer-urls=" + peers,
            "--initial-cluster=default=" + peers,
            "--log-level=error",
        ]

    def __enter__(self):
        self._process = subprocess.Popen(self._command)
        return self._address

    def __exit__(self, *_):
        self._process.kill()
        self._process.wait()


_BARRIER = "barrier of %d clients, from the first call to the last return" % (
    AT_BARRIER
)
BARRIER_STORE = Row(
    "scale_barrier_64",
    "TCPStore",
    "ms",
    _BARRIER + "; the peer adds, and waits for a key",
    goal=2,
)
BARRIER_ETCD = Row(
    "scale_barrier_64_etcd",
    "etcd",
    "ms",
    _BARRIER + "; the peer enters etcd's double barrier, data in memory",
    goal=10,
)


def measure_barriers(context):
    rounds = context.samples or ROUNDS
    ours, store, etcd = [], [], []

    def milliseconds(times):
        # The first ones open connections.
        return 1e3 * statistics.median(times[5:])

    with _Folder() as data, _Etcd(data, _everywhere(context)) as address:
        for number in range(rounds):
            context.progress("round %d of %d" % (number + 1, rounds))
            with _Folder() as folder:
                command = [context.scale_worker, "barrier", "--folder", folder]
                command += ["--coxswain", context.coxswain]
                command += ["--workers", AT_BARRIER, "--rounds", BARRIERS]
                ours.append(milliseconds(_run(context, command)))
            store.append(
                min(
                    milliseconds(
                        _tcp_store(
                            context, "barrier", AT_BARRIER, BARRIERS, processes
                        )
                    )
                    for processes in (1, 4)
                )
            )
            command = [context.etcd_worker, "--etcd", address]
            command += ["--clients", AT_BARRIER, "--rounds", BARRIERS]
            etcd.append(milliseconds(_run(context, command)))
    return [
        Result(BARRIER_STORE, ours, store),
        Result(BARRIER_ETCD, ours, etcd),
    ]


MEMORY = Row(
    "scale_memory_10000",
    "32 KiB",
    "KiB",
    "resident memory of the coordinator for each of 10,000 workers that have "
    "joined and attached",
    goal=1,
)


def _grown(life, phase, workers):
    """KiB for each worker after a phase."""
    after = [p for p in life["phases"] if p["name"] == phase][0]
    return (after["resident_kib"] - life["resident_kib"]) / workers


def measure_memory(context):
    workers = 10000
    rounds = context.samples or 1
    grown = [
        _grown(_life(context, workers, phases=2), "attach", workers)
        for _ in range(rounds)
    ]
    return [Result(MEMORY, grown, [float(KIB_PER_WORKER)] * rounds)]


def _growth(few, many):
    """What a phase costs a member of a large job, against one of a job of a
    tenth: the coordinator's processor time, and the bytes it sends."""
    rows = {}
    for what, unit in (("cpu", "us"), ("bytes", "B")):
        for phase in _PHASES:
            rows[what, phase] = Row(
                "scale_%s_%s_%d" % (what, phase.replace(" ", "_"), many),
                "%d workers" % few,
                unit,
                "%s, a worker: %s"
                % (
                    phase,
                    "processor time of the coordinator"
                    if what == "cpu"
                    else "bytes that the coordinator sends",
                ),
            )

    def of(life, what, phase):
        one = [p for p in life["phases"] if p["name"] == phase][0]
        scale = 1e6 if what == "cpu" else 1
        return scale * one[what] / one["workers"]

    def measure(context):
        rounds = context.samples or (3 if many < 10000 else 1)
        lives = {few: [], many: []}
        for number in range(rounds):
            for workers in (few, many):
                context.progress(
                    "round %d of %d: %d" % (number + 1, rounds, workers)
                )
                lives[workers].append(_life(context, workers, lose=LOSE))
        return [
            Result(
                row,
                [of(life, *key) for life in lives[many]],
                [of(life, *key) for life in lives[few]],
            )
            for key, row in rows.items()
        ]

    return Benchmark(list(rows.values()), measure)


BENCHMARKS = [
    _rendezvous(100),
    _rendezvous(1000),
    Benchmark([BARRIER_STORE, BARRIER_ETCD], measure_barriers),
    Benchmark([MEMORY], measure_memory),
    _growth(100, 1000),
    _growth(1000, 10000),
]
