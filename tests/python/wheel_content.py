"""What is in the wheel. For wheel_test.py."""

import ast
import base64
import csv
import ctypes
import functools
import hashlib
import io
import json
import os
import re
import unittest
import zipfile

from wheel_case import all_below, built, run

MAX_BYTES = 25 * 1000 * 1000
PLATFORM = "manylinux_2_34_x86_64"


@functools.lru_cache(maxsize=None)
def archive():
    return zipfile.ZipFile(built().wheel)


def information(name):
    (path,) = [
        entry for entry in archive().namelist()
        if re.fullmatch(r"[^/]*\.dist-info/" + re.escape(name), entry)
    ]
    return archive().read(path).decode()


def libraries():
    return sorted(
        os.path.basename(name) for name in archive().namelist()
        if name.startswith("coxswain.libs/")
    )


class ContentTest(unittest.TestCase):
    def test_it_fits_every_python_and_is_marked_so(self):
        self.assertRegex(
            os.path.basename(built().wheel),
            r"^coxswain-\d+\.\d+\.\d+-py3-none-%s\.whl$" % PLATFORM,
        )
        self.assertIn("Tag: py3-none-%s\n" % PLATFORM, information("WHEEL"))
        self.assertLessEqual(os.path.getsize(built().wheel), MAX_BYTES)

    def test_no_file_needs_a_newer_system_than_its_tag(self):
        folder = os.path.join(built().folder, "files")
        archive().extractall(folder)
        paths = [
            os.path.join(folder, name) for name in archive().namelist()
            if name.startswith(("coxswain.libs/", "coxswain/_native/"))
        ]
        needed = set(
            re.findall(
                r"\b(GLIBC|GLIBCXX|CXXABI)_([\d.]+)",
                run("readelf", "--wide", "--version-info", *paths),
            )
        )
        newest = {}
        for name, version in needed:
            numbers = tuple(map(int, version.split(".")))
            newest[name] = max(newest.get(name, ()), numbers)
        self.assertEqual(sorted(newest), ["CXXABI", "GLIBC", "GLIBCXX"])
        # Of RHEL 9: glibc 2.34, and the libstdc++ of GCC 11.
        self.assertLessEqual(newest["GLIBC"], (2, 34))
        self.assertLessEqual(newest["GLIBCXX"], (3, 4, 29))
        self.assertLessEqual(newest["CXXABI"], (1, 3, 13))

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
            sorted(row[0] for row in rows), sorted(archive().namelist())
        )
        for name, digest, size in rows:
            if name.endswith("/RECORD"):
                continue
            data = archive().read(name)
            found = base64.urlsafe_b64encode(hashlib.sha256(data).digest())
            self.assertEqual(
                (digest, int(size)),
                ("sha256=" + found.decode().rstrip("="), len(data)), name,
            )

    def test_it_has_the_whole_package_in_python_3_9(self):
        found = {
            name for name in archive().namelist()
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
                ast.parse(archive().read(name), name, feature_version=(3, 9))

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
        bill = json.loads(information("sboms/coxswain.cdx.json"))
        listed = {
            (part["name"], part["version"]): part.get("purl")
            for part in bill["components"]
        }
        for name, package, version, source, terms in rows:
            self.assertGreater(len(information("licenses/" + terms)), 100)
            self.assertIn("\nLicense-File: %s\n" % terms, metadata)
            self.assertRegex(source, r"^\S+=\d\S*$")
            purl = listed[package, version]
            self.assertTrue(purl.startswith("pkg:deb/debian/"), purl)
        self.assertIn("Apache License", information("licenses/LICENSE"))

    def test_the_texts_that_terms_refer_to_are_there(self):
        referred = 0
        for name in archive().namelist():
            if not name.endswith("/copyright"):
                continue
            text = archive().read(name).decode(errors="replace")
            for common in re.findall(
                r"/usr/share/common-licenses/([A-Za-z0-9.+-]*\w)", text
            ):
                self.assertTrue(
                    information("licenses/common-licenses/" + common), name
                )
                referred += 1
        self.assertGreater(referred, 0)


class SymbolVersionTest(unittest.TestCase):
    """tools/symbol_version.py, with libraries that g++ makes."""

    WAITS = """
#include <condition_variable>
#include <mutex>
#include <thread>
extern "C" int wait_for_another() {
  std::mutex mutex;
  std::condition_variable changed;
  bool there = false;
  std::thread other([&] {
    const std::lock_guard<std::mutex> lock(mutex);
    there = true;
    changed.notify_all();
  });
  std::unique_lock<std::mutex> lock(mutex);
  changed.wait(lock, [&] { return there; });
  lock.unlock();
  other.join();
  return 42;
}
"""
    ASSERTS = WAITS + """
namespace std {
void __glibcxx_assert_fail(const char*, int, const char*,
                           const char*) noexcept;
}
extern "C" void fail() { std::__glibcxx_assert_fail("", 1, "", ""); }
"""

    def library(self, name, text):
        path = os.path.join(built().folder, name)
        with open(path + ".cc", "w", encoding="utf-8") as file:
            file.write(text)
        run("g++", "-shared", "-fPIC", "-o", path, path + ".cc")
        return path

    def bind(self, path):
        code = "import sys, symbol_version as s;" \
            "print(s.bind_to_older(sys.argv[1]))"
        return run(
            built().tools, "-c", code, path,
            env=dict(os.environ, PYTHONPATH="tools"),
        ).strip()

    def test_what_is_bound_to_the_older_version_still_waits(self):
        path = self.library("libwaits.so", self.WAITS)
        self.assertIn("GLIBCXX_3.4.30", run("readelf", "-V", path))
        self.assertEqual(self.bind(path), "True")
        self.assertNotIn("GLIBCXX_3.4.30", run("readelf", "-V", path))
        self.assertEqual(self.bind(path), "False")
        self.assertEqual(ctypes.CDLL(path).wait_for_another(), 42)

    def test_another_new_function_is_refused_by_its_name(self):
        path = self.library("libasserts.so", self.ASSERTS)
        with self.assertRaisesRegex(
            AssertionError, "libasserts.so needs .*glibcxx_assert_fail"
        ):
            self.bind(path)
