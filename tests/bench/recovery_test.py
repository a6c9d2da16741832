#!/usr/bin/env python3
"""Tests of how recovery.py reads what workers write, and counts."""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import types
import unittest
from unittest import mock

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import recovery  # noqa: E402
from failures import job, kinds, steps, summary, trace  # noqa: E402
from failures.kinds import Outcome  # noqa: E402
from failures.steps import Commit, StepLog  # noqa: E402
from failures.together import Together  # noqa: E402

MS = 1_000_000


def log_of(*commits):
    """Returns the log of commits as (ms, step, world, epoch)."""
    log = StepLog()
    log.feed("".join(
        "C %d %d %d %d\n" % (t * MS, step, world, epoch)
        for t, step, world, epoch in commits
    ))
    return log


def steady(begin, end, first=1, world=3, epoch=1):
    """A commit each 10 ms."""
    times = range(begin, end, 10)
    return [(t, first + i, world, epoch) for i, t in enumerate(times)]


class StepLogTest(unittest.TestCase):
    def test_lines_may_come_in_parts(self):
        log = StepLog()
        log.feed("E 5 start 17\nC 10 1 3")
        self.assertEqual(log.commits, [])
        log.feed(" 2\nE 20 exception it broke\nC 3")
        self.assertEqual(log.commits, [Commit(10, 1, 3, 2)])
        self.assertEqual(log.last("start").text, "17")
        self.assertEqual(log.last("exception").text, "it broke")

    def test_what_is_no_line_is_an_error(self):
        with self.assertRaisesRegex(ValueError, "hello"):
            StepLog().feed("hello 1\n")
        with self.assertRaises(TypeError):
            StepLog().feed("C 1 2 3\n")

    def test_the_last_event_may_be_too_old(self):
        log = StepLog()
        log.feed("E 5 asks\nE 9 start 1\n")
        self.assertEqual(log.last("asks").t, 5)
        self.assertEqual(log.last("asks", since=5).t, 5)
        self.assertIsNone(log.last("asks", since=6))
        self.assertIsNone(log.last("exception"))

    def test_commits_are_found_by_their_time(self):
        log = log_of(*steady(10, 50))
        self.assertEqual([c.t for c in log.since(30 * MS)],
                         [30 * MS, 40 * MS])
        self.assertEqual(log.before(30 * MS).t, 20 * MS)
        self.assertIsNone(log.before(10 * MS))


class RecoveryTest(unittest.TestCase):
    def test_the_slower_survivor_counts(self):
        fast = log_of((10, 1, 3, 1), (60, 2, 2, 2), (70, 3, 2, 2))
        slow = log_of((10, 1, 3, 1), (95, 2, 2, 2))
        self.assertEqual(steps.recovery([fast, slow], 20 * MS), 75 * MS)

    def test_a_commit_in_the_old_membership_does_not_count(self):
        # Its exchange was complete when the other one was killed.
        log = log_of((10, 1, 3, 1), (25, 2, 3, 1), (90, 3, 2, 2))
        self.assertEqual(steps.recovery([log], 20 * MS), 70 * MS)

    def test_an_epoch_may_have_been_before(self):
        log = log_of((10, 1, 3, 2), (25, 2, 3, 2), (90, 3, 2, 2))
        self.assertEqual(steps.recovery([log], 20 * MS), 70 * MS)

    def test_it_is_not_over_while_a_survivor_has_no_commit(self):
        fast = log_of((10, 1, 3, 1), (60, 2, 2, 2))
        slow = log_of((10, 1, 3, 1), (25, 2, 3, 1))
        self.assertIsNone(steps.recovery([fast, slow], 20 * MS))

    def test_steps_that_are_taken_again_are_counted(self):
        # Back to the checkpoint of step 20.
        log = log_of((10, 27, 3, 1), (25, 28, 3, 1), (90, 21, 2, 2))
        self.assertEqual(steps.repeated_steps([log], 20 * MS), 8)
        goes_on = log_of((10, 27, 3, 1), (90, 28, 2, 2))
        self.assertEqual(steps.repeated_steps([goes_on], 20 * MS), 0)
        # One has taken a step that the other one did not.
        self.assertEqual(steps.repeated_steps([goes_on, log], 20 * MS), 8)


