"""One rank of torch's tensor parallelism, ColwiseParallel and RowwiseParallel
over gloo: the peer of worker/tensor_pair.h, with the same command and answer."""

import argparse
import json
import os
import statistics
import sys
import time

os.environ["OMP_NUM_THREADS"] = "1"

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.tensor.parallel import (  # noqa: E402
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

TOLERANCE = 1e-5  # of float32 sums in another order


def _pair(width, inner):
    # The same on all ranks: parallelize_module takes the first one's anyway.
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(width, inner), torch.nn.Linear(inner, width)
    )


class TensorPair:
    def __init__(self, width, inner, rows):
        size = dist.get_world_size()
        self._pair = parallelize_module(
            _pair(width, inner),
            init_device_mesh("cpu", (size,)),
            {"0": ColwiseParallel(), "1": RowwiseParallel()},
        )
        self._local = _pair(width, inner // size)
        self._input = torch.randn((rows, width), requires_grad=True)
        self._gradient = torch.randn((rows, width))

    def check(self, width, inner):
        """Fails unless results and gradients are those of undivided layers."""
        whole = _pair(width, inner)
        x = self._input.detach().clone().requires_grad_()
        expected = whole(x)
        expected.backward(self._gradient)
        actual = self._pair(self._input)
        actual.backward(self._gradient)
        for mine, theirs in ((actual, expected), (self._input.grad, x.grad)):
            error = (mine - theirs).abs().max()
            assert error <= TOLERANCE * theirs.abs().max(), error

    def _step(self, pair):
        pair.zero_grad(set_to_none=True)
        self._input.grad = None
        pair(self._input).backward(self._gradient)

    def _median(self, pair, count):
        times = []
        for _ in range(count):
            begun = time.perf_counter()
            self._step(pair)
            times.append(time.perf_counter() - begun)
        return statistics.median(times)

    def times(self, count):
        # Without a pause between them, so that ranks begin as they ended.
        dist.barrier()
        pair = self._median(self._pair, count)
        local = self._median(self._local, count)
        return {"pair": pair, "local": local}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--size", type=int, required=True)
    parser.add_argument("--store", required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    path = os.path.join(options.store, "torch-tensor")
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(path, options.size),
        rank=options.rank,
        world_size=options.size,
    )
    pairs = {}
    for line in sys.stdin:
        _, width, inner, rows, count = line.split()
        key = (int(width), int(inner), int(rows))
        if key not in pairs:
            pairs[key] = TensorPair(*key)
            pairs[key].check(*key[:2])
        print(json.dumps(pairs[key].times(int(count))), flush=True)
    # Its threads need no farewell.
    os._exit(0)


if __name__ == "__main__":
    main()
