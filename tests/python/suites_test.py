#!/usr/bin/env python3
"""Suites that others wrote, unmodified: each model in them is followed."""

import os
import re
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.abspath("tests/python"))

import torch_ranks  # noqa: E402
from program import Program  # noqa: E402

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
    # Not preloaded: what --follow sets has an effect while Python starts.
    return Program(
        torch_ranks.run("--follow", *(["--plan", plan] if plan else []))
        + [torch_ranks.torch_python(),
           os.path.join(torch_ranks.SCENES, script), *arguments],
        torch_ranks.environment(**more),
    )


class SuitesTest(unittest.TestCase):
    def assert_passed(self, ranks, names):
        with ranks:
            self.assertEqual(ranks.end(), 0, ranks.output)
            for name in names:
                # Not whole lines: torch's profiler prints lines of its own, in
                # pieces, between.
                passed = re.findall("OK %s(?![a-z0-9_])" % name, ranks.output)
                self.assertEqual(len(passed), 2, ranks.output)

    def cases_of_torch(self, cases, **more):
        with tempfile.TemporaryDirectory() as folder:
            ranks = suite("torch_cases.py", *cases, TEMP_DIR=folder, **more)
            self.assert_passed(ranks, ("_test_python_store",) + cases)

    def scripts_of_accelerate(self, *names, **more):
        self.assert_passed(suite("accelerate_suite.py", *names, **more), names)

    def test_cases_of_torch(self):
        self.cases_of_torch(TORCH_CASES)

    def test_scripts_of_accelerate(self):
        self.scripts_of_accelerate(
            "test_sync", "test_script", "test_ddp_comm_hook"
        )

    def test_with_the_exchange_of_coxswain(self):
        # The others register hooks of torch.
        cases = tuple(
            case for case in TORCH_CASES if not case.endswith("_hook")
        )
        self.cases_of_torch(cases, COXSWAIN_FOLLOW_EXCHANGE="coxswain")
        self.scripts_of_accelerate(
            "test_sync", "test_script", COXSWAIN_FOLLOW_EXCHANGE="coxswain"
        )

    def test_a_script_of_accelerate_with_uneven_data(self):
        for exchange in ("torch", "coxswain"):
            self.scripts_of_accelerate(
                "test_distributed_data_loop",
                plan="windows=plan uneven_data=wait_for_all",
                COXSWAIN_FOLLOW_EXCHANGE=exchange,
            )


if __name__ == "__main__":
    unittest.main()