class StallTest(unittest.TestCase):
    def test_a_wait_begins_with_the_failure(self):
        log = log_of((10, 1, 3, 1), (90, 2, 3, 1), (120, 3, 3, 1))
        self.assertEqual(
            steps.longest_wait(log, 30 * MS, 100 * MS), 60 * MS
        )

    def test_a_wait_may_go_beyond_the_end(self):
        log = log_of((10, 1, 3, 1), (40, 2, 3, 1), (150, 3, 3, 1))
        self.assertEqual(
            steps.longest_wait(log, 30 * MS, 100 * MS), 110 * MS
        )

    def test_it_is_not_known_before_the_end(self):
        log = log_of(*steady(10, 100))
        self.assertIsNone(steps.longest_wait(log, 30 * MS, 100 * MS))
        done = log_of(*steady(10, 140))
        self.assertIsNone(steps.stall([done, log], 30 * MS, 100 * MS))
        self.assertEqual(steps.stall([done], 30 * MS, 100 * MS), 10 * MS)


class NewcomerTest(unittest.TestCase):
    def cost(self, *logs):
        return steps.newcomer_cost(logs, 200 * MS, 250 * MS, 100 * MS)

    def test_it_is_the_longest_step_less_the_median(self):
        log = log_of(*steady(0, 210), *steady(250, 600, first=22, world=4))
        # The step that is under way when it asks counts whole: 200 to 250.
        self.assertEqual(self.cost(log), 40 * MS)
        even = log_of(*steady(0, 600))
        self.assertEqual(self.cost(even), 0)
        self.assertEqual(self.cost(even, log), 40 * MS)

    def test_it_is_not_known_before_it_is_over(self):
        self.assertIsNone(self.cost(log_of(*steady(0, 540))))


class HealthTest(unittest.TestCase):
    def test_all_train_together(self):
        now, limit = 100 * MS, 50 * MS
        good = log_of((90, 5, 2, 3))
        self.assertTrue(steps.all_train([good, good], now, limit))
        for other in (
            log_of((40, 5, 2, 3)),  # silent
            log_of((90, 5, 1, 3)),  # alone
            log_of((90, 5, 2, 4)),  # in another membership
            log_of(),
        ):
            self.assertFalse(steps.all_train([good, other], now, limit))


