"""One rank of PyTorch's DistributedDataParallel over gloo: the peer of
worker/main.cc, with the same commands and answers."""

import argparse
import json
import os
import resource
import sys
import time

os.environ["OMP_NUM_THREADS"] = "1"

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

PIECE_BYTES = 25 << 20


class SumNetwork(torch.nn.Module):
    """As MakeSumNetwork of worker/networks.h."""

    def __init__(self, shapes):
        super().__init__()
        self.weights = torch.nn.ParameterList(
            torch.nn.Parameter(torch.randn(shape)) for shape in shapes
        )

    def forward(self, constant):
        loss = torch.zeros(())
        for weight in self.weights:
            loss = loss + (weight * constant).sum()
        return loss


def cpu_time():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


class Rank:
    def __init__(self, options):
        torch.set_num_threads(1)
        store = dist.FileStore(
            os.path.join(options.store, "torch"), options.size
        )
        dist.init_process_group(
            "gloo", store=store, rank=options.rank, world_size=options.size
        )
        shapes = [
            tuple(map(int, shape.split("x")))
            for shape in options.shapes.split(",")
        ]
        self._view = options.view
        self._network = SumNetwork(shapes)
        self._ddp = DistributedDataParallel(
            self._network, gradient_as_bucket_view=options.view
        )

    def _time(self, action):
        dist.barrier()
        cpu, begun = cpu_time(), time.perf_counter()
        action()
        return {
            "wall": time.perf_counter() - begun,
            "cpu": cpu_time() - cpu,
        }

    def _forward(self):
        self._network.zero_grad(set_to_none=not self._view)
        return self._ddp(0.5)

    def compute(self):
        with self._ddp.no_sync():
            loss = self._forward()
            return self._time(loss.backward)

    def step(self):
        return self._time(self._forward().backward)

    def allreduce(self, size):
        size = int(size)
        pieces = []
        while size > 0:
            pieces.append(torch.ones(min(size, PIECE_BYTES) // 4))
            size -= PIECE_BYTES

        def run():
            works = [dist.all_reduce(piece, async_op=True) for piece in pieces]
            for work in works:
                work.wait()

        return self._time(run)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--size", type=int, default=2)
    parser.add_argument("--store", required=True)
    parser.add_argument("--shapes", required=True)
    parser.add_argument("--view", action="store_true")
    rank = Rank(parser.parse_args())
    for line in sys.stdin:
        command, *arguments = line.split()
        timing = getattr(rank, command)(*arguments)
        print(json.dumps(timing), flush=True)


if __name__ == "__main__":
    main()
