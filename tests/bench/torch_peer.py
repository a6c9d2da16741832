"""PyTorch's communication hooks, called the way DistributedDataParallel does.

One rank over gloo. The hooks read a bucket through five methods only, so a
stand-in for torch.distributed.GradBucket, which Python cannot make, will do.
"""

import functools
import os
import tempfile

import torch
import torch.distributed as dist


@functools.lru_cache(maxsize=None)
def group():
    """A process group of one rank, made once."""
    folder = tempfile.mkdtemp(prefix="coxswain-bench-")
    path = os.path.join(folder, "rendezvous")
    store = dist.FileStore(path, 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    return dist.group.WORLD


class Bucket:
    """Gradients of some parameters in one run of memory."""

    def __init__(self, index, last, memory, shapes):
        self._index = index
        self._last = last
        self._memory = memory
        self._gradients = []
        offset = 0
        for shape in shapes:
            count = shape.numel()
            part = memory[offset : offset + count]
            self._gradients.append(part.view(shape))
            offset += count

    def index(self):
        return self._index

    def is_last(self):
        return self._last

    def buffer(self):
        return self._memory

    def set_buffer(self, tensor):
        self._memory = tensor

    def gradients(self):
        return self._gradients


class Hook:
    """A hook and its buckets; `step` exchanges them all, as in one backward
    pass, and waits for the last."""

    def __init__(self, hook, state, memories, shapes_by_bucket):
        self._hook = hook
        self._state = state
        last = len(memories) - 1
        self._buckets = [
            Bucket(i, i == last, memory, map(torch.Size, shapes))
            for i, (memory, shapes) in enumerate(
                zip(memories, shapes_by_bucket)
            )
        ]

    def step(self):
        futures = [self._hook(self._state, bucket) for bucket in self._buckets]
        for bucket, future in zip(self._buckets, futures):
            result = future.wait()
            # DistributedDataParallel copies back what the hook returns
            # elsewhere; these hooks return the bucket's own memory.
            if result.data_ptr() != bucket.buffer().data_ptr():
                bucket.buffer().copy_(result)


def powersgd(memories, shapes_by_bucket, rank):
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    state = powerSGD_hook.PowerSGDState(
        process_group=group(),
        matrix_approximation_rank=rank,
        start_powerSGD_iter=2,
    )
    return Hook(
        powerSGD_hook.powerSGD_hook, state, memories, shapes_by_bucket
    )


def cast(memories, shapes_by_bucket, name):
    """`name` is "bf16" or "fp16"."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    hook = getattr(default_hooks, name + "_compress_hook")
    return Hook(hook, group(), memories, shapes_by_bucket)
