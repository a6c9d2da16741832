#!/usr/bin/env python3
"""Each command of the pages is executed, or names what it needs.

Which blocks are executed where is in command_blocks.py. Those with
"run: alone" and "run: job" run here as they stand, each in an empty folder;
the options of all `coxswain` commands are looked for in its help.
"""

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.abspath("tests/docs"))
import command_blocks  # noqa: E402

ROOT = os.path.dirname(os.path.realpath("WORKSPACE"))
COXSWAIN = os.path.abspath(
    os.environ.get("COXSWAIN_PROGRAM", "cli/coxswain")
)
TRAIN = os.path.abspath(
    os.environ.get("COXSWAIN_TRAIN", "examples/elastic/elastic")
)
TIMEOUT_S = 120


def read(path):
    try:
        with open(os.path.join(ROOT, path), encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError):
        return None


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def blocks(kind, value):
    return [
        block
        for page, text in command_blocks.pages(ROOT).items()
        for block in command_blocks.blocks_of(page, text)
        if block.kind == kind and block.value == value
    ]


class RulesTest(unittest.TestCase):
    """The rules find what breaks them."""

    def findings(self, text, files=None):
        return list(
            command_blocks.check({"docs/x.md": text}, (files or {}).get)
        )

    def test_a_command_without_a_test_is_named(self):
        for fence in ["```\n", "```sh\n"]:
            found = self.findings(fence + "docker ps\n```\n")
            self.assertEqual(len(found), 1, found)
            self.assertIn("docs/x.md:2: no test executes this", found[0])
        self.assertEqual(
            self.findings("<!-- needs: cluster -->\n```\ndocker ps\n```\n"), []
        )
        self.assertIn(
            "needs: one of",
            self.findings("<!-- needs: luck -->\n```\ndocker ps\n```\n")[0],
        )

    def test_what_is_no_command_needs_no_comment(self):
        for text in ["hook_stats hook=fp16", "<state-dir>/", "step-1 2"]:
            self.assertEqual(self.findings("```\n%s\n```\n" % text), [])
        self.assertEqual(self.findings("```cpp\ndocker ps;\n```\n"), [])

    def test_a_test_must_be_there_and_have_to_do_with_it(self):
        text = "<!-- tested: tests/x.py -->\n```\ndocker ps\n```\n"
        self.assertIn("there is no tests/x.py", self.findings(text)[0])
        self.assertIn(
            "names neither", self.findings(text, {"tests/x.py": "ls"})[0]
        )
        for executing in ["read docs/x.md", "docker ps"]:
            self.assertEqual(
                self.findings(text, {"tests/x.py": executing}), []
            )

    def test_targets_of_bazel_exist(self):
        text = "```\nbazel test --x //a/b:c_long_test //...\n```\n"
        self.assertIn("no target //a/b:c_long_test", self.findings(text)[0])
        self.assertEqual(self.findings(text, {"a/b/BUILD": '"c_test"'}), [])


