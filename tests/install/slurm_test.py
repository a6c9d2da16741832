#!/usr/bin/env python3
"""The batch script for Slurm, with commands that play Slurm on this machine.

srun starts a real launcher for each of two nodes; coordinator and workers are
real processes, with the certificates that the script makes.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import unittest

COXSWAIN = os.path.abspath("cli/coxswain")
WORKER = os.path.abspath("tests/fault/elastic_toy/elastic_toy")
# Saves a checkpoint when it drains.
TRAIN = os.path.abspath("examples/fashion_mnist/train")
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

    def read_until(self, batch, pattern):
        """The first match in what it says; what comes after is unread."""
        for line in batch.stdout:
            found = re.search(pattern, line)
            if found:
                return found
        self.fail("it ended without " + pattern)

    def ask(self, *words):
        """What `coxswain status` says to who shows such certificates."""
        with open(self.state("port"), encoding="utf-8") as file:
            address = "127.0.0.1:" + file.read().strip()
        return subprocess.run(
            [COXSWAIN, "status", "--coordinator", address, "--timeout", "10s",
             *words],
            env={"PATH": os.environ["PATH"]}, text=True, timeout=TIMEOUT_S,
            check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def state(self, *names):
        return os.path.join(self.folder, "coxswain-17", *names)

    def who(self, certs, name):
        return ["--tls-ca", os.path.join(certs, "ca.crt"),
                "--tls-cert", os.path.join(certs, name + ".crt"),
                "--tls-key", os.path.join(certs, name + ".key")]

    def drain(self, batch):
        batch.send_signal(signal.SIGUSR1)
        said = self.finish(batch, 0)
        with open(self.requeued, encoding="utf-8") as file:
            self.assertEqual(file.read(), "17\n", said)
        os.remove(self.requeued)
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
        self.read_until(batch, r"\] step \d")
        said = self.drain(batch)
        self.assertIn("draining", said)
        self.assertEqual(said.count('"finished":false'), 2, said)
        # The next run has the same state, and a higher attempt.
        said = self.finish(
            self.start(WORKER, "--steps", "5", SLURM_RESTART_COUNT="1"), 0)
        self.assertEqual(said.count('"finished":true'), 2, said)
        self.assertIn("term=2", said)
        self.assertFalse(self.was_requeued())

    def test_goes_on_from_the_checkpoint_of_the_run_before(self):
        train = [TRAIN, "--hook", "powersgd(rank=2)", "--batch", "32",
                 "--epochs", "1000", "--events"]
        batch = self.start(*train)
        step = r'"step":(\d+)'
        self.read_until(batch, step)
        self.assertIn('"event":"result"', self.drain(batch))
        (saved,) = os.listdir(self.state("checkpoints", "slurm-17"))
        last = int(re.match(r"step-(\d+)-", saved)[1])
        self.assertGreater(last, 0)

        # Three steps more, and no more than that are made.
        said = self.finish(self.start(
            *train, "--resume", "newest", SLURM_RESTART_COUNT="1",
            COXSWAIN_PLAN="max_steps=%d" % (last + 3)), 0)
        events = [json.loads(line[line.index("{"):])
                  for line in said.splitlines() if '"event":' in line]
        (result,) = [one for one in events if one["event"] == "result"]
        self.assertEqual(result["steps"], last + 3, said)
        self.assertEqual(result["world_size"], 2)
        for event in events:
            if event["event"] == "step":
                self.assertGreater(event["step"], last)
        self.assertFalse(self.was_requeued())

    def test_strangers_are_not_let_in(self):
        """Who shows nothing, another authority's, or an earlier run's."""
        other = os.path.join(self.folder, "other")
        subprocess.run(
            [COXSWAIN, "certs", "init", "--dir", other, "--job", "slurm-17"],
            check=True, timeout=TIMEOUT_S, stdout=subprocess.DEVNULL)
        run = [WORKER, "--steps", "1000000", "--pace-ms", "10"]
        mine = [self.state("certs-%d" % attempt) for attempt in (0, 1)]
        strangers = [[], self.who(other, "job-slurm-17"),
                     self.who(other, "operator")]
        for attempt in (0, 1):
            batch = self.start(*run, SLURM_RESTART_COUNT=str(attempt))
            self.read_until(batch, r"\] step \d")
            for name in ("job-slurm-17", "operator"):
                asked = self.ask(*self.who(mine[attempt], name))
                self.assertIn("job slurm-17: running", asked.stdout)
            for words in strangers:
                asked = self.ask(*words)
                self.assertNotEqual(asked.returncode, 0, asked.stdout)
                self.assertNotIn("slurm-17: running", asked.stdout)
            self.drain(batch)
            strangers.append(self.who(mine[0], "operator"))
        for folder in mine:
            self.assertEqual(os.stat(folder).st_mode & 0o77, 0, folder)

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
