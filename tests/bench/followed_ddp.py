"""A rank of benchmarks/follow.py: a DistributedDataParallel of torch that is
followed, beside one that is not, one with torch's own hook in Python, one that
is followed with that hook, and one whose buckets Coxswain exchanges, step by
step in turn. Rank 0 prints a line of JSON for each round."""

import argparse
import json
import statistics
import time

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

import coxswain.torch as cx

# Layers, features, samples of a rank, the bucket's cap in MiB.
MODELS = {
    "small": (64, 64, 4, 0.015),
    "large": (8, 1024, 32, 25),
    # As good as nothing but the exchange.
    "exchange": (8, 1024, 1, 25),
}


@cx.hook
def mean(bucket, comm):
    yield comm.all_reduce(bucket.tensor)
    bucket.tensor.div_(comm.size)


def model_of(shape):
    layers, features, _, cap = shape
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        *[
            torch.nn.Linear(features, features, bias=False)
            for _ in range(layers)
        ]
    )
    return DistributedDataParallel(module, bucket_cap_mb=cap)


def count_buckets(shape):
    found = []

    def hook(state, bucket):
        found.append(bucket.index())
        return default_hooks.allreduce_hook(None, bucket)

    model = model_of(shape)
    model.register_comm_hook(None, hook)
    for _ in range(3):
        found.clear()
        model(torch.ones(1, shape[1])).sum().backward()
    return len(found)


class Side:
    """One of them: its times of a step, and of its training thread."""

    def __init__(self, shape):
        self.model = model_of(shape)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.data = torch.randn(shape[2], shape[1])
        self.wall, self.thread = [], []

    def step(self):
        begun, began_thread = time.perf_counter(), time.thread_time()
        self.model(self.data).square().mean().backward()
        self.thread.append(time.thread_time() - began_thread)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.wall.append(time.perf_counter() - begun)

    def take(self):
        taken = statistics.median(self.wall), statistics.median(self.thread)
        self.wall.clear()
        self.thread.clear()
        return taken


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    # Of Coxswain's exchange, beside plain DistributedDataParallel alone.
    parser.add_argument("--hook")
    options = parser.parse_args()
    torch.set_num_threads(1)
    session = cx.init(plan={"hook": options.hook or "allreduce"})
    shape = MODELS[options.model]
    names = ["plain", "coxswain"]
    if options.hook is None:
        names += ["ours", "hook", "both"]
    sides = {name: Side(shape) for name in names}
    cx.follow(sides["coxswain"].model, exchange="coxswain")
    if options.hook is None:
        cx.follow(sides["ours"].model)
        hook = default_hooks.allreduce_hook
        sides["hook"].model.register_comm_hook(None, hook)
        cx.follow(sides["both"].model).register_comm_hook(None, hook)
    found = {"buckets": count_buckets(shape)}
    for number in range(options.rounds + 1):
        for _ in range(options.steps):
            for side in sides.values():
                side.step()
        for name, side in sides.items():
            found[name], found[name + "_thread"] = side.take()
        if number > 0 and session.rank == 0:  # The first one warms up.
            print(json.dumps(found), flush=True)
    dist.barrier()


if __name__ == "__main__":
    main()
