#!/usr/bin/env python3
"""Slurm's own signal, at a real time limit, as the batch script asks for it.

Slurm's limits are whole minutes, and its signals come up to a minute early: of
three minutes, one passes at most before the signal two minutes before the end.
"""

import os
import sys
import unittest

sys.dont_write_bytecode = True  # It would be in the source tree.
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from slurm_case import SCRIPT, TRAIN, SlurmCase


class SlurmTimeLimitTest(SlurmCase):
    def test_drains_before_the_limit_and_goes_on_after_it(self):
        self.submit("--time=3", SCRIPT, *TRAIN)
        self.job.read_until(r'"event":"step"')
        self.job.hold()
        output = self.requeued(1)
        result = self.result(output, 2, 0)
        saved = self.saved_step()
        self.assertEqual(saved, result["steps"], output)
        self.job.set_nodes(1)
        self.job.release()
        output = self.finish_soon(attempt=1, at=len(output))
        self.result(output, 1, saved)


if __name__ == "__main__":
    unittest.main(verbosity=2)
