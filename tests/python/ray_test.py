#!/usr/bin/env python3
"""Ray Train under Coxswain, where Ray is installed: half a gigabyte, which
tools/install_torch.sh does not install.

    PYTHON=~/.cache/coxswain/torch-venv/bin/python
    $PYTHON -m pip install 'ray[train]==2.60.0'
    ./run_tests.sh --test_tag_filters= //tests/python:ray_test
"""

import os
import re
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.abspath("tests/python"))

import torch_ranks  # noqa: E402
from program import Program  # noqa: E402

EXAMPLE = os.path.abspath("examples/python/ray_train.py")


def has_ray():
    done = subprocess.run(
        [torch_ranks.torch_python(), "-c", "import ray.train"],
        env=torch_ranks.environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    return done.returncode == 0


class RayTest(unittest.TestCase):
    def setUp(self):
        if not has_ray():
            print("SKIPPED, AND NOTHING IS TESTED: %s" % __doc__)
            self.skipTest("there is no Ray")

    def test_the_example_trains_with_ranks_as_ray_has_them(self):
        environment = torch_ranks.environment(
            RAY_USAGE_STATS_ENABLED="0", RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0"
        )
        with torch_ranks.Serve() as coordinator, Program(
            [torch_ranks.torch_python(), EXAMPLE, coordinator.address],
            environment,
        ) as program:
            self.assertEqual(program.end(), 0, program.output)
            found = re.search(
                r"ray: (\d+) steps, loss ([\d.]+)", program.output
            )
            self.assertIsNotNone(found, program.output)
            self.assertEqual(int(found[1]), 60)
            self.assertLess(float(found[2]), 0.5)


if __name__ == "__main__":
    unittest.main()
