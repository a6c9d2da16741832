#!/usr/bin/env python3
"""Counts test cases in what Bazel reports about its runs.

usage: test_summary.py [--times FILE] EVENTS:EXIT_CODE...

EVENTS is a file written by bazel test --build_event_json_file, EXIT_CODE what
that command returned; EVENTS.profile.gz, if it is there, what its --profile
wrote. Counts single GoogleTest cases. A test target that fails without naming a failed
case (it crashed, hung or did not build) counts as one failure, and so does a
run of Bazel that fails for any other reason.

Prints the slowest tests and actions, the failures and, as the last line,
"N passed, N failed" (with ", N skipped" if there are any). Exits with 1 if
anything failed or nothing ran. --times writes all durations as JSON.
"""

import collections
import gzip
import json
import sys
import urllib.parse
import xml.etree.ElementTree

# Bazel's exit codes.
BUILD_FAILED = 1
TESTS_FAILED = 3
NO_TESTS = 4  # Nothing to run; that shows in the counts.
GOOD = ("PASSED", "FLAKY")

SLOWEST = 20  # How many are printed.


class Counts:
    def __init__(self):
        self.passed = 0
        self.skipped = 0
        self.failures = []


def read_cases(path):
    """Returns (passed, skipped, names of failed cases) of one test.xml."""
    passed, skipped, failed = 0, 0, []
    try:
        root = xml.etree.ElementTree.parse(path).getroot()
    except (OSError, xml.etree.ElementTree.ParseError):
        return passed, skipped, failed
    for case in root.iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            failed.append(
                "%s.%s" % (case.get("classname", ""), case.get("name", ""))
            )
        elif case.get("result") == "skipped":
            skipped += 1
        elif case.get("status") != "notrun":
            passed += 1
    return passed, skipped, failed


def xml_path(result):
    for output in result.get("testActionOutput", []):
        if output.get("name") == "test.xml":
            path = urllib.parse.urlparse(output["uri"]).path
            return urllib.parse.unquote(path)
    return ""


def read_events(path):
    """Returns ({labels not built}, {(label, run, shard): last attempt})."""
    unbuilt, results = set(), {}
    try:
        lines = open(path, encoding="utf-8")
    except OSError:
        return unbuilt, results
    with lines:
        for line in lines:
            try:
                event = json.loads(line)
            except ValueError:
                break  # Bazel was killed while it wrote.
            identity = event.get("id", {})
            if "testResult" in identity and "testResult" in event:
                key = identity["testResult"]
                part = (key["label"], key.get("run", 1), key.get("shard", 1))
                results[part] = event["testResult"]
            elif "targetCompleted" in identity:
                if not event.get("completed", {}).get("success"):
                    unbuilt.add(identity["targetCompleted"]["label"])
    return unbuilt, results


def count(path, exit_code, counts):
    unbuilt, results = read_events(path)
    failures = ["%s did not build" % label for label in sorted(unbuilt)]
    explained = {0, NO_TESTS} | ({BUILD_FAILED} if unbuilt else set())
    for (label, _, _), result in sorted(results.items(), key=lambda i: i[0]):
        passed, skipped, failed = read_cases(xml_path(result))
        counts.passed += passed
        counts.skipped += skipped
        if result.get("status") not in GOOD:
            explained.add(TESTS_FAILED)
            failures += ["%s %s" % (label, case) for case in failed]
            if not failed:
                failures.append("%s %s" % (label, result.get("status")))
    if exit_code not in explained:
        failures.append("bazel exited with %d" % exit_code)
    counts.failures += failures


def test_seconds(path):
    """Returns {label: seconds}, the sum over its shards of their last runs."""
    seconds = collections.Counter()
    for (label, _, _), result in read_events(path)[1].items():
        if not result.get("cachedLocally"):
            milliseconds = int(result.get("testAttemptDurationMillis", 0))
            seconds[label] += milliseconds / 1e3
    return dict(seconds)


def read_profile(path):
    """Returns ({phase: seconds}, {action: seconds}) of a profile of Bazel."""
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            events = json.load(file)["traceEvents"]
    except (OSError, EOFError, ValueError, KeyError):
        return {}, {}  # There is none, or Bazel was killed while it wrote.
    begins, actions, end = [], collections.Counter(), 0
    for event in events:
        start, name = event.get("ts", 0), event.get("name", "")
        end = max(end, start + event.get("dur", 0))
        if event.get("cat") == "build phase marker":
            begins.append((start, name))
        elif event.get("cat") == "action processing":
            if not name.startswith("Testing "):
                actions[name] += event.get("dur", 0) / 1e6
    phases = collections.Counter()
    begins.sort()
    ends = [start for start, _ in begins[1:]] + [end]
    for (start, name), stop in zip(begins, ends):
        phases[name] += (stop - start) / 1e6
    return dict(phases), dict(actions)


def print_slowest(what, seconds):
    slowest = sorted(seconds.items(), key=lambda item: -item[1])[:SLOWEST]
    if not slowest:
        return
    total = sum(seconds.values())
    print("Slowest of %d %s (%.0f s together):" % (len(seconds), what, total))
    for name, duration in slowest:
        print("%8.1f s  %s" % (duration, name))


def report_times(paths, times_file):
    runs = []
    for path in paths:
        phases, actions = read_profile(path + ".profile.gz")
        tests = test_seconds(path)
        runs.append({"phases": phases, "actions": actions, "tests": tests})
        print_slowest("tests", tests)
        print_slowest("actions that build", actions)
        for name, duration in phases.items():
            print("%8.1f s  %s" % (duration, name))
    if times_file:
        with open(times_file, "w", encoding="utf-8") as file:
            json.dump(runs, file, indent=1)


def main(arguments):
    counts = Counts()
    times_file = None
    if arguments[:1] == ["--times"]:
        times_file = arguments[1]
        arguments = arguments[2:]
    runs = [argument.rsplit(":", 1) for argument in arguments]
    report_times([path for path, _ in runs], times_file)
    for path, exit_code in runs:
        count(path, int(exit_code), counts)
    for failure in counts.failures:
        print("FAILED: " + failure)
    line = "%d passed, %d failed" % (counts.passed, len(counts.failures))
    if counts.skipped:
        line += ", %d skipped" % counts.skipped
    print(line)
    return 1 if counts.failures or not counts.passed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
