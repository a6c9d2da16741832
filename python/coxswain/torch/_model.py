"""The internals of DistributedDataParallel that this package uses."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from typing import Any, Callable, Iterable, Iterator, List, Mapping, Optional

import torch
import torch.distributed as dist
from torch.nn.parallel.distributed import DistributedDataParallel

from ..errors import InvalidArgument


def _queue_of_torch() -> Optional[Callable[[Callable[[], None]], None]]:
    """Returns what has a function called at the end of the backward pass under
    way; None if torch has nothing of the kind."""
    engine = getattr(torch.autograd.Variable, "_execution_engine", None)
    older = getattr(engine, "queue_callback", None)
    return getattr(torch.autograd.graph, "queue_callback", older)


queue_callback = _queue_of_torch()


def supported(model: Any) -> DistributedDataParallel:
    """Returns the model itself, also where torch.compile has wrapped it. Raises
    InvalidArgument, with the reason, if it cannot be followed."""
    given = getattr(model, "_orig_mod", model)
    if not isinstance(given, DistributedDataParallel):
        raise InvalidArgument(
            "a %s.%s cannot be followed: only DistributedDataParallel has "
            "communication hooks; FSDP, DeepSpeed and Megatron exchange "
            "gradients by themselves"
            % (type(model).__module__, type(model).__qualname__)
        )
    if queue_callback is None:
        raise InvalidArgument(
            "torch %s has no autograd callbacks (queue_callback): this version "
            "of Coxswain does not know it" % torch.__version__
        )
    if getattr(given, "_use_python_reducer", False):
        raise InvalidArgument(
            "torch._dynamo.config.optimize_ddp is python_reducer, which "
            "compiles hooks: set it to ddp_optimizer or False"
        )
    if getattr(given, "require_manual_backward_finalization", False):
        raise InvalidArgument(
            "the model has require_manual_backward_finalization, with which "
            "backward() has no end that could wait for a decision: set it to "
            "False"
        )
    if getattr(given, "_delay_all_reduce_params", None):
        raise InvalidArgument(
            "the model has delay_all_reduce_named_params, which torch exchanges "
            "without a communication hook: leave that out"
        )
    if getattr(given, "mixed_precision", None) is not None:
        raise InvalidArgument(
            "the model has mixed_precision, for which torch registers a "
            "communication hook of its own: use torch.autocast"
        )
    return given


def find_tensors(output: Any) -> Iterator[torch.Tensor]:
    """Returns the tensors in what a model returns: in tuples, lists, dicts and
    dataclasses, as torch itself looks for them."""
    if isinstance(output, torch.Tensor):
        yield output
        return
    parts: Iterable[Any] = ()
    if isinstance(output, Mapping):
        parts = output.values()
    elif isinstance(output, (list, tuple)):
        parts = output
    elif dataclasses.is_dataclass(output) and not isinstance(output, type):
        parts = vars(output).values()
    for part in parts:
        yield from find_tensors(part)


def pass_number() -> Optional[int]:
    """Returns the number of the backward pass under way on this thread, of the
    innermost one; None outside of any."""
    number = torch._C._current_graph_task_id()
    return None if number < 0 else number


def within_pass() -> bool:
    """Returns whether this is the end of a pass that is part of another one, as
    reentrant checkpointing has them."""
    return torch._C._current_autograd_node() is not None


def missing_gradients(
    model: DistributedDataParallel,
) -> Optional[List[int]]:
    """Returns which parameters have no gradient yet, by their places, if an
    exchange has begun and DDP has not ended it; None otherwise."""
    reducer = model.__dict__.get("reducer")  # None: of an earlier generation
    try:
        if reducer is not None:
            reducer._check_reducer_finalized()
    except RuntimeError as error:
        places = re.search("not receive grad for rank [0-9]+: ([0-9 ]*)", str(error))
        return [int(one) for one in places.group(1).split()] if places else []
    return None


def check_group(model: DistributedDataParallel, world_size: int) -> None:
    """Raises InvalidArgument unless the ranks that the model belongs to are all
    of the job, in their order."""
    ranks = dist.get_process_group_ranks(model.process_group)
    if ranks != list(range(world_size)):
        raise InvalidArgument(
            'exchange="coxswain" averages over all %d ranks of the job, and the '
            "model's process_group has the ranks %s: leave `exchange` out, or "
            "process_group" % (world_size, ", ".join(map(str, ranks)))
        )


def has_hook(model: DistributedDataParallel) -> bool:
    """Returns whether it has a communication hook."""
    return bool(
        model._comm_hooks or model._get_ddp_logging_data().get("comm_hook")
    )


def last_parameter(model: DistributedDataParallel) -> torch.nn.Parameter:
    """Returns the parameter that has its gradient first in most models, so that
    the exchange is announced early."""
    return [one for one in exchanged_parameters(model) if one.requires_grad][-1]


def exchanged_parameters(
    model: DistributedDataParallel,
) -> List[torch.nn.Parameter]:
    """Returns the parameters that all ranks have in common, with those that are
    frozen."""
    ignored = model.parameters_to_ignore
    return [
        parameter
        for name, parameter in model.module.named_parameters()
        if name not in ignored
    ]


def layout(model: DistributedDataParallel) -> int:
    """Returns a hash of what is exchanged, which ranks have in common."""
    digest = hashlib.blake2b(digest_size=8)
    for name, parameter in model.module.named_parameters():
        if parameter.requires_grad:
            text = "%s %s %s\n" % (name, parameter.dtype, list(parameter.shape))
            digest.update(text.encode())
    return int.from_bytes(digest.digest(), "little")


def goes_by_gloo(model: DistributedDataParallel) -> bool:
    """Returns whether its gradients are exchanged on the CPU by torch's Gloo
    itself, which Exchange.wait(for_group=True) waits for."""
    gloo = getattr(dist, "ProcessGroupGloo", None)
    if gloo is None or model.device_type != "cpu":
        return False
    backend = model.process_group._get_backend(torch.device("cpu"))
    return isinstance(backend, gloo)
