#!/usr/bin/env python3
"""Writes the golden files: what PyTorch's communication hooks and its
DistributedDataParallel compute.

usage: generate.py FOLDER

tests/golden/regenerate.sh calls it. See README.md for the files' contents.
"""

import os
import sys

# Rounding must not depend on the machine: MKL and ATen take the kernels that
# every x86-64 processor has. Before torch is imported.
os.environ["MKL_CBWR"] = "COMPATIBLE"
os.environ["ATEN_CPU_CAPABILITY"] = "default"
os.environ["OMP_NUM_THREADS"] = "1"

import json
import struct
from collections import OrderedDict
from itertools import chain
from unittest import mock

import numpy as np
import torch
from torch.distributed.algorithms.ddp_comm_hooks import (
    default_hooks,
    post_localSGD_hook as local_sgd,
    powerSGD_hook as power_sgd,
)
from torch.distributed.algorithms.model_averaging import (
    averagers,
    hierarchical_model_averager as hierarchical,
)

import in_memory
import inputs
import training

STEPS = 20
START = 2  # the first that torch allows
LEARNING_RATE = 2.0**-4  # its products are exact


class Bucket:
    """Stands in for dist.GradBucket, as far as the hooks use it."""

    def __init__(self, index, step):
        self._index = index
        self._members = inputs.BUCKETS[index]
        self._buffer = torch.cat(
            [
                torch.from_numpy(
                    inputs.values(
                        inputs.GRADIENTS, step, in_memory.rank(), member
                    )
                ).reshape(-1)
                for member in self._members
            ]
        )

    def index(self):
        return self._index

    def is_last(self):
        return self._index == len(inputs.BUCKETS) - 1

    def buffer(self):
        return self._buffer

    def set_buffer(self, buffer):
        self._buffer = buffer

    def parameters(self):
        return [torch.empty(inputs.PARAMETERS[m][1]) for m in self._members]

    def gradients(self):
        sizes = [p.numel() for p in self.parameters()]
        parts = self._buffer.split(sizes)
        return [g.view_as(p) for g, p in zip(parts, self.parameters())]


def exchange(hook, state, step):
    """One step of one rank; the gradients by parameter."""
    results = [None] * len(inputs.PARAMETERS)
    for index, members in enumerate(inputs.BUCKETS):
        bucket = Bucket(index, step)
        bucket.set_buffer(hook(state, bucket).wait())
        for member, gradient in zip(members, bucket.gradients()):
            results[member] = gradient
    return results


def flatten(tensors):
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def only(results):
    """What all ranks hold; they must hold the same bits."""
    for other in results[1:]:
        for name, tensor in other.items():
            assert torch.equal(tensor, results[0][name]), name
    return results[0]


def stateless_case(size, hook, dtype):
    def run():
        steps = [exchange(hook, in_memory.world(), s) for s in range(STEPS)]
        out = torch.stack([flatten(step) for step in steps])
        assert torch.equal(out, out.to(dtype).float())  # nothing is lost
        return {"out": out.to(dtype)}

    return only(in_memory.run_ranks(size, run))


def compressed(rank, rate):
    """Which parameters of each bucket PowerSGD compresses, in the order of
    their Qs: by shape in first-seen order."""
    result = []
    for members in inputs.BUCKETS:
        shapes = OrderedDict()
        for member in members:
            shape = inputs.PARAMETERS[member][1]
            n, m = shape[0], int(np.prod(shape[1:]))
            r = min(n, m, rank)
            if (n + m) * r * rate < n * m:
                shapes.setdefault((n, m), []).append(member)
        result.append([m for same in shapes.values() for m in same])
    return result


class QRecorder:
    """Sees each Q before it is orthogonalised. torch calls _orthogonalize on
    the Qs of a bucket, then on its Ps, once per matrix or batch. Rank 0's
    calls count: all ranks have the same Qs."""

    def __init__(self, order):
        self.order = order
        self.qs = {}
        self.pending = []
        self.steps = []  # Q by parameter, shape [r, m]
        self.orthogonalize = power_sgd._orthogonalize

    def begin(self, bucket):
        if in_memory.rank() == 0:
            self.pending = list(self.order[bucket.index()])

    def __call__(self, matrices, epsilon=0):
        if in_memory.rank() == 0:
            for matrix in matrices[: len(self.pending)]:
                self.qs[self.pending.pop(0)] = matrix.t().clone()
        self.orthogonalize(matrices, epsilon)

    def end_step(self):
        if in_memory.rank() == 0 and self.qs:
            assert not self.pending
            self.steps.append(self.qs)
            self.qs = {}

    def tensors(self):
        return {
            "q/" + inputs.PARAMETERS[p][0]: torch.stack(
                [step[p] for step in self.steps]
            )
            for p in sorted(self.steps[0])
        }


