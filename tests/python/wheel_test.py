#!/usr/bin/env python3
"""The wheel: what is in it, and what it does once it is installed.

Builds it from what Bazel has built.
"""

import unittest

from wheel_content import ContentTest, SymbolVersionTest
from wheel_installed import InstalledTest, NeighboursTest, VersionSkewTest

__all__ = [
    "ContentTest", "InstalledTest", "NeighboursTest", "SymbolVersionTest",
    "VersionSkewTest",
]

if __name__ == "__main__":
    unittest.main(verbosity=2)
