"""One step of other hooks, one rank, 16 matrices of 1024x1024."""

import models
from gradients import Gradients
from measure import Benchmark, Result, Row, Subject, milliseconds


def _row(name, spec, peer_name):
    return Row(
        "hook_" + name,
        peer_name,
        "ms",
        "a step of %s of 16 matrices of 1024x1024" % spec,
    )


def _against_torch(name):
    row = _row(name, name, "torch %s_compress_hook" % name)

    def measure(context):
        import torch_peer

        ours = context.native.model_of(name, models.SQUARE)
        gradients = Gradients(ours, models.SQUARE)
        peer = torch_peer.cast(gradients.buckets, gradients.shapes, name)
        return _compare(context, row, gradients, ours.step, peer.step)

    return Benchmark([row], measure)


def _against_own(name, spec, other):
    row = _row(name, spec, "coxswain " + other)

    def measure(context):
        ours = context.native.model_of(spec, models.SQUARE)
        peer = context.native.model_of(other, models.SQUARE)
        gradients = Gradients(ours, models.SQUARE)
        gradients.lend(peer)
        return _compare(context, row, gradients, ours.step, peer.step)

    return Benchmark([row], measure)


def _compare(context, row, gradients, ours, peer):
    times = context.interleave(
        {
            "ours": Subject(ours, gradients.fill),
            "peer": Subject(peer, gradients.fill),
        },
        samples=15,
        warm_up=4,  # start_step
    )
    spent, other = milliseconds(times["ours"]), milliseconds(times["peer"])
    return [Result(row, spent, other)]


BENCHMARKS = [
    _against_torch("bf16"),
    _against_torch("fp16"),
    _against_own("int8", "int8", "bf16"),
    _against_own(
        "acp_sgd",
        "acp_sgd(rank=4,start_step=2)",
        "powersgd(rank=4,start_step=2)",
    ),
]
