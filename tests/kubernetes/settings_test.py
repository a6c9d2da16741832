#!/usr/bin/env python3
"""Starts our programs with the arguments and variables of the manifests.

Every container of every overlay, exactly as it is rendered, but for what a
cluster would map: ports are free ones of this machine, files are below a
folder of this test, names are on the loopback. The program after `--` is one that
says which variables it got. Two coordinators of etcd-ha are also started over
a real etcd, which this test needs.

  settings_test.py COXSWAIN
"""

import os
import re
import selectors
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.request

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))

import container as containers  # noqa: E402
import issuer as issuers  # noqa: E402
import manifests  # noqa: E402
import prober  # noqa: E402

COXSWAIN = ""
PATIENCE = 60
TOLD = r"""#!/bin/sh
env | grep ^COXSWAIN_
"""


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def help_of(command):
    return subprocess.run(
        [COXSWAIN, command, "--help"],
        stdout=subprocess.PIPE,
        check=True,
        text=True,
        timeout=PATIENCE,
    ).stdout


class Running:
    """A process whose output is read while it is waited for."""

    def __init__(self, command, environment):
        self.process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self.said = ""

    def wait_for(self, text):
        """Until it has said that, or has ended; false at the deadline."""
        end = time.monotonic() + PATIENCE
        with selectors.DefaultSelector() as ready:
            ready.register(self.process.stdout, selectors.EVENT_READ)
            while text not in self.said:
                if not ready.select(max(0, end - time.monotonic())):
                    return False
                data = os.read(self.process.stdout.fileno(), 65536)
                if not data:
                    return False
                self.said += data.decode(errors="replace")
        return True

    def stop(self):
        self.process.terminate()
        rest, _ = self.process.communicate(timeout=PATIENCE)
        self.said += rest.decode(errors="replace")
        return self.process.returncode


class SettingsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(
            dir=os.environ.get("TEST_TMPDIR"), ignore_cleanup_errors=True
        )
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        program = os.path.join(self.folder, "bin", "elastic")
        os.mkdir(os.path.dirname(program))
        with open(program, "w", encoding="utf-8") as file:
            file.write(TOLD)
        os.chmod(program, 0o755)
        os.symlink(COXSWAIN, os.path.join(self.folder, "bin", "coxswain"))

    def containers_of(self, overlay):
        """(container, pod) of ours, by name."""
        found = {}
        for _, template in manifests.all_templates(
            manifests.render_overlay(overlay)
        ):
            for one in template["spec"]["containers"]:
                if manifests.is_own(one):
                    found[one["name"]] = (one, template)
        return found

    def start(self, container, template, ports):
        """As the kubelet would, with what a cluster maps mapped."""
        pod = {
            "metadata": {
                "name": "pod-0",
                "namespace": "space",
                "annotations": {
                    "batch.kubernetes.io/job-completion-index": "2",
                    "jobset.sigs.k8s.io/restart-attempt": "4",
                },
            },
            "spec": dict(template["spec"], hostname="pod-0"),
        }
        known = containers.environment(pod, container)
        for name, value in known.items():
            if not name.startswith("COXSWAIN_"):
                continue
            known[name] = self.mapped(value, ports)
        known["PATH"] = "%s:/usr/bin:/bin" % os.path.join(self.folder, "bin")
        words = containers.command(container, known)
        return Running(words, known), known

    def mapped(self, value, ports):
        value = re.sub(
            r"coxswain-[a-z]+-?(\d?)[a-z.-]*:",
            lambda m: "127.0.0.%d:" % (1 + int(m[1] or 0)),
            value,
        )
        value = re.sub(
            r":(70\d\d|2379)\b",
            lambda m: ":%d" % ports.setdefault(m[1], free_port()),
            value,
        )
        if value.startswith("/"):
            value = self.folder + value
        return value

    def test_every_variable_is_an_option_of_its_command(self):
        options = {
            command: set(re.findall(r"Env:(COXSWAIN_\w+)", help_of(command)))
            for command in ("serve", "run", "status")
        }
        # `kubectl exec` runs other commands in the coordinator's pod.
        options["serve"] |= options["status"]
        for overlay in manifests.OVERLAYS:
            for container, _ in self.containers_of(overlay).values():
                command = container["args"][0]
                names = {
                    entry["name"]
                    for entry in container["env"]
                    if entry["name"].startswith("COXSWAIN_")
                }
                self.assertEqual(names - options[command], set(), overlay)

    def make_certificates(self):
        folder = os.path.join(self.folder, "certificates")
        if os.path.exists(folder):  # of another overlay
            return folder
        subprocess.run(
            [COXSWAIN, "certs", "init", "--dir", folder, "--host", "127.0.0.1"]
            + ["--job", "train"],
            check=True,
            stdout=subprocess.DEVNULL,
            timeout=PATIENCE,
        )
        return folder

    def mount_certificates(self, made, name):
        target = self.folder + "/etc/coxswain/tls"
        shutil.rmtree(target, ignore_errors=True)
        os.makedirs(target)
        shutil.copy(os.path.join(made, "ca.crt"), target + "/ca.crt")
        for kind in ("crt", "key"):
            shutil.copy(
                os.path.join(made, "%s.%s" % (name, kind)),
                "%s/tls.%s" % (target, kind),
            )

    def mount(self, path, text):
        path = self.folder + path
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)

    def mount_accounts(self, objects, made):
        """The volumes of an overlay whose workers are service accounts."""
        coordinator = manifests.one(
            objects, "StatefulSet", "coxswain-coordinator"
        )["spec"]["template"]["spec"]["containers"][0]
        settings = manifests.environment(coordinator)
        issuer = issuers.Issuer(settings["COXSWAIN_TOKEN_ISSUER"])
        self.mount(settings["COXSWAIN_TOKEN_KEYS"], issuer.key_set())
        self.mount(
            settings["COXSWAIN_TOKENS"],
            manifests.one(objects, "ConfigMap", "coxswain-tokens")["data"][
                "tokens"
            ],
        )
        job = manifests.one(objects, "Job", "coxswain-train")
        spec = job["spec"]["template"]["spec"]
        (volume,) = [v for v in spec["volumes"] if v["name"] == "identity"]
        folder = "/var/run/coxswain/"
        for source in volume["projected"]["sources"]:
            if "serviceAccountToken" in source:
                asked = source["serviceAccountToken"]
                subject = "system:serviceaccount:%s:%s" % (
                    job["metadata"]["namespace"],
                    spec["serviceAccountName"],
                )
                self.mount(
                    folder + asked["path"],
                    issuer.token(subject, asked["audience"], time.time()),
                )
        with open(os.path.join(made, "ca.crt"), encoding="utf-8") as file:
            self.mount(folder + "ca.crt", file.read())

    def check_admitted(self, known):
        """The worker's token is its job's, and no other's."""
        for job, said in (
            ("train", "has no plan"),
            ("other", "may not call"),
        ):
            done = subprocess.run(
                [COXSWAIN, "plan", "show", job],
                env={k: v for k, v in known.items() if k != "COXSWAIN_JOB"},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                check=False,
                text=True,
                timeout=PATIENCE,
            )
            self.assertEqual(done.returncode, 1, done.stdout)
            self.assertIn(said, done.stdout)

    def check_health(self, ports, *serving):
        """That these are answered with yes, and no others."""
        address = "127.0.0.1:%d" % ports["7078"]
        for service in ("liveness", "readiness", "availability"):
            self.assertEqual(
                prober.check(address, "/" + service),
                "200" if service in serving else "503",
                service,
            )

    def start_etcd(self, port):
        """At the three addresses that the names of its pods are mapped to."""
        folder = os.path.join(self.folder, "etcd")
        urls = ",".join("http://127.0.0.%d:%d" % (i, port) for i in (1, 2, 3))
        peer = "http://127.0.0.1:%d" % free_port()
        words = ["etcd", "--name=one", "--data-dir=" + folder]
        words += ["--listen-client-urls=" + urls]
        words += ["--advertise-client-urls=" + urls]
        words += ["--listen-peer-urls=" + peer]
        words += ["--initial-advertise-peer-urls=" + peer]
        words += ["--initial-cluster=one=" + peer]
        etcd = Running(words, dict(os.environ))
        self.addCleanup(self.end, etcd)
        self.assertTrue(etcd.wait_for("ready to serve"), etcd.said)
        # It says more, and must not wait for a reader.
        threading.Thread(target=etcd.process.stdout.read, daemon=True).start()
        return etcd.process

    @staticmethod
    def end(running):
        if running.process.poll() is None:
            running.process.kill()
            running.process.wait()
        running.process.stdout.close()

    def start_standby(self, ports, said):
        """One of two coordinators; the state is in the same etcd."""
        (container, template) = self.containers_of("etcd-ha")["coordinator"]
        self.assertEqual(
            container["readinessProbe"]["httpGet"]["path"], "/availability"
        )
        running, _ = self.start(container, template, ports)
        self.addCleanup(self.end, running)
        self.assertTrue(running.wait_for(said), running.said)
        return running

    def status_of(self, ports, path):
        address = "http://127.0.0.1:%d" % ports["7079"]
        try:
            with urllib.request.urlopen(address + path, timeout=30) as page:
                return page.status
        except urllib.error.HTTPError as error:
            with error:
                return error.code

    def test_a_roll_out_of_two_coordinators_goes_on_while_one_can_lead(self):
        """What the kubelet's probe is told, which is what a roll-out sees."""
        etcd = free_port()
        os.makedirs(os.path.join(self.folder, "var/lib/coxswain"))
        server = self.start_etcd(etcd)
        ports = [
            {"2379": etcd, "7077": free_port(), "7078": free_port(),
             "7079": free_port()}
            for _ in range(2)
        ]
        zero = self.start_standby(ports[0], "listening on")
        self.check_health(
            ports[0], "liveness", "readiness", "availability"
        )
        one = self.start_standby(ports[1], "standing by for")
        self.check_health(ports[1], "liveness", "availability")
        self.assertEqual(self.status_of(ports[1], "/healthz"), 200)
        self.assertEqual(self.status_of(ports[1], "/readyz"), 503)

        # The standby is replaced first, the one that leads when it is ready.
        self.assertEqual(one.stop(), 0, one.said)
        one = self.start_standby(ports[1], "standing by for")
        self.check_health(ports[1], "liveness", "availability")
        self.assertEqual(zero.stop(), 0, zero.said)
        self.assertTrue(one.wait_for("listening on"), one.said)
        self.check_health(
            ports[1], "liveness", "readiness", "availability"
        )
        zero = self.start_standby(ports[0], "standing by for")
        self.check_health(ports[0], "liveness", "availability")

        # Without etcd neither is any good, and a roll-out has to stop.
        server.kill()
        server.wait()
        for running, its in ((zero, ports[0]), (one, ports[1])):
            self.assertTrue(
                running.wait_for("state_not_reached"), running.said
            )
            self.check_health(its, "liveness")
            self.assertEqual(self.status_of(its, "/readyz"), 503)
            self.assertEqual(running.stop(), 0, running.said)

    def check_pages(self, ports):
        address = "http://127.0.0.1:%d" % ports["7079"]
        for path in ("/healthz", "/readyz", "/metrics"):
            with urllib.request.urlopen(address + path, timeout=30) as page:
                self.assertEqual(page.status, 200, path)
                text = page.read().decode()
        self.assertIn("# TYPE coxswain_", text)

    def test_coordinators_listen_and_workers_learn_who_they_are(self):
        for overlay in manifests.OVERLAYS:
            with self.subTest(overlay=overlay):
                self.play(overlay, self.containers_of(overlay))

    def play(self, overlay, parts):
        made = None
        accounts = overlay == "service-account-tokens"
        if overlay == "tls-cert-manager" or accounts:
            made = self.make_certificates()
            self.mount_certificates(made, "coordinator")
        if accounts:
            self.mount_accounts(manifests.render_overlay(overlay), made)
        ports = {}
        state = os.path.join(self.folder, "var/lib/coxswain")
        shutil.rmtree(state, ignore_errors=True)
        os.makedirs(state)
        stands_by = overlay == "etcd-ha"
        coordinator, known = self.start(*parts["coordinator"], ports)
        try:
            # There is no etcd here: it is alive, and not ready.
            said = "state_not_reached" if stands_by else "listening on"
            self.assertTrue(coordinator.wait_for(said), coordinator.said)
            if stands_by:
                self.check_health(ports, "liveness")
            else:
                self.check_health(
                    ports, "liveness", "readiness", "availability"
                )
                self.check_pages(ports)
                self.assertTrue(os.path.isdir(known["COXSWAIN_STATE_DIR"]))
            if made is not None and not accounts:
                self.mount_certificates(made, "job-train")
            self.check_worker(overlay, parts["worker"], ports)
        finally:
            status = coordinator.stop()
        self.assertEqual(status, 0, coordinator.said)

    def check_worker(self, overlay, part, ports):
        worker, known = self.start(*part, ports)
        rest, _ = worker.process.communicate(timeout=PATIENCE)
        said = rest.decode()
        if overlay == "gpu":  # and there may be none here
            self.assertIn(worker.process.returncode, (0, 1), said)
            if worker.process.returncode == 1:
                self.assertIn("GPU", said)
                return
        self.assertEqual(worker.process.returncode, 0, said)
        if "COXSWAIN_TOKEN_FILE" in known:
            self.check_admitted(known)
        most = int(known["COXSWAIN_NNODES"].split(":")[1])
        for told in (
            "COXSWAIN_NODE=worker-2",
            "COXSWAIN_JOB=train",
            "COXSWAIN_COORDINATOR=" + known["COXSWAIN_COORDINATOR"],
            "COXSWAIN_WORLD_SIZE=%d" % (most * 8 if overlay == "gpu" else most),
            "COXSWAIN_ATTEMPT=%d" % (4 if overlay == "jobset" else 0),
        ):
            self.assertIn(told + "\n", said)


if __name__ == "__main__":
    COXSWAIN = os.path.realpath(sys.argv.pop(1))
    if manifests.kubectl() is None:
        print("SKIPPED: no kubectl (tools/install_deps.sh --tests has it):")
        print("NO program was started as the manifests say")
        sys.exit(0)
    unittest.main(verbosity=2)
