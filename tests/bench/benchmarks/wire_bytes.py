"""Bytes that one of two ranks hands to collectives in a step, against the
formula: ResNet-18, the one that the PowerSGD paper counts."""

import math

import models
from gradients import Gradients
from measure import Benchmark, Result, Row

RANKS = 2
FLOAT = 4


def _allreduce(shapes, layout):
    return FLOAT * models.count(shapes)


def _narrow(shapes, layout):
    return 2 * models.count(shapes)


def low_rank(rank, factors=2):
    """Factors of the matrices, all else as it is. Of the two factors, only one
    in turn if `factors` is 1."""

    def formula(shapes, layout):
        size = 0
        for shape in shapes:
            r = models.factor_rank(shape, rank)
            if r:
                size += FLOAT * r * sum(models.matrix(shape)) * factors / 2
            else:
                size += FLOAT * math.prod(shape)
        return size

    return formula


def _int8(shapes, layout):
    """Per bucket, slices of whole blocks, each with its scale: one per rank to
    the all-to-all, one to the all-gather."""
    block = 256
    size = 0
    for elements, _ in layout:
        blocks = -(-elements // (block * RANKS))
        size += (RANKS + 1) * blocks * (block + FLOAT)
    return size


def _row(name, spec):
    return Row(
        "wire_bytes_" + name,
        "formula",
        "B",
        "bytes that a rank hands in, per step of ResNet-18, with %s" % spec,
        goal=1,
        exact=True,
    )


def _benchmark(name, spec, formula, steps=1, skip=0):
    """Counts `steps` steps after the first `skip`; the average by step."""
    row = _row(name, spec)

    def measure(context):
        shapes = models.resnet18()
        model = context.native.model_of(spec, shapes, RANKS)
        gradients = [Gradients(model, shapes) for _ in range(RANKS)]
        for rank, own in enumerate(gradients):
            own.lend(model, rank)
        for _ in range(skip):
            model.step()
        before = model.payload_bytes()
        for _ in range(steps):
            model.step()
        counted = (model.payload_bytes() - before) / steps
        expected = formula(shapes, model.layout)
        return [Result(row, [counted], [expected])]

    return Benchmark([row], measure)


BENCHMARKS = [
    _benchmark("allreduce", "allreduce", _allreduce),
    _benchmark("bf16", "bf16", _narrow),
    _benchmark("fp16", "fp16", _narrow),
    _benchmark("int8", "int8", _int8),
] + [
    _benchmark(
        "powersgd_%d" % rank,
        "powersgd(rank=%d,start_step=2)" % rank,
        low_rank(rank),
        skip=2,
    )
    for rank in (1, 2, 4)
]
BENCHMARKS.append(
    _benchmark(
        "acp_sgd_4",
        "acp_sgd(rank=4,start_step=2)",
        low_rank(4, factors=1),
        steps=2,
        skip=2,
    )
)
