"""What workers write of their steps, and what is measured from that.

A line has a kind, nanoseconds of CLOCK_MONOTONIC, which all processes of a
machine have in common, and more:

    C <t> <step> <world size> <epoch>   a step that was committed
    E <t> <name> [<text>]               something else, such as "E <t> start 17"

An epoch is what each library numbers its memberships by: Coxswain's generation,
torchft's quorum id, the restarts of torchrun. `step` is the job's: where
training goes back, it does too.
"""

import bisect
import collections
import statistics

Commit = collections.namedtuple("Commit", "t step world epoch")
Event = collections.namedtuple("Event", "t name text")


class StepLog:
    """All that the processes of one slot have written, one after another."""

    def __init__(self):
        self.commits = []
        self.events = []
        self._part = ""

    def feed(self, text):
        """Takes what has been written since: a line may have come in part."""
        lines = (self._part + text).split("\n")
        self._part = lines.pop()
        for line in lines:
            kind, t, *words = line.split(" ")
            if kind == "C":
                self.commits.append(Commit(int(t), *map(int, words)))
            elif kind == "E":
                self.events.append(Event(int(t), words[0], " ".join(words[1:])))
            else:
                raise ValueError("not a line of a worker: %r" % line)

    def since(self, t):
        """Returns the commits from a time on."""
        return self.commits[self._index(t):]

    def before(self, t):
        """Returns the last commit before a time, or None."""
        index = self._index(t)
        return self.commits[index - 1] if index else None

    def last(self, name, since=0):
        """Returns the last event of a name since a time, or None."""
        for event in reversed(self.events):
            if event.t < since:
                return None
            if event.name == name:
                return event
        return None

    def _index(self, t):
        return bisect.bisect_left(self.commits, t, key=lambda one: one.t)


def first_in_new_membership(log, struck):
    """Returns the first commit after a failure in another membership than that
    of the last one before it, or None."""
    before = log.before(struck)
    for commit in log.since(struck):
        # The lighthouse of torchft numbers quorums from 1 when it comes back.
        if before is None or (
            (commit.epoch, commit.world) != (before.epoch, before.world)
        ):
            return commit
    return None


def recovery(survivors, struck):
    """Returns the nanoseconds from a failure to the first committed step of
    the slower survivor in the new membership; None if one has none yet."""
    firsts = [first_in_new_membership(log, struck) for log in survivors]
    if None in firsts:
        return None
    return max(first.t for first in firsts) - struck


def repeated_steps(survivors, struck):
    """Returns how many steps that a survivor had committed before a failure
    are taken again after it."""
    lost = 0
    highest = max(
        (log.before(struck).step for log in survivors if log.before(struck)),
        default=0,
    )
    for log in survivors:
        first = first_in_new_membership(log, struck)
        if first is not None:
            # A survivor may have taken steps between the failure and its end.
            old = [
                one.step for one in log.since(struck)
                if one.t < first.t
            ]
            lost = max(lost, max(old + [highest]) - first.step + 1)
    return lost


def longest_wait(log, begin, end):
    """Returns the longest time without a commit that overlaps with the time
    from `begin` to `end`; what was before `begin` does not count. None if
    there is no commit after `end` yet."""
    longest, last = 0, begin
    for commit in log.since(begin):
        longest = max(longest, commit.t - last)
        last = commit.t
        if last > end:
            return longest
    return None


def stall(survivors, begin, end):
    """Returns the longest wait of any survivor, or None, as above."""
    waits = [longest_wait(log, begin, end) for log in survivors]
    return None if None in waits else max(waits)


def longest_gap(log, begin, end):
    """Returns the longest gap between neighbouring commits that overlaps with a
    time, all of it; None if the commits do not reach beyond the time."""
    before = log.before(begin)
    commits = ([before] if before else []) + log.since(begin)
    longest = 0
    for one, other in zip(commits, commits[1:]):
        longest = max(longest, other.t - one.t)
        if other.t > end:
            return longest
    return None


def median_gap(log, begin, end):
    """Returns the median gap between the commits of a time, or None."""
    times = [one.t for one in log.since(begin) if one.t <= end]
    gaps = [b - a for a, b in zip(times, times[1:])]
    return statistics.median(gaps) if gaps else None


def newcomer_cost(survivors, asked, admitted, steady):
    """Returns the longest step of a survivor around the admission of a
    newcomer, minus the median step; None if it is not over yet.

    asked: when the newcomer asked to be let in: what it did before, such as
        loading torch, is not the library's.
    admitted: when it committed its first step.
    steady: from when on to take the median, up to `asked`.
    """
    # A stall may follow the newcomer's own first step.
    gaps = [longest_gap(log, asked, admitted + 300_000_000)
            for log in survivors]
    medians = [median_gap(log, steady, asked) for log in survivors]
    if None in gaps or None in medians:
        return None
    return max(0, max(gap - median for gap, median in zip(gaps, medians)))


def all_train(logs, now, limit):
    """Returns whether all slots train together: the last commits of all are
    not older than `limit`, of one epoch, and of as many ranks as slots."""
    lasts = [log.commits[-1] if log.commits else None for log in logs]
    if None in lasts:
        return False
    return (
        all(now - last.t <= limit and last.world == len(logs) for last in lasts)
        and len({last.epoch for last in lasts}) == 1
    )
