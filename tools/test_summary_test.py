#!/usr/bin/env python3
"""The count must never call a failure a success."""

import contextlib
import gzip
import io
import json
import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.getcwd(), "tools"))
import test_summary  # noqa: E402 (found by the line above)

PASSED_CASE = '<testcase name="A" classname="T" status="run"/>'
FAILED_CASE = '<testcase name="B" classname="T"><failure/></testcase>'
SKIPPED_CASE = '<testcase name="C" status="run" result="skipped"/>'
DISABLED_CASE = '<testcase name="D" status="notrun" result="suppressed"/>'


class SummaryTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.events = []

    def write(self, name, text):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def add_test(self, label, status, cases):
        xml = self.write(
            "%d.xml" % len(self.events),
            "<testsuites><testsuite>%s</testsuite></testsuites>" % cases,
        )
        self.events.append(
            {
                "id": {"testResult": {"label": label}},
                "testResult": {
                    "status": status,
                    "testActionOutput": [
                        {"name": "test.xml", "uri": "file://" + xml}
                    ],
                },
            }
        )

    def add_target(self, label, success):
        self.events.append(
            {
                "id": {"targetCompleted": {"label": label}},
                "completed": {"success": True} if success else {},
            }
        )

    def summary(self, exit_code):
        """Returns (last line, exit status)."""
        lines = [json.dumps(event) for event in self.events]
        path = self.write("events", "\n".join(lines))
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            status = test_summary.main(["%s:%d" % (path, exit_code)])
        return output.getvalue().splitlines()[-1], status

    def test_counts_cases(self):
        self.add_target("//a", True)
        self.add_test("//a", "PASSED", PASSED_CASE * 2 + DISABLED_CASE)
        self.assertEqual(self.summary(0), ("2 passed, 0 failed", 0))

    def test_skipped_cases_are_told_apart(self):
        self.add_test("//a", "PASSED", PASSED_CASE + SKIPPED_CASE)
        self.assertEqual(self.summary(0), ("1 passed, 0 failed, 1 skipped", 0))

    def test_failed_cases_are_counted_one_by_one(self):
        self.add_test("//a", "FAILED", PASSED_CASE + FAILED_CASE * 2)
        self.assertEqual(self.summary(3), ("1 passed, 2 failed", 1))

    def test_a_crash_that_names_no_case_is_a_failure(self):
        self.add_test("//a", "FAILED", "")
        self.add_test("//b", "TIMEOUT", PASSED_CASE)
        self.assertEqual(self.summary(3), ("1 passed, 2 failed", 1))

    def test_a_target_that_does_not_build_is_a_failure(self):
        self.add_test("//a", "PASSED", PASSED_CASE)
        self.add_target("//b", False)
        self.assertEqual(self.summary(1), ("1 passed, 1 failed", 1))

    def test_a_failed_run_that_nothing_explains_is_a_failure(self):
        self.add_test("//a", "PASSED", PASSED_CASE)
        self.assertEqual(self.summary(37), ("1 passed, 1 failed", 1))

    def test_no_test_is_no_success(self):
        self.assertEqual(self.summary(4), ("0 passed, 0 failed", 1))

    def test_only_the_last_attempt_of_a_test_counts(self):
        self.add_test("//a", "FAILED", FAILED_CASE)
        self.add_test("//a", "FLAKY", PASSED_CASE)
        self.assertEqual(self.summary(0), ("1 passed, 0 failed", 0))


class TimesTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.events = os.path.join(folder.name, "events")
        self.times = os.path.join(folder.name, "times.json")

    def write(self, results, profile):
        with open(self.events, "w", encoding="utf-8") as file:
            for label, shard, milliseconds, cached in results:
                event = {
                    "id": {"testResult": {"label": label, "shard": shard}},
                    "testResult": {
                        "status": "PASSED",
                        "cachedLocally": cached,
                        "testAttemptDurationMillis": str(milliseconds),
                    },
                }
                file.write(json.dumps(event) + "\n")
        with gzip.open(self.events + ".profile.gz", "wt") as file:
            file.write(profile)

    def report(self):
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            test_summary.report_times([self.events], self.times)
        with open(self.times, encoding="utf-8") as file:
            return output.getvalue(), json.load(file)[0]

    def test_shards_add_up_and_the_slowest_is_first(self):
        results = [("//a", 1, 900, False), ("//b", 1, 700, False)]
        results += [("//b", 2, 800, False), ("//c", 1, 9000, True)]
        self.write(results, json.dumps({"traceEvents": []}))
        output, times = self.report()
        self.assertEqual(times["tests"], {"//a": 0.9, "//b": 1.5})
        self.assertLess(output.index("//b"), output.index("//a"))

    def test_a_profile_is_cut_into_phases_and_actions(self):
        def action(name, start, length):
            category = "action processing"
            return {"cat": category, "name": name, "ts": start, "dur": length}

        def phase(name, start):
            category = "build phase marker"
            return {"cat": category, "name": name, "ts": start}

        events = [
            phase("Load", 0),
            phase("Execute", 1000000),
            action("Compiling a.cc", 1000000, 2000000),
            action("Testing //a", 3000000, 1000000),
        ]
        self.write([], json.dumps({"traceEvents": events}))
        times = self.report()[1]
        self.assertEqual(times["actions"], {"Compiling a.cc": 2})
        self.assertEqual(times["phases"], {"Load": 1, "Execute": 3})

    def test_a_profile_that_was_cut_off_is_left_out(self):
        self.write([("//a", 1, 900, False)], '{"traceEvents": [')
        times = self.report()[1]
        self.assertEqual(times["actions"], {})
        self.assertEqual(times["tests"], {"//a": 0.9})


if __name__ == "__main__":
    unittest.main()
