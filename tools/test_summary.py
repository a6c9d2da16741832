#!/usr/bin/env python3
"""Counts test cases in what Bazel reports about its runs.

usage: test_summary.py EVENTS:EXIT_CODE...

EVENTS is a file written by bazel test --build_event_json_file, EXIT_CODE what
that command returned. Counts single GoogleTest cases. A test target that fails
without naming a failed case (it crashed, hung or did not build) counts as one
failure, and so does a run of Bazel that fails for any other reason.

Prints the failures and, as the last line, "N passed, N failed" (with
", N skipped" if there are any). Exits with 1 if anything failed or nothing ran.
"""

import json
import sys
import urllib.parse
import xml.etree.ElementTree

# Bazel's exit codes.
BUILD_FAILED = 1
TESTS_FAILED = 3
NO_TESTS = 4  # Nothing to run; that shows in the counts.
GOOD = ("PASSED", "FLAKY")


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


def main(arguments):
    counts = Counts()
    for argument in arguments:
        path, exit_code = argument.rsplit(":", 1)
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
