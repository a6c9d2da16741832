#!/usr/bin/env python3
"""Which hook is the fastest on which link, from what was measured.

    tests/bench/hook_choice.py            # prints the table
    tests/bench/hook_choice.py --update   # renews it in docs/python.md, from
                                          # the workspace's root

A hook costs what it computes, which docs/benchmarks.md has, and what its bytes
take on the link, by the formulas of benchmarks/wire_bytes.py. bench_test compares
the table with the page.
"""

import os
import re
import sys

import models
import report
from benchmarks import wire_bytes

MEASURED = "docs/benchmarks.md"
PAGE = "docs/python.md"
BEGIN = "<!-- begin: tests/bench/hook_choice.py -->\n"
END = "<!-- end -->\n"

SHAPES = models.SQUARE
RANKS = 2
# Spec, the row that has its time in ms, and its bytes. The reducer's buckets of
# these shapes are whole blocks of int8, so that one has the same bytes as all.
HOOKS = (
    ("allreduce", None, wire_bytes._allreduce),
    ("bf16", "hook_bf16", wire_bytes._narrow),
    ("fp16", "hook_fp16", wire_bytes._narrow),
    ("int8", "hook_int8", wire_bytes._int8),
    ("acp_sgd(rank=4)", "hook_acp_sgd", wire_bytes.low_rank(4, factors=1)),
    ("powersgd(rank=4)", "powersgd_square", wire_bytes.low_rank(4)),
)
LINKS = 0.1, 1, 10, 25, 100  # Gbit/s
# What each of these saves, it saves against the other.
PAYS = (
    ("bf16", "allreduce"),
    ("int8", "bf16"),
    ("powersgd(rank=4)", "bf16"),
    ("powersgd(rank=4)", "int8"),
)


def measured(text, row):
    """Returns the milliseconds of a row in docs/benchmarks.md."""
    found = re.search(r"^\| `%s` \| ([0-9.,]+) \|" % row, text, re.MULTILINE)
    if found is None:
        raise SystemExit("%s has no row %s" % (MEASURED, row))
    return float(found.group(1).replace(",", ""))


def sent(spec, formula):
    """Returns the bytes that a rank sends. It hands in what the formula has; in
    a ring, an all-reduce sends 2 (W - 1) / W of that, and with two ranks int8
    sends as much of its all-to-all and all-gather: one half, and all."""
    handed = formula(SHAPES, [(models.count(SHAPES), None)])
    return handed * 2 / 3 if spec == "int8" else handed


def costs(text):
    """Returns pairs of milliseconds and bytes by spec."""
    return {
        spec: (measured(text, row) if row else 0.0, sent(spec, formula))
        for spec, row, formula in HOOKS
    }


def milliseconds(cost, gigabits):
    computing, size = cost
    return computing + 8 * size / gigabits / 1e6


def break_even(cost, other):
    """Returns the Gbit/s below which the first one is faster; None: all."""
    slower = cost[0] - other[0]
    saved = other[1] - cost[1]
    return None if slower <= 0 else 8 * saved / slower / 1e6


def table(text):
    found = costs(text)
    lines = [
        "| hook | sends, MB | computes, ms | "
        + " | ".join("%s Gbit/s" % report.number(link) for link in LINKS)
        + " | pays |",
        "|---|--:|--:|" + "--:|" * len(LINKS) + "---|",
    ]
    fastest = [
        min(found, key=lambda spec: milliseconds(found[spec], link))
        for link in LINKS
    ]
    for spec, cost in found.items():
        times = [
            ("**%s**" if spec == best else "%s")
            % report.number(milliseconds(cost, link))
            for link, best in zip(LINKS, fastest)
        ]
        pays = [
            "always, against `%s`" % other
            if break_even(cost, found[other]) is None
            else "below %.2g Gbit/s, against `%s`"
            % (break_even(cost, found[other]), other)
            for one, other in PAYS
            if one == spec
        ]
        cells = [
            "`%s`" % spec, "%.3g" % (cost[1] / 1e6), report.number(cost[0]),
            *times, "; ".join(pays),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def between(page):
    """Returns what stands before the table in a page, the table, and what stands
    after it."""
    head, begin, rest = page.partition(BEGIN)
    old, end, tail = rest.partition(END)
    if not begin or not end:
        raise SystemExit("%s has no %s" % (PAGE, BEGIN.strip()))
    return head + begin, old.strip("\n") + "\n", end + tail


def read(page):
    """Returns the text of a page of the tree that has this file."""
    root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
    with open(os.path.join(root, page)) as file:
        return file.read()


def main():
    new = table(read(MEASURED))
    if sys.argv[1:] != ["--update"]:
        print(new, end="")
        return
    head, _, tail = between(read(PAGE))
    with open(PAGE, "w") as file:
        file.write(head + "\n" + new + "\n" + tail)


if __name__ == "__main__":
    main()
