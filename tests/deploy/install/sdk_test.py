#!/usr/bin/env python3
"""install.sh installs what a program outside the workspace is built with."""

import os
import re
import shutil
import subprocess
import tempfile
import unittest

BUILT = os.path.abspath(".")
INSTALL = os.path.abspath("deploy/install.sh")
PROGRAM = os.path.abspath("tests/deploy/install/program")
TIMEOUT_S = 240


def run(*command, **options):
    done = subprocess.run(
        command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        timeout=TIMEOUT_S, **options)
    if done.returncode != 0:
        raise AssertionError("%s: %s" % (" ".join(command), done.stdout))
    return done.stdout


class SdkTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        # Moved afterwards, as nothing in it may know where it is.
        first = os.path.join(cls.folder, "first")
        cls.prefix = os.path.join(cls.folder, "prefix")
        run(INSTALL, "--prefix", first, "--built", BUILT)
        os.rename(first, cls.prefix)

    def path(self, *names):
        return os.path.join(self.prefix, *names)

    def environment(self):
        return dict(
            os.environ,
            CMAKE_PREFIX_PATH=self.prefix,
            PKG_CONFIG_PATH=self.path("lib", "pkgconfig"))

    def train(self, program):
        """Two ranks, with the gradients 1 and 2, take three steps of 1.5."""
        output = run(self.path("bin", "coxswain"), "run", "--nproc", "2", "--",
                   program)
        for rank in (0, 1):
            self.assertIn("rank %d of 2: -4.5\n" % rank, output)

    def build(self, source):
        program = os.path.join(self.folder, source + ".built")
        run("bash", "-c",
            'g++ -std=c++17 "$0" -o "$1" '
            '$(pkg-config --cflags --libs coxswain)',
            os.path.join(PROGRAM, source), program,
            env=self.environment())
        return program

    def test_a_program_is_built_with_pkg_config(self):
        self.train(self.build("main.cc"))

    def test_a_program_trains_by_one_call(self):
        self.train(self.build("trains.cc"))

    def test_a_program_in_c_is_built_with_pkg_config(self):
        program = os.path.join(self.folder, "in_c")
        run("bash", "-c",
            'gcc -std=c99 -Wall -Wextra -Werror -pedantic "$0" -o "$1" '
            '$(pkg-config --cflags --libs coxswain-c)',
            os.path.join(PROGRAM, "in_c.c"), program,
            env=self.environment())
        output = run(self.path("bin", "coxswain"), "run", "--nproc", "2", "--",
                   program,
                   env=dict(os.environ, LD_LIBRARY_PATH=self.path("lib")))
        for rank in (0, 1):
            self.assertIn("rank %d of 2: 3\n" % rank, output)

    def test_headers_need_neither_protobuf_nor_grpc(self):
        """What the preprocessor reads for all of them, in one file."""
        include = self.path("include")
        headers = sorted(
            os.path.relpath(os.path.join(folder, name), include)
            for folder, _, names in os.walk(include) for name in names)
        self.assertIn("coxswain/client/session/session.h", headers)
        self.assertIn("coxswain/train/train.h", headers)
        source = os.path.join(self.folder, "all.cc")
        with open(source, "w", encoding="utf-8") as file:
            file.writelines('#include "%s"\n' % name for name in headers)
        read = os.path.join(self.folder, "all.d")
        run("g++", "-std=c++17", "-Wall", "-Wextra", "-Werror",
            "-fsyntax-only", "-MD", "-MF", read, "-I", include, source)
        with open(read, encoding="utf-8") as file:
            names = file.read().split()
        self.assertIn(self.path("include", headers[0]), names)
        self.assertEqual([], [
            name for name in names
            if re.search(r"\.pb\.h$|/google/protobuf/|/grpc", name)])

    # tests/deploy/install/page_test.py builds the program with CMake.
    def test_cmake_refuses_a_version_with_other_headers(self):
        if not shutil.which("cmake"):
            print("SKIPPED: no cmake here (Debian package cmake), so its "
                  "version file was not tried", flush=True)
            self.skipTest("no cmake")
        script = os.path.join(self.folder, "version.cmake")
        with open(script, "w", encoding="utf-8") as file:
            file.write(
                'set(PACKAGE_FIND_VERSION 0.99)\n'
                'set(PACKAGE_FIND_VERSION_MAJOR 0)\n'
                'set(PACKAGE_FIND_VERSION_MINOR 99)\n'
                'include("%s")\n'
                'message("is ${PACKAGE_VERSION_COMPATIBLE}")\n' % self.path(
                    "lib/cmake/Coxswain/CoxswainConfigVersion.cmake"))
        output = run("cmake", "-P", script)
        self.assertIn("is FALSE", output)

    def test_no_file_names_the_place_of_the_build(self):
        for name in ("lib/pkgconfig/coxswain.pc",
                     "lib/pkgconfig/coxswain-c.pc",
                     "lib/cmake/Coxswain/CoxswainConfig.cmake"):
            with open(self.path(name), encoding="utf-8") as file:
                self.assertNotIn(self.folder, file.read())

    def test_uninstall_leaves_what_is_not_ours(self):
        prefix = os.path.join(self.folder, "other")
        for name in ("include/theirs.h", "lib/pkgconfig/theirs.pc"):
            path = os.path.join(prefix, name)
            os.makedirs(os.path.dirname(path))
            open(path, "w", encoding="utf-8").close()
        run(INSTALL, "--prefix", prefix, "--built", BUILT)
        run(INSTALL, "--prefix", prefix, "--built", BUILT)  # over itself
        for name in ("bin/coxswain", "share/man/man1/coxswain.1",
                     "include/coxswain.h", "lib/libcoxswain.a",
                     "lib/libcoxswain_c.so",
                     "include/coxswain/client/session/session.h"):
            self.assertTrue(os.path.exists(os.path.join(prefix, name)), name)
        run(INSTALL, "--prefix", prefix, "--uninstall")
        left = sorted(
            os.path.relpath(os.path.join(folder, name), prefix)
            for folder, folders, names in os.walk(prefix)
            for name in folders + names)
        self.assertEqual(left, ["include", "include/theirs.h", "lib",
                                "lib/pkgconfig", "lib/pkgconfig/theirs.pc"])

    def test_wrong_arguments_are_refused(self):
        for arguments in ([], ["--prefix", self.folder, "--uninstall"],
                          ["--prefix", self.folder, "--built", self.folder],
                          ["--nonsense"]):
            with self.assertRaisesRegex(AssertionError, "install.sh: "):
                run(INSTALL, *arguments)


if __name__ == "__main__":
    unittest.main(verbosity=2)
