"""One rank of PyTorch's DistributedDataParallel over gloo: the peer of
worker/main.cc, with the same commands and answers."""

import argparse
import json
import os
import resource
import statistics
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


class Perceptron(torch.nn.Module):
    """As MakePerceptron of worker/networks.h; its input is its own."""

    def __init__(self, layers, width, rows):
        super().__init__()
        self._input = torch.randn((rows, width))
        self.layers = torch.nn.ModuleList(
            torch.nn.Linear(width, width) for _ in range(layers)
        )

    def forward(self, _):
        x = self._input
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x.mean()


def make_network(options):
    if not options.shapes:
        return Perceptron(options.layers, options.width, options.rows)
    return SumNetwork(
        [
            tuple(map(int, shape.split("x")))
            for shape in options.shapes.split(",")
        ]
    )


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
        self._view = options.view
        self._network = make_network(options)
        self._ddp = DistributedDataParallel(
            self._network, gradient_as_bucket_view=options.view
        )
        self._zero_stage = options.zero
        self._optimizer = None

    def _time(self, action):
        dist.barrier()
        cpu, begun = cpu_time(), time.perf_counter()
        action()
        return {
            "wall": time.perf_counter() - begun,
            "cpu": cpu_time() - cpu,
        }

    def _zero(self):
        self._network.zero_grad(set_to_none=not self._view)

    def _forward(self):
        self._zero()
        return self._ddp(0.5)

    def compute(self):
        with self._ddp.no_sync():
            loss = self._forward()
            return self._time(loss.backward)

    def step(self):
        return self._time(self._forward().backward)

    def micro(self):
        self._zero()
        forward = 0

        def run():
            nonlocal forward
            begun = time.perf_counter()
            loss = self._ddp(0.5)
            forward = time.perf_counter() - begun
            loss.backward()

        with self._ddp.no_sync():
            return dict(self._time(run), forward=forward)

    def window(self, kind, micro_batches):
        """As Rank::Window; here "misplaced" is one as well."""
        count = int(micro_batches)
        self._zero()
        total = 0
        dist.barrier()
        for micro in range(count):
            if kind == "baseline" and micro > 0:
                self._zero()
            begun = time.perf_counter()
            self._run_micro(kind, kind == "baseline" or micro == count - 1)
            total += time.perf_counter() - begun
        return {"wall": total}

    def _run_micro(self, kind, last):
        if last:
            self._ddp(0.5).backward()
        elif kind == "misplaced":
            # DistributedDataParallel decides in the forward.
            loss = self._ddp(0.5)
            with self._ddp.no_sync():
                loss.backward()
        else:
            with self._ddp.no_sync():
                self._ddp(0.5).backward()

    def _make_optimizer(self):
        parameters = self._network.parameters()
        if not self._zero_stage:
            return torch.optim.Adam(parameters, lr=1e-3)
        from torch.distributed.optim import ZeroRedundancyOptimizer

        return ZeroRedundancyOptimizer(
            parameters,
            optimizer_class=torch.optim.Adam,
            lr=1e-3,
            parameters_as_bucket_view=True,
        )

    def train(self):
        """A whole step: forward, backward with exchange, Adam."""
        if self._optimizer is None:
            self._optimizer = self._make_optimizer()

        def run():
            self._ddp(0.5).backward()
            self._optimizer.step()
            self._optimizer.zero_grad()

        return self._time(run)

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

    def collective(self, name, size, count):
        """As the lines of worker/comm_main.cc: the median of some calls."""
        data = torch.zeros(int(size) // 4)
        own = torch.zeros(data.numel() // dist.get_world_size())

        def run():
            if name == "allreduce":
                dist.all_reduce(data)
            else:
                dist.reduce_scatter_tensor(own, data)

        run()
        times = []
        for _ in range(int(count)):
            begun = time.perf_counter()
            run()
            times.append(time.perf_counter() - begun)
        dist.barrier()
        return {"median": statistics.median(times)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--size", type=int, default=2)
    parser.add_argument("--store", required=True)
    parser.add_argument("--shapes")
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--view", action="store_true")
    parser.add_argument("--zero", type=int, default=0)
    rank = Rank(parser.parse_args())
    for line in sys.stdin:
        command, *arguments = line.split()
        timing = getattr(rank, command)(*arguments)
        print(json.dumps(timing), flush=True)


if __name__ == "__main__":
    main()
