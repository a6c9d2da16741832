#!/usr/bin/env python3
"""exchange="coxswain": real processes, started by `coxswain run`."""

import os
import sys
import unittest

sys.path.insert(0, os.path.abspath("tests/python"))

from torch_ranks import Scenes  # noqa: E402


class ExchangeTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scenes = Scenes(
            "exchange_scenes.py", "bit_by_bit", "joined", "recomputed",
            "stops_and_skips", "remembers", "many", "refused", "missing",
        )

    def test_allreduce_leaves_the_bits_of_torch(self):
        self.scenes.of("bit_by_bit")

    def test_ranks_whose_buckets_torch_divides_apart(self):
        self.scenes.of("joined")

    def test_layers_that_run_passes_of_their_own_and_empty_parameters(self):
        self.scenes.of("recomputed")

    def test_models_that_come_and_go(self):
        self.scenes.of("many")

    def test_a_step_that_is_skipped_leaves_nothing(self):
        self.scenes.of("stops_and_skips")

    def test_a_state_is_what_the_hook_remembered(self):
        self.scenes.of("remembers")

    def test_what_it_does_not_exchange_is_refused(self):
        self.scenes.of("refused")

    def test_a_parameter_without_gradient_is_an_error_at_once(self):
        self.scenes.of("missing")


if __name__ == "__main__":
    unittest.main()