def run_power_sgd(options, recorder):
    state = power_sgd.PowerSGDState(in_memory.world(), **options)

    def hook(state, bucket):
        if state.iter >= state.start_powerSGD_iter:
            recorder.begin(bucket)
        return power_sgd.powerSGD_hook(state, bucket)

    result = {"out": [], "error": []}
    for step in range(START + STEPS):
        result["out"].append(flatten(exchange(hook, state, step)))
        recorder.end_step()
        result["error"].append(errors_of(state))
    return {name: torch.stack(steps) for name, steps in result.items()}


def errors_of(state):
    """By parameter in registration order; zero if there are none yet."""
    errors = [torch.zeros(shape) for _, shape in inputs.PARAMETERS]
    for index, error in state.error_dict.items():
        members = inputs.BUCKETS[index]
        sizes = [errors[member].numel() for member in members]
        for member, part in zip(members, error.split(sizes)):
            errors[member] = part
    return flatten(errors)


def mean_gradients(size, step):
    """In float64."""
    ranks = [
        np.concatenate(
            [
                inputs.values(inputs.GRADIENTS, step, rank, p).reshape(-1)
                for p in range(len(inputs.PARAMETERS))
            ]
        )
        for rank in range(size)
    ]
    return np.mean(np.asarray(ranks, np.float64), axis=0)


def check_mean_errors(results, options):
    """The test computes the mean error over the ranks from gradients and
    outputs. Here it is what torch's ranks hold, up to their rounding."""
    size = len(results)
    out = results[0]["out"].double().numpy()
    mean = np.zeros(out.shape[1])
    for step in range(options["start_powerSGD_iter"], len(out)):
        mean += mean_gradients(size, step) - out[step]
        held = np.mean([r["error"][step].double().numpy() for r in results], 0)
        distance = np.linalg.norm(held - mean) / np.linalg.norm(mean)
        assert distance < 1e-6, f"step {step}: {distance}"


def power_sgd_case(size, **options):
    options = {"start_powerSGD_iter": START, **options}
    recorder = QRecorder(
        compressed(
            options["matrix_approximation_rank"],
            options.get("min_compression_rate", 2),
        )
    )
    with mock.patch.object(power_sgd, "_orthogonalize", recorder):
        results = in_memory.run_ranks(
            size, lambda: run_power_sgd(options, recorder)
        )
    if options.get("use_error_feedback", True):
        check_mean_errors(results, options)
    for result in results:
        del result["error"]  # each rank has its own
    return {**only(results), **recorder.tensors()}


def train(hook, state, averager):
    """Parameters after each step of plain SGD; those of AVERAGED only."""
    parameters = [
        torch.nn.Parameter(
            torch.from_numpy(inputs.values(inputs.INITIAL, 0, 0, index))
        )
        for index in range(len(inputs.PARAMETERS))
    ]
    steps = []
    for step in range(STEPS):
        gradients = exchange(hook, state, step)
        for parameter, gradient in zip(parameters, gradients):
            parameter.grad = gradient
            parameter.data.add_(gradient, alpha=-LEARNING_RATE)
        averager.average_parameters(parameters)
        averaged = [parameters[i].detach() for i in inputs.AVERAGED]
        steps.append(flatten(averaged).clone())
    return torch.stack(steps)


def post_local_sgd_case(size, start, period, subgroup):
    """out: [step, subgroup, element]; a subgroup's ranks stay equal."""

    def run():
        own, _ = in_memory.new_subgroups(subgroup)
        return train(
            local_sgd.post_localSGD_hook,
            local_sgd.PostLocalSGDState(in_memory.world(), own, start),
            averagers.PeriodicModelAverager(period, start, in_memory.world()),
        )

    ranks = in_memory.run_ranks(size, run)
    for rank, values in enumerate(ranks):
        assert torch.equal(values, ranks[rank - rank % subgroup])
    return {"out": torch.stack(ranks[::subgroup], dim=1)}


def hierarchical_sgd_case(size, warmup, periods):
    """out: [step, rank, element]. Gradients are averaged during warm-up and
    stay local after it."""

    def run():
        world = in_memory.world()
        return train(
            local_sgd.post_localSGD_hook,
            local_sgd.PostLocalSGDState(world, world, warmup, False),
            hierarchical.HierarchicalModelAverager(
                OrderedDict(periods), warmup, world
            ),
        )

    return {"out": torch.stack(in_memory.run_ranks(size, run), dim=1)}


