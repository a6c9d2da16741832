"""torch's own exchange, and a wait for it that ends with the generation."""

from __future__ import annotations

import datetime
import threading
from typing import Any, Callable, List, Optional, Tuple

import torch
import torch.distributed as dist

from ..errors import Error
from ..session import Session
from ._session import verdict

# How often a wait checks whether the generation has ended: a rank that is lost is
# not a peer in all exchanges of Gloo. Each time costs 0.1 ms of a processor.
_SLICE = datetime.timedelta(milliseconds=10)


class Exchange:
    """The parts of one exchange that are under way.

    For one thread: the one that autograd runs hooks on. `hook` is how torch
    exchanges a bucket, (state, function) as for register_comm_hook; None is the
    all-reduce that DistributedDataParallel does by itself, with the same bits.
    """

    def __init__(self, session: Session, group: Any) -> None:
        self.hook: Optional[Tuple[Any, Callable[..., Any]]] = None
        self._session = session
        self._group = group
        self._size = group.size()
        self._mean = _mean(self._size)
        self._on_device = False
        self._works: List[Any] = []
        self._futures: List[Any] = []
        self._waits = False  # as the session was told

    def name(self) -> Optional[str]:
        """Returns the hook's name in tickets; None: that of the plan."""
        if self.hook is None:
            return None
        function = self.hook[1]
        name = getattr(function, "__qualname__", type(function).__name__)
        return "torch:%s.%s" % (getattr(function, "__module__", ""), name)

    def launch(self, bucket: Any) -> Any:
        """Begins the exchange of a bucket; returns a future for torch, which
        need not be complete."""
        if self.hook is not None:
            state, function = self.hook
            future = function(state, bucket)
            self._futures.append(future)
            return future
        buffer = bucket.buffer()
        self._on_device = not buffer.is_cpu
        # What dist.all_reduce adds costs as much again for a small bucket.
        if self._mean is not None and buffer.dtype is not torch.float16:
            self._works.append(self._group.allreduce([buffer], self._mean))
        else:
            buffer.div_(self._size)  # Before the sum, as torch does it.
            self._works.append(self._group.allreduce([buffer]))
        return complete(buffer)

    def wait(self, for_group: bool = False) -> None:
        """Waits until all buckets are exchanged. Raises the session's error,
        such as PeerLost, if the generation ends first, and torch's own error if
        only torch knows of the failure.

        for_group: torch has begun the exchange without a hook, which leaves
            nothing to wait for: waits for a barrier of its group, which Gloo
            ends after all that this process has begun before.
        """
        try:
            if for_group:
                self._works.append(self._group.barrier())
            for work in self._works:
                self._wait_for_work(work)
            self._wait_for_futures()
        except Error:
            raise
        except RuntimeError as error:
            ended = verdict(self._session)
            if ended is None:
                raise
            raise ended from error
        finally:
            self._report_wait(False)
        self._works.clear()
        self._futures.clear()

    def wait_for(self, work: Any) -> None:
        """Waits for something else that torch exchanges; raises as wait."""
        self._works.append(work)
        self.wait()

    def wait_at_once(self) -> None:
        """Waits where torch does so before a callback of ours."""
        self.wait()

    def abandon(self) -> bool:
        """Forgets what is under way; returns whether torch would wait for some
        of it."""
        open_futures = any(not future.done() for future in self._futures)
        self._works.clear()
        self._futures.clear()
        return open_futures

    def _wait_for_work(self, work: Any) -> None:
        if self._on_device:
            work.wait()  # Of the device's stream, not of this thread.
            return
        while True:
            try:
                work.wait(_SLICE)
                return
            except RuntimeError:
                if work.is_completed():
                    work.wait()  # Its own error, unless it was just done.
                    return
                self._check_session()

    def _wait_for_futures(self) -> None:
        if not all(future.done() for future in self._futures):
            # One wait for all of them: to check each repeatedly costs more.
            ended = threading.Lock()
            ended.acquire()
            torch.futures.collect_all(self._futures).add_done_callback(
                lambda unused: ended.release()
            )
            while not ended.acquire(timeout=_SLICE.total_seconds()):
                self._check_session()
        for future in self._futures:
            if future.done():  # Not all of them are, where one has failed.
                future.value()

    def _check_session(self) -> None:
        ended = self._session.ended
        if ended is not None:
            raise ended
        self._report_wait(True)

    def _report_wait(self, waits: bool) -> None:
        """Lets the session tell that this rank waits for others, once that has
        taken a while: a stopped one is found by the waits of all others."""
        if self._waits != waits:
            self._waits = waits
            self._session.report_wait(waits)


def _mean(size: int) -> Any:
    """Returns options of an all-reduce that divides on another thread, or None
    if its bits could differ from those of torch's division before the sum, or
    torch's Gloo cannot do so."""
    power_of_two = size & (size - 1) == 0
    version = tuple(map(int, torch.__version__.split("+")[0].split(".")[:2]))
    if not power_of_two or version < (2, 15):
        return None
    options = dist.AllreduceOptions()
    options.reduceOp = dist.ReduceOp.AVG
    return options


def complete(value: Any) -> Any:
    """Returns a future that has its value already."""
    future: Any = torch.futures.Future()
    future.set_result(value)
    return future
