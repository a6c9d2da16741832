"""Failures of several jobs at once, where the survivors of each do nothing but
wait: one job is started, and trains, at a time."""

import contextlib
import queue
import threading

from failures import kinds


class Stopped(Exception):
    """Where no more is to be measured."""


def stoppable(job, stopping):
    """Returns a job of which each poll raises Stopped once an event is set."""
    poll = job.poll

    def poll_or_stop(*arguments):
        if stopping.is_set():
            raise Stopped()
        poll(*arguments)

    job.poll = poll_or_stop
    return job


class Together:
    """run_series of kinds.py, with a thread for each of several jobs."""

    def __init__(self, jobs, kind, values, count, seed):
        """jobs: of which each is good for one failure of the kind."""
        jobs.end_job()
        self._jobs = jobs
        self._kind = kind
        self._values = list(values)
        self._count = count
        self._seed = seed
        self._next = len(values)
        self._turn = threading.Lock()
        self._stopping = threading.Event()
        self._results = queue.Queue()

    def run(self, at_once, take):
        threads = [
            threading.Thread(target=self._work) for _ in range(at_once)
        ]
        for thread in threads:
            thread.start()
        try:
            ended = 0
            while ended < at_once:
                result = self._results.get()
                if isinstance(result, BaseException):
                    raise result
                if result is None:
                    ended += 1
                    continue
                take(*result)
        finally:
            self._stopping.set()
            for thread in threads:
                thread.join()

    def _work(self):
        try:
            with kinds.Jobs(self._make_stoppable, self._jobs.limit_s) as jobs:
                while self._make_failure(jobs):
                    pass
            self._results.put(None)
        except BaseException as error:  # for the thread that waits
            self._results.put(error)

    def _make_failure(self, jobs):
        """Returns whether there was one left to make."""
        with contextlib.ExitStack() as turn:
            turn.enter_context(self._turn)
            number = self._next
            if (
                self._stopping.is_set()
                or number >= self._count
                or not kinds.missing(self._values, self._count)
            ):
                return False
            self._next += 1
            outcome, notes = kinds.make_failure(
                jobs, self._kind, self._seed, number, turn.close
            )
        self._values.append(outcome.recovery)
        self._results.put((outcome, notes))
        return True

    def _make_stoppable(self):
        return stoppable(self._jobs.make_job(), self._stopping)
