"""Bulk streams over loopback, one connection, chunks of 1 MiB: a checkpoint's
shard up and down, against a bare socket and against plain messages with a
`bytes` field. The coordinator's memory while many upload. See
docs/benchmarks.md."""

import json
import os
import shutil
import subprocess
import tempfile

from measure import Benchmark, Result, Row, gigabytes_per_second

ROUNDS = 9
MIB = 256
UPLOADS = 64
UPLOAD_MIB = 16
# The limit of an upload in the documentation.
MIB_PER_UPLOAD = 4

# (peer, its name, goal)
_PEERS = [
    ("tcp", "socket", 0.5),
    ("tcp_file", "socket and file", None),
    ("plain", "bytes field", 2),
]


class BulkError(Exception):
    pass


def _run(context, what, **options):
    """What the program prints, as JSON; the state is kept in memory."""
    parent = "/dev/shm" if os.path.isdir("/dev/shm") else None
    folder = tempfile.mkdtemp(prefix="coxswain-bulk-", dir=parent)
    command = ["taskset", "-c", ",".join(map(str, context.cores))]
    command += [context.bulk_worker, what, "--folder", folder]
    command += ["--coxswain", context.coxswain]
    for name, value in options.items():
        command += ["--" + name, str(value)]
    try:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=600,
        )
    finally:
        shutil.rmtree(folder)
    if done.returncode != 0:
        raise BulkError("%s: %s" % (command, done.stderr.decode()))
    return json.loads(done.stdout)


def _rates():
    rows = {
        (way, peer): Row(
            "checkpoint_rate_%s_%s" % (way, peer),
            name,
            "GB/s",
            "a shard of %d MiB %s the coordinator" % (MIB, to),
            goal,
            less_is_better=False,
        )
        for way, to in (("up", "to"), ("down", "from"))
        for peer, name, goal in _PEERS
    }

    def measure(context):
        times = _run(
            context, "rate", rounds=context.samples or ROUNDS, mib=MIB
        )
        speed = {
            name: gigabytes_per_second(MIB << 20, seconds)
            for name, seconds in times.items()
        }
        return [
            Result(row, speed["ours_" + way], speed["%s_%s" % (peer, way)])
            for (way, peer), row in rows.items()
        ]

    return Benchmark(list(rows.values()), measure)


MEMORY = Row(
    "checkpoint_memory_%d" % UPLOADS,
    "%d MiB" % MIB_PER_UPLOAD,
    "MiB",
    "what the coordinator's resident memory grows by at most for each of %d "
    "uploads at once" % UPLOADS,
    goal=1,
)


def measure_memory(context):
    grown = []
    for _ in range(context.samples or 3):
        seen = _run(context, "memory", uploads=UPLOADS, mib=UPLOAD_MIB)
        grown.append(
            (seen["most_kib"] - seen["before_kib"]) / 1024 / UPLOADS
        )
    return [Result(MEMORY, grown, [MIB_PER_UPLOAD] * len(grown))]


BENCHMARKS = [_rates(), Benchmark([MEMORY], measure_memory)]
