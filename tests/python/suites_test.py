#!/usr/bin/env python3
"""Suites that others wrote, unmodified: each model in them is followed."""

import os
import re
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.abspath("tests/python"))

import torch_ranks  # noqa: E402

TORCH_CASES = (
    "test_accumulate_gradients_no_sync",
    "test_accumulate_gradients_no_sync_grad_is_view",
    "test_accumulate_gradients_no_sync_allreduce_hook",
    "test_accumulate_gradients_no_sync_allreduce_with_then_hook",
    "test_grads_same_across_ranks_with_no_sync",
    "test_broadcast",
    "test_all_reduce_sum_async",
)


def suite(script, *arguments, plan=None, **more):
    options = ["--follow"] + (["--plan", plan] if plan else [])
    return torch_ranks.scene(script, *arguments, options=options, **more)


class SuitesTest(unittest.TestCase):
    def assert_passed(self, ranks, names):
        with ranks:
            self.assertEqual(ranks.end(), 0, ranks.output)
            for name in names:
                # Not whole lines: torch's profiler prints lines of its own, in
                # pieces, between.
                passed = re.findall("OK %s(?![a-z0-9_])" % name, ranks.output)
                self.assertEqual(len(passed), 2, ranks.output)

    def test_cases_of_torch(self):
        with tempfile.TemporaryDirectory() as folder:
            ranks = suite("torch_cases.py", *TORCH_CASES, TEMP_DIR=folder)
            self.assert_passed(ranks, ("_test_python_store",) + TORCH_CASES)

    def test_scripts_of_accelerate(self):
        names = ("test_sync", "test_script", "test_ddp_comm_hook")
        self.assert_passed(suite("accelerate_suite.py", *names), names)

    def test_with_the_exchange_of_coxswain(self):
        cases = [case for case in TORCH_CASES if not case.endswith("_hook")]
        with tempfile.TemporaryDirectory() as folder:
            ranks = suite(
                "torch_cases.py", *cases, TEMP_DIR=folder,
                COXSWAIN_FOLLOW_EXCHANGE="coxswain",
            )
            self.assert_passed(ranks, cases)
        names = ("test_sync", "test_script")
        ranks = suite(
            "accelerate_suite.py", *names, COXSWAIN_FOLLOW_EXCHANGE="coxswain"
        )
        self.assert_passed(ranks, names)

    def test_a_script_of_accelerate_with_uneven_data(self):
        name = "test_distributed_data_loop"
        ranks = suite(
            "accelerate_suite.py", name,
            plan="windows=plan uneven_data=wait_for_all",
        )
        self.assert_passed(ranks, [name])


if __name__ == "__main__":
    unittest.main()
