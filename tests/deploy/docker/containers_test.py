#!/usr/bin/env python3
"""Runs the commands of docs/containers.md with a Docker engine of its own.

usage: containers_test.py COXSWAIN ELASTIC

Needs root, a network to fetch packages from, and some Debian packages; prints
SKIPPED and the reason where something is missing. Takes minutes.
"""

import json
import os
import re
import shutil
import signal
import sys
import unittest

sys.dont_write_bytecode = True  # It would be in the source tree.
sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))

import engine
import source_tree

BUILD_S = 900
TRAIN_S = 300
SHORT_S = 60

PROGRAMS = []  # the paths of coxswain and of the training program
ENGINE = None

BLOCKS = {b.name: b.commands for b in source_tree.blocks(
    source_tree.read("docs/containers.md")) if b.name}

COMPOSE = "docker compose -f deploy/docker/docker-compose.yml "
TLS_COMPOSE = "docker compose -f deploy/docker/docker-compose.tls.yml "


def in_tree(commands, timeout=SHORT_S, **more):
    return ENGINE.run(
        "cd %s\n%s" % (ENGINE.tree, commands), timeout, **more
    )


def make_tree():
    """A copy of what the page's commands use, with Bazel's outputs."""
    tree = os.path.join(ENGINE.folder, "tree")
    for path in ("deploy/docker", "base/version.h"):
        source = os.path.join(source_tree.ROOT, path)
        target = os.path.join(tree, path)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        (shutil.copytree if os.path.isdir(source) else shutil.copy)(
            source, target
        )
    for place, program in zip(
        ("cli/coxswain", "examples/elastic/elastic"), PROGRAMS
    ):
        link = os.path.join(tree, "bazel-bin", place)
        os.makedirs(os.path.dirname(link))
        os.symlink(program, link)
    return tree


def inspect(container):
    return json.loads(in_tree("docker inspect " + container))[0]