class SummaryTest(unittest.TestCase):
    def record(self, **more):
        return dict(
            {"kind": "kill", "peer": "torchft", "settings": "tuned",
             "ranks": 4, "limit_s": 75, "values_ms": [100, 300, 200],
             "repeated_steps": [0, 2, 0], "notes": [], "of": {"torchft": "1"}},
            **more
        )

    def test_percentiles_are_nearest_ranks(self):
        values = list(range(1, 101))
        self.assertEqual(summary.percentile(values, 50), 50)
        self.assertEqual(summary.percentile(values, 99), 99)
        self.assertEqual(summary.percentile(values, 100), 100)
        self.assertEqual(summary.percentile(list(range(1, 51)), 99), 50)
        self.assertEqual(summary.percentile([7], 50), 7)
        self.assertIsNone(summary.percentile([], 50))

    def test_what_was_not_over_is_longer_than_all(self):
        found = summary.summarised(self.record(values_ms=[3, None, 1]))
        self.assertEqual((found["p50"], found["p99"]), (3, None))
        self.assertIn("> 75 s", summary.table([self.record(values_ms=[None])]))

    def test_a_row_has_all(self):
        row = summary.table(
            [self.record(notes=["it is so"])]
        ).splitlines()[-1]
        self.assertEqual(
            row,
            "| SIGKILL of a worker | 4 | torchft | tuned | 3 | 200 ms | 300 ms "
            "| 300 ms | 2 | it is so |",
        )

    def test_a_trace_has_a_ratio(self):
        alone = self.trace(without_s=300.0)
        text = summary.trace_table(summary.merged(
            [alone, self.trace(failures=8, with_s=309.0)]
        ))
        self.assertIn("| 8 | 300.0 s | 309.0 s | 1.030 |", text)
        text = summary.trace_table(summary.merged(
            [alone, self.trace(failures=1, with_s=None)]
        ))
        self.assertIn("| 1 | 300.0 s | not over | - |", text)
        text = summary.trace_table([alone])
        self.assertIn("| - | 300.0 s | - | - |", text)

    def trace(self, **more):
        return {"kind": "trace", "peer": "torchft", "settings": "tuned",
                "ranks": 4, "steps": 3000, "notes": [], "of": {}, **more}

    def test_records_of_a_row_are_merged(self):
        first = self.record(values_ms=[1], repeated_steps=[0])
        failed = self.record(values_ms=[None], repeated_steps=[],
                             notes=["stood still"])
        other = self.record(kind="stop", ranks=8)
        last = self.record(values_ms=[3], repeated_steps=[2])
        self.assertEqual(
            summary.merged([other, first, failed, last]),
            [self.record(values_ms=[1, None, 3], repeated_steps=[0, 2],
                         notes=["stood still"]),
             other],
        )
        # They are what was read.
        self.assertEqual(first["values_ms"], [1])

    def test_records_of_other_versions_are_left_out(self):
        old = self.record(of={"torchft": "0"})
        new = self.record(values_ms=[5])
        elsewhere = self.record(of={"torchft": "0"}, ranks=8)
        self.assertEqual(summary.merged([old, new, elsewhere]),
                         [new, elsewhere])

    def test_of_many_notes_the_first_is_shown(self):
        self.assertEqual(summary.shortened([]), "")
        self.assertEqual(summary.shortened(["a | b"]), "a / b")
        self.assertEqual(summary.shortened(["a", "b", "c"]), "a; 3 such")

    def test_lines_are_read_as_written(self):
        machine = summary.describe_machine("command", {
            "torch": "2", "torchft": "0.2", "coxswain": "abc",
        })
        self.assertGreaterEqual(machine["cores"], 1)
        later = dict(machine, date="2100-01-01 00:00 UTC", load_average=99.0)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "lines")
            for one in (machine, self.record(), later, self.record()):
                summary.append_line(path, one)
            machines, records = summary.read_lines([path])
        self.assertEqual(machines, json.loads(json.dumps([machine, later])))
        self.assertEqual(records, [self.record(), self.record()])
        text = summary.markdown(machines, records)
        self.assertIn("%s to 2100-01-01 00:00 UTC; load average up to 99.0"
                      % machine["date"], text)
        self.assertIn("| tuned | 6 | 200 ms |", text)


