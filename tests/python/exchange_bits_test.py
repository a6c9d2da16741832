#!/usr/bin/env python3
"""The bits that exchange="coxswain" leaves: those of torch, and those of the
reducer in C++."""

import os
import sys
import unittest

sys.path.insert(0, os.path.abspath("tests/python"))

from torch_ranks import Scenes  # noqa: E402


class TwoRanksTest(unittest.TestCase):
    ranks = 2
    names = "windows", "single", "joined", "hooks"
    # That are repeated by the reducer.
    hooks = 11

    @classmethod
    def setUpClass(cls):
        cls.scenes = Scenes(
            "exchange_bits_scenes.py", *cls.names, ranks=cls.ranks
        )

    def test_allreduce_leaves_the_bits_of_torch(self):
        self.scenes.of("windows")

    def test_models_that_are_compiled_or_have_a_static_graph(self):
        self.scenes.of("single")

    def test_ranks_with_different_amounts_of_data(self):
        self.scenes.of("joined")

    def test_hooks_leave_the_bits_of_the_reducer_on_all_ranks(self):
        hooks = self.scenes.reduced_in_cpp("hooks")
        self.assertEqual(len(hooks), 2 * self.hooks, hooks)
        self.assertEqual(len(set(hooks)), self.hooks, hooks)


class ThreeRanksTest(TwoRanksTest):
    ranks = 3
    hooks = 7  # those without 16-bit sums


class FourRanksTest(TwoRanksTest):
    ranks = 4
    names = "windows", "joined"
    test_models_that_are_compiled_or_have_a_static_graph = None
    test_hooks_leave_the_bits_of_the_reducer_on_all_ranks = None


if __name__ == "__main__":
    unittest.main()
