#!/usr/bin/env python3
"""The commands of docs/operations.md do what the page describes.

They run as they stand there, in one shell and an empty folder, on ports that
are free.
"""

import os
import re
import shutil
import socket
import subprocess
import tempfile
import unittest

TIMEOUT_S = 240
COXSWAIN = os.path.abspath("cli/coxswain")
TRAIN = os.path.abspath("examples/elastic/elastic")
# What the page leads one to expect, in this order.
EXPECTED = (
    r"^Wrote a certificate authority",
    r"^job-example.crt  coxswain://job/example",
    r'"ready":true',
    r"coordinator \w+, term 1, 0 jobs",
    r"^job example: running, generation 1, world size 2",
    r"^job example: running, generation 1$",
    r"generation_began job=example generation=1 ",
    r"job example: running, .* steps/s",
    r'"example"',
    r"^coxswain_job_members",
    r"^job example: version 1 of its plan",
    r"accumulation 1 -> 2",
    r"^job example was asked to save",
    r"step-\d+-\w+",
    r"step-\d+-\w+",
    r"exported",
    r"rank 1 .* was lost: killed by signal 9",
    r"^job example: running, .* world size 2",
    r"^coxswain \d",
    r"^job example: running, .* world size 2",
    r"coordinator.new: OK$",
    r"operator.new: OK$",
    r"job-example.new: OK$",
    r"^job-example.crt  coxswain://job/example  until ",
    r"^job example: running, .* world size 2",
    r" left .*job=example ",
)


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def commands():
    with open("docs/operations.md", encoding="utf-8") as file:
        blocks = re.findall(r"^```sh\n(.*?)^```$", file.read(),
                            re.MULTILINE | re.DOTALL)
    text = "\n".join(blocks)
    for port, free in zip(("7077", "7079"), free_ports(2)):
        assert port in text
        text = text.replace(port, str(free))
    return text


class PageTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR"))
        self.addCleanup(shutil.rmtree, self.folder)
        os.symlink(TRAIN, os.path.join(self.folder, "train"))

    def read(self, name):
        try:
            with open(os.path.join(self.folder, name),
                      encoding="utf-8") as file:
                return "%s:\n%s" % (name, file.read()[-4000:])
        except OSError as error:
            return str(error)

    def test_its_commands_work(self):
        # Whatever is left running ends with the shell.
        shell = "trap 'kill $(jobs -p) 2> /dev/null || true' EXIT\n"
        with subprocess.Popen(
                ["bash", "-euc", shell + commands()], cwd=self.folder,
                text=True, errors="replace", stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=dict(os.environ, HOME=self.folder,
                         PATH=os.path.dirname(COXSWAIN) + ":"
                         + os.environ["PATH"])) as page:
            try:
                output, _ = page.communicate(timeout=TIMEOUT_S)
            except subprocess.TimeoutExpired:
                page.terminate()
                output, _ = page.communicate(timeout=30)
                output += "\nit took more than %d s" % TIMEOUT_S
        logs = self.read("coordinator.log") + self.read("train.log")
        self.assertEqual(page.returncode, 0, output + logs)
        at = 0
        for words in EXPECTED:
            found = re.compile(words, re.MULTILINE).search(output, at)
            self.assertTrue(found, "%r is missing: %s" % (words, output + logs))
            at = found.end()


if __name__ == "__main__":
    unittest.main(verbosity=2)
