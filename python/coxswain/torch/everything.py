"""Every DistributedDataParallel of a program, followed without a changed line.

For `coxswain run --follow`, and for programs that call follow_all() before they
make a model. The number of micro-batches is then the program's own, the same
one on all ranks: the plan has windows=program.
"""

from __future__ import annotations

import functools
import os
from typing import Any, Callable

import torch.distributed as dist

from . import _session

_PLAN = {"windows": "program"}


def follow_all(model_class: Any = None) -> None:
    """Follows each DistributedDataParallel that is made from now on, and joins
    the job at the first init_process_group, or the first model.

    init_process_group then goes over the coordinator's store, unless the
    program names another one. register_comm_hook of these models works as
    before. torch exchanges, or Coxswain where the variable
    COXSWAIN_FOLLOW_EXCHANGE is "coxswain". A second call does nothing.

    model_class: DistributedDataParallel, while torch is not imported
        completely.
    """
    if model_class is None:
        from torch.nn.parallel import DistributedDataParallel as model_class
    if getattr(model_class, "_coxswain_follows", False):
        return
    model_class._coxswain_follows = True
    model_class.__init__ = _following(model_class.__init__)
    model_class.register_comm_hook = _registering(
        model_class.register_comm_hook
    )
    _serve_process_groups()


def _following(init: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(init)
    def wrapper(self: Any, *arguments: Any, **named: Any) -> None:
        _join()
        init(self, *arguments, **named)
        # At the first call torch is imported completely.
        from ._follow import follow

        exchange = os.environ.get("COXSWAIN_FOLLOW_EXCHANGE") or "torch"
        self._coxswain_run = follow(self, exchange=exchange)

    return wrapper


def _registering(register: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(register)
    def wrapper(self: Any, state: Any, hook: Callable[..., Any]) -> None:
        run = getattr(self, "_coxswain_run", None)
        # Not of a model that was pickled.
        mine = hasattr(run, "register_comm_hook")
        if mine and getattr(hook, "__name__", "") != "exchange_bucket":
            run.register_comm_hook(state, hook)
        else:
            register(self, state, hook)

    return wrapper


def _serve_process_groups() -> None:
    original = dist.init_process_group

    @functools.wraps(original)
    def wrapper(
        backend: Any = None, init_method: Any = None, *rest: Any, **named: Any
    ) -> None:
        elsewhere = init_method is not None and not str(
            init_method
        ).startswith("env://")
        if elsewhere or rest or named.get("store") is not None:
            original(backend, init_method, *rest, **named)
            return
        session = _join()
        named.update(
            store=_session.group_store(session),
            rank=session.rank,
            world_size=session.world_size,
        )
        original(backend, **named)

    dist.init_process_group = wrapper
    dist.distributed_c10d.init_process_group = wrapper


def _join() -> Any:
    return _session.current() or _session.init(
        plan=_PLAN, process_group=False
    )
