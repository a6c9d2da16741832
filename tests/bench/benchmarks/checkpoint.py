"""How long a checkpoint stops training: saved beside it, and at once."""

import json
import os
import shutil
import subprocess
import tempfile

from measure import Benchmark, Result, Row, milliseconds

PAUSE = Row(
    "checkpoint_pause",
    "saved at once",
    "ms",
    "how long a checkpoint stops 2 ranks: powersgd, 25 M parameters, SGD",
    goal=2.0,
)
REST = Row(
    "checkpoint_beside",
    "saved at once",
    "ms",
    "the rest of that save, beside training",
)


def measure(context):
    # Where there is room: a checkpoint has 300 MB.
    folder = tempfile.mkdtemp(prefix="coxswain-checkpoint-")
    context.progress("saving")
    try:
        done = subprocess.run(
            ["taskset", "-c", ",".join(map(str, context.cores))]
            + [context.checkpoint_worker, "--folder", os.path.join(folder, "s")]
            + ["--samples", str(context.samples or 7)],
            stdout=subprocess.PIPE,
            timeout=900,
            check=True,
        )
    finally:
        shutil.rmtree(folder)
    times = json.loads(done.stdout)
    at_once = milliseconds(times["at_once"])
    return [
        Result(PAUSE, milliseconds(times["pause"]), at_once),
        Result(REST, milliseconds(times["rest"]), at_once),
    ]


BENCHMARKS = [Benchmark([PAUSE, REST], measure)]
