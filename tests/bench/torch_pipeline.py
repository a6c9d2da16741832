"""One rank of torch.distributed.pipelining over gloo, with stages that sleep: the
peer of the command "pipeline" of worker/comm_main.cc, with the same answer."""

import argparse
import json
import os
import statistics
import sys
import time

os.environ["OMP_NUM_THREADS"] = "1"

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.distributed import pipelining  # noqa: E402

# By our names.
SCHEDULES = {
    "gpipe": pipelining.ScheduleGPipe,
    "1f1b": pipelining.Schedule1F1B,
    "interleaved": pipelining.ScheduleInterleaved1F1B,
}


class _Sleep(torch.autograd.Function):
    @staticmethod
    def forward(context, x, forward, backward):
        context.backward = backward
        time.sleep(forward)
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        time.sleep(context.backward)
        return gradient.clone(), None, None


class _Stage(torch.nn.Module):
    def __init__(self, forward, backward):
        super().__init__()
        # Without a parameter there is no gradient.
        self._scale = torch.nn.Parameter(torch.ones((), dtype=torch.float64))
        self._forward = forward
        self._backward = backward

    def forward(self, x):
        return _Sleep.apply(x * self._scale, self._forward, self._backward)


class Pipeline:
    def __init__(self, name, micro_batches, forward, backward, elements):
        rank, size = dist.get_rank(), dist.get_world_size()
        kind = name.split("(")[0]
        chunks = 2 if kind == "interleaved" else 1
        stages = [
            pipelining.PipelineStage(
                _Stage(forward / chunks, backward / chunks),
                rank + size * chunk,
                size * chunks,
                torch.device("cpu"),
            )
            for chunk in range(chunks)
        ]
        self._schedule = SCHEDULES[kind](
            stages if chunks > 1 else stages[0],
            micro_batches,
            lambda output, target: (output - target).mean(),
        )
        self._input = torch.zeros(
            (micro_batches, elements), dtype=torch.float64
        )
        self._first = rank == 0
        self._last = rank == size - 1

    def step(self):
        self._schedule.step(
            *([self._input] if self._first else []),
            **({"target": self._input, "losses": []} if self._last else {}),
        )
        dist.barrier()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--size", type=int, required=True)
    parser.add_argument("--store", required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    path = os.path.join(options.store, "torch-pipeline")
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(path, options.size),
        rank=options.rank,
        world_size=options.size,
    )
    pipelines = {}
    for line in sys.stdin:
        _, name, micro_batches, forward, backward, elements, count = line.split()
        if line not in pipelines:
            pipelines[line] = Pipeline(
                name,
                int(micro_batches),
                int(forward) / 1e6,
                int(backward) / 1e6,
                int(elements),
            )
            pipelines[line].step()
        times = []
        for _ in range(int(count)):
            begun = time.perf_counter()
            pipelines[line].step()
            times.append(time.perf_counter() - begun)
        print(json.dumps({"median": statistics.median(times)}), flush=True)
    # Its threads need no farewell.
    os._exit(0)


if __name__ == "__main__":
    main()
