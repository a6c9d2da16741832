#!/usr/bin/env python3
"""What elastic training keeps, and whose state it is: without other ranks; and
how its generations begin and end, with two."""

import os
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
            self.assertIn("Ran 32 tests", program.output)

    def test_what_newcomers_take(self):
        cases = os.path.join(SCENES, "catch_up_cases.py")
        with Program(python(cases), environment()) as program:
            self.assertEqual(program.end(), 0, program.output)
            self.assertIn("Ran 21 tests", program.output)

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
