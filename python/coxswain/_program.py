"""The program `coxswain`, which an installed package brings along."""

from __future__ import annotations

import os
import sys

PROGRAM = os.path.join(
    os.path.dirname(os.path.abspath(__file__)), "_native", "coxswain"
)


def main() -> None:
    """Replaces this process by that program, with the same arguments."""
    try:
        os.execv(PROGRAM, ["coxswain", *sys.argv[1:]])
    except OSError as error:
        sys.exit(
            "coxswain: %s cannot be started (%s): install the package again, "
            "from a wheel for this machine" % (PROGRAM, error.strerror)
        )
