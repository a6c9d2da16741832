#!/usr/bin/env python3
"""The batch script for Slurm, under a real Slurm of two nodes on this machine.

The time limit itself is waited for by slurm_time_limit_test.py.
"""

import concurrent.futures
import os
import re
import subprocess
import sys
import unittest

sys.dont_write_bytecode = True  # It would be in the source tree.
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import slurm_cluster
from slurm_case import COMMAND_S, COXSWAIN, SCRIPT, TRAIN, SlurmCase

WORKER = os.path.abspath("tests/system/toy/elastic_toy")
ENDLESS = ("--steps", "1000000", "--pace-ms", "10")


class SlurmTest(SlurmCase):
    def test_trains_on_both_nodes(self):
        self.submit(SCRIPT, WORKER, "--steps", "5")
        output = self.finish("COMPLETED", 0)
        for node in slurm_cluster.NODES:
            self.assertRegex(output, r"\[%s/0\] result .*\"finished\":true"
                             % re.escape(node))
        self.assertIn("step 5 generation 1 world 2", output)

    def test_has_one_launcher_per_node_whatever_its_number_of_tasks(self):
        self.submit("--ntasks-per-node=2", SCRIPT, WORKER, "--steps", "5",
                    NPROC="2")
        output = self.finish("COMPLETED", 0)
        for node in slurm_cluster.NODES:
            for slot in (0, 1):
                self.assertIn("[%s/%d] result" % (node, slot), output)
        self.assertIn("step 5 generation 1 world 4", output)

    def test_goes_on_from_its_checkpoint_on_other_numbers_of_nodes(self):
        self.submit(SCRIPT, *TRAIN)
        before = 0
        at = 0
        for run, (nodes, nodes_after) in enumerate(((2, 1), (1, 2)), 1):
            self.job.read_until(r'"event":"step"', at)
            self.assertIn("train", self.cluster.processes_of_jobs().values())
            output = self.drain(run)
            result = self.result(output, nodes, before)
            before = self.saved_step()
            self.assertEqual(before, result["steps"], output)
            at = len(self.job.output())
            self.job.set_nodes(nodes_after)
            self.job.release()

        output = self.finish_soon(attempt=2, at=at)
        self.result(output, 2, before)

    def test_workers_leave_in_good_order_and_strangers_are_not_let_in(self):
        self.submit(SCRIPT, "sh", "-c",
                    'echo attempt=$COXSWAIN_ATTEMPT of $COXSWAIN_JOB; '
                    'exec "$0" "$@"', WORKER, *ENDLESS)
        job = "slurm-" + self.job.number
        at = 0
        for attempt in (0, 1):
            self.job.read_until(r"\] step \d", at)
            for name in ("job-" + job, "operator"):
                asked = self.ask(["status"], *self.who(attempt, name))
                self.assertIn("job %s: running" % job, asked.stdout)
            if attempt == 1:
                self.expect_no_answer(job, self.strangers(job))
            self.drain(attempt + 1)
            output = self.job.output()[at:]
            self.assertEqual(output.count('"finished":false'), 2, output)
            self.assertEqual(
                output.count("attempt=%d of %s" % (attempt, job)), 2, output)
            self.assertIn("term=%d" % (attempt + 1), output)
            at = len(self.job.output())
            self.job.release()
            folder = os.stat(self.state("certs-%d" % attempt))
            self.assertEqual(folder.st_mode & 0o77, 0, "others may read it")

    def strangers(self, job):
        """With no certificate, another authority's, or an earlier run's."""
        subprocess.run(
            [COXSWAIN, "certs", "init", "--dir", self.state("certs-other"),
             "--job", job],
            check=True, timeout=COMMAND_S, stdout=subprocess.DEVNULL)
        return [[]] + [self.who(certs, name) for certs in ("other", 0)
                       for name in ("job-" + job, "operator")]

    def expect_no_answer(self, job, strangers):
        # Each asks until its time is up.
        with concurrent.futures.ThreadPoolExecutor(len(strangers)) as pool:
            for asked in pool.map(
                    lambda words: self.ask(["status"], *words, seconds=5),
                    strangers):
                self.assertNotEqual(asked.returncode, 0, asked.stdout)
                self.assertNotIn(job + ": running", asked.stdout)

    def test_drains_before_anything_is_started(self):
        self.submit(SCRIPT, WORKER, *ENDLESS, PROGRAM=COXSWAIN,
                    COXSWAIN=self.gated('exec "$PROGRAM" "$@"'))
        output = self.drain_at_the_gate(1)
        self.assertNotIn("] step", output)

    def test_drains_while_its_tasks_are_being_started(self):
        """A signal to a step is lost as long as its tasks do not run."""
        self.submit(SCRIPT, WORKER, *ENDLESS,
                    SLURM_TASK_PROLOG=self.gated("exit"))
        self.drain_at_the_gate(2)

    def gated(self, then):
        """A program that waits for the gate to be opened."""
        path = os.path.join(self.folder, "gated")
        with open(path, "w", encoding="utf-8") as file:
            file.write("#!/bin/sh\ncd '%s'\ntouch waits-$$\n"
                       "until [ -e gate ]; do sleep 0.1; done\n%s\n"
                       % (self.folder, then))
        os.chmod(path, 0o755)
        return path

    def drain_at_the_gate(self, count):
        """Once so many wait there; then opens it."""
        slurm_cluster.wait_until("%d wait" % count, lambda: len(
            [name for name in os.listdir(self.folder)
             if name.startswith("waits-")]) == count, more=self.job.output)
        self.job.hold()
        self.job.signal("USR1")
        os.mkdir(os.path.join(self.folder, "gate"))
        return self.requeued(1)

    def test_fails_as_its_program_does(self):
        self.submit(SCRIPT, "sh", "-c", "exit 7")
        self.finish("FAILED", 7)

    def test_prints_how_it_is_used(self):
        self.submit(SCRIPT)
        self.assertIn("usage: sbatch", self.finish("FAILED", 2))


if __name__ == "__main__":
    unittest.main(verbosity=2)
