"""What the tests of the batch script for Slurm have in common.

They run it under a real Slurm: coordinator, launchers and workers are real
processes, with the certificates that the script makes.
"""

import json
import os
import re
import shutil
import subprocess
import tempfile
import unittest

import slurm_cluster

COXSWAIN = os.path.abspath("cli/coxswain")
SCRIPT = os.path.abspath("deploy/slurm/coxswain.sbatch")
# Saves a checkpoint when it drains.
TRAIN = (os.path.abspath("examples/fashion_mnist/train"), "--hook",
         "powersgd(rank=2,start_step=2)", "--batch", "32", "--epochs", "1000",
         "--events", "--resume", "newest")
# The steps of TRAIN that are not compressed.
START_STEP = 2
COMMAND_S = 60


class SlurmCase(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = slurm_cluster.Cluster()
        cls.addClassCleanup(cls.cluster.stop)
        cls.cluster.start()

    def setUp(self):
        self.folder = tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.addCleanup(self.cluster.cancel_all)

    def submit(self, *words, **variables):
        """`words`: options of sbatch, the script, and what it runs."""
        self.job = self.cluster.submit(
            self.folder, *words, **{"COXSWAIN": COXSWAIN, **variables})

    def finish(self, state, code):
        """Returns all that the job has printed."""
        fields = self.job.wait_for_end()
        output = self.job.output()
        self.assertEqual(fields["JobState"], state, output)
        self.assertEqual(fields["ExitCode"], "%d:0" % code, output)
        self.assertEqual(fields["Restarts"], "0", output)
        self.cluster.expect_no_processes()
        return output

    def drain(self, times):
        """Returns what the job prints from here on; it is held in the queue."""
        before = len(self.job.output())
        self.job.hold()
        self.job.signal("USR1")
        return self.requeued(times, before)

    def requeued(self, times, before=0):
        fields = self.job.wait_until_requeued(times)
        output = self.job.output()[before:]
        self.assertEqual(fields["JobState"], "PENDING", output)
        self.assertIn("draining", output)
        self.cluster.expect_no_processes()
        return output

    def state(self, *names):
        return os.path.join(
            self.folder, "coxswain-" + self.job.number, *names)

    def who(self, attempt, name):
        """The options that name a certificate of that run."""
        certs = self.state("certs-%s" % attempt)
        return ["--tls-ca", os.path.join(certs, "ca.crt"),
                "--tls-cert", os.path.join(certs, name + ".crt"),
                "--tls-key", os.path.join(certs, name + ".key")]

    def ask(self, command, *words, seconds=30):
        """Runs a command of the operator's with such options."""
        with open(self.state("port"), encoding="utf-8") as file:
            address = "127.0.0.1:" + file.read().strip()
        return subprocess.run(
            [COXSWAIN, *command, "--coordinator", address, "--timeout",
             "%ds" % seconds, *words],
            env={"PATH": os.environ["PATH"]}, text=True, timeout=COMMAND_S,
            check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def saved_step(self):
        return max(int(re.match(r"step-(\d+)-", name)[1]) for name in
                   os.listdir(self.state(
                       "checkpoints", "slurm-" + self.job.number)))

    def finish_soon(self, attempt, at):
        """Ends the training by the plan; returns what this attempt has printed.

        Its output begins at place `at`.
        """
        step = self.job.read_until(r'"step":(\d+)', at)
        enough = int(step[1]) + 100
        asked = self.ask(
            ["plan", "set", "max_steps=%d" % enough],
            *self.who(attempt, "operator"))
        self.assertEqual(asked.returncode, 0, asked.stdout)
        fields = self.job.wait_for_end()
        output = self.job.output()[at:]
        self.assertEqual(fields["JobState"], "COMPLETED", output)
        return output

    def result(self, output, nodes, before):
        """Of a run of TRAIN on so many nodes, with so many steps before it."""
        lines = [line for line in output.splitlines()
                 if '"event":"result"' in line]
        self.assertEqual(len(lines), 1, output)
        result = json.loads(lines[0][lines[0].index("{"):])
        self.assertEqual(result["world_size"], nodes, output)
        # It compresses all steps of its own.
        self.assertEqual(result["steps"] - result["compressed_steps"],
                         max(before, START_STEP), output)
        return result
