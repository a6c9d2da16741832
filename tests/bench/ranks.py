"""Ranks of a small job, each a process, that take one step at a time on
request: worker/main.cc, or torch_worker.py."""

import json
import os
import shutil
import subprocess
import sys
import tempfile

FOLDER = os.path.dirname(os.path.abspath(__file__))


class RankError(Exception):
    pass


def shapes_text(shapes):
    """As the workers' option --shapes takes it; a scalar has one element."""
    return ",".join("x".join(map(str, shape or (1,))) for shape in shapes)


def ours(worker, *arguments):
    return [worker, *arguments]


def communicator(context, size, backend, *options):
    """Ranks of a communicator alone, or of "gloo", Gloo by itself."""
    cores = context.cores
    if backend == "gloo":
        return Ranks([context.gloo_worker], size=size, cores=cores)
    return Ranks(
        [context.comm_worker, "--backend", backend, *options],
        size=size,
        cores=cores,
    )


def torch(*arguments):
    return [sys.executable, os.path.join(FOLDER, "torch_worker.py"), *arguments]


class Ranks:
    """A context manager. Rank r has core r for itself, where there are as many
    cores; otherwise they share all as the system sees fit. `prefix` and `arguments` give what comes before each rank's command,
    and what it has of its own."""

    def __init__(
        self,
        command,
        size=2,
        cores=None,
        prefix=lambda rank: [],
        arguments=lambda rank: [],
    ):
        self._store = tempfile.mkdtemp(prefix="coxswain-bench-")
        self._processes = []
        for rank in range(size):
            self._processes.append(
                subprocess.Popen(
                    prefix(rank)
                    + command
                    + ["--rank", str(rank), "--size", str(size)]
                    + ["--store", self._store]
                    + arguments(rank),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            # This process has a core of its own, which they would inherit.
            if cores:
                os.sched_setaffinity(
                    self._processes[-1].pid,
                    {cores[rank]} if size <= len(cores) else set(cores),
                )

    def ask(self, command):
        """What the ranks answer, by rank."""
        for process in self._processes:
            try:
                process.stdin.write(command + "\n")
                process.stdin.flush()
            except BrokenPipeError:
                pass  # its output is on stderr, and its answer is missing
        answers = [process.stdout.readline() for process in self._processes]
        if not all(answers):
            raise RankError("a rank ended at the command '%s'" % command)
        return [json.loads(answer) for answer in answers]

    def slowest(self, command, what="wall"):
        """Seconds, of the rank that took longest."""
        return max(answer[what] for answer in self.ask(command))

    def close(self):
        for process in self._processes:
            try:
                process.stdin.close()
            except BrokenPipeError:
                pass
        for process in self._processes:
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()
        shutil.rmtree(self._store, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
