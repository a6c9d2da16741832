#!/usr/bin/env python3
"""coxswain.torch: real processes, started by `coxswain run`."""

import os
import sys
import unittest

sys.path.insert(0, os.path.abspath("tests/python"))

from torch_ranks import Scenes  # noqa: E402


class TorchTest(unittest.TestCase):
    exchange = "torch"
    # That are not of an exchange.
    others = ("url", "wrong_plan", "ends_cleanly")

    @classmethod
    def setUpClass(cls):
        cls.scenes = Scenes(
            "torch_scenes.py", "together", "every_batch", "strict", "uneven",
            "uneven_is_refused", "uncaught", *cls.others,
            SCENES_EXCHANGE=cls.exchange,
        )

    def test_models_train_as_before_and_skip_vote_and_stop_together(self):
        self.scenes.of("together")

    def test_a_process_group_by_an_address(self):
        self.scenes.of("url")

    def test_each_micro_batch_is_an_exchange(self):
        self.scenes.of("every_batch")

    def test_a_plan_that_becomes_strict_is_followed_bucket_by_bucket(self):
        self.scenes.of("strict")

    def test_a_rank_without_data_goes_on_as_the_plan_allows(self):
        self.scenes.of("uneven")

    def test_a_rank_without_data_is_named_as_the_plan_has_it(self):
        named = self.scenes.named("uneven_is_refused")
        self.assertEqual(len(named), 2, named)
        self.assertRegex(named[0], "micro_batches: 0 on rank 0, 1 on rank 1")

    def test_a_plan_with_a_hook_and_a_wrong_hook_are_refused(self):
        self.scenes.of("wrong_plan")

    def test_an_error_before_a_session_is_left_does_not_fail_it(self):
        self.scenes.of("ends_cleanly")

    def test_an_uncaught_exception_is_reported_to_the_others(self):
        named = self.scenes.named("uncaught", done=1)
        self.assertEqual(len(named), 1, named)
        self.assertIn("ValueError: no luck", named[0])


class ExchangeOfCoxswainTest(TorchTest):
    """The same scenes, in which Coxswain exchanges."""

    exchange = "coxswain"
    others = ()
    test_a_process_group_by_an_address = None
    test_a_plan_with_a_hook_and_a_wrong_hook_are_refused = None
    test_an_error_before_a_session_is_left_does_not_fail_it = None


if __name__ == "__main__":
    unittest.main()