def check_batched_hook_is_broken():
    """batched_powerSGD_hook hands a matrix to a function that asserts a batch
    of them, so it cannot reach its first compressed step. Once this fails,
    it has been mended and deserves golden files."""

    def run():
        state = power_sgd.PowerSGDState(in_memory.world(), 1, START)
        for step in range(START + 1):
            exchange(power_sgd.batched_powerSGD_hook, state, step)

    try:
        in_memory.run_ranks(1, run)
    except AssertionError:
        return
    raise RuntimeError("torch's batched_powerSGD_hook works; add it")


# Coxswain's names of torch's options, where they differ.
OPTION_NAMES = {
    "matrix_approximation_rank": "rank",
    "start_powerSGD_iter": "start_step",
    "use_error_feedback": "error_feedback",
    "batch_tensors_with_same_shape": "batch_same_shape",
}


def power_sgd_spec(options):
    def text(value):
        return str(value).lower() if isinstance(value, bool) else str(value)

    given = {"start_powerSGD_iter": START, **options}
    return "powersgd(%s)" % ",".join(
        f"{OPTION_NAMES.get(name, name)}={text(value)}"
        for name, value in given.items()
    )


# Beyond rank 1, 2 and 4 on 1, 2 and 4 ranks; on 2 ranks.
POWER_SGD_VARIANTS = {
    "no_error_feedback": {"use_error_feedback": False},
    "no_warm_start": {"warm_start": False},
    "neither": {"use_error_feedback": False, "warm_start": False},
    "batched": {"batch_tensors_with_same_shape": True},
    "epsilon": {"orthogonalization_epsilon": 1e-8},
    "late": {"start_powerSGD_iter": 9},
    "rate_half": {"min_compression_rate": 0.5},
    "rank4_rate1": {
        "matrix_approximation_rank": 4,
        "min_compression_rate": 1,
    },
}


def cases():
    """(name, kind, ranks, spec, tensors); kind is what the test does."""
    for size in (1, 2, 4):
        for name, spec, hook, dtype in (
            ("allreduce", "allreduce", "allreduce_hook", torch.float32),
            (
                "fp16",
                "fp16(order=cast_then_divide)",
                "fp16_compress_hook",
                torch.float16,
            ),
            (
                "bf16",
                "bf16(order=cast_then_divide)",
                "bf16_compress_hook",
                torch.bfloat16,
            ),
        ):
            tensors = stateless_case(size, getattr(default_hooks, hook), dtype)
            yield f"{name}_w{size}", "stateless", size, spec, tensors
        for rank in (1, 2, 4):
            options = {"matrix_approximation_rank": rank}
            yield power_sgd_entry(f"powersgd_rank{rank}", size, options)
    for name, variant in POWER_SGD_VARIANTS.items():
        options = {"matrix_approximation_rank": 2, **variant}
        yield power_sgd_entry(f"powersgd_{name}", 2, options)
    yield (
        "post_local_sgd_w4",
        "averager",
        4,
        "post_local_sgd(start_step=5,period=4,subgroup=2)",
        post_local_sgd_case(4, start=5, period=4, subgroup=2),
    )
    yield (
        "hierarchical_sgd_w4",
        "averager",
        4,
        "hierarchical_sgd(levels=2x2+6x4,start_step=5)",
        hierarchical_sgd_case(4, 5, [(2, 2), (6, 4)]),
    )


def power_sgd_entry(name, size, options):
    tensors = power_sgd_case(size, **options)
    return f"{name}_w{size}", "powersgd", size, power_sgd_spec(options), tensors


DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
}


def write(path, metadata, tensors):
    """The safetensors format: header size, header, data."""
    header, data = {"__metadata__": metadata}, b""
    for name, tensor in tensors.items():
        raw = tensor.contiguous().view(torch.uint8).numpy().tobytes()
        header[name] = {
            "dtype": DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def hook_cases():
    """(name, metadata, tensors)"""
    check_batched_hook_is_broken()
    for name, kind, size, spec, tensors in cases():
        yield name, {"kind": kind, "ranks": str(size), "spec": spec}, tensors


def main(folder):
    torch.set_num_threads(1)
    version = torch.__version__.split("+")[0]
    for name, metadata, tensors in chain(hook_cases(), training.cases()):
        for values in tensors.values():
            assert torch.isfinite(values).all(), name
        path = os.path.join(folder, name + ".safetensors")
        write(path, {"torch": version, **metadata}, tensors)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__.strip())
    main(sys.argv[1])
