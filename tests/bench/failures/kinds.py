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
import signal
import time
from typing import Callable, Optional

from failures import steps

# A supervisor starts the coordinator again so long after its end; the same for
# all. It counts.
COORDINATOR_BACK_NS = 1_000_000_000
AFTERWARDS_NS = 3_000_000_000
# Between what was measured and what comes next.
APART_NS = 500_000_000

VICTIMS = {
    "kill": 1, "two": 2, "stop": 1, "newcomer": 1, "coordinator": 0, "both": 1,
}


@dataclasses.dataclass
class Outcome:
    """Nanoseconds; None: not within the limit, or not measured."""

    recovery: Optional[int] = None
    newcomer: Optional[int] = None
    repeated: int = 0
    trains_again: bool = False


class Failure:
    """One failure of a job in which all slots train."""

    def __init__(self, job, kind, rng, limit_s, clock=time.monotonic_ns):
        self._clock = clock
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
        measured = self._until(
            lambda: self._measured(struck, loses_coordinator)
        )
        outcome.recovery = measured
        if measured is None:
            self._resume()
            return outcome
        outcome.repeated = steps.repeated_steps(self._survivors, struck)
        recovered = self._clock()
        self._until(
            lambda: self._clock() - recovered > APART_NS or None
        )
        self._resume()
        for i in self._victims:
            if self._kind != "stop":
                job.bring_back(i)
        if self._kind in ("kill", "newcomer") and job.has_newcomers:
            outcome.newcomer = self._newcomer(
                recovered, self._clock(), self._victims[0]
            )
        outcome.trains_again = (
            job.until_all_train(self._limit_s) is not None
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
        while self._clock() < deadline and not self._job.over:
            self._job.poll()
            found = measured()
            if found is not None:
                return found
        return None


@dataclasses.dataclass
class Series:
    """Failures of one kind, one after the other."""

    make_job: Callable
    kind: str
    count: int
    limit_s: float
    # After so many that were not over, and none that was, no more are tried.
    give_up: int = 3

    def run(self, rng, progress):
        """Returns the outcomes, and what was seen besides, in words."""
        outcomes, notes, job = [], [], None
        try:
            while len(outcomes) < self.count and not self._hopeless(outcomes):
                if job is None:
                    job = self.make_job()
                    job.start()
                if job.until_all_train(self.limit_s) is None:
                    outcomes.append(Outcome())
                    notes.append("did not train together")
                else:
                    # At any moment of a step.
                    job.poll(rng.random() / 2)
                    failure = Failure(job, self.kind, rng, self.limit_s)
                    outcomes.append(failure.take())
                progress(len(outcomes), outcomes[-1])
                if not outcomes[-1].trains_again:
                    notes += job.unexpected or ["stood still"]
                    job.close()
                    job = None
        finally:
            if job is not None:
                notes += job.unexpected
                job.close()
        return outcomes, notes

    def _hopeless(self, outcomes):
        return len(outcomes) >= self.give_up and all(
            one.recovery is None for one in outcomes
        )


def records(job_class, ranks, settings, kind, series, outcomes, notes):
    """Returns what is written of a series: its recovery, and the cost of the
    newcomers that took the places of killed workers."""
    common = {
        "peer": job_class.NAME, "settings": settings, "ranks": ranks,
        "limit_s": series.limit_s, "note": shortened(notes), "notes": notes,
    }

    def in_ms(value):
        return None if value is None else round(value / 1e6, 3)

    found = []
    if kind != "newcomer":
        found.append(dict(
            common, kind=kind,
            values_ms=[in_ms(one.recovery) for one in outcomes],
            repeated_steps=[
                one.repeated for one in outcomes if one.recovery is not None
            ],
        ))
    newcomers = [one.newcomer for one in outcomes if one.recovery is not None]
    if kind == "newcomer" or any(one is not None for one in newcomers):
        found.append(dict(
            common, kind="newcomer", values_ms=[in_ms(v) for v in newcomers],
        ))
    return found


def shortened(notes):
    """Of many the first, and how many there were."""
    if not notes:
        return ""
    first = notes[0].replace("|", "/")[:160]
    return first if len(notes) == 1 else "%s; %d such" % (first, len(notes))
