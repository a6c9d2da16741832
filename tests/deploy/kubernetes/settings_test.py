#!/usr/bin/env python3
"""Starts our programs with the arguments and variables of the manifests.

Every container of every overlay, exactly as it is rendered, but for what a
cluster would map: ports are free ones of this machine, files are below a
folder of this test, names are on the loopback. The program after `--` is one
that prints which variables it got. Two coordinators of etcd-ha are also started
over a real etcd, and the proxy of service-account-tokens is a real haproxy:
this test needs both.

  settings_test.py COXSWAIN
"""

import hashlib
import os
import re
import selectors
import shutil
import signal
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
TIMEOUT_S = 60
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
        timeout=TIMEOUT_S,
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
        self.output = ""

    def wait_for(self, text, times=1):
        """Waits until it has printed that, or ended; false at the deadline."""
        end = time.monotonic() + TIMEOUT_S
        with selectors.DefaultSelector() as ready:
            ready.register(self.process.stdout, selectors.EVENT_READ)
            while self.output.count(text) < times:
                if not ready.select(max(0, end - time.monotonic())):
                    return False
                data = os.read(self.process.stdout.fileno(), 65536)
                if not data:
                    return False
                self.output += data.decode(errors="replace")
        return True

    def stop(self):
        self.process.terminate()
        rest, _ = self.process.communicate(timeout=TIMEOUT_S)
        self.output += rest.decode(errors="replace")
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

    def start(self, container, template, ports, **more):
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
        known["PATH"] = "%s:/usr/sbin:/usr/bin:/bin" % os.path.join(
            self.folder, "bin"
        )
        known.update(more)
        words = [
            self.folder + word if word.startswith("/") else word
            for word in containers.command(container, known)
        ]
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

    def make_certificates(self, name="certificates"):
        folder = os.path.join(self.folder, name)
        if os.path.exists(folder):  # of another overlay
            return folder
        subprocess.run(
            [COXSWAIN, "certs", "init", "--dir", folder, "--host", "127.0.0.1"]
            + ["--job", "train"],
            check=True,
            stdout=subprocess.DEVNULL,
            timeout=TIMEOUT_S,
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

    def mount_coordinator_of_accounts(self, objects):
        """The volumes of a coordinator that reads signed tokens."""
        template = manifests.one(
            objects, "StatefulSet", "coxswain-coordinator"
        )["spec"]["template"]
        settings = manifests.environment(
            manifests.container_of(template, "coordinator")
        )
        self.issuer = issuers.Issuer(settings["COXSWAIN_TOKEN_ISSUER"])
        self.mount(settings["COXSWAIN_TOKEN_KEYS"], self.issuer.key_set())
        self.mount(
            settings["COXSWAIN_TOKENS"],
            manifests.one(objects, "ConfigMap", "coxswain-tokens")["data"][
                "tokens"
            ],
        )
        self.mount_token(objects, template)

    def mount_token(self, objects, template):
        """What the kubelet makes of a pod's volume "identity"."""
        (space,) = [o["metadata"] for o in objects if o["kind"] == "Namespace"]
        spec = template["spec"]
        (volume,) = [v for v in spec["volumes"] if v["name"] == "identity"]
        for source in volume["projected"]["sources"]:
            if "serviceAccountToken" in source:
                asked = source["serviceAccountToken"]
                subject = "system:serviceaccount:%s:%s" % (
                    space["name"],
                    spec["serviceAccountName"],
                )
                self.mount(
                    "/var/run/coxswain/" + asked["path"],
                    self.issuer.token(subject, asked["audience"], time.time()),
                )

    def mount_front(self, made):
        """The proxy's certificate, as its volume names the files."""
        target = self.folder + "/etc/coxswain/tls/"
        os.makedirs(target, exist_ok=True)
        for source, name in (
            ("coordinator.key", "front.pem.key"),
            ("ca.crt", "ca.crt"),
            ("coordinator.crt", "front.pem"),
        ):
            shutil.copy(os.path.join(made, source), target + "next")
            os.rename(target + "next", target + name)

    def start_proxy(self, objects, made, ports, **more):
        template = manifests.one(
            objects, "StatefulSet", "coxswain-coordinator"
        )["spec"]["template"]
        (volume,) = [
            v for v in template["spec"]["volumes"] if v["name"] == "proxy"
        ]
        data = manifests.one(
            objects, "ConfigMap", volume["configMap"]["name"]
        )["data"]
        for name, text in data.items():
            self.mount("/etc/haproxy/" + name, text)
        self.mount_front(made)
        proxy, _ = self.start(
            manifests.container_of(template, "proxy"),
            template,
            ports,
            COXSWAIN_RELOAD_SECONDS="1",
            **more,
        )
        self.addCleanup(proxy.process.terminate)
        self.assertTrue(proxy.wait_for("Loading success"), proxy.output)
        return proxy

    def ask(self, known, *words):
        done = subprocess.run(
            [COXSWAIN, *words],
            env={k: v for k, v in known.items() if k != "COXSWAIN_JOB"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
            text=True,
            timeout=TIMEOUT_S,
        )
        return done.returncode, done.stdout

    def check_admitted(self, known):
        """The worker's token is its job's, and no other's."""
        for job, output in (
            ("train", "has no plan"),
            ("other", "may not call"),
        ):
            status, out = self.ask(known, "plan", "show", job)
            self.assertEqual(status, 1, out)
            self.assertIn(output, out)

    def check_refused(self, known, by_form):
        """Which server refuses a caller depends on the form of its token."""
        for token, output in (
            ("0123456789abcdef", "the proxy knows no such caller"),
            ("a.b.c", by_form),
        ):
            path = os.path.join(self.folder, "refused")
            with open(path, "w", encoding="utf-8") as file:
                file.write(token)
            status, out = self.ask(
                dict(known, COXSWAIN_TOKEN_FILE=path), "plan", "show", "train"
            )
            self.assertEqual(status, 1, out)
            self.assertIn(output, out)

    def check_proxy_takes_over_certificates(self, proxy, known):
        """A renewed certificate counts without a restart."""
        renewed = self.make_certificates("renewed")
        authority = os.path.join(renewed, "ca.crt")
        status, out = self.ask(
            dict(known, COXSWAIN_TLS_CA=authority),
            "plan", "show", "train", "--timeout", "1s",
        )
        self.assertEqual(status, 1, out)
        self.assertNotIn("has no plan", out)
        self.mount_front(renewed)
        # The files are replaced one after the other: what is there in between
        # may be refused, or be a reload of its own.
        self.assertTrue(proxy.wait_for("Loading success", 2), proxy.output)
        shutil.copy(authority, known["COXSWAIN_TLS_CA"])
        self.check_admitted(known)

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
        self.assertTrue(etcd.wait_for("ready to serve"), etcd.output)
        # It prints more, and must not wait for a reader.
        threading.Thread(target=etcd.process.stdout.read, daemon=True).start()
        return etcd.process

    @staticmethod
    def end(running):
        if running.process.poll() is None:
            running.process.kill()
            running.process.wait()
        running.process.stdout.close()

    def start_standby(self, ports, output):
        """One of two coordinators; the state is in the same etcd."""
        (container, template) = self.containers_of("etcd-ha")["coordinator"]
        self.assertEqual(
            container["readinessProbe"]["httpGet"]["path"], "/availability"
        )
        running, _ = self.start(container, template, ports)
        self.addCleanup(self.end, running)
        self.assertTrue(running.wait_for(output), running.output)
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
        """What the kubelet's probe gets, which is what a roll-out sees."""
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
        self.assertEqual(one.stop(), 0, one.output)
        one = self.start_standby(ports[1], "standing by for")
        self.check_health(ports[1], "liveness", "availability")
        self.assertEqual(zero.stop(), 0, zero.output)
        self.assertTrue(one.wait_for("listening on"), one.output)
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
                running.wait_for("state_not_reached"), running.output
            )
            self.check_health(its, "liveness")
            self.assertEqual(self.status_of(its, "/readyz"), 503)
            self.assertEqual(running.stop(), 0, running.output)

    def test_maps_have_the_digests_of_tokens_and_no_subjects(self):
        make = os.path.join(manifests.WORKSPACE, "deploy/haproxy/make_maps.sh")

        def maps_of(text):
            self.mount("/tokens", text)
            done = subprocess.run(
                [make, self.folder + "/tokens", self.folder],
                stderr=subprocess.PIPE,
                check=False,
                text=True,
                timeout=TIMEOUT_S,
            )
            self.assertEqual(done.returncode, 0, done.stderr)
            found = []
            for name in ("tokens.map", "certificates.map"):
                path = os.path.join(self.folder, name)
                self.assertEqual(os.stat(path).st_mode & 0o777, 0o600)
                with open(path, encoding="utf-8") as file:
                    found.append(file.read())
            return found

        self.assertEqual(
            maps_of("# comment\njob/train secret\noperator subject:ops\n"),
            [
                hashlib.sha256(b"secret").hexdigest() + " job/train\n",
                "job-train secret\n",
            ],
        )
        self.assertEqual(maps_of("job/train subject:one\n"), ["", ""])

    def check_pages(self, ports):
        address = "http://127.0.0.1:%d" % ports["7079"]
        for path in ("/healthz", "/readyz", "/metrics"):
            with urllib.request.urlopen(address + path, timeout=30) as page:
                self.assertEqual(page.status, 200, path)
                text = page.read().decode()
        self.assertIn("# TYPE coxswain_", text)

    def test_coordinators_listen_and_workers_learn_their_identity(self):
        for overlay in manifests.OVERLAYS:
            with self.subTest(overlay=overlay):
                self.play(overlay, self.containers_of(overlay))

    def play(self, overlay, parts):
        accounts = overlay == "service-account-tokens"
        objects = manifests.render_overlay(overlay)
        if accounts:
            self.mount_coordinator_of_accounts(objects)
        elif overlay == "tls-cert-manager":
            self.mount_certificates(self.make_certificates(), "coordinator")
        ports = {}
        state = os.path.join(self.folder, "var/lib/coxswain")
        shutil.rmtree(state, ignore_errors=True)
        os.makedirs(state)
        stands_by = overlay == "etcd-ha"
        coordinator, known = self.start(*parts["coordinator"], ports)
        try:
            # There is no etcd here: it is alive, and not ready.
            output = "state_not_reached" if stands_by else "listening on"
            self.assertTrue(coordinator.wait_for(output), coordinator.output)
            if stands_by:
                self.check_health(ports, "liveness")
            else:
                self.check_health(
                    ports, "liveness", "readiness", "availability"
                )
                self.check_pages(ports)
                self.assertTrue(os.path.isdir(known["COXSWAIN_STATE_DIR"]))
            if accounts:
                self.play_accounts(objects, parts, known, ports)
            else:
                if overlay == "tls-cert-manager":
                    self.mount_certificates(
                        self.make_certificates(), "job-train"
                    )
                self.check_worker(overlay, parts["worker"], ports)
        finally:
            status = coordinator.stop()
        self.assertEqual(status, 0, coordinator.output)

    def play_accounts(self, objects, parts, coordinator, ports):
        """The rest of the pod, and a worker that comes through the proxy."""
        status, out = self.ask(coordinator, "status", "--json")
        self.assertEqual(status, 0, out)
        made = self.make_certificates()
        proxy = self.start_proxy(objects, made, ports)
        container, template = parts["worker"]
        self.mount_token(objects, template)
        with open(os.path.join(made, "ca.crt"), encoding="utf-8") as file:
            self.mount("/var/run/coxswain/ca.crt", file.read())
        known = self.check_worker("", (container, template), ports)
        self.check_admitted(known)
        self.check_refused(known, "the token is not valid")
        self.check_proxy_takes_over_certificates(proxy, known)
        # haproxy's own, by which of its processes ends first.
        self.assertIn(proxy.stop(), (0, 128 + signal.SIGTERM), proxy.output)
        # Without the option for signed ones it knows all tokens.
        proxy = self.start_proxy(
            objects,
            os.path.join(self.folder, "renewed"),
            ports,
            COXSWAIN_SIGNED_TOKENS="",
        )
        self.check_refused(known, "the proxy knows no such caller")
        proxy.stop()

    def check_worker(self, overlay, part, ports):
        worker, known = self.start(*part, ports)
        rest, _ = worker.process.communicate(timeout=TIMEOUT_S)
        output = rest.decode()
        if overlay == "gpu":  # and there may be none here
            self.assertIn(worker.process.returncode, (0, 1), output)
            if worker.process.returncode == 1:
                self.assertIn("GPU", output)
                return known
        self.assertEqual(worker.process.returncode, 0, output)
        most = int(known["COXSWAIN_NNODES"].split(":")[1])
        for variable in (
            "COXSWAIN_NODE=worker-2",
            "COXSWAIN_JOB=train",
            "COXSWAIN_COORDINATOR=" + known["COXSWAIN_COORDINATOR"],
            "COXSWAIN_WORLD_SIZE=%d" % (most * 8 if overlay == "gpu" else most),
            "COXSWAIN_ATTEMPT=%d" % (4 if overlay == "jobset" else 0),
        ):
            self.assertIn(variable + "\n", output)
        return known


if __name__ == "__main__":
    COXSWAIN = os.path.realpath(sys.argv.pop(1))
    if manifests.kubectl() is None:
        print("SKIPPED: no kubectl (tools/install_deps.sh --tests has it):")
        print("NO program was started as in the manifests")
        sys.exit(0)
    unittest.main(verbosity=2)
