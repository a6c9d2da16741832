#!/usr/bin/env python3
"""assemble.py ships headers that a program can include, and no others."""

import json
import os
import shutil
import subprocess
import tempfile
import unittest

ASSEMBLE = os.path.abspath("deploy/sdk/assemble.py")

PUBLIC = """\
#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "client/part.h"
"""


class AssembleTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.sdk = os.path.join(self.folder, "sdk")

    def write(self, name, text):
        path = os.path.join(self.folder, "source", name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def assemble(self, headers):
        """Ships client/public.h of these {name: text}; returns the process."""
        order = {
            "archives": [],
            "c_header": self.write("coxswain.h", "int cx;\n"),
            "c_library": self.write("libcoxswain_c.so", "library\n"),
            "defines": [],
            "headers": [[name, self.write(name, text)]
                        for name, text in headers.items()],
            "link_options": [],
            "public": ["client/public.h"],
            "version": self.write("version.h",
                                  'constexpr char kVersion[] = "0.1.0";\n'),
        }
        return subprocess.run(
            ["python3", ASSEMBLE, self.write("order.json", json.dumps(order)),
             self.sdk],
            text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            timeout=60, check=False)

    def shipped(self):
        include = os.path.join(self.sdk, "include")
        return sorted(
            os.path.relpath(os.path.join(folder, name), include)
            for folder, _, names in os.walk(include) for name in names)

    def test_headers_include_each_other_below_one_name(self):
        done = self.assemble({
            "client/public.h": PUBLIC,
            "client/part.h": "#include <vector>\n",
            "client/not_needed.h": "",
        })
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertEqual(self.shipped(),
                         ["coxswain.h", "coxswain/client/part.h",
                          "coxswain/client/public.h"])
        with open(os.path.join(self.sdk, "include/coxswain/client/public.h"),
                  encoding="utf-8") as file:
            self.assertEqual(
                file.read(),
                PUBLIC.replace("client/part.h", "coxswain/client/part.h"))

    def test_a_vendors_header_is_refused_with_the_chain_of_includes(self):
        for line, name in (
                ('#include "proto/store.pb.h"', "proto/store.pb.h"),
                ('#include "google/protobuf/message_lite.h"',
                 "google/protobuf/message_lite.h"),
                ("#include <grpcpp/grpcpp.h>", "grpcpp/grpcpp.h"),
                ("  #  include <cuda_runtime.h>", "cuda_runtime.h")):
            with self.subTest(name):
                done = self.assemble({
                    "client/public.h": PUBLIC,
                    "client/part.h": '#include "client/rpc/stub.h"\n',
                    "client/rpc/stub.h": line + "\n",
                    "proto/store.pb.h": "",
                })
                self.assertNotEqual(done.returncode, 0)
                self.assertIn(
                    "\n  client/public.h -> client/part.h -> "
                    "client/rpc/stub.h -> %s\n" % name, done.stdout)
                self.assertEqual(self.shipped(), [])

    def test_a_header_that_no_library_offers_is_refused(self):
        done = self.assemble({"client/public.h": PUBLIC})
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("\n  client/public.h -> client/part.h\n", done.stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)
