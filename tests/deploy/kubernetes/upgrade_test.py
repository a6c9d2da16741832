#!/usr/bin/env python3
"""Starts this coordinator over what an earlier version has left on its disk.

testdata/state-VERSION was written by write_state.py, with the programs of that
version: a coordinator that was killed while a job of three ran.

  upgrade_test.py COXSWAIN ELASTIC_TOY
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.realpath(__file__))
COXSWAIN = ""
TOY = ""
TIMEOUT_S = 120


class UpgradeTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(
            dir=os.environ.get("TEST_TMPDIR"), ignore_cleanup_errors=True
        )
        self.addCleanup(folder.cleanup)
        self.state = os.path.join(folder.name, "state")
        self.serve = None
        self.address = ""

    def start(self, golden):
        shutil.copytree(golden, self.state, copy_function=shutil.copyfile)
        self.serve = subprocess.Popen(
            [COXSWAIN, "serve", "--listen", "127.0.0.1:0"]
            + ["--state-dir", self.state, "--reattach-grace", "1s"],
            stdout=subprocess.PIPE,
            text=True,
        )
        self.addCleanup(self.serve.stdout.close)
        self.addCleanup(self.serve.wait)
        self.addCleanup(self.serve.kill)
        line = self.serve.stdout.readline()
        self.assertIn("listening on", line)
        self.address = line.split()[-1]

    def coxswain(self, *words):
        done = subprocess.run(
            [COXSWAIN] + list(words),
            env=dict(os.environ, COXSWAIN_COORDINATOR=self.address),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
            text=True,
            timeout=TIMEOUT_S,
        )
        self.assertEqual(done.returncode, 0, done.stdout)
        return done.stdout

    def job(self):
        (job,) = json.loads(self.coxswain("status", "--json"))["jobs"]
        return job

    def test_a_job_of_an_earlier_version_goes_on(self):
        folders = sorted(os.listdir(os.path.join(HERE, "testdata")))
        self.assertTrue(folders)
        for folder in folders:
            with self.subTest(folder):
                self.play(os.path.join(HERE, "testdata", folder))

    def play(self, golden):
        self.start(golden)
        before = self.job()
        self.assertEqual(before["job"], "train")
        self.assertEqual(len(before["members"]), 3)
        self.assertIn(
            "progress_timeout", self.coxswain("plan", "show", "train")
        )
        listed = self.coxswain("checkpoint", "list", "--job", "train")
        self.assertIn("step-000000000120-0eaa0e5dc939d071", listed)
        self.coxswain("checkpoint", "verify", "newest", "--job", "train")

        # New processes in the places of the old ones, of today's version.
        output = self.coxswain(
            *"run --nproc 3 --min-workers 2 --node old --job train".split(),
            *("--", TOY, "--steps", "40"),
        )
        begun = re.findall(r"\] generation (\d+) rank (\d+) of 3", output)
        self.assertEqual(sorted(rank for _, rank in begun), ["0", "1", "2"])
        for generation, _ in begun:
            self.assertGreater(int(generation), int(before["generation"]))
        results = [
            json.loads(line.split("] result ")[1])
            for line in output.splitlines()
            if "] result " in line
        ]
        self.assertEqual(len(results), 3, output)
        for result in results:
            self.assertTrue(result["exact"])
            self.assertEqual(result["step"], 40)
            self.assertEqual(result["parameters"], results[0]["parameters"])
        self.assertIn("90s", self.coxswain("plan", "show", "train").replace(
            "1m30s", "90s"
        ))
        self.serve.terminate()
        self.assertEqual(self.serve.wait(TIMEOUT_S), 0)


if __name__ == "__main__":
    COXSWAIN = os.path.realpath(sys.argv.pop(1))
    TOY = os.path.realpath(sys.argv.pop(1))
    unittest.main(verbosity=2)
