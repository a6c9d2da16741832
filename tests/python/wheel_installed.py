"""What the wheel does once it is installed. For wheel_test.py.

The tests with torch, grpcio and protobuf run in the environment that
tools/install_torch.sh makes.
"""

import os
import re
import shutil
import tempfile
import unittest

from torch_python import torch_python
from wheel_case import Environment, all_below, built, environment, pip
from wheel_case import ranks, run


class InstalledTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.bare = Environment("bare")

    def assert_done(self, output):
        status, text = output
        self.assertEqual((status, text.count("DONE")), (0, 2), text)

    def test_the_program_prints_its_version(self):
        output = run(self.bare.program, "version", env=environment())
        self.assertIn("coxswain %s\n" % built().version, output)
        self.assertIn("gRPC", output)

    def test_the_command_imports_nothing_of_the_package(self):
        code = (
            "import sys\nfrom coxswain import _program\n"
            "assert 'torch' not in sys.modules\n"
            "assert 'libcoxswain' not in open('/proc/self/maps').read()\n"
        )
        run(self.bare.python, "-c", code, env=environment())

    def test_two_ranks_join_and_decide(self):
        self.assert_done(
            ranks(self.bare.program, self.bare.python, "alone")
        )

    def test_it_leaves_nothing_behind(self):
        other = Environment("other", install=False)
        before = all_below(other.root)
        pip(other.python, "install", "--quiet", built().wheel)
        run(other.program, "version", env=environment())
        code = "import coxswain; coxswain.hooks_json()"
        run(other.python, "-c", code, env=environment())
        self.assertNotEqual(all_below(other.root), before)
        pip(other.python, "uninstall", "--quiet", "--yes", "coxswain")
        self.assertEqual(all_below(other.root), before)


class VersionSkewTest(unittest.TestCase):
    """Library and program of the wheel, with another version stamped in."""

    @classmethod
    def setUpClass(cls):
        cls.bare = Environment("skewed")
        cls.version = built().version
        major, minor, patch = map(int, cls.version.split("."))
        cls.next_minor = "%d.%d.%d" % (major, minor + 1, patch)
        cls.after_that = "%d.%d.%d" % (major, minor + 2, patch)
        cls.next_patch = "%d.%d.%d" % (major, minor, patch + 1)

    def stamped(self, name, version):
        """A copy of the installed package whose library or program says that
        it is of this version; returns (folder for PYTHONPATH, program)."""
        self.assertEqual(
            len(version), len(self.version), "it is put in the other's place"
        )
        package = self.bare.package()
        copy = tempfile.mkdtemp(dir=built().folder)
        for entry in ("coxswain", "coxswain.libs"):
            shutil.copytree(
                os.path.join(os.path.dirname(package), entry),
                os.path.join(copy, entry),
            )
        path = os.path.join(copy, "coxswain", "_native", name)
        with open(path, "rb") as file:
            data = file.read()
        data, count = re.subn(
            rb"(?<![\d.])" + re.escape(self.version).encode() + rb"\0",
            version.encode() + b"\0",
            data,
        )
        self.assertGreater(count, 0)
        with open(path, "wb") as file:
            file.write(data)
        return copy, os.path.join(copy, "coxswain", "_native", "coxswain")

    def with_library(self, version):
        copy, _ = self.stamped("libcoxswain_c.so", version)
        return ranks(
            self.bare.program, self.bare.python, "skew", PYTHONPATH=copy
        )

    def with_coordinator(self, version):
        _, program = self.stamped("coxswain", version)
        output = run(program, "version", env=environment())
        self.assertIn("coxswain %s\n" % version, output)
        return ranks(program, self.bare.python, "skew")

    def assert_done(self, output):
        self.assertEqual(
            (output[0], output[1].count("DONE")), (0, 2), output[1])

    def assert_refused(self, output, *words):
        self.assertNotEqual(output[0], 0, output[1])
        self.assertIn("REFUSED FAILED_PRECONDITION", output[1])
        for word in words:
            self.assertIn(word, output[1])

    def test_a_coordinator_one_version_ahead_serves_it(self):
        self.assert_done(self.with_coordinator(self.next_minor))

    def test_a_coordinator_two_versions_ahead_is_refused_with_advice(self):
        self.assert_refused(
            self.with_coordinator(self.after_that), self.version,
            self.after_that, "build the worker anew",
        )

    def test_a_wheel_one_version_ahead_is_refused_with_advice(self):
        self.assert_refused(
            self.with_library(self.next_minor), self.version,
            self.next_minor, "upgrade the coordinator first",
        )

    def test_another_patch_of_the_same_version_is_served(self):
        self.assert_done(self.with_library(self.next_patch))


class NeighboursTest(unittest.TestCase):
    """With torch, grpcio and protobuf in the same process."""

    @classmethod
    def setUpClass(cls):
        cls.python = torch_python()
        cls.bare = Environment("neighbours")
        cls.path = os.path.dirname(cls.bare.package())

    def run_scene(self, scene):
        place = tempfile.mkdtemp(dir=built().folder)
        status, output = ranks(
            self.bare.program, self.python, scene, PYTHONPATH=self.path,
            WHEEL_TEST_FILE=os.path.join(place, "group"),
            OMP_NUM_THREADS="1",
        )
        self.assertEqual((status, output.count("DONE")), (0, 2), output)

    def test_torchrun_finds_its_rendezvous(self):
        """By the entry point of the installed wheel, as torchrun does."""
        code = (
            "from torch.distributed.elastic import rendezvous\n"
            "handler = rendezvous.registry.get_rendezvous_handler(\n"
            "    rendezvous.RendezvousParameters(\n"
            "        backend='coxswain', endpoint='127.0.0.1:9',\n"
            "        run_id='job', min_nodes=1, max_nodes=1))\n"
            "print(handler.get_backend(), type(handler).__module__)\n"
        )
        output = run(
            self.python, "-c", code, env=environment(PYTHONPATH=self.path)
        )
        self.assertEqual(
            output.split(), ["coxswain", "coxswain.torch.rendezvous"]
        )

    def test_ours_before_torch(self):
        self.run_scene("ours_first")

    def test_torch_before_ours(self):
        self.run_scene("torch_first")

    def test_torch_with_its_symbols_for_all(self):
        self.run_scene("torch_global")

    def test_grpcio_before_ours(self):
        self.run_scene("grpc_first")

    def test_ours_before_grpcio(self):
        self.run_scene("grpc_last")
