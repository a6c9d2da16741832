"""The failures, one at a time, and what is measured of each.

recovery: from the failure to the first committed step of the slower survivor in
    the new membership. Survivors are the slots that were not struck, also
    where a library starts other processes there.
coordinator alone: no member is lost, so there need not be a new membership: the
    longest wait of a survivor for a commit, from the failure until 3 s after
    the coordinator is back.
a newcomer's cost: the longest step of a survivor around the admission, minus
    the median step.
"""

import dataclasses
import random
import signal
from typing import Optional

from failures import steps

# A supervisor starts the coordinator again so long after its end; the same for
# all. It counts.
COORDINATOR_BACK_NS = 1_000_000_000
AFTERWARDS_NS = 3_000_000_000
# From a recovery until the newcomer is started.
STEADY_NS = 500_000_000
# So long all train together before the next failure.
TOGETHER_S = 0.5
# Until a job that has just been started trains.
START_S = 120

VICTIMS = {
    "kill": 1, "two": 2, "stop": 1, "newcomer": 1, "coordinator": 0, "both": 1,
}


@dataclasses.dataclass
class Outcome:
    """Nanoseconds; None: not within the limit, or not measured."""

    recovery: Optional[int] = None
    newcomer: Optional[int] = None
    has_newcomer: bool = False
    repeated: int = 0
    trains_again: bool = False


class Failure:
    """One failure of a job in which all slots train."""

    def __init__(self, job, kind, rng, limit_s, when_struck=lambda: None):
        """when_struck: called as soon as that has been done."""
        self._clock = job.clock
        self._when_struck = when_struck
        self._job = job
        self._kind = kind
        self._limit_s = limit_s
        if kind == "newcomer":
            self._victims = job.newcomers(rng)
        else:
            self._victims = rng.sample(range(job.ranks), VICTIMS[kind])
        self._survivors = job.logs(but=self._victims)
        self._back = None  # when the coordinator was started again

    def take(self):
        job, outcome = self._job, Outcome()
        struck = self._clock()
        loses_coordinator = self._kind in ("coordinator", "both")
        if loses_coordinator:
            job.kill_coordinator()
        number = signal.SIGSTOP if self._kind == "stop" else signal.SIGKILL
        for i in self._victims:
            job.strike(i, number)
        self._when_struck()
        measured = self._until(
            lambda: self._measured(struck, loses_coordinator)
        )
        outcome.recovery = measured
        if measured is None:
            self._resume()
            return outcome
        outcome.repeated = steps.repeated_steps(self._survivors, struck)
        outcome.has_newcomer = (
            self._kind in ("kill", "newcomer") and job.has_newcomers
        )
        recovered = self._clock()
        if outcome.has_newcomer:
            # The median step is taken of this time.
            self._until(
                lambda: self._clock() - recovered > STEADY_NS or None
            )
        self._resume()
        for i in self._victims:
            if self._kind != "stop":
                job.bring_back(i)
        if outcome.has_newcomer:
            outcome.newcomer = self._newcomer(
                recovered, self._clock(), self._victims[0]
            )
        outcome.trains_again = (
            job.until_all_train(self._limit_s, TOGETHER_S) is not None
        )
        return outcome

    def _measured(self, struck, loses_coordinator):
        if loses_coordinator and self._back is None:
            if self._clock() - struck < COORDINATOR_BACK_NS:
                return None
            self._job.start_coordinator()
            self._back = self._clock()
        if self._kind == "coordinator":
            return steps.stall(
                self._survivors, struck, self._back + AFTERWARDS_NS
            )
        return steps.recovery(self._survivors, struck)

    def _newcomer(self, steady, since, victim):
        log = self._job.slots[victim].log

        def measured():
            asked = log.last("asks", since)
            first = log.since(since)
            if asked is None or not first:
                return None
            return steps.newcomer_cost(
                self._survivors, asked.t, first[0].t, steady
            )

        return self._until(measured)

    def _resume(self):
        if self._kind == "stop":
            for i in self._victims:
                self._job.strike(i, signal.SIGCONT)

    def _until(self, measured):
        """Waits until a function returns something; None: not in time."""
        deadline = self._clock() + self._limit_s * 1e9
        while self._clock() < deadline:
            self._job.poll()
            found = measured()
            if found is not None:
                return found
        return None


class Jobs:
    """The jobs of one peer in which failures are made: the first, and after
    one that does not train again another. A context manager."""

    def __init__(self, make_job, limit_s):
        self.limit_s = limit_s
        self.make_job = make_job
        self._job = None
        self._notes = []
        self._noted = 0  # of the notes of the job

    def training(self, kind):
        """Returns a job in which all slots train, for a failure of a kind, or
        None if one that was started does not come to that."""
        if self._job is not None and kind in self._job.ANEW_AFTER:
            self.end_job()
        if self._job is None:
            self._job = self.make_job()
            self._job.start()
            if self._job.until_all_train(START_S) is None:
                self.end_job("did not train together")
        return self._job

    def end_job(self, why=None):
        if self._job is None:
            return
        if not self._take_notes() and why:
            self._notes.append(why)
        self._job.close()
        self._job = None
        self._noted = 0

    def notes(self):
        """Returns what has been seen besides, in words, since the last call."""
        self._take_notes()
        notes, self._notes = self._notes, []
        return notes

    def _take_notes(self):
        if self._job is not None:
            self._notes += self._job.unexpected[self._noted:]
            self._noted = len(self._job.unexpected)
        return self._notes

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.end_job()


# After so many that were not over, and none that was, no more are tried.
GIVE_UP = 3


def missing(values, count):
    """Returns how many more failures are to be made, after those which took so
    long; None: was not over."""
    if len(values) >= GIVE_UP and all(one is None for one in values):
        return 0
    return max(0, count - len(values))


def run_series(jobs, kind, values, count, seed, take):
    """Makes failures of one kind, one after the other. Those that have been
    made before took so long. Calls `take` with the outcome of each, and with
    what was seen besides, in words."""
    values = list(values)
    while missing(values, count):
        try:
            outcome, notes = make_failure(jobs, kind, seed, len(values))
        except Exception:
            jobs.end_job()  # Nothing is known of it.
            raise
        values.append(outcome.recovery)
        take(outcome, notes)


def make_failure(jobs, kind, seed, number, when_struck=lambda: None):
    """Makes the failure of a number; returns its outcome, and what was seen
    besides, in words."""
    # The same victims for all.
    rng = random.Random("%s %d" % (seed, number))
    job = jobs.training(kind)
    outcome = Outcome()
    if job is not None:
        # At any moment of a step.
        job.poll(rng.random() / 2)
        outcome = Failure(
            job, kind, rng, jobs.limit_s, when_struck
        ).take()
        if not outcome.trains_again:
            jobs.end_job("stood still")
        elif kind in job.ANEW_AFTER:
            jobs.end_job()
    return outcome, jobs.notes()


def records(common, kind, outcome, notes):
    """Returns what is written of an outcome: its recovery, and the cost of the
    newcomer that took the place of a killed worker."""
    def in_ms(value):
        return None if value is None else round(value / 1e6, 3)

    found = []
    if kind != "newcomer":
        over = outcome.recovery is not None
        found.append(dict(
            common, kind=kind, values_ms=[in_ms(outcome.recovery)],
            repeated_steps=[outcome.repeated] if over else [], notes=notes,
        ))
        notes = []
    if outcome.has_newcomer:
        found.append(dict(
            common, kind="newcomer", values_ms=[in_ms(outcome.newcomer)],
            notes=notes,
        ))
    return found
