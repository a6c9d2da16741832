"""torch's default process group of one generation, which may end at any time.

Gloo cannot be aborted: its group waits for a lost peer when it is made, and
when it is destroyed, until its timeout. So both happen on threads that are left
behind if need be. NCCL's groups are aborted.
"""

from __future__ import annotations

import datetime
import logging
import threading
import time
from typing import Any, Callable, List, Optional

import torch
import torch.distributed as dist

from ..errors import Error
from ..session import Session
from ._store import TorchStore, WrittenOnce

# Gloo, as it is made here.
GLOO = "coxswain_gloo"

# Of the keys; the store is another one in each generation.
_PREFIX = "torch/elastic/"
_GLOO_PREFIX = "torch/elastic gloo/"

# How often it is checked whether the generation has ended.
_SLICE_S = 0.01

_FINISH_S = 5
# Threads that make groups of generations that have ended, or end them.
_left_behind: List[threading.Thread] = []

_logger = logging.getLogger(__name__)
# Whose generation the groups are of that are made now.
_making: Optional[Session] = None
# Of its default process group, from `begin` until `make` takes it.
_begun: Optional[_Maker] = None


def begin(session: Session, backend: Optional[str], timeout: float) -> None:
    """Has the ranks connect by Gloo, on a thread, for `make`, which is called
    with the same arguments. Nothing is begun for a back end of the program's
    own."""
    global _begun
    _begun = None
    if backend is not None:
        return
    store = WrittenOnce(session, _GLOO_PREFIX)
    _begun = _Maker(
        lambda: dist.ProcessGroupGloo(
            store, session.rank, session.world_size, timeout=_delta(timeout)
        )
    )


def make(
    session: Session,
    on_cpu: bool,
    backend: Optional[str],
    timeout: float,
) -> None:
    """Makes the default process group over the session's store, of what `begin`
    has begun.

    on_cpu: whether the model is; decides the back end if that is not given.
    timeout: of its collectives, in seconds.

    Raises the session's error if the generation ends meanwhile.
    """
    global _making
    _register()
    if backend is None:
        backend = GLOO if on_cpu else "cpu:%s,cuda:nccl" % GLOO
    _making = session
    # torch names a group by this count, and ranks find each other by the name.
    # A group that has failed to begin counts on the ranks that tried it.
    dist.distributed_c10d._world.group_count = 0
    dist.init_process_group(
        backend,
        store=TorchStore(session, _PREFIX),
        rank=session.rank,
        world_size=session.world_size,
        timeout=_delta(timeout),
    )


def release(held: List[Any]) -> None:
    """Ends the default process group, and all others, without a wait for peers.

    held: what else refers to them, such as a model; emptied.
    """
    global _begun
    last: List[Any] = []
    if _begun is not None:
        held.append(_begun)
        _begun = None
    if dist.is_initialized():
        groups = list(dist.distributed_c10d._world.pg_map)
        held.extend(groups)
        last.extend(filter(None, map(_on_cpu, groups)))
        del groups
        try:
            _end_groups()
        except RuntimeError as error:
            _logger.warning("torch's process group was not ended: %s", error)

    def let_go() -> None:
        held.clear()
        last.clear()

    # Gloo's destructors wait for what is under way, on the thread that gives
    # the last reference up. Once one rank has closed its connections, its
    # peers' end too. That of a ProcessGroup of torch 2.6 keeps Python's lock
    # meanwhile, and the back end's does not: so the latter is given up last.
    thread = threading.Thread(
        target=let_go, name="coxswain-old-group", daemon=True
    )
    thread.start()
    _leave_behind(thread)


def finish() -> None:
    """Waits, a few seconds at most, until all groups have ended, or failed to
    begin: a thread of Python's that comes back from one while the process exits
    would crash it."""
    deadline = time.monotonic() + _FINISH_S
    for thread in _left_behind:
        thread.join(max(0, deadline - time.monotonic()))


def _leave_behind(thread: threading.Thread) -> None:
    alive = [one for one in _left_behind if one.is_alive()]
    _left_behind[:] = alive + [thread]


def _on_cpu(group: Any) -> Any:
    """Returns a group's back end for tensors on the CPU, or None."""
    try:
        return group._get_backend(torch.device("cpu"))
    except RuntimeError:
        return None


def _end_groups() -> None:
    backends = dist.get_backend_config()
    if "nccl" in backends:
        dist.distributed_c10d._abort_process_group()
    else:
        dist.destroy_process_group()


def _register() -> None:
    if GLOO.upper() not in dist.Backend.__dict__:
        dist.Backend.register_backend(GLOO, _gloo, devices=["cpu"])


def _gloo(
    store: Any, rank: int, size: int, timeout: datetime.timedelta
) -> Any:
    """Returns a group of Gloo. Raises the session's error if the generation
    ends before all ranks are connected."""
    global _begun
    begun, _begun = _begun, None
    if begun is None:  # It is a further one, of the program.
        begun = _Maker(
            lambda: dist.ProcessGroupGloo(store, rank, size, timeout=timeout)
        )
    return begun.made(_making)


class _Maker:
    """A group that is made on a thread of its own."""

    def __init__(self, make_group: Callable[[], Any]) -> None:
        self._make_group = make_group
        self._made: List[Any] = []
        self._failed: List[BaseException] = []
        self._thread = threading.Thread(
            target=self._work, name="coxswain-group", daemon=True
        )
        self._thread.start()
        _leave_behind(self._thread)

    def made(self, session: Optional[Session]) -> Any:
        """Returns the group once it is made. Raises the session's error if the
        generation ends before."""
        while self._thread.is_alive():
            self._thread.join(_SLICE_S)
            ended = session.ended if session is not None else None
            if ended is not None and self._thread.is_alive():
                raise ended
        if self._failed:
            raise self._failed[0]
        return self._made.pop()

    def _work(self) -> None:
        try:
            self._made.append(self._make_group())
        except BaseException as error:
            self._failed.append(error)


def _delta(seconds: float) -> datetime.timedelta:
    return datetime.timedelta(seconds=seconds)
