#!/usr/bin/env python3
"""Tests in Python leave no compiled modules beside their sources.

Those that look outside of the sandbox import modules of the source tree itself.
"""

import os
import subprocess
import sys
import tempfile
import unittest


class BytecodeTest(unittest.TestCase):
    def test_an_import_leaves_nothing_beside_the_module(self):
        with tempfile.TemporaryDirectory() as folder:
            module = os.path.join(folder, "imported.py")
            with open(module, "w", encoding="utf-8") as file:
                file.write("VALUE = 7\n")
            subprocess.run(
                [sys.executable, "-c", "import imported; imported.VALUE"],
                cwd=folder,
                check=True,
                timeout=60,
            )
            self.assertEqual(os.listdir(folder), ["imported.py"])


if __name__ == "__main__":
    unittest.main()
