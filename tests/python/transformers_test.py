#!/usr/bin/env python3
"""Trainer and Lightning under Coxswain: real processes."""

import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.abspath("tests/python"))

import torch_ranks  # noqa: E402

SCRIPT = "trainer_scenes.py"
torch_ranks.preload("transformers.trainer", "lightning.pytorch")


class TogetherTest(unittest.TestCase):
    """Scenes that do not need their launcher."""

    exchange = "torch"

    @classmethod
    def setUpClass(cls):
        cls.scenes = torch_ranks.Scenes(
            SCRIPT, "together", "plan", "stopped",
            SCENES_EXCHANGE=cls.exchange,
        )

    def test_a_trainer_trains_as_before_skips_saves_and_stops(self):
        self.scenes.of("together")

    def test_a_changed_plan_is_refused(self):
        self.scenes.of("plan")

    def test_a_rank_that_is_stopped_is_named(self):
        line, took = torch_ranks.named_in(
            self.scenes.of("stopped", done=1), "STANDS"
        )
        self.assertRegex(line, r"\(1,\).*rank 1")
        self.assertLess(took, torch_ranks.IN_TIME_S)


class TogetherByCoxswainTest(TogetherTest):
    """The same scenes, in which Coxswain exchanges."""

    exchange = "coxswain"


class TransformersTest(unittest.TestCase):
    exchange = "torch"

    def start(self, scene, **more):
        return torch_ranks.scene(
            SCRIPT, scene, SCENES_EXCHANGE=self.exchange, **more
        )

    def assert_done(self, ranks):
        self.assertEqual(ranks.end(), 0, ranks.output)
        self.assertEqual(ranks.output.count("DONE"), 2, ranks.output)

    def test_a_killed_rank_is_named(self):
        with self.start("killed") as ranks:
            line, took = torch_ranks.named_after(ranks, "KILLED")
            self.assertIn("(1,) rank 1", line)
            self.assertIn("killed by signal 9", line)
            self.assertLess(took, 10)
            self.assertNotEqual(ranks.end(), 0)

    def test_training_outlives_its_coordinator(self):
        with tempfile.TemporaryDirectory() as folder:
            enough = os.path.join(folder, "enough")
            with torch_ranks.Serve() as coordinator, self.start(
                "outlived", ENOUGH=enough,
                options=(
                    "--coordinator", coordinator.address, "--job", "mnist",
                ),
            ) as ranks:
                ranks.line("STEP 40")
                coordinator.kill_and_start()
                # It has its members back.
                coordinator.set_plan("mnist", "max_steps=1000000")
                ranks.line("STEP")
                open(enough, "w").close()
                self.assert_done(ranks)

    def test_a_program_of_torchrun_joins_by_attach(self):
        with torch_ranks.Serve() as coordinator, torch_ranks.torchrun(
            SCRIPT, "joins", coordinator, SCENES_EXCHANGE=self.exchange
        ) as ranks:
            self.assert_done(ranks)

    def test_lightning_trains_as_before_and_stops(self):
        with self.start("lightning") as ranks:
            self.assert_done(ranks)


class TransformersByCoxswainTest(TransformersTest):
    exchange = "coxswain"


if __name__ == "__main__":
    unittest.main()
