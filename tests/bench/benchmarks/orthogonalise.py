"""Orthogonalisation of all factors of a step."""

import ctypes

import models
from measure import Benchmark, Result, Row, Subject, milliseconds

RANK = 4

PEER = "loop over torch.linalg.qr"
WHAT = "all P and Q of a step of GPT-2 small at rank 4, in one call"

# With columns that are far from parallel, as power iterations soon have, and
# with columns that differ by a thousandth.
USUAL = Row("orthogonalise", PEER, "ms", WHAT, goal=10)
SKEWED = Row(
    "orthogonalise_skewed", PEER, "ms", WHAT + "; columns almost parallel"
)


def measure(context, row, spread):
    import torch

    compressed = [
        models.matrix(shape)
        for shape in models.gpt2_small()
        if models.factor_rank(shape, RANK)
    ]
    rows = [extent for sides in compressed for extent in sides]
    values = [torch.randn(n, RANK) * spread for n in rows]
    if spread < 1:
        for value in values:
            value += torch.randn(len(value), 1)
    # Ours are stored by columns, torch's by rows.
    ours = [torch.empty(RANK, n) for n in rows]

    def fill():
        for target, value in zip(ours, values):
            target.copy_(value.t())

    def loop():
        for value in values:
            torch.linalg.qr(value)

    integers = ctypes.c_int64 * len(rows)
    pointers = ctypes.c_void_p * len(rows)
    addresses = pointers(*[tensor.data_ptr() for tensor in ours])
    heights, widths = integers(*rows), integers(*[RANK] * len(rows))
    times = context.interleave(
        {
            "ours": Subject(
                lambda: context.native.orthogonalise(
                    addresses, heights, widths, len(rows)
                ),
                fill,
            ),
            "torch": Subject(loop, fill),
        },
        samples=51,
    )
    return [
        Result(row, milliseconds(times["ours"]), milliseconds(times["torch"]))
    ]


BENCHMARKS = [
    Benchmark([USUAL], lambda context: measure(context, USUAL, 1)),
    Benchmark([SKEWED], lambda context: measure(context, SKEWED, 1e-3)),
]
