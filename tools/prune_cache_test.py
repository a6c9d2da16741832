#!/usr/bin/env python3
"""What was used longest ago goes first, and no more than must."""

import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.getcwd(), "tools"))
import prune_cache  # noqa: E402 (found by the line above)

BLOCK = 64 * 1024


class PruneTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def write(self, name, used):
        path = os.path.join(self.folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(os.urandom(BLOCK))
        os.utime(path, (used, used))
        return path

    def left(self):
        return sorted(
            os.path.relpath(os.path.join(parent, name), self.folder)
            for parent, _, names in os.walk(self.folder)
            for name in names
        )

    def test_below_the_limit_nothing_goes(self):
        self.write("cas/a", 1)
        self.assertEqual(prune_cache.prune(self.folder, 2 * BLOCK), 0)
        self.assertEqual(self.left(), ["cas/a"])

    def test_the_oldest_go_until_the_rest_fits(self):
        for used, name in enumerate(["cas/c", "ac/b", "cas/a"], start=1):
            self.write(name, used)
        removed = prune_cache.prune(self.folder, 2 * BLOCK)
        self.assertGreaterEqual(removed, BLOCK)
        self.assertEqual(self.left(), ["ac/b", "cas/a"])

    def test_what_was_read_lately_stays(self):
        os.utime(self.write("cas/read", 1), (9, 1))
        self.write("cas/written", 5)
        prune_cache.prune(self.folder, BLOCK)
        self.assertEqual(self.left(), ["cas/read"])

    def test_no_folder_is_no_error(self):
        missing = os.path.join(self.folder, "none")
        self.assertEqual(prune_cache.main([missing, "1"]), 0)

    def test_a_limit_that_is_none_is_refused(self):
        for limit in ["", "-1", "nan", "much"]:
            self.assertEqual(prune_cache.main([self.folder, limit]), 2)


if __name__ == "__main__":
    unittest.main()
