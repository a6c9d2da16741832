#!/usr/bin/env python3
"""Checks deploy/docker without an engine.

usage: files_test.py COXSWAIN ELASTIC

The images' packages against what the binaries link to; the compose file, whose
commands are run as processes of this machine; what build.sh stages; and that
docs/containers.md says for each command whether it is run.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True  # It would be in the source tree.
sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))

import source_tree

PATIENCE_S = 120
PROGRAMS = {}


def output_of(*command, **more):
    return subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE_S,
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
    said = output_of("dpkg", "-S", *places)
    owners = {
        places[path]: package
        for package, path in re.findall(
            r"^([a-z0-9.+-]+)(?::\w+)?: (/\S+)$", said, re.MULTILINE
        )
    }
    orphans = set(libraries) - set(owners)
    if orphans:
        raise AssertionError("no package has " + ", ".join(sorted(orphans)))
    return set(owners.values())


def libraries_of(program):
    said = output_of("ldd", program)
    if "not found" in said:
        raise AssertionError(said)
    return re.findall(r"=> (/\S+)", said)


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
        listed = self.packages("runtime") + ["libtorch1.13"]
        self.assertIn('ARG PACKAGES="libtorch1.13"', self.text)
        self.assertIn("packages=libtorch1.13",
                      source_tree.read("deploy/docker/build.sh"))
        owners = packages_of(libraries_of(PROGRAMS["elastic"]))
        self.assertEqual(owners - closure(listed), set(), "not in the image")

    def test_images_run_as_nobody_special(self):
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
            said = self.build("--bin", bin_dir, "--nccl", nccl, "--stage",
                              context, "coordinator", "worker", "cuda")
            self.assertEqual(said, "")
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


class ComposeFileTest(unittest.TestCase):
    """Of the keys that compose knows we use few, and check these."""

    KEYS = {
        "cap_drop", "command", "depends_on", "environment", "healthcheck",
        "entrypoint", "hostname", "image", "networks", "pids_limit", "read_only", "restart",
        "security_opt", "shm_size", "stop_grace_period", "tmpfs", "volumes",
    }
    ONCE = []  # services that end before the others begin

    def setUp(self):
        self.file = source_tree.compose_file({})
        self.services = self.file["services"]

    def test_services_are_confined(self):
        self.assertEqual(
            sorted(self.services),
            sorted(["coordinator", "worker-1", "worker-2", "worker-3"]
                   + self.ONCE),
        )
        for name, service in self.services.items():
            self.assertEqual(set(service) - self.KEYS, set(), name)
            self.assertIs(service["read_only"], True)
            self.assertEqual(service["cap_drop"], ["ALL"])
            self.assertEqual(
                service["security_opt"], ["no-new-privileges:true"]
            )
            self.assertNotIn("ports", service)
            self.assertEqual(service["networks"], ["training"])
        self.assertIs(self.file["networks"]["training"]["internal"], True)

    def test_images_are_those_that_are_built(self):
        stages = source_tree.stages(source_tree.read("deploy/docker/Dockerfile"))
        version = re.search(
            r'"(.*)"', re.search(r"kVersion.*", source_tree.read(
                "base/version.h")).group(0)).group(1)
        for service in self.services.values():
            stage, tag = service["image"].split(":")
            self.assertIn(stage.replace("coxswain-", "", 1), stages)
            self.assertEqual(tag, version)

    def test_who_depends_on_whom_and_where_things_are(self):
        for service in self.services.values():
            for other, when in service.get("depends_on", {}).items():
                if other in self.ONCE:
                    self.assertEqual(when["condition"],
                                     "service_completed_successfully")
                else:
                    self.assertIn("healthcheck", self.services[other])
            for volume in service.get("volumes", []):
                self.assertIn(volume.split(":")[0], self.file["volumes"])
        state = self.services["coordinator"]["volumes"][0].split(":")[1]
        self.assertIn("VOLUME " + state,
                      source_tree.read("deploy/docker/Dockerfile"))

    def test_graces_fit_into_each_other(self):
        for name in ("worker-1", "worker-2", "worker-3"):
            service = self.services[name]
            (grace,) = [w.split("=")[1] for w in service["command"]
                        if w.startswith("--stop-grace=")]
            self.assertLess(
                float(grace.rstrip("s")),
                float(service["stop_grace_period"].rstrip("s")),
            )


class CertificatesTest(ComposeFileTest):
    """The same with docker-compose.tls.yml over it."""

    ONCE = ["certificates", "job-certificates"]

    def setUp(self):
        self.file = source_tree.compose_file({}, "docker-compose.tls.yml")
        self.services = self.file["services"]

    def test_files_of_certificates_are_in_the_volumes(self):
        with tempfile.TemporaryDirectory() as scratch:
            folders = {name: os.path.join(scratch, name) for name in self.ONCE}
            for name in self.ONCE:
                self.make(name, folders)
            made = {name: set(os.listdir(folders[name])) for name in self.ONCE}
            self.make("certificates", folders)  # once more: nothing happens
        self.assertEqual(
            made["job-certificates"], {"ca.crt", "job-demo.crt", "job-demo.key"}
        )
        for name, service in self.services.items():
            (volume,) = [v for v in service["volumes"] if "certificates" in v][
                -1:]
            volume = volume.split(":")[0]
            words = list(service.get("environment", {}).values())
            words += service.get("healthcheck", {}).get("test", [])
            files = {w for w in words if w.startswith("/etc/coxswain/")}
            self.assertEqual(len(files), 0 if name in self.ONCE else 3 + 2 * (
                name == "coordinator"), name)
            self.assertEqual(
                {os.path.basename(f) for f in files} - made[volume], set(), name
            )

    def make(self, name, folders):
        """Runs a service that runs once, in folders in place of volumes."""
        service = self.services[name]
        (script,) = service["command"]
        for volume in service["volumes"]:
            source, place = volume.split(":")[:2]
            os.makedirs(folders[source], exist_ok=True)
            script = script.replace(place, folders[source])
        path = os.path.dirname(PROGRAMS["coxswain"]) + ":" + os.environ["PATH"]
        subprocess.run(
            service["entrypoint"] + [script],
            env={"PATH": path},
            stdout=subprocess.DEVNULL,
            timeout=PATIENCE_S,
            check=True,
        )

    def test_nobody_speaks_in_plain_text(self):
        settings = self.services["coordinator"]["environment"]
        self.assertEqual(settings["COXSWAIN_INSECURE"], "false")
        self.assertTrue(settings["COXSWAIN_HTTP"].startswith("127.0.0.1:"))
        for name, service in self.services.items():
            if name not in self.ONCE:
                self.assertIn("COXSWAIN_TLS_CERT", service["environment"])


class CommandsTest(unittest.TestCase):
    """The compose file's commands, as processes of this machine.

    The same words and variables, but for the place of the state and the
    coordinator's address.
    """

    OVER = ()

    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.scratch = scratch.name
        self.certificates = os.path.join(self.scratch, "certificates")
        self.started = []
        self.addCleanup(self.end)
        self.file = source_tree.compose_file(
            {"STEPS": "200"}, *self.OVER)["services"]

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

    def start(self, name, stage, arguments, environment, **more):
        service = self.file[name]
        variables = {"PATH": ":".join(
            [os.path.dirname(PROGRAMS["elastic"]), os.environ["PATH"]])}
        variables.update(self.image_environment(stage))
        for variable, value in service.get("environment", {}).items():
            variables[variable] = self.here(value)
        variables.update(environment)
        process = subprocess.Popen(
            [PROGRAMS["coxswain"]] + arguments,
            env=variables,
            stdout=subprocess.PIPE,
            text=True,
            **more
        )
        self.started.append(process)
        return process

    def here(self, word):
        return word.replace("/etc/coxswain", self.certificates)

    def test_they_train_and_end(self):
        coordinator = self.start(
            "coordinator", "coordinator", self.file["coordinator"]["command"],
            {"COXSWAIN_LISTEN": "127.0.0.1:0",
             "COXSWAIN_HTTP": "127.0.0.1:0",
             "COXSWAIN_STATE_DIR": os.path.join(self.scratch, "state")},
        )
        page, line = [coordinator.stdout.readline() for _ in range(2)]
        self.assertIn("serving http://127.0.0.1:", page)
        self.assertIn("listening on ", line)
        address = line.split()[-1]
        workers = []
        for name in ("worker-1", "worker-2", "worker-3"):
            command = [w.replace("coordinator:7077", address)
                       for w in self.file[name]["command"]]
            self.assertIn("--coordinator=" + address, command)
            workers.append(self.start(
                name, "worker", command,
                {"COXSWAIN_NODE": self.file[name]["hostname"]}))
        said = "".join(w.communicate(timeout=PATIENCE_S)[0] for w in workers)
        self.assertEqual([w.returncode for w in workers], [0, 0, 0], said)
        self.assertEqual(said.count(" of 3 pid"), 3, said)
        test, *words = self.file["coordinator"]["healthcheck"]["test"]
        self.assertEqual((test, words[0]), ("CMD", "coxswain"))
        settings = {
            name: self.here(value) for name, value in
            self.file["coordinator"]["environment"].items()
        }
        asked = subprocess.run(
            [PROGRAMS["coxswain"]] + [self.here(word) for word in words[1:]],
            env=dict(os.environ, COXSWAIN_COORDINATOR=address, **settings),
            stdout=subprocess.PIPE, text=True, timeout=PATIENCE_S, check=True)
        self.assertIn("demo", asked.stdout)
        coordinator.terminate()
        coordinator.communicate(timeout=PATIENCE_S)
        self.assertEqual(coordinator.returncode, 0)


class SecureCommandsTest(CommandsTest):
    OVER = ("docker-compose.tls.yml",)

    def setUp(self):
        super().setUp()
        subprocess.run(
            [PROGRAMS["coxswain"], "certs", "init", "--dir", self.certificates,
             "--host", "coordinator", "--job", "demo"],
            stdout=subprocess.DEVNULL, timeout=PATIENCE_S, check=True)


class PageTest(unittest.TestCase):
    def test_each_command_says_whether_it_is_run(self):
        blocks = source_tree.blocks(source_tree.read("docs/containers.md"))
        self.assertGreater(len(blocks), 10)
        runner = source_tree.read("tests/docker/containers_test.py")
        for block in blocks:
            self.assertTrue(block.name or block.reason, block.commands)
            if block.name:
                self.assertIn('BLOCKS["%s"]' % block.name, runner)

    def test_a_block_that_says_nothing_is_found(self):
        (silent,) = source_tree.blocks("```sh\nls\n```\n")
        self.assertFalse(silent.name or silent.reason)
        (run,) = source_tree.blocks("<!-- run: x -->\n```sh\nls\n```\n")
        self.assertEqual(run.name, "x")


if __name__ == "__main__":
    for path in sys.argv[1:3]:
        PROGRAMS[os.path.basename(path)] = os.path.realpath(path)
    del sys.argv[1:3]
    unittest.main()
