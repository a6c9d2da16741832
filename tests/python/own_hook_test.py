#!/usr/bin/env python3
"""Hooks of a program's own: real processes, started by `coxswain run`."""

import os
import sys
import unittest

sys.path.insert(0, os.path.abspath("tests/python"))

from torch_ranks import Scenes  # noqa: E402


class OwnHookTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scenes = Scenes(
            "own_hook_scenes.py", "means", "wrapped", "interleaves",
            "collectives", "remembers", "changes", "fails", "raises",
            "differs", "refused", "of_torch",
            "in_words_of_accelerate",
        )

    def test_leaves_the_average_of_the_library(self):
        self.scenes.of("means")

    def test_is_wrapped_by_the_hooks_of_the_library(self):
        self.scenes.of("wrapped")

    def test_buckets_go_on_while_one_waits(self):
        self.scenes.of("interleaves")

    def test_has_every_collective(self):
        self.scenes.of("collectives")

    def test_what_it_keeps_counts_with_the_step_and_is_saved(self):
        self.scenes.of("remembers")

    def test_the_plan_brings_another_one(self):
        self.scenes.of("changes")

    def test_what_goes_wrong_is_an_error_of_the_pass(self):
        self.scenes.of("fails")

    def test_an_exception_is_named_on_the_other_ranks(self):
        named = self.scenes.named("raises", done=1)
        self.assertEqual(len(named), 1, named)
        self.assertIn("KeyError: 'no luck'", named[0])
        # The rank itself shows where.
        output = self.scenes.of("raises", done=1)
        self.assertIn('raise KeyError("no luck")', output)

    def test_ranks_with_other_code_join_no_job(self):
        self.scenes.of("differs")

    def test_what_is_no_hook_is_refused(self):
        self.scenes.of("refused")

    def test_the_words_of_accelerate_name_it(self):
        self.scenes.of("in_words_of_accelerate")

    def test_hooks_of_torch_that_are_written_by_hand(self):
        self.scenes.of("of_torch")


if __name__ == "__main__":
    unittest.main()
