#!/usr/bin/env python3
"""coxswain.torch: real processes, started by `coxswain run`."""

import os
import re
import sys
import unittest

sys.path.insert(0, os.path.abspath("tests/python"))

import torch_ranks  # noqa: E402


class TorchTest(unittest.TestCase):
    def assert_done(self, name, ranks=2, done=2):
        with torch_ranks.scene("torch_scenes.py", name, ranks=ranks) as scene:
            status = scene.end()
            self.assertEqual(scene.said.count("DONE"), done, scene.said)
            return status, scene.said

    def test_models_train_as_before_and_skip_vote_and_stop_together(self):
        status, said = self.assert_done("together")
        self.assertEqual(status, 0, said)

    def test_a_process_group_by_an_address(self):
        status, said = self.assert_done("url")
        self.assertEqual(status, 0, said)

    def test_each_micro_batch_is_an_exchange(self):
        status, said = self.assert_done("every_batch")
        self.assertEqual(status, 0, said)

    def test_a_rank_without_data_goes_on_as_the_plan_allows(self):
        status, said = self.assert_done("uneven")
        self.assertEqual(status, 0, said)

    def test_a_rank_without_data_is_named_as_the_plan_has_it(self):
        _, said = self.assert_done("uneven_is_refused")
        named = re.findall("NAMED (.*)", said)
        self.assertEqual(len(named), 2, said)
        self.assertRegex(named[0], "micro_batches: 0 on rank 0, 1 on rank 1")

    def test_a_plan_with_a_hook_and_a_wrong_hook_are_refused(self):
        status, said = self.assert_done("wrong_plan")
        self.assertEqual(status, 0, said)

    def test_an_exception_that_nobody_catches_is_told_to_the_others(self):
        status, said = self.assert_done("uncaught", done=1)
        self.assertNotEqual(status, 0, said)
        named = re.findall("NAMED (.*)", said)
        self.assertEqual(len(named), 1, said)
        self.assertIn("ValueError: no luck", named[0])


if __name__ == "__main__":
    unittest.main()
