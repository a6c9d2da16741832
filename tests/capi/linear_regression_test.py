#!/usr/bin/env python3
"""The example in C trains as in its README."""

import re
import subprocess
import unittest

COXSWAIN = "cli/coxswain"
PROGRAM = "examples/c/linear_regression"
TIMEOUT_S = 50


def run(*options, program=(PROGRAM,)):
    return subprocess.run(
        [COXSWAIN, "run", "--nproc", "2", *options, "--", *program],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


class LinearRegressionTest(unittest.TestCase):
    def weights(self, done):
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = re.findall(r"rank (\d) of 2 weights (.*)", done.stdout)
        self.assertEqual(sorted(rank for rank, _ in lines), ["0", "1"])
        self.assertEqual(lines[0][1], lines[1][1], "ranks hold other weights")
        return [float(weight) for weight in lines[0][1].split()]

    def test_two_ranks_learn_the_same_weights(self):
        done = run(program=(PROGRAM, "300"))
        for place, weight in enumerate(self.weights(done)):
            self.assertAlmostEqual(weight, place + 1, delta=0.2)
        losses = [float(x) for x in re.findall(r"loss (\S+)", done.stdout)]
        self.assertLess(losses[-1], 0.01 * losses[0])

    def test_the_plan_of_the_starter_counts(self):
        done = run("--plan", "accumulation=3", program=(PROGRAM, "20"))
        self.assertEqual(len(self.weights(done)), 8)

    def test_ranks_have_places_in_the_mesh_of_the_launcher(self):
        done = run("--mesh", "dp=*", program=(PROGRAM, "20"))
        self.assertEqual(len(self.weights(done)), 8)
        for rank in range(2):
            self.assertIn(
                'member="rank %d (dp %d; ' % (rank, rank), done.stderr
            )


if __name__ == "__main__":
    unittest.main()
