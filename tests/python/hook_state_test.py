#!/usr/bin/env python3
"""What hooks of Coxswain's remember, in checkpoints of all kinds: real
processes, and a coordinator."""

import os
import re
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.abspath("tests/python"))

from program import Program  # noqa: E402
from torch_ranks import SCENES, Serve, environment  # noqa: E402
from torch_ranks import preload, python, run  # noqa: E402

IN_CPP = os.path.join(SCENES, "resume_in_cpp")
SCRIPT = os.path.join(SCENES, "hook_state_scenes.py")
preload("transformers.trainer", "lightning.pytorch")


def attempts(script, ranks, **more):
    """Returns the output of a script's attempts."""
    with tempfile.TemporaryDirectory() as folder, Serve() as coordinator:
        with Program(
            run("--coordinator", coordinator.address, "--job", "all",
                ranks=ranks)
            + python(os.path.join(SCENES, script), "together"),
            environment(SCENES_FOLDER=folder, **more),
        ) as program:
            program.end()
            return program.output


class AgreedCheckpointTest(unittest.TestCase):
    """One job after the other, in the same processes."""

    @classmethod
    def setUpClass(cls):
        cls.output = attempts(
            "hook_state_scenes.py", 4, SCENE_IN_CPP=IN_CPP
        )

    def lines(self, what, job):
        """Returns what attempts of a job told: their ranks, and the rest."""
        found = re.findall(
            "^%s %s (.*)$" % (what, job), self.output, re.MULTILINE
        )
        self.assertTrue(found, self.output)
        return [line.split() for line in found]

    def assert_goes_along(self, job, *ranks):
        """What an attempt remembered is what the next one begins with."""
        begins, ends = self.lines("BEGINS", job), self.lines("ENDS", job)
        self.assertEqual([int(one[0]) for one in ends], list(ranks))
        for before, after in zip(ends, begins[1:]):
            self.assertEqual(before[1], after[1], self.output)
            if after[0] in "24":
                self.assertEqual(before[2], after[2], self.output)
            norm = float(before[3])
            self.assertAlmostEqual(float(after[3]) / norm, 1, 4, self.output)

    def assert_bit_by_bit(self, job):
        """After as many steps on as many ranks, all is as without a break."""
        unbroken = self.lines("ENDS", job + "-whole")[0]
        self.assertEqual(self.lines("ENDS", job)[1], unbroken, self.output)

    def test_powersgd_goes_on_bit_by_bit_and_on_more_ranks(self):
        self.assert_bit_by_bit("powersgd")
        self.assert_goes_along("powersgd", 2, 2, 3)

    def test_so_does_a_hook_within_fp16(self):
        self.assert_bit_by_bit("wrapped")
        self.assert_goes_along("wrapped", 2, 2, 4, 3)

    def test_so_does_int8_and_on_other_numbers_of_ranks_by_the_mean(self):
        self.assert_bit_by_bit("int8")
        self.assertEqual(len(self.lines("ENDS", "int8")), 4, self.output)

    def test_the_mean_of_errors_goes_from_4_to_2_to_3_ranks(self):
        self.assert_goes_along("mean", 4, 2, 3)

    def test_a_hook_that_came_while_it_trained_goes_along(self):
        self.assert_goes_along("changed", 2, 2)

    def test_another_hook_is_refused(self):
        self.lines("REFUSED", "powersgd")

    def test_programs_in_cpp_go_on_with_a_hook_and_the_reverse(self):
        whole = self.lines("IN CPP", "int8-cpp-whole")
        self.assertEqual(
            [line[:2] for line in whole],
            [["2", "0"], ["2", "3"], ["2", "7"], ["2", "10"]], self.output,
        )
        self.assertEqual(len({line[2] for line in whole}), 4, self.output)
        self.assertEqual(
            self.lines("IN CPP", "int8-cpp"), whole, self.output
        )


class SigtermTest(unittest.TestCase):
    def test_what_is_saved_at_sigterm_has_the_hook(self):
        told = []
        with Serve() as coordinator:
            command = run(
                "--coordinator", coordinator.address, "--job", "sigterm"
            ) + python(SCRIPT, "sigterm")
            for attempt in range(2):
                with Program(command, environment()) as ranks:
                    told.append(ranks.line(r"BEGINS sigterm 2 (\d+) (\S+ \S+)"))
                    if attempt == 0:
                        ranks.line("STANDS")
                        ranks.terminate()
                    told.append(ranks.line(r"ENDS sigterm 2 (\d+) (\S+ \S+) (.*)"))
                    self.assertEqual(ranks.end(), 0, ranks.output)
        self.assertIn("SIGTERM", told[1].group(3))
        self.assertEqual(told[2].groups(), told[1].groups()[:2])


class OtherCheckpointsTest(unittest.TestCase):
    """Those of Accelerate, Trainer and Lightning, on two and three ranks."""

    def test_each_has_the_hook(self):
        output = attempts("resumed_scenes.py", 3)
        for scene in ("accelerated", "trainer", "lightning"):
            ends = re.findall(r"ENDS %s (\d) (\w+) (\S+)" % scene, output)
            begins = re.findall(r"BEGINS %s (\d) (\w+) (\S+)" % scene, output)
            self.assertEqual([one[0] for one in ends], ["2", "3", "2"], output)
            for before, after in zip(ends, begins[1:]):
                if after[0] == "2":
                    self.assertEqual(before[1], after[1], output)
                norm = float(before[2])
                self.assertAlmostEqual(float(after[2]) / norm, 1, 4, output)
            self.assertEqual(output.count("DONE " + scene), 7, output)


if __name__ == "__main__":
    unittest.main()
