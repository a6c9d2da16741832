#!/usr/bin/env python3
"""How long the survivors of a killed or stopped worker stand still.

    tests/bench/recovery_kills.py --kills 50
    tests/bench/recovery_kills.py --signal STOP --stall-timeout 500ms

Starts examples/elastic by `coxswain run`, and again and again sends SIGKILL (or
SIGSTOP) to a random worker. A trial lasts from the signal until the slower one
of the survivors trains again, in the generation after it: the line that the
example prints when its body begins, its state recovered. With --log FILE the
log of coordinator, launcher and workers is kept, to see where the time went.
"""

import argparse
import json
import os
import queue
import random
import re
import signal
import subprocess
import sys
import threading
import time

BIN = os.path.join(os.path.dirname(__file__), "..", "..", "bazel-bin")
GOES_ON = re.compile(r"rank (\d+) of (\d+) pid (\d+) goes on from step (\d+)")
PATIENCE_S = 120


class Job:
    """The processes of one `coxswain run`, and what they print."""

    def __init__(self, options):
        command = [options.coxswain, "run", "--nproc", str(options.nproc)]
        command += ["--min-workers", str(options.min_workers)]
        command += ["--max-restarts", "100000"]
        if options.stall_timeout:
            command += ["--plan", "stall_timeout=" + options.stall_timeout]
        command += ["--", options.program, str(10**9)]
        self._log = open(options.log, "w") if options.log else None
        self._process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self._lines = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self.workers = {}  # pid: the size of the generation that it trains in

    def _read(self):
        for line in self._process.stdout:
            at = time.monotonic()
            if self._log:
                self._log.write(f"{at:.4f} {line}")
            found = GOES_ON.search(line)
            if found:
                self._lines.put((at, int(found[2]), int(found[3])))
        self._lines.put(None)

    def note(self, text):
        if self._log:
            self._log.write(f"{time.monotonic():.4f} --- {text}\n")
            self._log.flush()

    def next(self, timeout):
        """The next worker that goes on: when, of how many, which pid."""
        try:
            line = self._lines.get(timeout=max(timeout, 0))
        except queue.Empty:
            return None
        if line is None:
            raise SystemExit("the job has ended: look at its log (--log FILE)")
        at, size, pid = line
        self.workers[pid] = size
        return at, size, pid

    def await_all(self, least):
        """Waits until all of a generation of at least so many train."""
        until = time.monotonic() + PATIENCE_S
        while True:
            sizes = set(self.workers.values())
            if sizes == {len(self.workers)} and len(self.workers) >= least:
                return
            if time.monotonic() > until:
                raise SystemExit(f"{least} workers did not come: {self.workers}")
            self.next(1)

    def close(self):
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def trial(job, number, options, rng):
    """Returns the seconds until the last survivor trains again."""
    while job.next(0):
        pass
    victims = rng.sample(sorted(job.workers), options.at_once)
    for victim in victims:
        del job.workers[victim]
    awaited = set(job.workers)
    job.note(f"{number}: {options.signal} to {victims}")
    begun = time.monotonic()
    for victim in victims:
        os.kill(victim, options.signal_number)
    last = begun
    while awaited:
        one = job.next(begun + PATIENCE_S - time.monotonic())
        if one is None:
            raise SystemExit(f"pids {sorted(awaited)} did not go on")
        if one[2] in awaited and one[0] > begun:
            awaited.discard(one[2])
            last = max(last, one[0])
    job.note(f"{number}: {1000 * (last - begun):.1f} ms")
    if options.signal == "STOP":
        for victim in victims:
            os.kill(victim, signal.SIGKILL)
    return last - begun


def summary(seconds):
    ordered = sorted(seconds)

    def percentile(part):
        return round(1000 * ordered[min(len(ordered) - 1, int(part * len(ordered)))])

    return {
        "trials": len(ordered),
        "p50_ms": percentile(0.5),
        "p90_ms": percentile(0.9),
        "p99_ms": percentile(0.99),
        "max_ms": round(1000 * ordered[-1]),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--coxswain", default=f"{BIN}/cli/coxswain")
    parser.add_argument("--program", default=f"{BIN}/examples/elastic/elastic")
    parser.add_argument("--nproc", type=int, default=3)
    parser.add_argument("--min-workers", type=int, default=2)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--signal", choices=["KILL", "STOP"], default="KILL")
    parser.add_argument("--stall-timeout", help="of the plan; default: off")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--longest-pause",
        type=float,
        default=2,
        help="seconds from the return of all workers to the next signal, most",
    )
    parser.add_argument(
        "--any",
        action="store_true",
        help="do not wait until a killed worker is replaced: the next one may be "
        "killed while fewer train, or its replacement starts",
    )
    parser.add_argument("--log", help="where the output of the job goes")
    options = parser.parse_args()
    options.signal_number = getattr(signal, "SIG" + options.signal)
    rng = random.Random(options.seed)
    job = Job(options)
    seconds = []
    try:
        for number in range(options.kills):
            job.await_all(options.min_workers if options.any else options.nproc)
            time.sleep(rng.uniform(0, options.longest_pause))
            seconds.append(trial(job, number, options, rng))
            print(f"{number} {1000 * seconds[-1]:.1f} ms", flush=True)
    finally:
        job.close()
    print(json.dumps(summary(seconds)))


if __name__ == "__main__":
    sys.exit(main())
