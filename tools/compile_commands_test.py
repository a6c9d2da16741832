#!/usr/bin/env python3
"""Tests of compile_commands.py, over what `bazel aquery` prints."""

import json
import os
import subprocess
import tempfile
import unittest

PROGRAM = os.path.abspath("tools/compile_commands.py")


def action(source, mnemonic="CppCompile"):
    return {
        "targetId": 1,
        "mnemonic": mnemonic,
        "arguments": [
            "/usr/bin/gcc", "-Wall", "-MD", "-MF", "out/x.d",
            "-frandom-seed=out/x.o", "-fno-canonical-system-headers",
            "-iquote", ".", "-std=c++17", "-c", source, "-o", "out/x.o",
        ],
    }


class CompileCommandsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        self.addCleanup(folder.cleanup)
        self.root = os.path.join(folder.name, "root")
        self.execroot = os.path.join(folder.name, "execroot")
        self.write(self.root, "base/a.cc", "")
        self.write(self.root, "base/b.cc", "")

    def write(self, top, path, text):
        path = os.path.join(top, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)

    def run_program(self, *actions):
        return subprocess.run(
            [PROGRAM, self.root, self.execroot], text=True,
            input=json.dumps({"artifacts": [], "actions": actions}),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False,
        )

    def entries(self, *actions):
        done = self.run_program(*actions)
        self.assertEqual(done.returncode, 0, done.stderr)
        return {
            os.path.relpath(entry["file"], self.root): entry
            for entry in json.loads(done.stdout)
        }

    def test_a_source_keeps_its_options_and_writes_nothing(self):
        found = self.entries(action("base/a.cc"), action("x", "CppLink"))
        self.assertEqual(list(found), ["base/a.cc"])
        self.assertEqual(
            found["base/a.cc"]["arguments"],
            [
                "/usr/bin/gcc", "-Wall", "-iquote", ".", "-std=c++17",
                "-I" + self.root, "-c", os.path.join(self.root, "base/a.cc"),
            ],
        )
        self.assertEqual(found["base/a.cc"]["directory"], self.execroot)

    def test_joined_sources_have_an_entry_each(self):
        part = "bazel-out/bin/base/base.part0.cc"
        self.write(
            self.execroot, part,
            '#line 1 "base/a.cc"\nint a;\n#line 1 "base/b.cc"\nint b;\n',
        )
        found = self.entries(action(part), action("base/b.cc"))
        self.assertEqual(sorted(found), ["base/a.cc", "base/b.cc"])
        self.assertNotIn(part, found["base/a.cc"]["arguments"])

    def test_generated_sources_are_found_where_they_are(self):
        path = "bazel-out/bin/proto/types.pb.cc"
        (entry,) = self.entries(action(path)).values()
        self.assertEqual(entry["file"], os.path.join(self.execroot, path))

    def test_what_is_of_others_is_left_out(self):
        found = self.entries(action("external/x/x.cc"), action("base/a.cc"))
        self.assertEqual(list(found), ["base/a.cc"])

    def test_no_compilation_is_an_error(self):
        done = self.run_program()
        self.assertEqual(done.returncode, 1)
        self.assertIn("no compilation", done.stderr)


if __name__ == "__main__":
    unittest.main()
