"""The DistributedDataParallel of one generation."""

from __future__ import annotations

import collections
import inspect
from typing import Any, Dict, List, Mapping

import torch
from torch.nn.parallel.distributed import (
    DistributedDataParallel,
    _BufferCommHookLocation,
)

from ..session import Session
from ._exchange import Exchange

# What refers to the process group, or to what does.
_GROUP = ("reducer", "logger", "process_group", "buffer_hook", "_comm_hooks")
# torch 2.6 has no such option, and copies what all ranks hold already.
_NO_SYNC = (
    {"init_sync": False}
    if "init_sync" in inspect.signature(DistributedDataParallel).parameters
    else {}
)


def wrap(
    model: torch.nn.Module, session: Session, options: Mapping[str, Any]
) -> DistributedDataParallel:
    """Returns the wrapper of a model whose parameters all ranks hold already,
    over torch's default process group."""
    wrapped = DistributedDataParallel(model, **{**_NO_SYNC, **options})
    if wrapped.device_type == "cpu":
        wrapped._register_buffer_comm_hook(
            None,
            _Buffers(session, wrapped.process_group),
            _BufferCommHookLocation.PRE_FORWARD,
        )
    return wrapped


def unwrap(wrapped: DistributedDataParallel) -> List[Any]:
    """Has the model's parameters call the wrapper no more, and returns what
    refers to the process group: a program may still refer to the wrapper, which
    cannot be used any more."""
    wrapped.reducer._remove_autograd_hooks()
    return [wrapped.__dict__.pop(name, None) for name in _GROUP]


class _Buffers:
    """Copies rank 0's buffers before a forward pass, as torch does by itself;
    but that would wait for a rank that has stopped until the group's timeout,
    and not until the generation ends."""

    def __init__(self, session: Session, group: Any) -> None:
        self._exchange = Exchange(session, group)
        self._group = group

    def __call__(self, state: Any, buffers: Dict[str, torch.Tensor]) -> None:
        by_type = collections.defaultdict(list)
        for buffer in buffers.values():
            by_type[buffer.dtype].append(buffer)
        for same in by_type.values():
            flat = torch.cat([one.reshape(-1) for one in same])
            self._exchange.wait_for(self._group.broadcast(flat, 0))
            if self._group.rank() == 0:
                continue
            sizes = [one.numel() for one in same]
            for one, bits in zip(same, flat.split(sizes)):
                one.copy_(bits.view(one.shape))
