#!/usr/bin/env python3
"""Accelerate's words for communication hooks, with exchange="coxswain"."""

import os
import sys
import unittest

sys.path.insert(0, os.path.abspath("tests/python"))

from torch_ranks import Scenes  # noqa: E402


class AccelerateHooksTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scenes = Scenes(
            "accelerate_hooks_scenes.py", "their_script", "combinations"
        )

    def test_the_script_of_accelerate_passes_with_hooks_of_coxswain(self):
        self.scenes.of("their_script")

    def test_all_words_leave_the_bits_of_the_reducer_on_all_ranks(self):
        hooks = self.scenes.reduced_in_cpp("combinations")
        # All of them are different ones.
        self.assertEqual(len(set(hooks)), 19, hooks)
        self.assertEqual(len(hooks), 19, hooks)


if __name__ == "__main__":
    unittest.main()