class SimulatedJob:
    """Three slots that take a step each 10 ms of a time of its own. A loss is
    noticed after 200 ms, by the coordinator."""

    has_newcomers = True
    ranks = 3

    def __init__(self, goes_on=True):
        self.now = 1_000 * MS
        self.done = []  # what was done to it: ms and what
        self._logs = [StepLog() for _ in range(self.ranks)]
        self._goes_on = goes_on
        self._members = {0, 1, 2}
        self._running = {0, 1, 2}
        self._epoch = self._step = 1
        self._coordinator = True
        self._lost_at = None
        for _ in range(10):
            self.poll()

    @property
    def slots(self):
        return [types.SimpleNamespace(log=log) for log in self._logs]

    def logs(self, but=()):
        return [log for i, log in enumerate(self._logs) if i not in but]

    def newcomers(self, rng):
        return [2]

    def clock(self):
        return self.now

    def _note(self, what):
        self.done.append((self.now // MS, what))

    def strike(self, i, number):
        self._note("%s %d" % (number.name, i))
        if number == signal.SIGCONT:
            self._running.add(i)
        else:
            self._running.discard(i)
            self._lost_at = self.now

    def bring_back(self, i):
        self._note("back %d" % i)
        self._logs[i].feed("E %d asks\n" % self.now)
        self._running.add(i)

    def kill_coordinator(self):
        self._note("coordinator killed")
        self._coordinator = False

    def start_coordinator(self):
        self._note("coordinator back")
        self._coordinator = True

    def until_all_train(self, limit_s, span_s=1.0):
        return self.now

    def poll(self):
        self.now += 10 * MS
        if self._members != self._running:
            lost = self._members - self._running
            if not self._coordinator or not self._goes_on or (
                lost and self.now - self._lost_at < 200 * MS
            ):
                if lost:
                    return  # The others wait for it.
            else:
                self._members = set(self._running)
                self._epoch += 1
        self._step += 1
        for i in self._members:
            self._logs[i].feed("C %d %d %d %d\n" % (
                self.now, self._step, len(self._members), self._epoch
            ))


class FailureTest(unittest.TestCase):
    def take(self, kind, job=None):
        job = job or SimulatedJob()
        began = job.now // MS
        failure = kinds.Failure(job, kind, random.Random(1), 10)
        outcome = failure.take()
        return outcome, [(t - began, what) for t, what in job.done]

    def test_a_worker_is_killed_and_comes_back(self):
        outcome, done = self.take("kill")
        self.assertEqual(outcome, Outcome(200 * MS, 0, True, 0, True))
        self.assertEqual(len(done), 2)
        self.assertEqual((done[0][0], done[0][1][:7]), (0, "SIGKILL"))
        # Half a second after it was over.
        self.assertEqual((done[1][0], done[1][1][:4]), (710, "back"))

    def test_two_at_once(self):
        outcome, done = self.take("two")
        self.assertEqual(outcome.recovery, 200 * MS)
        self.assertIsNone(outcome.newcomer)
        self.assertEqual([what[:4] for _, what in done],
                         ["SIGK", "SIGK", "back", "back"])

    def test_a_stopped_one_goes_on_when_it_was_measured(self):
        outcome, done = self.take("stop")
        self.assertEqual(outcome.recovery, 200 * MS)
        self.assertEqual([what[:7] for _, what in done],
                         ["SIGSTOP", "SIGCONT"])

    def test_the_coordinator_comes_back_after_a_second(self):
        outcome, done = self.take("coordinator")
        # Steps go on.
        self.assertEqual(outcome.recovery, 10 * MS)
        self.assertEqual(done, [(0, "coordinator killed"),
                                (1000, "coordinator back")])
        outcome, done = self.take("both")
        self.assertEqual(done[0], (0, "coordinator killed"))
        self.assertEqual(done[1][1][:7], "SIGKILL")
        self.assertEqual(outcome.recovery, 1010 * MS)

    def test_what_is_not_over_is_reported(self):
        job = SimulatedJob(goes_on=False)
        outcome, done = self.take("stop", job)
        self.assertEqual(outcome, Outcome())
        self.assertEqual(done[-1][1][:7], "SIGCONT")
        self.assertEqual(done[-1][0], 10_000)


class ProcessesTest(unittest.TestCase):
    def test_a_worker_that_has_not_written_yet_ends_with_its_job(self):
        ours = job.Job(1, {}, {})
        theirs = job.Job(1, {}, {})
        workers = [
            subprocess.Popen(
                [sys.executable, "-c", "import signal; signal.pause()",
                 "--steps-log", one.log_path],
                start_new_session=True,
            ) for one in (ours, theirs)
        ]
        ours.close()
        self.assertEqual(workers[0].wait(), -signal.SIGKILL)
        self.assertIsNone(workers[1].poll())
        theirs.close()
        self.assertEqual(workers[1].wait(), -signal.SIGKILL)


class TroubledJob(SimulatedJob):
    """One whose slots come to train, or do not, and one of which ends."""

    ANEW_AFTER = ()

    def __init__(self, number, starts=True, **more):
        super().__init__(**more)
        self.closed = False
        self.unexpected = []
        self._number = number
        self._starts = starts

    def start(self):
        self.unexpected.append("slot 1 of job %d ended" % self._number)

    def until_all_train(self, limit_s, span_s=1.0):
        return self.now if self._starts else None

    def poll(self, seconds=0):
        super().poll()

    def close(self):
        self.closed = True


class SeriesTest(unittest.TestCase):
    def run_series(self, jobs_made, kind, values, count, **more):
        def make():
            jobs_made.append(TroubledJob(len(jobs_made), **more))
            return jobs_made[-1]

        taken = []
        with kinds.Jobs(make, 10) as jobs:
            kinds.run_series(jobs, kind, values, count, "1",
                             lambda *one: taken.append(one))
        self.assertTrue(all(job.closed for job in jobs_made))
        return taken

    def test_what_never_trains_is_given_up(self):
        jobs = []
        taken = self.run_series(jobs, "kill", [], 50, starts=False)
        self.assertEqual(len(jobs), 3)
        self.assertEqual(
            taken,
            [(Outcome(), ["slot 1 of job %d ended" % i]) for i in range(3)],
        )

    def test_what_is_never_over_is_given_up(self):
        jobs = []
        taken = self.run_series(jobs, "kill", [], 50, goes_on=False)
        self.assertEqual([outcome for outcome, _ in taken], [Outcome()] * 3)
        self.assertEqual(len(jobs), 3)
        # Those before count.
        taken = self.run_series([], "kill", [None], 50, goes_on=False)
        self.assertEqual(len(taken), 2)
        self.assertEqual(kinds.missing([None] * 3, 50), 0)
        self.assertEqual(kinds.missing([None, None, 1], 50), 47)
        self.assertEqual(kinds.missing([1] * 51, 50), 0)

    def test_a_job_is_used_as_long_as_it_trains(self):
        jobs = []
        taken = self.run_series(jobs, "kill", [], 5)
        self.assertEqual(
            [outcome.recovery for outcome, _ in taken], [200 * MS] * 5
        )
        self.assertEqual([notes for _, notes in taken],
                         [["slot 1 of job 0 ended"], [], [], [], []])
        self.assertEqual(len(jobs), 1)

    def test_a_job_may_be_good_for_one_failure_of_a_kind(self):
        jobs = []
        with mock.patch.object(TroubledJob, "ANEW_AFTER", ("both",)):
            self.run_series(jobs, "both", [], 3)
        self.assertEqual(len(jobs), 3)

    def test_a_job_is_not_used_after_an_error(self):
        made = []

        def make():
            made.append(TroubledJob(len(made)))
            return made[-1]

        def fail(*unused):
            raise ValueError("not a line of a worker")

        with kinds.Jobs(make, 10) as jobs:
            with mock.patch.object(TroubledJob, "strike", fail), \
                    self.assertRaises(ValueError):
                kinds.run_series(jobs, "kill", [], 1, "1", fail)
            kinds.run_series(jobs, "kill", [], 1, "1", lambda *unused: None)
        self.assertEqual(len(made), 2)

    def test_what_is_stopped_goes_on_with_the_same_victims(self):
        def victims(jobs):
            return [what for job in jobs for _, what in job.done]

        whole, parts = [], []
        self.run_series(whole, "stop", [], 6)
        self.run_series(parts, "stop", [], 2)
        self.run_series(parts, "stop", [200.0, 200.0], 6)
        self.assertEqual(len(parts), 2)
        self.assertEqual(victims(parts), victims(whole))
        self.assertGreater(len(set(victims(whole))), 2)

    def test_newcomers_are_recorded_apart(self):
        killed, newcomer = kinds.records(
            {"ranks": 4}, "kill", Outcome(2 * MS, 3 * MS, True, 1, True), ["n"]
        )
        self.assertEqual(killed, {
            "ranks": 4, "kind": "kill", "values_ms": [2.0],
            "repeated_steps": [1], "notes": ["n"],
        })
        self.assertEqual(newcomer, {
            "ranks": 4, "kind": "newcomer", "values_ms": [3.0], "notes": [],
        })

    def test_what_was_not_over_is_recorded(self):
        never, = kinds.records({}, "kill", Outcome(), [])
        self.assertEqual(never["values_ms"], [None])
        self.assertEqual(never["repeated_steps"], [])
        _, newcomer = kinds.records(
            {}, "kill", Outcome(2 * MS, None, True, 0, False), []
        )
        self.assertEqual(newcomer["values_ms"], [None])


@mock.patch.object(TroubledJob, "ANEW_AFTER", ("both",))
class TogetherTest(unittest.TestCase):
    def run_together(self, values, count, jobs_made, **more):
        def make():
            jobs_made.append(TroubledJob(len(jobs_made), **more))
            return jobs_made[-1]

        taken = []
        Together(kinds.Jobs(make, 10), "both", values, count, "1").run(
            3, lambda *one: taken.append(one)
        )
        self.assertTrue(all(job.closed for job in jobs_made))
        return taken

    def test_each_failure_has_a_job(self):
        jobs = []
        taken = self.run_together([5.0, 6.0], 9, jobs)
        self.assertEqual([outcome.recovery for outcome, _ in taken],
                         [1010 * MS] * 7)
        self.assertEqual(len(jobs), 7)

        def victims(jobs):
            return sorted(job.done[1][1] for job in jobs)

        one_by_one = []
        with kinds.Jobs(
            lambda: one_by_one.append(TroubledJob(0)) or one_by_one[-1], 10
        ) as several:
            kinds.run_series(several, "both", [5.0, 6.0], 9, "1",
                             lambda *unused: None)
        self.assertEqual(victims(jobs), victims(one_by_one))

    def test_one_trains_at_a_time(self):
        has_turn = []

        class Watched(TroubledJob):
            def start(self):
                super().start()
                has_turn.append(together._turn.locked())

            def kill_coordinator(self):
                super().kill_coordinator()
                has_turn.append(together._turn.locked())

            def start_coordinator(self):
                super().start_coordinator()
                has_turn.append(together._turn.locked())

        together = Together(
            kinds.Jobs(lambda: Watched(0), 10), "both", [], 2, "1"
        )
        together.run(1, lambda *unused: None)
        self.assertEqual(has_turn, [True, True, False] * 2)

    def test_what_is_never_over_is_given_up(self):
        taken = self.run_together([], 50, [], goes_on=False)
        # Those that were under way are taken.
        self.assertIn(len(taken), range(3, 6))

    def test_an_error_ends_all(self):
        jobs = []

        def take(*unused):
            raise OSError("no space left")

        def make():
            jobs.append(TroubledJob(len(jobs)))
            return jobs[-1]

        with self.assertRaisesRegex(OSError, "no space"):
            Together(
                kinds.Jobs(make, 10), "both", [], 10_000, "1"
            ).run(3, take)
        self.assertTrue(all(job.closed for job in jobs))
        self.assertLess(len(jobs), 10_000)


class MeasurementsTest(unittest.TestCase):
    """What recovery.py makes failures of, where it has measured some before."""

    versions = {
        "torch": "2", "benchmark": "b", "cpu": "c", "cores": 2,
        "preload": False, "coxswain": "abc", "torchft": "0.2",
    }

    def measure(self, *arguments, **versions):
        """Returns the series that were made: peer, settings, ranks, kind and
        how long those before took."""
        made = []
        options = recovery.parse_arguments(
            [*arguments, "--failures", "3", "--json", self.path]
        )

        def run_series(jobs, kind, values, count, seed, take):
            if kind == "two":
                raise ValueError("not a line of a worker")
            job = jobs.make_job()
            made.append((job.NAME, job.ranks, kind, values))
            for _ in range(kinds.missing(values, count)):
                take(Outcome(2 * MS, 3 * MS, kind == "kill", 1, True), [])
            job.close()

        measurements = recovery.Measurements(
            options, {}, {**self.versions, **versions}
        )
        with mock.patch.object(kinds, "run_series", run_series), \
                mock.patch("sys.stderr"):
            self.assertEqual(
                measurements.take_all(), "two" not in options.kinds
            )
        return made

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "lines")

    def test_what_the_file_has_is_not_measured_again(self):
        arguments = ["--settings", "tuned", "--ranks", "4"]
        first = self.measure(*arguments, "--kinds", "kill",
                             "--peers", "coxswain,torchrun")
        self.assertEqual(first, [("Coxswain", 4, "kill", []),
                                 ("torchrun", 4, "kill", [])])
        more = [*arguments, "--kinds", "kill,stop", "--peers", "coxswain"]
        self.assertEqual(self.measure(*more),
                         [("Coxswain", 4, "kill", [2.0] * 3),
                          ("Coxswain", 4, "stop", [])])
        # Of other versions of it: not of other versions of others.
        self.assertEqual(self.measure(*more, coxswain="def"),
                         [("Coxswain", 4, "kill", []),
                          ("Coxswain", 4, "stop", [])])
        self.assertEqual(self.measure(*more, coxswain="def", torchft="1"),
                         [("Coxswain", 4, "kill", [2.0] * 3),
                          ("Coxswain", 4, "stop", [2.0] * 3)])
        records = summary.read_lines([self.path])[1]
        self.assertEqual(
            [len(one["values_ms"]) for one in summary.merged(records)
             if one["kind"] == "kill"], [3, 3],
        )

    def test_after_an_error_the_others_are_measured(self):
        made = self.measure("--kinds", "two,kill", "--ranks", "4",
                            "--peers", "coxswain,torchrun")
        self.assertEqual(
            [(name, kind) for name, _, kind, _ in made],
            [("Coxswain", "kill")] * 2 + [("torchrun", "kill")],
        )

    def test_newcomers_come_with_those_that_were_killed(self):
        made = self.measure("--kinds", "newcomer,kill", "--ranks", "4")
        self.assertEqual(
            [(name, kind) for name, _, kind, _ in made],
            [("Coxswain", "kill")] * 2 + [("torchft", "kill")] * 2
            + [("torchrun", "kill"), ("torchrun", "newcomer")],
        )


class TraceTest(unittest.TestCase):
    def test_failures_are_as_far_apart_as_asked_for(self):
        times = trace.schedule(random.Random(1), 300)
        self.assertEqual(times, trace.schedule(random.Random(1), 300))
        gaps = [b - a for a, b in zip([0] + times, times)]
        self.assertTrue(all(27 <= gap <= 45 for gap in gaps), gaps)
        self.assertIn(len(times), range(6, 12))
        self.assertLess(times[-1], 300)

    def test_the_one_without_failures_runs_beside_the_other(self):
        both = threading.Barrier(2)

        class Job:
            unexpected = ["seen"]

            def __init__(self):
                self.commits = [Commit(0, 1, 4, 1)]

            def start(self):
                both.wait(timeout=60)

            def until_all_train(self, limit_s):
                return 0

            def logs(self):
                return [self]

            def poll(self):
                step = self.commits[-1].step + 1
                self.commits.append(Commit(time.monotonic_ns(), step, 4, 1))

            def close(self):
                both.wait(timeout=60)

        taken = trace.run_both(Job, 3, seed=1)
        self.assertGreater(taken.pop("without_s"), 0)
        self.assertGreater(taken.pop("with_s"), 0)
        self.assertEqual(taken, {"failures": 0, "notes": ["seen", "seen"]})

    def test_a_signal_ends_both_at_once(self):
        begun = threading.Barrier(3)
        made, exhausted, closed = [], [], []

        class Job:
            unexpected = []
            polls = 0

            def __init__(self):
                self.commits = [Commit(0, 1, 4, 1)]
                made.append(self)

            def start(self):
                pass

            # The first one to be made trains, the other one never does.
            def until_all_train(self, limit_s):
                while self is not made[0]:
                    self.poll()
                return 0

            def logs(self):
                return [self]

            def poll(self):
                if self.polls == 0:
                    begun.wait(timeout=60)
                self.polls += 1
                if self.polls == 10**6:
                    exhausted.append(self)
                    raise AssertionError("it goes on")

            def close(self):
                closed.append(self)

        def interrupt(*_, **__):
            begun.wait(timeout=60)
            raise KeyboardInterrupt

        with mock.patch("concurrent.futures.wait", interrupt):
            with self.assertRaises(KeyboardInterrupt):
                trace.run_both(Job, 10**6, seed=1)
        self.assertCountEqual(closed, made)
        self.assertEqual(len(made), 2)
        self.assertEqual(exhausted, [])

    def test_an_error_of_one_ends_the_other(self):
        made, closed = [], []

        class Job:
            unexpected = []
            polls = 0

            def __init__(self):
                made.append(self)

            def start(self):
                if self is made[0]:
                    raise ValueError("no such program")

            def until_all_train(self, limit_s):
                while self.polls < 10**6:
                    self.poll()
                raise AssertionError("it goes on")

            def poll(self):
                self.polls += 1

            def close(self):
                closed.append(self)

        with self.assertRaisesRegex(ValueError, "no such program"):
            trace.run_both(Job, 3, seed=1)
        self.assertCountEqual(closed, made)


if __name__ == "__main__":
    unittest.main()
