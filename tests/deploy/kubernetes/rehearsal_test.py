#!/usr/bin/env python3
"""Plays a cluster from the rendered manifests, with real processes.

Coordinator and workers run in containers that are made from the manifests (see
container.py), find each other by DNS, and are killed, moved and drained as
Kubernetes would. What the workers compute shows whether a step was lost or
counted twice. There is no Kubernetes here: the controllers are those of
cluster.py.

  rehearsal_test.py COXSWAIN ELASTIC_TOY
"""

import json
import os
import re
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))

import cluster as clusters  # noqa: E402
import manifests  # noqa: E402

GENERATION = re.compile(
    r"\] generation (\d+) rank (\d+) of (\d+) pid (\d+) from step (\d+)"
)
STEP = re.compile(r"\] step (\d+) generation (\d+) world (\d+)")
COORDINATOR = "coxswain-coordinator"
PROGRAMS = {}


class PodOutput:
    """What a worker's pod has printed about itself."""

    def __init__(self, pod):
        found = [GENERATION.search(line) for line in pod.lines]
        self.generations = [
            tuple(map(int, match.groups())) for match in found if match
        ]
        steps = [STEP.search(line) for line in pod.lines]
        steps = [tuple(map(int, match.groups())) for match in steps if match]
        self.step, self.generation, self.world = (
            steps[-1] if steps else (0, 0, 0)
        )
        results = [line for line in pod.lines if "] result {" in line]
        self.result = (
            json.loads(results[-1].split("] result ")[1]) if results else None
        )


class RehearsalTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(
            dir=os.environ.get("TEST_TMPDIR"), ignore_cleanup_errors=True
        )
        self.addCleanup(folder.cleanup)
        objects = manifests.render(
            os.path.join(clusters.HERE, "rehearsal")
        )
        os.chmod(folder.name, 0o755)
        self.cluster = clusters.Cluster(objects, PROGRAMS, folder.name)
        self.addCleanup(self.cluster.close)
        self.cluster.start()
        self.job = clusters.IndexedJob(self.cluster, "coxswain-train")
        self.coordinators = clusters.StatefulSet(self.cluster, COORDINATOR)

    def train(self, more=20):
        """All three train together, and so many steps from now on."""
        pods = self.job.pods.values()
        from_step = max(PodOutput(pod).step for pod in pods)

        def done():
            outputs = [PodOutput(pod) for pod in pods]
            return all(
                output.world == 3 and output.step >= from_step + more
                for output in outputs
            )

        self.cluster.wait_for("%d steps more" % more, done)

    def generation(self):
        return PodOutput(self.job.pods[0]).generation

    def coxswain(self, pod, *words):
        done = pod.container.execute(["coxswain"] + list(words))
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def start_coordinator(self):
        pod = self.coordinators.start()
        self.cluster.probe_until(pod, "startup", "200")
        self.cluster.probe_until(pod, "readiness", "200")
        self.assertEqual(self.cluster.probe(pod, "liveness"), "200")
        return pod

    def workers_look_in_vain(self):
        """Before there is a coordinator its name is not known to DNS."""
        asked = "%s.%s" % (COORDINATOR, self.cluster.domain)

        def done():
            denied = {
                sender
                for sender, name, known in self.cluster.questions
                if name == asked and not known
            }
            return len(denied) == 3

        self.cluster.wait_for("the workers ask for the coordinator", done)
        self.assertTrue(
            all(pod.status is None for pod in self.job.pods.values())
        )

    def a_worker_is_killed(self):
        lost = self.job.pods[1]
        others = [PodOutput(self.job.pods[i]).generations[-1] for i in (0, 2)]
        self.cluster.kill(lost)
        self.assertEqual(lost.status, 137)
        self.assertEqual(self.job.action_of(lost), "Count")
        self.job.reconcile()
        self.assertIsNot(self.job.pods[1], lost)
        self.train()
        for index, before in zip((0, 2), others):
            after = PodOutput(self.job.pods[index]).generations[-1]
            self.assertGreater(after[0], before[0])
            self.assertEqual(after[3], before[3], "not the same process")
            self.assertEqual(after[1], before[1], "not the same rank")
        self.assertEqual(PodOutput(self.job.pods[1]).generations[-1][1], 1)

    def the_coordinator_is_moved(self, old):
        """Killed; later a new pod at another address, with the same volume."""
        generation = self.generation()
        self.cluster.kill(old)
        self.train(100)
        new = self.start_coordinator()
        self.assertNotEqual(new.address, old.address)
        self.attached(new)
        self.assertEqual(self.generation(), generation)
        return new

    def attached(self, coordinator):
        """Waits until all three have found it."""
        status = None
        while True:
            status = json.loads(self.coxswain(coordinator, "status", "--json"))
            (job,) = status["jobs"]
            states = [member["state"] for member in job["members"]]
            if states == ["attached"] * 3:
                return status
            self.train(20)

    def a_worker_is_drained(self):
        gone = self.job.pods[2]
        self.cluster.terminate(gone)
        self.assertEqual(gone.status, 75, self.cluster.tail())
        self.assertEqual(self.job.action_of(gone), "Ignore")
        gone.disrupted = False  # Deleted by hand it would not be counted either.
        self.assertEqual(self.job.action_of(gone), "Ignore")
        self.assertTrue(PodOutput(gone).result["exact"])
        failures = self.job.failures
        self.job.reconcile()
        self.assertEqual(self.job.failures, failures)
        self.train()

    def the_job_ends(self, coordinator):
        last = max(PodOutput(pod).step for pod in self.job.pods.values()) + 100
        self.coxswain(coordinator, "plan", "set", "max_steps=%d" % last)
        pods = self.job.pods.values()
        self.cluster.wait_for(
            "the end", lambda: all(pod.status is not None for pod in pods)
        )
        self.job.reconcile()
        self.assertTrue(self.job.is_complete(), self.cluster.tail())
        self.assertIsNone(self.job.failed)
        results = [PodOutput(pod).result for pod in pods]
        for result in results:
            self.assertTrue(result["exact"], self.cluster.tail())
            for name in ("step", "samples", "parameters", "runs"):
                self.assertEqual(result[name], results[0][name])

    def test_from_nothing_to_the_end(self):
        self.job.start()
        self.workers_look_in_vain()
        coordinator = self.start_coordinator()
        self.train()
        self.a_worker_is_killed()
        coordinator = self.the_coordinator_is_moved(coordinator)
        self.a_worker_is_drained()
        self.the_job_ends(coordinator)
        self.assertEqual(self.job.failures, 1)
        self.cluster.terminate(coordinator)
        self.assertEqual(coordinator.status, 0)


def missing():
    if manifests.kubectl() is None:
        return "there is no kubectl (tools/install_deps.sh --tests has it)"
    if os.getuid() != 0:
        return "only root can make namespaces"
    trial = clusters.network.Network()
    try:
        trial.make()
        return None
    except OSError as error:
        return "no network namespace can be made: %s" % error
    finally:
        trial.close()


if __name__ == "__main__":
    PROGRAMS["coxswain"] = os.path.realpath(sys.argv.pop(1))
    PROGRAMS["elastic_toy"] = os.path.realpath(sys.argv.pop(1))
    if missing() is not None:
        print("SKIPPED: %s:" % missing())
        print("NO cluster was played")
        sys.exit(0)
    unittest.main(verbosity=2)
