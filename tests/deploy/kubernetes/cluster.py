"""A cluster that is played from rendered manifests: kubelet and controllers.

As much of them as the manifests rely on: names of Services that follow the
pods' addresses, volumes that outlive pods, probes, termination with its grace,
Indexed Jobs with a pod failure policy, and StatefulSets. The output of pods is
kept, and each line and each end wakes all waiting callers.
"""

import os
import signal
import subprocess
import sys
import threading
import time

import container as containers
import manifests
import network

HERE = os.path.dirname(os.path.realpath(__file__))


class Pod:
    """One pod, from its creation until it is replaced."""

    def __init__(self, metadata, spec, address, namespace):
        self.metadata = metadata
        self.spec = spec
        self.address = address
        self.namespace = namespace
        self.disrupted = False  # the condition DisruptionTarget
        self.container = None
        self.lines = []

    def as_object(self):
        return {
            "metadata": self.metadata,
            "spec": self.spec,
            "status": {"podIP": self.address},
        }

    @property
    def name(self):
        return self.metadata["name"]

    @property
    def status(self):
        return self.container.status


class Cluster:
    def __init__(self, objects, programs, folder):
        self.objects = objects
        self.programs = programs
        self.folder = folder
        self.pods = []
        self.transcript = []
        self.questions = []  # (address, name, whether it was known)
        self.changed = threading.Condition()
        self.network = network.Network()
        self.dns = None
        self.prober = None
        self.began = time.monotonic()
        (space,) = [o for o in objects if o["kind"] == "Namespace"]
        self.domain = space["metadata"]["name"] + ".svc.cluster.local"

    def start(self):
        """Raises OSError where a cluster cannot be played."""
        self.network.make()
        self.dns = network.Dns(self.network.node, self._on_question)
        self.prober = subprocess.Popen(
            [network.IP, "netns", "exec", self.network.node, sys.executable]
            + [os.path.join(HERE, "prober.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def close(self):
        for pod in self.pods:
            if pod.container is not None:
                pod.container.close()
        if self.prober is not None:
            self.prober.kill()
            self.prober.wait()
        if self.dns is not None:
            self.dns.close()
        self.network.close()

    # Events, each on a thread of its own.

    def _on_question(self, sender, name, known):
        with self.changed:
            self.questions.append((sender, name, known))
            self.changed.notify_all()

    def _note(self, who, line):
        self.transcript.append(
            "%7.2f %s| %s" % (time.monotonic() - self.began, who, line)
        )

    def record(self, line):
        """What this cluster does, for the transcript."""
        with self.changed:
            self._note("cluster", line)

    def _on_line(self, pod, line):
        with self.changed:
            pod.lines.append(line)
            self._note(pod.name, line)
            self.changed.notify_all()

    def _on_end(self, pod, status):
        with self.changed:
            self._note(pod.name, "ended with %s" % status)
            self.changed.notify_all()

    def wait_for(self, what, done, timeout=60):
        """Waits until done() is true; checks it after each event."""
        with self.changed:
            if not self.changed.wait_for(done, timeout):
                raise AssertionError(
                    "not within %d s: %s\n%s"
                    % (timeout, what, "\n".join(self.transcript[-400:]))
                )

    # What the API server and the kubelet do.

    def create_pod(self, metadata, template, hostname, volumes):
        spec = dict(template["spec"], hostname=hostname)
        metadata = {
            "namespace": self.domain.split(".")[0],
            "labels": template["metadata"]["labels"],
            "annotations": {},
            **metadata,
        }
        namespace, address = self.network.add_pod()
        pod = Pod(metadata, spec, address, namespace)
        self.record("creates %s at %s" % (pod.name, address))
        self.pods.append(pod)
        folder = os.path.join(self.folder, namespace)
        for volume in spec.get("volumes", []):
            path = os.path.join(folder, volume["name"])
            os.makedirs(path)
            os.chmod(path, 0o777)  # as an emptyDir is
            volumes = dict(volumes, **{volume["name"]: path})
        (only,) = spec["containers"]
        resolver = "nameserver %s\nsearch %s svc.cluster.local cluster.local\n"
        resolver += "options ndots:5\n"
        text = containers.script(
            pod.as_object(),
            only,
            self.programs,
            volumes,
            resolver % (network.GATEWAY, self.domain),
        )
        pod.container = containers.Container(
            pod.name,
            namespace,
            folder,
            text,
            lambda _, line: self._on_line(pod, line),
            lambda one: self._on_end(pod, one.status),
        )
        self.update_names()
        return pod

    def update_names(self):
        """The records of the headless Services, of all pods that are there."""
        records = {}
        for service in self.objects:
            if service["kind"] != "Service":
                continue
            assert service["spec"]["publishNotReadyAddresses"]
            name = "%s.%s" % (service["metadata"]["name"], self.domain)
            for pod in self.pods:
                labels = pod.metadata["labels"]
                selector = service["spec"]["selector"]
                if pod.container.status is not None or any(
                    labels.get(k) != v for k, v in selector.items()
                ):
                    continue
                records.setdefault(name, []).append(pod.address)
                records["%s.%s" % (pod.name, name)] = [pod.address]
        self.dns.records = records

    def volume(self, claim, group):
        """The folder of a PersistentVolumeClaim: the same whenever asked."""
        path = os.path.join(self.folder, "volumes", claim)
        if not os.path.isdir(path):
            os.makedirs(path)
            os.mkdir(os.path.join(path, "lost+found"), 0o700)
        os.chown(path, 0, group)
        os.chmod(path, 0o2775)
        return path

    def kill(self, pod):
        """As a crash, or the loss of a node."""
        self.record("kills %s" % pod.name)
        pod.container.signal(signal.SIGKILL)
        self.wait_for("end of " + pod.name, lambda: pod.status is not None)
        self.remove(pod)

    def terminate(self, pod, disrupted=True):
        """`kubectl drain`, or a deletion: SIGTERM, the grace, SIGKILL."""
        self.record("terminates %s" % pod.name)
        pod.disrupted = disrupted
        (only,) = pod.spec["containers"]
        assert "lifecycle" not in only
        grace = pod.spec["terminationGracePeriodSeconds"]
        pod.container.signal(signal.SIGTERM)
        with self.changed:
            ended = self.changed.wait_for(
                lambda: pod.status is not None, grace
            )
        if not ended:
            self.record("the grace of %s is over" % pod.name)
            self.kill(pod)
        else:
            self.remove(pod)

    def remove(self, pod):
        self.update_names()
        self.network.remove_pod(pod.namespace)

    def probe(self, pod, kind):
        """What one probe of a pod's container is answered."""
        (only,) = pod.spec["containers"]
        asked = only[kind + "Probe"]["httpGet"]
        (port,) = [
            p["containerPort"]
            for p in only["ports"]
            if p["name"] == asked["port"]
        ]
        self.prober.stdin.write(
            "%s:%d %s\n" % (pod.address, port, asked["path"])
        )
        self.prober.stdin.flush()
        return self.prober.stdout.readline().strip()

    def probe_until(self, pod, kind, wanted):
        """Within what the startup probe allows."""
        (only,) = pod.spec["containers"]
        startup = only["startupProbe"]
        end = time.monotonic() + (
            startup["periodSeconds"] * startup["failureThreshold"]
        )
        while True:
            answer = self.probe(pod, kind)
            if answer == wanted:
                return
            if time.monotonic() > end or pod.status is not None:
                raise AssertionError(
                    "%s of %s is %s, not %s\n%s"
                    % (kind, pod.name, answer, wanted, self.tail())
                )
            with self.changed:  # until it prints something, or for a moment
                self.changed.wait(0.2)

    def tail(self):
        return "\n".join(self.transcript[-400:])


class StatefulSet:
    """The controller of one: the same names and volumes for every pod."""

    def __init__(self, cluster, name):
        self.cluster = cluster
        self.thing = manifests.one(cluster.objects, "StatefulSet", name)
        self.starts = 0

    def start(self, ordinal=0):
        spec = self.thing["spec"]
        name = "%s-%d" % (self.thing["metadata"]["name"], ordinal)
        self.starts += 1
        group = spec["template"]["spec"]["securityContext"]["fsGroup"]
        volumes = {
            claim["metadata"]["name"]: self.cluster.volume(
                "%s-%s" % (claim["metadata"]["name"], name), group
            )
            for claim in spec.get("volumeClaimTemplates", [])
        }
        pod = self.cluster.create_pod(
            {"name": name},
            spec["template"],
            name,
            volumes,
        )
        return pod


class IndexedJob:
    """The controller of a Job: which pod it replaces, and whether it ended."""

    INDEX = "batch.kubernetes.io/job-completion-index"

    def __init__(self, cluster, name):
        self.cluster = cluster
        self.thing = manifests.one(cluster.objects, "Job", name)
        self.spec = self.thing["spec"]
        self.starts = 0
        self.failures = 0
        self.failed = None
        self.completed = set()
        self.pods = {}

    def start(self):
        assert self.spec["completionMode"] == "Indexed"
        for index in range(self.spec["completions"]):
            self.start_pod(index)

    def start_pod(self, index):
        self.starts += 1
        name = "%s-%d" % (self.thing["metadata"]["name"], index)
        self.pods[index] = self.cluster.create_pod(
            {
                "name": "%s-%05d" % (name, self.starts),
                "annotations": {self.INDEX: str(index)},
            },
            self.spec["template"],
            name,
            {},
        )
        return self.pods[index]

    def action_of(self, pod):
        """What follows from a pod's end: Complete, Ignore, FailJob or Count."""
        if pod.status == 0:
            return "Complete"
        for rule in self.spec["podFailurePolicy"]["rules"]:
            if "onPodConditions" in rule:
                conditions = [c["type"] for c in rule["onPodConditions"]]
                if pod.disrupted and "DisruptionTarget" in conditions:
                    return rule["action"]
            elif pod.status in rule["onExitCodes"]["values"]:
                return rule["action"]
        return "Count"

    def reconcile(self):
        """Notes which pods have ended, and replaces them by the policy."""
        for index, pod in list(self.pods.items()):
            if pod.status is None or index in self.completed:
                continue
            action = self.action_of(pod)
            self.cluster.record("the job: %s: %s" % (pod.name, action))
            if action == "Complete":
                self.completed.add(index)
                continue
            if action == "FailJob":
                self.failed = pod
                continue
            self.failures += action == "Count"
            if self.failures > self.spec["backoffLimit"]:
                self.failed = pod
                continue
            self.start_pod(index)

    def is_complete(self):
        return len(self.completed) == self.spec["completions"]
