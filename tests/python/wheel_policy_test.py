#!/usr/bin/env python3
"""auditwheel, which has added the libraries, states what the wheel is for.

Looks at each of the libraries with all that it needs, which takes long.
"""

import unittest

from wheel_case import built, run
from wheel_content import PLATFORM


class PolicyTest(unittest.TestCase):
    def test_auditwheel_finds_that_it_runs_there(self):
        output = run(
            built().tools, "-m", "auditwheel", "show", built().wheel
        )
        self.assertRegex(output, r'platform tag:\s*"%s"' % PLATFORM)


if __name__ == "__main__":
    unittest.main(verbosity=2)
