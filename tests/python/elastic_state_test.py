#!/usr/bin/env python3
"""What elastic training keeps, and whose state it is: without other ranks; and
how its generations begin and end, and what ranks that differ do, with two."""

import os
import re
import sys
import unittest

sys.path.insert(0, os.path.abspath("tests/python"))

from program import Program  # noqa: E402
from torch_ranks import SCENES, Scenes, environment, python  # noqa: E402


class ElasticStateTest(unittest.TestCase):
    def test_cases(self):
        cases = os.path.join(SCENES, "elastic_state_cases.py")
        with Program(python(cases), environment()) as program:
            self.assertEqual(program.end(), 0, program.output)
            self.assertIn("Ran 41 tests", program.output)

    def test_what_newcomers_take(self):
        cases = os.path.join(SCENES, "catch_up_cases.py")
        with Program(python(cases), environment()) as program:
            self.assertEqual(program.end(), 0, program.output)
            self.assertIn("Ran 22 tests", program.output)

    def test_what_replays_keep_and_find(self):
        cases = os.path.join(SCENES, "replay_cases.py")
        with Program(python(cases), environment()) as program:
            self.assertEqual(program.end(), 0, program.output)
            self.assertIn("Ran 26 tests", program.output)

    def test_ranks_that_come_to_differ_take_the_steps_again(self):
        alike = (
            (
                "undisturbed", "rank_0_is_wrong_once", "rank_1_is_wrong_once",
                "wrong_steps_before",
            ),
            (
                "undisturbed_with_error_feedback",
                "wrong_once_with_error_feedback",
            ),
        )
        others = (
            "a_fault_that_comes_again_ends_the_job", "other_bits_each_time",
            "without_replays_the_job_ends",
        )
        scenes = Scenes("replay_scenes.py", *alike[0], *alike[1], *others)
        for names in alike:
            # Of both ranks of all of them.
            bits = [
                re.findall("BITS (.*)", scenes.of(name)) for name in names
            ]
            self.assertEqual(bits, [bits[0][:1] * 2] * len(names))
        for name, rank in (
            ("rank_0_is_wrong_once", 0), ("rank_1_is_wrong_once", 1),
            ("wrong_once_with_error_feedback", 1),
        ):
            with self.subTest(name):
                # By each rank.
                logged = re.findall("LOGS (.*)", scenes.of(name))
                self.assertEqual(len(logged), 2, logged)
                for line in logged:
                    self.assertRegex(
                        line,
                        r"^replay_named: generation \d+, rank %d \(.+ on .+\), "
                        "step 12: " % rank,
                    )
        for name in others:
            with self.subTest(name):
                scenes.of(name)
        logged = re.findall("LOGS (.*?:)", scenes.of("wrong_steps_before"))
        self.assertEqual(logged, ["replay_named_none:"] * 2)

    def test_scenes(self):
        names = (
            "no_step_beyond_max_steps", "a_run_that_is_refused_leaves_nothing",
            "it_makes_the_process_group_itself",
        )
        scenes = Scenes("elastic_scenes.py", *names)
        for name in names:
            with self.subTest(name):
                scenes.of(name)


if __name__ == "__main__":
    unittest.main()