class ContainersTest(unittest.TestCase):
    """The tests run in the order of their names; images come first."""

    def assert_confined(self, container):
        found = inspect(container)
        self.assertEqual(found["Config"]["User"], "10001:10001")
        self.assertTrue(found["HostConfig"]["ReadonlyRootfs"])
        self.assertEqual(found["HostConfig"]["CapDrop"], ["ALL"])
        self.assertIn(
            "no-new-privileges",
            " ".join(found["HostConfig"]["SecurityOpt"]),
        )

    def assert_ended_well(self, container):
        state = inspect(container)["State"]
        self.assertEqual(state["Status"], "exited", container)
        self.assertEqual(
            state["ExitCode"], 0, in_tree("docker logs " + container)
        )

    def assert_trained(self, output, steps):
        """Rank 0 has printed the last step and a loss that is a number."""
        match = re.search(
            r"\b%d ([0-9.e+-]+)\s*$" % steps, output, re.MULTILINE
        )
        self.assertIsNotNone(match, output)
        self.assertLess(float(match.group(1)), 10, output)

    def test_1_the_images_are_built(self):
        in_tree(BLOCKS["base"], BUILD_S)
        in_tree(BLOCKS["images"], BUILD_S)
        for image, megabytes in (("coordinator", 200), ("worker", 1500)):
            name = "coxswain-%s:0.1.0" % image
            found = json.loads(in_tree("docker image inspect " + name))[0]
            size = found["Size"] / 1e6
            print("size of %s: %.0f MB" % (name, size))
            self.assertLess(size, megabytes)
            self.assertEqual(found["Config"]["User"], "10001:10001")
            self.assertEqual(found["Config"]["StopSignal"], "SIGTERM")
            labels = found["Config"]["Labels"]
            self.assertEqual(
                labels["org.opencontainers.image.version"], "0.1.0"
            )

    def test_2_no_library_is_missing(self):
        for image, programs in (
            ("coordinator", "coxswain"),
            ("worker", "coxswain elastic"),
        ):
            output = in_tree(
                "docker run --rm --network=none --entrypoint sh "
                "coxswain-%s:0.1.0 -c 'for p in %s; do "
                "ldd /usr/local/bin/$p || exit 1; done; coxswain version'"
                % (image, programs)
            )
            self.assertNotIn("=> not found", output)
            self.assertIn("0.1.0", output)

    def test_3_a_container_can_write_nothing_but_its_volume(self):
        in_tree(
            "docker run --rm --network=none --read-only --entrypoint sh "
            "coxswain-coordinator:0.1.0 -c '"
            "[ $(id -u) = 10001 ] && ! touch /usr/local/x && ! touch /etc/x "
            "&& ! touch /tmp/x && touch /var/lib/coxswain/x'"
        )

    def test_4_containers_alone(self):
        in_tree(BLOCKS["network"])
        try:
            in_tree(BLOCKS["coordinator"])
            in_tree(BLOCKS["workers"])
            for worker in ("bow", "stroke"):
                in_tree("docker wait " + worker, TRAIN_S)
                self.assert_confined(worker)
                self.assert_ended_well(worker)
            output = in_tree("docker logs bow; docker logs stroke")
            self.assert_trained(output, 1000)
            self.assertIn(" of 2 ", output)
            self.assertIn("mnist", in_tree(BLOCKS["status"]))
            self.assert_confined("coordinator")
            in_tree("docker stop --time 30 coordinator")
            self.assert_ended_well("coordinator")
            self.assertIn(
                "shutting_down", in_tree("docker logs coordinator")
            )
        finally:
            in_tree(BLOCKS["remove"])

    def test_5_compose_trains_to_the_end(self):
        in_tree(BLOCKS["up"], TRAIN_S)
        try:
            containers = {
                name: in_tree(COMPOSE + "ps -q " + name).strip()
                for name in ("coordinator", "worker-1", "worker-2", "worker-3")
            }
            for name, container in containers.items():
                self.assert_confined(container)
                if name != "coordinator":
                    in_tree("docker wait " + container, TRAIN_S)
                    self.assert_ended_well(container)
            output = in_tree(COMPOSE + "logs --no-color")
            self.assert_trained(output, 2000)
            self.assertIn(" of 3 ", output)
            self.assertIn("demo", in_tree(BLOCKS["ask"]))
            self.assertEqual(
                inspect(containers["coordinator"])["State"]["Health"][
                    "Status"
                ],
                "healthy",
            )
        finally:
            in_tree(BLOCKS["down"], TRAIN_S)

    def test_6_a_worker_that_is_stopped_drains_and_the_others_go_on(self):
        in_tree(BLOCKS["up"], TRAIN_S, STEPS="1000000")
        try:
            self.wait_for("worker-1", " of 3 ")
            container = in_tree(COMPOSE + "ps -q worker-3").strip()
            in_tree(BLOCKS["drain"], TRAIN_S)
            self.assert_ended_well(container)
            self.wait_for("worker-1", " of 2 ")
            in_tree(COMPOSE + "stop", TRAIN_S)
            for name in ("worker-1", "worker-2", "coordinator"):
                container = in_tree(COMPOSE + "ps -q " + name).strip()
                self.assertNotEqual(
                    inspect(container)["State"]["ExitCode"],
                    137,
                    name + " had to be killed",
                )
        finally:
            in_tree(BLOCKS["down"], TRAIN_S)

    def test_7_compose_with_certificates(self):
        in_tree(BLOCKS["tls-up"], TRAIN_S)
        try:
            containers = {
                name: in_tree(TLS_COMPOSE + "ps -q " + name).strip()
                for name in ("coordinator", "worker-1", "worker-2", "worker-3")
            }
            for name, container in containers.items():
                self.assert_confined(container)
                if name != "coordinator":
                    in_tree("docker wait " + container, TRAIN_S)
                    self.assert_ended_well(container)
            output = in_tree(TLS_COMPOSE + "logs --no-color")
            self.assert_trained(output, 2000)
            self.assertIn(" of 3 ", output)
            self.assertIn("demo", in_tree(BLOCKS["tls-ask"]))
            self.assertIn('"insecure":false', in_tree(BLOCKS["tls-page"]))
            self.assert_a_worker_sees_only_its_job(containers["worker-1"])
        finally:
            in_tree(BLOCKS["tls-down"], TRAIN_S)

    def assert_a_worker_sees_only_its_job(self, worker):
        """A container in the place of the worker: its network and volumes."""
        (network,) = inspect(worker)["NetworkSettings"]["Networks"]
        (mount,) = inspect(worker)["Mounts"]
        gateway = json.loads(in_tree("docker network inspect " + network))[0][
            "IPAM"]["Config"][0]["Gateway"]
        output = in_tree(
            "docker run --rm --network=%s --volume %s:/certs:ro "
            "--env COXSWAIN_COORDINATOR=%s:7077 "
            "--env COXSWAIN_TLS_CA=/certs/ca.crt --entrypoint bash "
            "coxswain-worker:0.1.0 -c '"
            "ls /certs; "
            # With its certificate; without one; in plain text; and the page.
            "COXSWAIN_TLS_CERT=/certs/job-demo.crt "
            "COXSWAIN_TLS_KEY=/certs/job-demo.key coxswain status || exit 1; "
            "! coxswain status --timeout 4s || exit 2; unset COXSWAIN_TLS_CA; "
            "! coxswain status --timeout 4s || exit 3; "
            "! exec 3<>/dev/tcp/%s/7079 || exit 4' 2>&1"
            % (network, mount["Name"], gateway, gateway)
        )
        self.assertEqual(
            output.split()[:3],
            ["ca.crt", "job-demo.crt", "job-demo.key"],
            output,
        )
        self.assertIn("job demo", output)

    def wait_for(self, service, words):
        """Waits until the service has printed the words."""
        container = in_tree(COMPOSE + "ps -q " + service).strip()
        # grep ends the pipe, and with it `docker logs`, at the first line.
        in_tree(
            "timeout %d grep -q -m1 '%s' < <(docker logs -f %s 2>&1)"
            % (SHORT_S, words, container),
            SHORT_S + 10,
        )


def skip(reason):
    print("SKIPPED: no image was built and no container was run: " + reason)
    path = os.environ.get("XML_OUTPUT_FILE")
    if path:
        with open(path, "w", encoding="utf-8") as file:
            file.write(
                '<testsuites><testsuite name="containers_test" tests="1">'
                '<testcase classname="ContainersTest" name="all" '
                'result="skipped"/></testsuite></testsuites>\n'
            )
    return 0


def interrupted(*_):
    raise SystemExit(1)


def main():
    global ENGINE
    PROGRAMS.extend(os.path.realpath(path) for path in sys.argv[1:3])
    del sys.argv[1:3]
    missing = engine.what_is_missing()
    if missing:
        return skip(missing)
    signal.signal(signal.SIGTERM, interrupted)
    ENGINE = engine.Engine()
    try:
        if not ENGINE.start():
            return skip("dockerd does not start:\n" + ENGINE.log)
        ENGINE.tree = make_tree()
        result = unittest.main(verbosity=2, exit=False).result
        return 0 if result.wasSuccessful() else 1
    finally:
        ENGINE.stop()


if __name__ == "__main__":
    sys.exit(main())