class PagesTest(unittest.TestCase):
    """The commands of the tree's pages."""

    def setUp(self):
        self.folder = tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.env = dict(
            os.environ,
            HOME=self.folder,
            PATH=os.path.dirname(COXSWAIN) + ":" + os.environ["PATH"],
        )
        for name in list(self.env):
            if name.startswith("COXSWAIN_"):
                del self.env[name]

    def empty_folder(self, steps):
        """Returns a folder with what the pages call the program."""
        folder = tempfile.mkdtemp(dir=self.folder)
        train = os.path.join(folder, "train")
        with open(train, "w", encoding="utf-8") as file:
            file.write('#!/bin/sh\nexec "%s" %d\n' % (TRAIN, steps))
        os.chmod(train, 0o755)
        example = os.path.join(folder, "bazel-bin/examples/elastic")
        os.makedirs(example)
        # docs/running.md: it has to exist.
        os.mkdir(os.path.join(folder, "runs"))
        os.symlink(train, os.path.join(example, "elastic"))
        return folder

    def run_block(self, block, folder, address=None):
        """Runs what a block has for one host, beside the coordinator there."""
        commands = [
            re.sub(r"(?<= --coordinator )[^\s,]+(?=\s|$)", address, command)
            if address else command
            for command in block.commands()
        ]
        script = "\n".join(
            command for command in commands
            if (command_blocks.known(command) or " ")[0]
            not in ("needs", "usage", "bazel")
        )
        self.assertTrue(script, block.where + ": nothing to run")
        done = subprocess.run(
            ["bash", "-euc", script], cwd=folder, env=self.env, text=True,
            errors="replace", stdin=subprocess.DEVNULL, timeout=TIMEOUT_S,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
        )
        self.assertEqual(
            done.returncode, 0,
            "%s:\n%s\n%s" % (block.where, script, done.stdout[-4000:]),
        )

    def test_each_command_is_executed_or_names_what_it_needs(self):
        texts = command_blocks.pages(ROOT)
        self.assertGreater(len(texts), 20)
        findings = list(command_blocks.check(texts, read))
        if findings:
            self.fail("\n" + "\n".join(findings))

    def test_options_of_all_commands_exist(self):
        helps = {}

        def help_of(words):
            if words not in helps:
                helps[words] = subprocess.run(
                    [COXSWAIN, *words, "--help"], env=self.env, text=True,
                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                    check=True,
                ).stdout
            return helps[words]

        seen = 0
        for page, text in command_blocks.pages(ROOT).items():
            for block in command_blocks.blocks_of(page, text):
                for command in block.commands():
                    for call in re.findall(
                        r"(?:^|[ /(])coxswain ([a-z]\w*(?: [a-z]\w*)?)"
                        r"([^|;&)]*)", command,
                    ):
                        words = call[0].split()
                        # "checkpoint list" is a command, "why mnist" is none.
                        if words[0] not in ("checkpoint", "plan", "certs"):
                            words = words[:1]
                        options = call[1].split(" -- ")[0]
                        for option in re.findall(r"--[a-z][a-z-]*", options):
                            seen += 1
                            self.assertIn(
                                option, help_of(tuple(words)),
                                "%s: %s" % (block.where, command),
                            )
        self.assertGreater(seen, 30)

    def test_commands_that_need_nothing_else_work(self):
        found = blocks("run", "alone")
        self.assertGreater(len(found), 3)
        for block in found:
            with self.subTest(block.where):
                self.run_block(block, self.empty_folder(20))

    def test_commands_beside_a_job_work(self):
        found = blocks("run", "job")
        self.assertGreater(len(found), 1)
        folder = self.empty_folder(100000000)
        address = "127.0.0.1:%d" % free_port()
        log = os.path.join(folder, "log")
        with open(log, "w", encoding="utf-8") as said:

            def start(*command):
                process = subprocess.Popen(
                    [COXSWAIN, *command], cwd=folder, env=self.env,
                    stdin=subprocess.DEVNULL, stdout=said, stderr=said,
                )
                self.addCleanup(process.wait)
                self.addCleanup(process.terminate)

            start("serve", "--listen", address, "--state-dir", "state")
            start(
                "run", "--coordinator", address, "--nproc", "2",
                "--job", "mnist", "--", "./train",
            )
            self.wait_for(
                "job mnist: running", "status", "--coordinator", address
            )
        for block in found:
            with self.subTest(block.where):
                self.run_block(block, self.empty_folder(20), address)

    def wait_for(self, words, *command):
        """Asks until the answer has `words`, or fails with the last one."""
        until = time.monotonic() + 60
        answer = ""
        while time.monotonic() < until:
            answer = subprocess.run(
                [COXSWAIN, *command], env=self.env, text=True, check=False,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            ).stdout
            if words in answer:
                return
        self.fail("no %r within 60 s: %s" % (words, answer))


if __name__ == "__main__":
    unittest.main(verbosity=2)
