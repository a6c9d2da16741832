#!/usr/bin/env python3
"""Checks that tests/cases.txt names the test cases of the tree.

A case that is lost while tests are moved, merged or renamed fails here. Names
leave out the folder and the binary, so that moving a file changes none. Cases
of the same name in several files are listed as often as they occur.

    tests/tidy/cases_test.py --update     # renews the list

Run as a test it finds the workspace behind its WORKSPACE file.
"""

import ast
import collections
import os
import re
import sys
import unittest

LIST = "tests/cases.txt"
UPDATE = "tests/tidy/cases_test.py --update"
FOLDERS = (
    "base", "bazel", "capi", "cli", "client", "deploy", "examples", "hooks",
    "proto", "python", "schedule", "server", "tests", "tools", "train",
    "transport",
)

CASE = re.compile(
    r"^(?:TEST|TEST_F|TEST_P|TYPED_TEST|TYPED_TEST_P)"
    r"\(\s*(\w+)\s*,\s*(\w+)\s*\)",
    re.MULTILINE,
)
# The values of a suite's parameter: without them none of its cases runs.
VALUES = re.compile(
    r"^(?:INSTANTIATE_TEST_SUITE_P|INSTANTIATE_TYPED_TEST_SUITE_P)"
    r"\(\s*(\w*)\s*,\s*(\w+)\s*,",
    re.MULTILINE,
)
TYPES = re.compile(r"^TYPED_TEST_SUITE\(\s*(\w+)\s*,", re.MULTILINE)
# Tests in other languages have a rule that runs them.
SHELL = re.compile(
    r'\bsh_test\(\s*name = "([^"]*)",(?:(?!\n\)).)*?srcs = \["([^"]*)"\]',
    re.DOTALL,
)


def cases_of_cpp(text):
    """Yields the cases of a C++ file, and its instances of suites."""
    for suite, case in CASE.findall(text):
        yield "%s.%s" % (suite, case)
    for prefix, suite in VALUES.findall(text):
        yield "%s/%s" % (prefix, suite)
    for suite in TYPES.findall(text):
        yield "/%s" % suite


def cases_of_python(text):
    """Yields the methods that unittest runs, class by class."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.ClassDef):
            continue
        for item in node.body:
            if isinstance(item, ast.FunctionDef):
                if item.name.startswith("test_"):
                    yield "%s.%s" % (node.name, item.name)


def cases_of_build(text):
    """Yields the rules that run a shell script as one case."""
    for name, source in SHELL.findall(text):
        if source.endswith(".sh"):
            yield name


def cases_of(path, text):
    if path.endswith((".cc", ".h", ".cu", ".cuh")):
        return cases_of_cpp(text)
    if path.endswith(".py"):
        return cases_of_python(text)
    return cases_of_build(text)


def cases_in(files):
    """Returns the sorted names in a tree, given as {path: text}."""
    return sorted(
        name for path, text in files.items() for name in cases_of(path, text)
    )


def read_tree(root):
    files = {}
    for top in FOLDERS:
        for folder, _, names in os.walk(os.path.join(root, top)):
            for name in names:
                if name == "BUILD" or name.endswith(
                    (".cc", ".h", ".cu", ".cuh", ".py")
                ):
                    full = os.path.join(folder, name)
                    with open(full, encoding="utf-8") as file:
                        files[os.path.relpath(full, root)] = file.read()
    return files


def differences(listed, found):
    """Returns what is wrong with the list, or an empty string."""
    listed = collections.Counter(listed)
    found = collections.Counter(found)
    lost = sorted((listed - found).elements())
    new = sorted((found - listed).elements())
    text = ""
    if lost:
        text += (
            "These test cases are missing in the tree. Bring them back, or, if "
            "they were renamed or removed on purpose, run %s and note it in "
            "the commit:\n"
            "  %s\n" % (UPDATE, "\n  ".join(lost))
        )
    if new:
        text += "These are not in %s. Run %s:\n  %s\n" % (
            LIST, UPDATE, "\n  ".join(new),
        )
    return text


class RulesTest(unittest.TestCase):
    """Each kind of test is seen, and a lost one is named."""

    def test_finds_the_cases_of_cpp(self):
        text = (
            "TEST(PlainTest, Works) {}\n"
            "TEST_F(FixedTest,\n       HasALongName) {}\n"
            "TEST_P(ValuesTest, Works) {}\n"
            "INSTANTIATE_TEST_SUITE_P(\n    Some, ValuesTest, Values(1));\n"
            "TYPED_TEST_SUITE(TypesTest, Types);\n"
            "TYPED_TEST(TypesTest, Works) {}\n"
            "// TEST(OldTest, InAComment) {}\n"
        )
        self.assertEqual(
            cases_in({"base/x_test.cc": text}),
            [
                "/TypesTest", "FixedTest.HasALongName", "PlainTest.Works",
                "Some/ValuesTest", "TypesTest.Works", "ValuesTest.Works",
            ],
        )

    def test_finds_the_cases_of_scripts(self):
        build = (
            'sh_test(\n    name = "a_test",\n    size = "small",\n'
            '    srcs = ["a_test.sh"],\n)\n\n'
            'sh_test(\n    name = "b_test",\n    srcs = ["b_test.py"],\n)\n'
        )
        script = (
            "class ATest(unittest.TestCase):\n"
            "    def test_it(self):\n        pass\n"
            "    def helper(self):\n        pass\n"
        )
        self.assertEqual(
            cases_in({"tests/x/BUILD": build, "tests/x/b_test.py": script}),
            ["ATest.test_it", "a_test"],
        )

    def test_a_lost_case_is_named_with_what_to_do(self):
        self.assertEqual(differences(["A.B", "A.B"], ["A.B", "A.B"]), "")
        for listed, found in [(["A.B"], []), (["A.B", "A.B"], ["A.B"])]:
            text = differences(listed, found)
            self.assertIn("missing in the tree", text)
            self.assertIn("  A.B\n", text)
            self.assertIn(UPDATE, text)
        self.assertIn("not in " + LIST, differences([], ["A.B"]))

    def test_a_move_changes_nothing(self):
        text = "TEST(PlainTest, Works) {}\n"
        self.assertEqual(
            cases_in({"base/x_test.cc": text}), cases_in({"cli/y.cc": text})
        )


class TreeTest(unittest.TestCase):
    root = os.path.dirname(os.path.realpath("WORKSPACE"))

    def test_no_case_of_the_list_is_lost(self):
        with open(os.path.join(self.root, LIST), encoding="utf-8") as file:
            listed = file.read().splitlines()
        wrong = differences(listed, cases_in(read_tree(self.root)))
        if wrong:
            self.fail("\n" + wrong)


def update():
    root = os.path.join(os.path.dirname(os.path.realpath(__file__)), "../..")
    with open(os.path.join(root, LIST), "w", encoding="utf-8") as file:
        file.writelines(name + "\n" for name in cases_in(read_tree(root)))


if __name__ == "__main__":
    if sys.argv[1:] == ["--update"]:
        update()
    else:
        unittest.main()
