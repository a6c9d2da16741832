"""One step of PowerSGD, rank 4, one rank, against PyTorch's hook.

Both exchange the same gradients in the same buckets, those of the reducer
(25 MiB, the first 1 MiB), filled anew before each step as a backward pass
would. Error feedback and warm start are on in both.
"""

import math

import models
from copier import Copier
from gradients import Gradients
from measure import Benchmark, Result, Row, Subject, milliseconds

RANK = 4
SPEC = "powersgd(rank=%d,start_step=2)" % RANK
BYTES_PER_ELEMENT = 20


def _benchmark(name, what, make_shapes, samples):
    step = Row(
        "powersgd_" + name,
        "torch powerSGD_hook",
        "ms",
        "a step of powersgd, rank 4, of " + what,
        goal=5,
    )
    floor = Row(
        "powersgd_%s_floor" % name,
        "copying 20 bytes an element",
        "ms",
        "the same against its memory traffic; 0.667 is 1.5 times the floor",
        goal=1 / 1.5,
    )

    def measure(context):
        import torch_peer

        shapes = make_shapes()
        ours = context.native.model_of(SPEC, shapes)
        gradients = Gradients(ours, shapes)
        peer = torch_peer.powersgd(gradients.buckets, gradients.shapes, RANK)
        matrices = sum(
            math.prod(shape)
            for shape in shapes
            if models.factor_rank(shape, RANK)
        )
        # Two arrays of the model's size: the gradients and what is kept.
        copier = Copier(context.native, 4 * matrices)
        times = context.interleave(
            {
                "ours": Subject(ours.step, gradients.fill),
                "torch": Subject(peer.step, gradients.fill),
                **copier.subjects,
            },
            samples=samples,
            warm_up=4,  # two of them are before start_step
        )
        spent = milliseconds(times["ours"])
        moved = BYTES_PER_ELEMENT * matrices
        return [
            Result(step, spent, milliseconds(times["torch"])),
            Result(floor, spent, copier.milliseconds(times, moved)),
        ]

    return Benchmark([step, floor], measure)


BENCHMARKS = [
    _benchmark(
        "square", "16 matrices of 1024x1024", lambda: models.SQUARE, 21
    ),
    _benchmark("gpt2", "GPT-2 small", models.gpt2_small, 9),
]
