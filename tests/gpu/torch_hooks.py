"""Times torch's communication hooks on one GPU, for run_on_device.sh.

    torch_hooks.py OUT.json

World size 1: what is timed is all that the hooks do beside the network. Each
entry of the JSON has the seconds of one exchange, the median of some.
"""

import json
import os
import statistics
import sys
import tempfile

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

RUNS = 7


class Bucket:
    """What hooks ask of a torch.distributed.GradBucket."""

    def __init__(self, tensors):
        self._flat = torch.cat([t.reshape(-1) for t in tensors])
        self._shapes = [t.shape for t in tensors]

    def buffer(self):
        return self._flat

    def set_buffer(self, tensor):
        self._flat = tensor

    def gradients(self):
        sizes = [shape.numel() for shape in self._shapes]
        parts = self._flat.split(sizes)
        return [p.view(s) for p, s in zip(parts, self._shapes)]

    def parameters(self):
        return self.gradients()

    def index(self):
        return 0

    def is_last(self):
        return True


def resnet50():
    shapes = [(64, 3, 7, 7)]
    channels = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        width = 64 << stage
        for block in range(blocks):
            shapes.append((width, channels, 1, 1))
            shapes.append((width, width, 3, 3))
            shapes.append((width * 4, width, 1, 1))
            if block == 0:
                shapes.append((width * 4, channels, 1, 1))
            channels = width * 4
    return shapes + [(1000, 2048)]


def gpt2_xl(layers=6):
    layer = [(1600, 4800), (1600, 1600), (1600, 6400), (6400, 1600)]
    return layer * layers


def median_seconds(call):
    times = []
    for _ in range(RUNS):
        begin = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return statistics.median(times[1:])


def launches(call):
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CUDA]
    ) as profile:
        call()
        torch.cuda.synchronize()
    return sum(event.count for event in profile.key_averages())


def measure(call):
    call()  # makes its state
    result = {"seconds": median_seconds(call)}
    try:
        result["launches"] = launches(call)
    except Exception as error:  # profiling may be forbidden
        result["launches_unknown"] = str(error)
    return result


def cast_hooks():
    bucket = Bucket([torch.full((1 << 28,), 0.01, device="cuda")])
    results = {}
    for name in ("fp16", "bf16"):
        hook = getattr(default_hooks, name + "_compress_hook")
        results[name + " 1 GiB"] = measure(
            lambda: hook(dist.group.WORLD, bucket).wait()
        )
    return results


def powersgd():
    results = {}
    for model, shapes in (
        ("ResNet-50", resnet50()),
        ("GPT-2 XL, 6 layers", gpt2_xl()),
    ):
        for rank in (1, 4):
            state = powerSGD_hook.PowerSGDState(
                process_group=None,
                matrix_approximation_rank=rank,
                start_powerSGD_iter=2,
                min_compression_rate=0.5,
            )
            bucket = Bucket(
                [torch.randn(shape, device="cuda") for shape in shapes]
            )
            state.iter = state.start_powerSGD_iter
            results["powersgd %s, rank %d" % (model, rank)] = measure(
                lambda: powerSGD_hook.powerSGD_hook(state, bucket).wait()
            )
    return results


def main():
    results = {"torch": torch.__version__}
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group(
            "nccl",
            init_method="file://" + os.path.join(folder, "store"),
            rank=0,
            world_size=1,
        )
        results.update(cast_hooks())
        torch.cuda.empty_cache()
        results.update(powersgd())
        dist.destroy_process_group()
    with open(sys.argv[1], "w") as file:
        json.dump(results, file, indent=1)
    for name, result in results.items():
        print(name, result)


if __name__ == "__main__":
    main()
