#!/usr/bin/env python3
"""The wheel: what is in it, and what it does once it is installed.

Builds it from what Bazel has built. The tests with torch, grpcio and protobuf
run in the environment that tools/install_torch.sh makes.
"""

import ast
import base64
import csv
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile

from torch_python import cache_folder, torch_python

TIMEOUT_S = 120
WORKER = os.path.abspath("tests/python/wheel_worker.py")
MAX_BYTES = 25 * 1000 * 1000
PLATFORM = "manylinux_2_34_x86_64"


def setUpModule():
    """Builds the wheel once, which takes longer than all the rest."""
    global folder, tools, wheel, archive
    folder = tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR"))
    unittest.addModuleCleanup(shutil.rmtree, folder)
    # Not below a test's own home folder.
    os.environ["XDG_CACHE_HOME"] = cache_folder()
    tools = run("tools/build_wheel.sh", "--install-tools").strip()
    wheel = run("tools/build_wheel.sh", "--built", ".", "--out", folder)
    wheel = wheel.strip()
    archive = zipfile.ZipFile(wheel)
    unittest.addModuleCleanup(archive.close)


def run(*command, **options):
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, timeout=TIMEOUT_S, check=False,
        **options,
    )
    if done.returncode != 0:
        raise AssertionError("%s: %s" % (command, done.stdout + done.stderr))
    return done.stdout


def environment(**variables):
    """This process's, without what makes Python or Coxswain look elsewhere."""
    kept = {
        name: value for name, value in os.environ.items()
        if not name.startswith(("COXSWAIN_", "PYTHON", "LD_"))
    }
    return dict(kept, **variables)


def pip(python, *arguments):
    """Runs pip for another interpreter, without a package index."""
    return run(
        tools, "-m", "pip", "--python", python, "--disable-pip-version-check",
        *arguments, env=environment(PIP_NO_INDEX="1"),
    )


def all_below(root):
    """The paths of files and folders, from there."""
    return sorted(
        os.path.relpath(os.path.join(place, name), root)
        for place, folders, names in os.walk(root)
        for name in folders + names
    )


def information(name):
    (path,) = [
        entry for entry in archive.namelist()
        if re.fullmatch(r"[^/]*\.dist-info/" + re.escape(name), entry)
    ]
    return archive.read(path).decode()


def libraries():
    return sorted(
        os.path.basename(name) for name in archive.namelist()
        if name.startswith("coxswain.libs/")
    )


class ContentTest(unittest.TestCase):
    def test_it_fits_every_python_and_says_so(self):
        self.assertRegex(
            os.path.basename(wheel),
            r"^coxswain-\d+\.\d+\.\d+-py3-none-%s\.whl$" % PLATFORM,
        )
        self.assertIn("Tag: py3-none-%s\n" % PLATFORM, information("WHEEL"))
        self.assertLessEqual(os.path.getsize(wheel), MAX_BYTES)

    def test_auditwheel_finds_that_it_runs_there(self):
        said = run(tools, "-m", "auditwheel", "show", wheel)
        self.assertRegex(said, r'platform tag:\s*"%s"' % PLATFORM)

    def test_it_depends_on_no_package(self):
        metadata = information("METADATA")
        self.assertNotIn("Requires-Dist", metadata)
        self.assertIn("\nRequires-Python: >=3.9\n", metadata)
        with open("base/version.h", encoding="utf-8") as file:
            version = re.search('"([0-9.]+)"', file.read())[1]
        self.assertIn("\nVersion: %s\n" % version, metadata)

    def test_record_has_each_file_with_its_digest(self):
        rows = list(csv.reader(io.StringIO(information("RECORD"))))
        self.assertEqual(
            sorted(row[0] for row in rows), sorted(archive.namelist())
        )
        for name, digest, size in rows:
            if name.endswith("/RECORD"):
                continue
            data = archive.read(name)
            found = base64.urlsafe_b64encode(hashlib.sha256(data).digest())
            self.assertEqual(
                (digest, int(size)),
                ("sha256=" + found.decode().rstrip("="), len(data)), name,
            )

    def test_it_has_the_whole_package_in_python_3_9(self):
        found = {
            name for name in archive.namelist()
            if re.match(r"coxswain/.*\.(py|typed)$", name)
        }
        source = {
            "coxswain/" + path for path in all_below("python/coxswain")
            if path.endswith((".py", ".typed"))
        }
        self.assertEqual(found, source)
        self.assertIn("coxswain/py.typed", found)
        for name in found:
            if name.endswith(".py"):
                ast.parse(archive.read(name), name, feature_version=(3, 9))

    def test_its_entry_points_are(self):
        self.assertEqual(
            information("entry_points.txt"),
            "[console_scripts]\ncoxswain = coxswain._program:main\n\n"
            "[torchrun.handlers]\n"
            "coxswain = coxswain.torch.rendezvous:creator\n",
        )

    def test_every_library_comes_with_its_terms(self):
        table = information("licenses/libraries.txt")
        rows = [
            [word.strip() for word in line.split("|")]
            for line in table.splitlines() if line.count("|") == 4
        ][1:]
        self.assertGreater(len(libraries()), 30)
        self.assertEqual(
            sorted(row[0] for row in rows if row[0] != "(headers)"),
            libraries(),
        )
        metadata = information("METADATA")
        bill = json.loads(information("sboms/auditwheel.cdx.json"))
        listed = {
            (part["name"], part["version"]): part.get("purl")
            for part in bill["components"]
        }
        for name, package, version, source, terms in rows:
            self.assertGreater(len(information("licenses/" + terms)), 100)
            self.assertIn("\nLicense-File: %s\n" % terms, metadata)
            self.assertRegex(source, r"^\S+=\d\S*$")
            if name == "(headers)":
                continue
            purl = listed[package, version]
            self.assertTrue(purl.startswith("pkg:deb/debian/"), purl)
        self.assertIn("Apache License", information("licenses/LICENSE"))

    def test_the_texts_that_terms_refer_to_are_there(self):
        lesser = 0
        for name in archive.namelist():
            if not name.endswith("/copyright"):
                continue
            text = archive.read(name).decode(errors="replace")
            for common in re.findall(
                r"/usr/share/common-licenses/([A-Za-z0-9.+-]*\w)", text
            ):
                self.assertTrue(
                    information("licenses/common-licenses/" + common), name
                )
                lesser += common.startswith("LGPL")
        self.assertGreater(lesser, 0)


