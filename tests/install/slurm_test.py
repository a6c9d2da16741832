#!/usr/bin/env python3
"""The batch script for Slurm, with commands that play Slurm on this machine.

srun starts a real launcher for each of two nodes; coordinator and workers are
real processes.
"""

import os
import re
import shutil
import signal
import subprocess
import tempfile
import unittest

COXSWAIN = os.path.abspath("cli/coxswain")
WORKER = os.path.abspath("tests/fault/elastic_toy/elastic_toy")
SCRIPT = os.path.abspath("deploy/slurm/coxswain.sbatch")
TIMEOUT_S = 120

# Starts the command once per node, hands signals on, and fails if one fails.
SRUN = """\
#!/usr/bin/env bash
while [[ "$1" == --* ]]; do shift; done
pids=()
for node in node-0 node-1; do
  SLURMD_NODENAME="${node}" "$@" &
  pids+=("$!")
done
trap 'kill -TERM "${pids[@]}"' TERM
status=0
for pid in "${pids[@]}"; do
  while :; do
    one=0
    wait "${pid}" || one=$?
    kill -0 "${pid}" 2> /dev/null || break
  done
  ((one <= status)) || status="${one}"
done
exit "${status}"
"""
SCONTROL = """\
#!/usr/bin/env bash
case "$1 $2" in
  'show hostnames') printf '127.0.0.1\\nnode-1\\n' ;;
  requeue*) echo "$2" >> "${REQUEUED}" ;;
  *) exit 1 ;;
esac
"""


class SlurmTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR"))
        self.addCleanup(shutil.rmtree, self.folder)
        for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
            path = os.path.join(self.folder, name)
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            os.chmod(path, 0o755)
        self.requeued = os.path.join(self.folder, "requeued")

    def start(self, *program, **variables):
        """A session of its own, so that what it leaves behind is found."""
        environment = dict(
            os.environ, PATH=self.folder + ":" + os.environ["PATH"],
            SLURM_JOB_ID="17", SLURM_JOB_NODELIST="node-[0-1]",
            SLURM_JOB_NUM_NODES="2", SLURM_SUBMIT_DIR=self.folder,
            REQUEUED=self.requeued, COXSWAIN=COXSWAIN, **variables)
        batch = subprocess.Popen(
            [SCRIPT, *program], env=environment, text=True,
            start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.addCleanup(batch.stdout.close)
        self.addCleanup(self.end, batch)
        return batch

    def end(self, batch):
        try:
            os.killpg(batch.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def finish(self, batch, status):
        said, _ = batch.communicate(timeout=TIMEOUT_S)
        self.assertEqual(batch.returncode, status, said)
        with self.assertRaises(ProcessLookupError, msg="it left processes"):
            os.killpg(batch.pid, 0)
        return said

    def was_requeued(self):
        return os.path.exists(self.requeued)

    def test_trains_on_both_nodes(self):
        said = self.finish(self.start(WORKER, "--steps", "5"), 0)
        for node in (0, 1):
            self.assertRegex(said, r"\[node-%d/0\] result .*"
                                   r'"finished":true' % node)
        self.assertIn('"world":2', said)
        self.assertFalse(self.was_requeued())

    def test_drains_before_the_limit_and_goes_back_to_the_queue(self):
        batch = self.start(
            WORKER, "--steps", "1000000", "--pace-ms", "10")
        for line in batch.stdout:
            if re.search(r"\] step \d", line):
                break
        batch.send_signal(signal.SIGUSR1)
        said = self.finish(batch, 0)
        self.assertIn("draining", said)
        self.assertEqual(said.count('"finished":false'), 2, said)
        with open(self.requeued, encoding="utf-8") as file:
            self.assertEqual(file.read(), "17\n")
        # The next run has the same state, and a higher attempt.
        os.remove(self.requeued)
        said = self.finish(
            self.start(WORKER, "--steps", "5", SLURM_RESTART_COUNT="1"), 0)
        self.assertEqual(said.count('"finished":true'), 2, said)
        self.assertIn("term=2", said)
        self.assertFalse(self.was_requeued())

    def test_tells_workers_which_attempt_it_is(self):
        said = self.finish(self.start(
            "sh", "-c", "echo attempt=$COXSWAIN_ATTEMPT of $COXSWAIN_JOB",
            SLURM_RESTART_COUNT="3"), 0)
        self.assertEqual(said.count("attempt=3 of slurm-17"), 2, said)

    def test_fails_as_its_program_does(self):
        self.finish(self.start("sh", "-c", "exit 7"), 7)
        self.assertFalse(self.was_requeued())

    def test_says_how_it_is_used(self):
        self.assertIn("usage: sbatch", self.finish(self.start(), 2))


if __name__ == "__main__":
    unittest.main(verbosity=2)
