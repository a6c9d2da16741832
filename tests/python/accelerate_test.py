#!/usr/bin/env python3
"""Accelerate under Coxswain: real processes."""

import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.abspath("tests/python"))

import torch_ranks  # noqa: E402

SCRIPT = "accelerate_scenes.py"
torch_ranks.preload("accelerate")


class TogetherTest(unittest.TestCase):
    """Scenes that do not need their launcher."""

    exchange = "torch"
    # That are not of an exchange, or name it.
    others = ("of_coxswain", "alone")

    @classmethod
    def setUpClass(cls):
        cls.scenes = torch_ranks.Scenes(
            SCRIPT, "together", "slip", "stalled", "stopped", "keeps",
            "resumes", *cls.others, SCENES_EXCHANGE=cls.exchange,
            ALONE_PORT=str(torch_ranks.unused_port()),
        )

    def test_programs_train_as_before_skip_stop_and_follow_the_plan(self):
        self.scenes.of("together")

    def test_what_was_prepared_goes_on_from_a_checkpoint(self):
        self.scenes.of("keeps")
        self.scenes.of("resumes")

    def test_coxswain_exchanges_by_the_hook_that_accelerate_names(self):
        self.scenes.of("of_coxswain")

    def test_without_coxswain_a_count_that_slips_goes_by_unseen(self):
        output = set(self.scenes.named("alone"))
        self.assertEqual(len(output), 1, output)
        steps, right, steps_of_slip, wrong = output.pop().split()
        self.assertEqual(steps, steps_of_slip)
        self.assertNotEqual(right, wrong)

    def test_a_count_that_slips_is_named(self):
        # As each rank has seen it.
        named = {
            one.split(" (seen here as")[0] for one in self.scenes.named("slip")
        }
        self.assertEqual(len(named), 1, named)
        self.assertRegex(
            named.pop(),
            r"^3 .*3 on rank 1, 4 on rank 0 \(4 by the plan\)",
        )

    def test_a_rank_that_stalls_is_named(self):
        self.assert_named_in_time("stalled")

    def test_a_rank_that_is_stopped_is_named(self):
        self.assert_named_in_time("stopped")

    def assert_named_in_time(self, scene):
        output = self.scenes.of(scene, done=1)
        line, took = torch_ranks.named_in(output, "STANDS")
        self.assertRegex(line, r"\(1,\).*rank 1")
        self.assertGreater(took, 1.9)
        self.assertLess(took, torch_ranks.IN_TIME_S)


class TogetherByCoxswainTest(TogetherTest):
    """The same scenes, in which Coxswain exchanges."""

    exchange = "coxswain"
    others = ()
    test_coxswain_exchanges_by_the_hook_that_accelerate_names = None
    test_without_coxswain_a_count_that_slips_goes_by_unseen = None


class AccelerateTest(unittest.TestCase):
    exchange = "torch"

    def start(self, scene, **more):
        return torch_ranks.scene(
            SCRIPT, scene, SCENES_EXCHANGE=self.exchange, **more
        )

    def test_a_rank_killed_beside_its_data_loader_is_named(self):
        with self.start("killed") as ranks:
            line, took = torch_ranks.named_after(ranks, "KILLED")
            self.assertNotEqual(ranks.end(), 0)
            self.assertIn("(1,) rank 1", line)
            self.assertIn("killed by signal 9", line)
            # Within a second on a machine that is not overloaded.
            self.assertLess(took, 10)

    def test_ctrl_c_ends_a_backward_pass_that_waits(self):
        with self.start("interrupted") as ranks:
            ranks.line("WAITS")
            ranks.interrupt()
            ranks.line("INTERRUPTED 0", timeout=30)
            self.assertNotEqual(ranks.end(timeout=60), 0)

    def test_training_outlives_its_coordinator(self):
        with tempfile.TemporaryDirectory() as folder:
            enough = os.path.join(folder, "enough")
            with torch_ranks.Serve() as coordinator, self.start(
                "outlived", ENOUGH=enough,
                options=(
                    "--coordinator", coordinator.address, "--job", "mnist",
                ),
            ) as ranks:
                ranks.line("EPOCH 20 4")
                coordinator.kill_and_start()
                coordinator.set_plan("mnist", "accumulation=2")
                ranks.line("EPOCH .* 2$", timeout=60)
                open(enough, "w").close()
                self.assertEqual(ranks.end(), 0, ranks.output)
                self.assertEqual(ranks.output.count("DONE"), 2, ranks.output)

    def test_a_program_of_torchrun_joins_by_attach(self):
        with torch_ranks.Serve() as coordinator, torch_ranks.torchrun(
            SCRIPT, "joins", coordinator, SCENES_EXCHANGE=self.exchange
        ) as ranks:
            self.assertEqual(ranks.end(), 0, ranks.output)
            self.assertEqual(ranks.output.count("DONE"), 2, ranks.output)


class AccelerateByCoxswainTest(AccelerateTest):
    exchange = "coxswain"


if __name__ == "__main__":
    unittest.main()