class Environment:
    """A virtual environment without pip, with the wheel in it or not."""

    def __init__(self, name, install=True):
        self.root = os.path.join(folder, name)
        run(sys.executable, "-m", "venv", "--without-pip", self.root)
        self.python = os.path.join(self.root, "bin", "python")
        self.program = os.path.join(self.root, "bin", "coxswain")
        if install:
            pip(self.python, "install", "--quiet", wheel)

    def package(self):
        code = "import coxswain; print(coxswain.__path__[0])"
        return run(self.python, "-c", code, env=environment()).strip()


def ranks(program, python, scene, **variables):
    """Two ranks of a scene, and what they and their launcher say."""
    done = subprocess.run(
        [program, "run", "--nproc", "2", "--", python, WORKER, scene],
        env=environment(PYTHONDONTWRITEBYTECODE="1", **variables),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT_S, check=False,
    )
    return done.returncode, done.stdout


class InstalledTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.bare = Environment("bare")

    def assert_done(self, said):
        status, text = said
        self.assertEqual((status, text.count("DONE")), (0, 2), text)

    def test_the_program_says_its_version(self):
        said = run(self.bare.program, "version", env=environment())
        self.assertIn(
            "coxswain %s\n" % os.path.basename(wheel).split("-")[1], said
        )
        self.assertIn("gRPC", said)

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
        pip(other.python, "install", "--quiet", wheel)
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
        cls.version = os.path.basename(wheel).split("-")[1]
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
        copy = tempfile.mkdtemp(dir=folder)
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
        said = run(program, "version", env=environment())
        self.assertIn("coxswain %s\n" % version, said)
        return ranks(program, self.bare.python, "skew")

    def assert_done(self, said):
        self.assertEqual((said[0], said[1].count("DONE")), (0, 2), said[1])

    def assert_refused(self, said, *words):
        self.assertNotEqual(said[0], 0, said[1])
        self.assertIn("REFUSED FAILED_PRECONDITION", said[1])
        for word in words:
            self.assertIn(word, said[1])

    def test_a_coordinator_one_version_ahead_serves_it(self):
        self.assert_done(self.with_coordinator(self.next_minor))

    def test_a_coordinator_two_versions_ahead_says_what_to_do(self):
        self.assert_refused(
            self.with_coordinator(self.after_that), self.version,
            self.after_that, "build the worker anew",
        )

    def test_a_wheel_one_version_ahead_is_told_what_to_do(self):
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
        place = tempfile.mkdtemp(dir=folder)
        status, said = ranks(
            self.bare.program, self.python, scene, PYTHONPATH=self.path,
            WHEEL_TEST_FILE=os.path.join(place, "group"),
            OMP_NUM_THREADS="1",
        )
        self.assertEqual((status, said.count("DONE")), (0, 2), said)

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


if __name__ == "__main__":
    unittest.main(verbosity=2)
