#!/usr/bin/env python3
"""Trainer and Lightning under Coxswain: real processes."""

import os
import sys
import unittest

sys.path.insert(0, os.path.abspath("tests/python"))

import torch_ranks  # noqa: E402


def scene(name, *options):
    return torch_ranks.scene("trainer_scenes.py", name, *options)


class TransformersTest(unittest.TestCase):
    def assert_done(self, name):
        with scene(name) as ranks:
            self.assertEqual(ranks.end(), 0, ranks.said)
            self.assertEqual(ranks.said.count("DONE"), 2, ranks.said)

    def test_a_trainer_trains_as_before_skips_saves_and_stops(self):
        self.assert_done("together")

    def test_a_changed_plan_is_refused_and_a_killed_rank_named(self):
        with scene("killed") as ranks:
            began = float(ranks.wait_for("KILLED").split()[1])
            line = ranks.wait_for("NAMED", timeout=60)
            took = float(line.split()[1]) - began
            print("killed was named after %.2f s" % took)
            self.assertIn("(1,) rank 1", line)
            self.assertIn("killed by signal 9", line)
            self.assertLess(took, 10)
            self.assertNotEqual(ranks.end(), 0)

    def test_lightning_trains_as_before_and_stops(self):
        self.assert_done("lightning")


if __name__ == "__main__":
    unittest.main()
