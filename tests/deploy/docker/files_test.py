#!/usr/bin/env python3
"""Checks deploy/docker without an engine.

usage: files_test.py COXSWAIN ELASTIC

The images' packages against what the binaries link to; the compose files, whose
commands are run as processes of this machine; what build.sh stages; and that
docs/containers.md notes for each command whether it is run.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import urllib.request

sys.dont_write_bytecode = True  # It would be in the source tree.
sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))

import source_tree

TIMEOUT_S = 120
PROGRAMS = {}
PLAIN = "docker-compose.yml"
TLS = "docker-compose.tls.yml"
WORKERS = ["worker-1", "worker-2", "worker-3"]


def output_of(*command, **more):
    return subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        **more
    ).stdout


def packages_of(libraries):
    """The Debian packages that files belong to; /lib is a link to usr/lib."""
    # Asked for all at once, because each question reads all lists.
    places = {}
    for library in libraries:
        for path in (library, os.path.realpath(library)):
            places[path] = places[re.sub("^/usr/lib/", "/lib/", path)] = library
    output = output_of("dpkg", "-S", *places)
    owners = {
        places[path]: package
        for package, path in re.findall(
            r"^([a-z0-9.+-]+)(?::\w+)?: (/\S+)$", output, re.MULTILINE
        )
    }
    orphans = set(libraries) - set(owners)
    if orphans:
        raise AssertionError("no package has " + ", ".join(sorted(orphans)))
    return set(owners.values())


def libraries_of(program):
    output = output_of("ldd", program)
    if "not found" in output:
        raise AssertionError(output)
    return re.findall(r"=> (/\S+)", output)


def installed():
    """{package or what it provides: what it depends on}."""
    fields = "${Package}\t${Provides}\t${Pre-Depends}, ${Depends}\n"
    found = {}
    for line in output_of("dpkg-query", "-W", "-f", fields).split("\n"):
        if line.count("\t") != 2:
            continue
        name, provides, depends = line.split("\t")
        names = re.split(r"[,|]", depends)
        needs = {re.sub(r"[ (:].*", "", n.strip()) for n in names} - {""}
        for alias in [name] + provides.split(","):
            alias = re.sub(r"[ (:].*", "", alias.strip())
            if alias:
                found.setdefault(alias, set()).update(needs | {name})
    return found


def closure(packages):
    tree, seen, left = installed(), set(), list(packages)
    while left:
        package = left.pop()
        if package not in seen:
            seen.add(package)
            left += tree.get(package, ())
    return seen


class ImagesTest(unittest.TestCase):
    def setUp(self):
        self.text = source_tree.read("deploy/docker/Dockerfile")
        self.stages = source_tree.stages(self.text)

    def packages(self, stage):
        return source_tree.installed_packages(self.stages[stage])

    @unittest.skipIf(
        shutil.which("dpkg-query") is None, "SKIPPED: this is no Debian"
    )
    def test_the_packages_bring_what_coxswain_links_to(self):
        listed = self.packages("runtime")
        self.assertIn("libgrpc++1.51", listed)
        brought = closure(listed)
        owners = packages_of(libraries_of(PROGRAMS["coxswain"]))
        self.assertEqual(owners - brought, set(), "not in the image")
        self.assertEqual(set(listed) - owners, set(), "not needed")

    @unittest.skipIf(
        shutil.which("dpkg-query") is None, "SKIPPED: this is no Debian"
    )
    def test_the_packages_bring_what_the_program_links_to(self):
        (besides,) = re.findall('^ARG PACKAGES="(.*)"$', self.text, re.M)
        self.assertIn('\npackages="%s"\n' % besides,
                      source_tree.read("deploy/docker/build.sh"))
        self.assertIn("(default: %s)" % besides, self.build("--help"))
        # Or libtorch would compute with the reference BLAS.
        self.assertIn("libopenblas0-pthread", besides.split())
        listed = self.packages("runtime") + besides.split()
        owners = packages_of(libraries_of(PROGRAMS["elastic"]))
        self.assertEqual(owners - closure(listed), set(), "not in the image")

    def test_images_run_as_an_ordinary_user(self):
        cuda = source_tree.stages(
            source_tree.read("deploy/docker/Dockerfile.cuda")
        )[""]
        for stage in (
            self.stages["coordinator"],
            self.stages["worker"],
            cuda,
        ):
            users = [text for word, text in stage if word == "USER"]
            self.assertEqual(users[-1], "10001:10001")
        self.assertIn(("STOPSIGNAL", "SIGTERM"), self.stages["runtime"])

    def test_build_sh_stages_what_the_images_copy(self):
        with tempfile.TemporaryDirectory() as scratch:
            bin_dir = os.path.join(scratch, "bin")
            for place, name in (("cli", "coxswain"),
                                ("examples/elastic", "elastic")):
                os.makedirs(os.path.join(bin_dir, place))
                os.symlink(PROGRAMS[name], os.path.join(bin_dir, place, name))
            nccl = os.path.join(scratch, "libnccl.so.2")
            with open(nccl, "w", encoding="utf-8") as file:
                file.write("as if")
            context = os.path.join(scratch, "context")
            output = self.build("--bin", bin_dir, "--nccl", nccl, "--stage",
                              context, "coordinator", "worker", "cuda")
            self.assertEqual(output, "")
            self.assert_copies_are_there(context, "Dockerfile")
            self.assert_copies_are_there(context, "Dockerfile.cuda")
            staged = os.path.join(context, "bin/coxswain")
            self.assertIn("0.1.0", output_of(staged, "version"))
            self.assertLess(os.path.getsize(staged),
                            os.path.getsize(PROGRAMS["coxswain"]))

    def assert_copies_are_there(self, context, dockerfile):
        with open(os.path.join(context, dockerfile), encoding="utf-8") as file:
            copies = [text for word, text in
                      source_tree.instructions(file.read()) if word == "COPY"]
        self.assertTrue(copies)
        for copy in copies:
            for source in copy.split()[:-1]:
                path = os.path.join(context, source)
                self.assertTrue(os.path.exists(path), path)
                self.assertTrue(not os.path.isdir(path) or os.listdir(path))

    def test_build_sh_refuses_what_cannot_be_built(self):
        for arguments, words in (
            (["--tag"], "--tag needs a value"),
            (["coordinater"], "unknown word 'coordinater'"),
            (["cuda"], "needs --nccl FILE"),
            (["--bin", "/nowhere"], "there is no /nowhere/cli/coxswain"),
            (["--program", "/nowhere/p", "--bin", "/nowhere", "worker"],
             "there is no /nowhere"),
        ):
            self.assertIn(words, self.build(*arguments))

    def build(self, *arguments):
        return output_of(
            os.path.join(source_tree.ROOT, "deploy/docker/build.sh"),
            *arguments
        )


class ComposeFilesTest(unittest.TestCase):
    """Of the keys that compose knows we use few, and check these."""

    KEYS = {
        "cap_add", "cap_drop", "command", "depends_on", "entrypoint",
        "environment", "healthcheck", "hostname", "image", "network_mode",
        "networks", "pids_limit", "read_only", "restart", "security_opt",
        "shm_size", "stop_grace_period", "tmpfs", "user", "volumes",
    }

    def each(self):
        for name in (PLAIN, TLS):
            self.named = name
            file = source_tree.compose_file({}, name)
            yield name, file, file["services"]

    def _formatMessage(self, msg, standardMsg):
        where = getattr(self, "named", "")
        return "%s: %s" % (where, super()._formatMessage(msg, standardMsg))

    def test_services_are_confined(self):
        for name, file, services in self.each():
            self.assertEqual(
                sorted(services),
                (["certs"] if name == TLS else []) + ["coordinator"] + WORKERS,
            )
            for where, service in services.items():
                self.assertEqual(set(service) - self.KEYS, set(), where)
                self.assertIs(service["read_only"], True)
                self.assertEqual(service["cap_drop"], ["ALL"])
                self.assertEqual(
                    service["security_opt"], ["no-new-privileges:true"]
                )
                self.assertNotIn("ports", service)
                if where != "certs":
                    self.assertNotIn("cap_add", service)
                    self.assertNotIn("user", service)
            for where in WORKERS:
                self.assertEqual(services[where]["networks"], ["training"])
            self.assertIs(file["networks"]["training"]["internal"], True)

    def test_services_are_in_their_networks(self):
        for name, _, services in self.each():
            for where, service in services.items():
                self.assertEqual(
                    service.get("network_mode"),
                    {"certs": "none", "coordinator": "host"}.get(where)
                    if name == TLS
                    else None,
                )
                self.assertNotEqual(
                    "network_mode" in service, "networks" in service, where
                )

    def test_other_machines_reach_nothing(self):
        for _, file, _ in self.each():
            self.assertEqual(source_tree.reached_from_elsewhere(file), [])

    def test_what_other_machines_would_reach_is_found(self):
        def change(where, **how):
            file = source_tree.compose_file({}, TLS)
            place = file
            for word in where:
                place = place[word]
            place.update(how)
            return source_tree.reached_from_elsewhere(file)

        coordinator = ("services", "coordinator")
        self.assertEqual(change(coordinator, ports=["127.0.0.1:1:7077"]), [])
        self.assertEqual(
            change(coordinator, ports=["7077:7077"]),
            ["coordinator publishes 7077:7077"],
        )
        self.assertEqual(
            change(coordinator, command=["serve"]),
            ["coordinator listens on 0.0.0.0:7077"],
        )
        self.assertEqual(
            change(coordinator, environment={}),
            ["coordinator listens on 172.30.77.1:7077"],
        )
        self.assertEqual(
            change(("networks", "training"), internal=False),
            ["the network training is not internal"],
        )

    def test_images_are_those_that_are_built(self):
        stages = source_tree.stages(source_tree.read("deploy/docker/Dockerfile"))
        version = re.search(
            r'"(.*)"', re.search(r"kVersion.*", source_tree.read(
                "base/version.h")).group(0)).group(1)
        for _, _, services in self.each():
            for service in services.values():
                stage, tag = service["image"].split(":")
                self.assertIn(stage.replace("coxswain-", "", 1), stages)
                self.assertEqual(tag, version)

    def test_dependencies_and_places_of_files(self):
        for _, file, services in self.each():
            for service in services.values():
                for other, how in service.get("depends_on", {}).items():
                    checked = "test" in services[other].get("healthcheck", {})
                    self.assertEqual(
                        how["condition"],
                        "service_healthy"
                        if checked
                        else "service_completed_successfully",
                    )
                for volume in service.get("volumes", []):
                    self.assertIn(volume.split(":")[0], file["volumes"])
            state = services["coordinator"]["volumes"][0].split(":")[1]
            self.assertIn("VOLUME " + state,
                          source_tree.read("deploy/docker/Dockerfile"))

    def test_graces_fit_into_each_other(self):
        for _, _, services in self.each():
            for name in WORKERS:
                service = services[name]
                (grace,) = [w.split("=")[1] for w in service["command"]
                            if w.startswith("--stop-grace=")]
                self.assertLess(
                    float(grace.rstrip("s")),
                    float(service["stop_grace_period"].rstrip("s")),
                )

    def test_either_encrypted_or_marked_insecure(self):
        for name, _, services in self.each():
            for where, service in services.items():
                output = service.get("environment", {})
                encrypted = {
                    "COXSWAIN_TLS_" + one for one in ("CERT", "KEY", "CA")
                } <= set(output)
                self.assertEqual(
                    encrypted, name == TLS and where != "certs", where
                )
                self.assertEqual(
                    "COXSWAIN_INSECURE" in output,
                    name == PLAIN and where == "coordinator",
                )
                self.assertNotIn("--insecure", service["command"])

    def test_each_service_sees_only_its_own_certificates(self):
        services = source_tree.compose_file({}, TLS)["services"]
        seen = {
            where: [v for v in service["volumes"] if not v.startswith("state:")]
            for where, service in services.items()
        }
        certs = ":/etc/coxswain/tls:ro"
        self.assertEqual(seen.pop("coordinator"), ["coordinator-certs" + certs])
        self.assertEqual(len(seen.pop("certs")), 3)
        for volumes in seen.values():
            self.assertEqual(volumes, ["worker-certs" + certs])

    def test_the_page_is_on_the_loopback_and_calls_are_not(self):
        file = source_tree.compose_file({"COXSWAIN_NET": "10.1.2"}, TLS)
        (network,) = file["networks"]["training"]["ipam"]["config"]
        self.assertEqual(
            network, {"subnet": "10.1.2.0/24", "gateway": "10.1.2.1"}
        )
        coordinator = file["services"]["coordinator"]
        self.assertIn("--http=127.0.0.1:7079", coordinator["command"])
        address = network["gateway"] + ":7077"
        self.assertIn("--listen=" + address, coordinator["command"])
        self.assertEqual(
            coordinator["environment"]["COXSWAIN_COORDINATOR"], address
        )
        for name in WORKERS:
            self.assertIn("--coordinator=" + address,
                          file["services"][name]["command"])
        self.assertIn('--host "%s"' % network["gateway"],
                      file["services"]["certs"]["command"][0])


class CommandsTest(unittest.TestCase):
    """The compose files' commands, as processes of this machine.

    The same words and variables, but for addresses and the places of files.
    """

    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.scratch = scratch.name
        self.started = []
        self.addCleanup(self.end)
        self.file = {}
        # What is put in the place of what.
        self.places = {}

    def use(self, name):
        self.file = source_tree.compose_file({"STEPS": "200"}, name)["services"]

    def end(self):
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.communicate()

    def image_environment(self, stage):
        text = " ".join(
            text for word, text in source_tree.stages(
                source_tree.read("deploy/docker/Dockerfile"))[stage]
            if word == "ENV"
        )
        return dict(word.split("=", 1) for word in text.split())

    def put(self, text):
        for old, new in self.places.items():
            text = text.replace(old, new)
        return text

    def environment(self, name, stage, more):
        variables = {"PATH": ":".join(
            [os.path.dirname(PROGRAMS["elastic"]), os.environ["PATH"]])}
        variables.update(self.image_environment(stage))
        variables.update(self.file[name].get("environment", {}))
        variables.update(more)
        return {key: self.put(value) for key, value in variables.items()}

    def start(self, name, stage, more):
        process = subprocess.Popen(
            [PROGRAMS["coxswain"]]
            + [self.put(word) for word in self.file[name]["command"]],
            env=self.environment(name, stage, more),
            stdout=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    def line(self, process, words):
        line = process.stdout.readline()
        self.assertIn(words, line)
        return line.split()[-1]

    def train(self, address):
        workers = []
        for name in WORKERS:
            self.assertIn("--coordinator=" + address,
                          [self.put(w) for w in self.file[name]["command"]])
            workers.append(self.start(
                name, "worker", {"COXSWAIN_NODE": self.file[name]["hostname"]}))
        output = "".join(w.communicate(timeout=TIMEOUT_S)[0] for w in workers)
        self.assertEqual([w.returncode for w in workers], [0, 0, 0], output)
        self.assertEqual(output.count(" of 3 pid"), 3, output)

    def ask(self, words, variables):
        return subprocess.run(
            [PROGRAMS["coxswain"]] + words, env=variables, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            timeout=TIMEOUT_S, check=False)

    def check_health(self, variables):
        test, *words = self.file["coordinator"]["healthcheck"]["test"]
        self.assertEqual((test, words[0]), ("CMD", "coxswain"))
        asked = self.ask(words[1:], variables)
        self.assertEqual(asked.returncode, 0, asked.stdout)
        self.assertIn("demo", asked.stdout)
        return words[1:]

    def stop(self, coordinator):
        coordinator.terminate()
        coordinator.communicate(timeout=TIMEOUT_S)
        self.assertEqual(coordinator.returncode, 0)

    def test_they_train_and_end(self):
        self.use(PLAIN)
        coordinator = self.start(
            "coordinator", "coordinator",
            {"COXSWAIN_LISTEN": "127.0.0.1:0",
             "COXSWAIN_STATE_DIR": os.path.join(self.scratch, "state")},
        )
        address = self.line(coordinator, "listening on ")
        self.places["coordinator:7077"] = address
        self.train(address)
        self.check_health(dict(os.environ, COXSWAIN_COORDINATOR=address))
        self.stop(coordinator)

    def make_certificates(self):
        """Runs the script of the service "certs" twice."""
        for name in ("authority", "coordinator", "worker", "bin"):
            os.mkdir(os.path.join(self.scratch, name))
            self.places[" /%s/" % name] = " %s/%s/" % (self.scratch, name)
        self.places["chown 10001:10001 "] = "ls -ld "  # for root only
        os.symlink(PROGRAMS["coxswain"],
                   os.path.join(self.scratch, "bin/coxswain"))
        path = os.path.join(self.scratch, "bin") + ":" + os.environ["PATH"]
        service = self.file["certs"]
        made = []
        for _ in range(2):
            done = subprocess.run(
                service["entrypoint"] + [
                    self.put(word) for word in service["command"]],
                env={"PATH": path}, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT_S,
                check=False)
            self.assertEqual(done.returncode, 0, done.stdout)
            made.append(self.files_of("authority/certs", "ca.key"))
        self.assertEqual(made[0], made[1], "an authority was replaced")
        self.assertEqual(
            sorted(os.listdir(os.path.join(self.scratch, "coordinator"))),
            ["ca.crt", "coordinator.crt", "coordinator.key", "operator.crt",
             "operator.key"])
        self.assertEqual(
            sorted(os.listdir(os.path.join(self.scratch, "worker"))),
            ["ca.crt", "job-demo.crt", "job-demo.key"])

    def files_of(self, folder, name):
        path = os.path.join(self.scratch, folder, name)
        with open(path, encoding="utf-8") as file:
            return file.read()

    def test_they_train_with_certificates(self):
        self.use(TLS)
        listen = "172.30.77.1:7077"
        self.make_certificates()
        tls = "/etc/coxswain/tls/"
        mine = dict(self.places)
        self.places.update({tls: self.scratch + "/coordinator/",
                            listen: "127.0.0.1:0",
                            "127.0.0.1:7079": "127.0.0.1:0"})
        coordinator = self.start(
            "coordinator", "coordinator",
            {"COXSWAIN_STATE_DIR": os.path.join(self.scratch, "state"),
             # Port 0 is for listening.
             "COXSWAIN_COORDINATOR": "127.0.0.1:1"})
        page = self.line(coordinator, "serving http://127.0.0.1:")
        address = self.line(coordinator, "listening on ")
        operator = self.environment("coordinator", "coordinator",
                                    {"COXSWAIN_COORDINATOR": address})
        self.places = dict(mine)
        self.places.update({tls: self.scratch + "/worker/", listen: address})
        self.train(address)

        words = self.check_health(operator)
        unknown = {"COXSWAIN_COORDINATOR": address, "COXSWAIN_INSECURE": "true"}
        refused = self.ask(words, unknown)
        self.assertNotEqual(refused.returncode, 0, refused.stdout)
        with urllib.request.urlopen(
            page + "api/v1/version", timeout=TIMEOUT_S
        ) as answer:
            self.assertIn('"insecure":false', answer.read().decode())
        self.stop(coordinator)

    def test_without_certificates_the_coordinator_does_not_start(self):
        self.use(TLS)
        self.places["/etc/coxswain/tls/"] = self.scratch + "/nowhere/"
        process = self.start("coordinator", "coordinator", {})
        process.communicate(timeout=TIMEOUT_S)
        self.assertNotEqual(process.returncode, 0)


class PageTest(unittest.TestCase):
    def test_each_command_notes_whether_it_is_run(self):
        blocks = source_tree.blocks(source_tree.read("docs/containers.md"))
        self.assertGreater(len(blocks), 10)
        runner = source_tree.read("tests/deploy/docker/containers_test.py")
        for block in blocks:
            self.assertTrue(block.name or block.reason, block.commands)
            if block.name:
                self.assertIn('BLOCKS["%s"]' % block.name, runner)

    def test_a_block_without_a_note_is_found(self):
        (silent,) = source_tree.blocks("```sh\nls\n```\n")
        self.assertFalse(silent.name or silent.reason)
        (run,) = source_tree.blocks("<!-- run: x -->\n```sh\nls\n```\n")
        self.assertEqual(run.name, "x")


if __name__ == "__main__":
    for path in sys.argv[1:3]:
        PROGRAMS[os.path.basename(path)] = os.path.realpath(path)
    del sys.argv[1:3]
    unittest.main()
