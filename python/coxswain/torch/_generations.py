"""From one generation to the next, in one process.

As client/elastic/elastic_run.h has it for programs in C++:

    join -> recover -> train ---- done --------------> leave
              ^          |
              |          +-- a member was lost, or one is to be admitted
              +-- rejoin-+
"""

from __future__ import annotations

import enum
import logging
import threading
import traceback
from typing import Any, Callable, List, Optional

import torch.distributed as dist

from ..errors import Code, DeadlineExceeded, Error, Evicted, JobFinished
from ..session import Session
from . import _drain, _group, _hooks, _session
from ._recovery import Recovery, Standing, recover
from ._replay import Replay
from ._elastic_state import State

# After so many generations in a row without a step something ends each of them.
_MAX_FRUITLESS = 16
# How long the coordinator may take to report the loss that has caused an error:
# longer than a lease.
_REASON_S = 30
# How long a worker that is done waits for the others, which may need its state.
_FINISH_S = 300
# Of the ranks that end the same step, for each other.
_REGROUP_S = 5

# Of errors that a broken connection may cause, ...
_FROM_PEERS = (
    Code.CANCELLED, Code.DEADLINE_EXCEEDED, Code.ABORTED, Code.UNAVAILABLE,
)
# ... and of those that this worker would meet again.
_ITS_OWN = (
    Code.INVALID_ARGUMENT, Code.OUT_OF_RANGE, Code.UNIMPLEMENTED,
    Code.DATA_LOSS,
)

_logger = logging.getLogger(__name__)
# Whether the session of this process is one of these generations.
_has_joined = False

# Trains in a generation; returns whether it ends for the next one. Adds to the
# list what refers to torch's process group.
Once = Callable[[Session, Recovery, List[Any]], bool]


class Ending(enum.Enum):
    """Why elastic has returned."""

    FINISHED = "finished"  # the training function has
    DRAINED = "drained"  # this worker was asked to leave
    NOT_NEEDED = "not needed"  # the job has ended while this worker waited


class Generations:
    """The generations that a worker takes part in. For one thread."""

    def __init__(
        self,
        state: State,
        drain: _drain.Drain,
        once: Once,
        *,
        on_cpu: bool,
        backend: Optional[str],
        timeout: float,
        replay: Optional[Replay] = None,
    ) -> None:
        """on_cpu, backend, timeout: of torch's process groups."""
        # For `once`, too.
        self.standing = Standing(replay=replay or Replay())
        self._state = state
        self._drain = drain
        self._once = once
        self._group = on_cpu, backend, timeout
        self._session: Optional[Session] = None
        # Closes the session of the generation before.
        self._closing: Optional[threading.Thread] = None
        self._fruitless = 0
        self._last_error = ""  # of a generation, since the last step
        self._finished = False  # the training function, and not called since

    def run(self, join: Callable[[], Session]) -> Ending:
        """Takes part until the job is done, or this worker leaves it."""
        if _session.current() is not None:
            raise _session._refused(
                "this process has joined job %r already, and elastic joins by "
                "itself: %s" % (
                    _session.session().job,
                    "call it once in a process" if _has_joined
                    else "leave coxswain.torch.init() out",
                )
            )
        if dist.is_initialized():
            raise _session._refused(
                "torch has a default process group already, and elastic makes "
                "one in each generation: leave init_process_group() out"
            )
        try:
            return self._until_the_end(join)
        finally:
            try:
                # Of a newcomer that never was a member with a state.
                caught_up = self.standing.caught_up
                self.standing.caught_up = None
                if caught_up is not None:
                    caught_up.undo()
            finally:
                self._await_closed()
                _group.finish()

    def _until_the_end(self, join: Callable[[], Session]) -> Ending:
        global _has_joined
        while True:
            if self._drain.requested:
                return self._leave(_drain.REASON, Ending.DRAINED)
            try:
                session = self._joined(join)
            except Error as error:
                self._leave_failed(error)
                raise
            if session is None:
                return (
                    Ending.FINISHED if self._finished else Ending.NOT_NEEDED
                )
            before, self._session = self._session, session
            _has_joined = True
            if before is not None:
                self._begin_to_close(before)
            ending = self._generation(session)
            if ending is not None:
                return ending

    def _joined(self, join: Callable[[], Session]) -> Optional[Session]:
        """Returns the next generation's session; None: there is none, and
        nothing is wrong."""
        while True:
            try:
                return self._session.rejoin() if self._session else join()
            except JobFinished as error:
                _logger.info("not needed: %s", error)
                return None
            except Error as error:
                # It has all that the others would need it for.
                if self._finished and isinstance(error, DeadlineExceeded):
                    _logger.warning("left before the others: %s", error)
                    return None
                # The round ended because a worker that had joined was lost.
                if error.code is not Code.ABORTED:
                    raise
                self._fruitless += 1
                self._check_fruitful(error)

    def _begin_to_close(self, before: Session) -> None:
        """Has the session before closed, whose threads and connections end
        while those of this generation begin."""
        self._await_closed()
        self._closing = threading.Thread(
            target=_close, args=[before], name="coxswain-close", daemon=True
        )
        self._closing.start()

    def _await_closed(self) -> None:
        closing, self._closing = self._closing, None
        if closing is not None:
            closing.join()

    def _generation(self, session: Session) -> Optional[Ending]:
        """One generation, up to its end. Returns None if there is another."""
        held: List[Any] = []
        # What it copies is no progress of this generation.
        begun: Optional[int] = None
        self._finished = False
        regroup = False
        failed: Optional[Exception] = None
        try:
            _session.begin_generation(session)
            _, backend, timeout = self._group
            # Its ranks connect while they come to the same state.
            _group.begin(session, backend, timeout)
            recovery = recover(session, self._state, self.standing)
            begun = self._state.step
            _group.make(session, *self._group)
            self._await_closed()
            _log(recovery)
            regroup = self._once(session, recovery, held)
        except Exception as error:
            failed = error
        except BaseException as error:
            session._leave_failed(error)
            raise
        finally:
            self._state.roll_back()
        if begun is not None and self._state.step > begun:
            self._fruitless = 0
            self._last_error = ""
            self.standing.trained = session.generation or 0
        else:
            self._fruitless += 1
        try:
            if failed is not None:
                return self._after_error(session, failed)
            if regroup:
                return self._after_regroup(session)
            return self._after_finish(session)
        finally:
            _group.release(held)

    def _after_regroup(self, session: Session) -> Optional[Ending]:
        try:
            # Peers may still read the step's last data from this rank.
            session.barrier("elastic/regroup", timeout=_REGROUP_S)
        except Error:
            pass  # The next round finds out who does not come.
        return None

    def _after_finish(self, session: Session) -> Optional[Ending]:
        self._finished = True
        try:
            # Decided in one place: either all leave now, or all find the last
            # step with each other once more.
            session.barrier("elastic/finished", timeout=_FINISH_S)
        except Error as error:
            if not isinstance(error, DeadlineExceeded):
                _session.verdict(session, _REASON_S)
            if session.ended is not None:
                return None
            _logger.warning("left before the others: %s", error)
        return self._leave("done", Ending.FINISHED)

    def _after_error(
        self, session: Session, error: Exception
    ) -> Optional[Ending]:
        from_peers = _may_come_from_peers(error)
        ended = session.ended
        if ended is None and from_peers:
            ended = _session.verdict(session, _REASON_S)
        text = "%s: %s" % (type(error).__name__, error)
        # So is one that comes again by itself, whatever ended the generation.
        own = getattr(error, "code", None) in _ITS_OWN or (
            not from_peers and text == self._last_error
        )
        self._last_error = text
        # Where no rank is lost, and yet no data pass, all connect anew.
        if own or (ended is None and not from_peers):
            session._leave_failed(error)
            raise error
        try:
            self._check_fruitful(ended or error)
        except Error as final:
            session._leave_failed(final)
            raise
        _logger.info(
            "generation %s has ended: %s", session.generation, ended or error
        )
        _clear(error)
        return None

    def _leave(self, reason: str, ending: Ending) -> Ending:
        if self._session is not None:
            try:
                self._session.leave(reason)
            except Error as error:
                # Training is over, also if the coordinator does not know.
                _logger.warning("leaving the job: %s", error)
        return ending

    def _leave_failed(self, error: Error) -> None:
        if self._session is not None:
            self._session._leave_failed(error)

    def _check_fruitful(self, last: BaseException) -> None:
        if self._fruitless <= _MAX_FRUITLESS:
            return
        error = Error(
            "no step was committed in %d generations in a row, so something "
            "ends every one of them; the last: %s" % (self._fruitless, last)
        )
        error.code = getattr(last, "code", Code.ABORTED)
        raise error from last


def _close(before: Session) -> None:
    """Closes the session of the generation before. What its collectives may
    still use stays."""
    try:
        before.close()
    except Error as error:
        _logger.warning("generation %s: %s", before.generation, error)
        return
    _hooks.forget(before)


def _log(recovery: Recovery) -> None:
    _logger.info(
        "generation %d: rank %d of %d goes on from step %d%s",
        recovery.generation,
        recovery.rank,
        recovery.world_size,
        recovery.step,
        ", which it has copied" if recovery.copied
        else ", which it has taken while it waited" if recovery.caught_up
        else "",
    )
    for warning in recovery.warnings:
        _logger.warning("generation %d: %s", recovery.generation, warning)


def _may_come_from_peers(error: Exception) -> bool:
    if isinstance(error, Error):
        # Evicted may be what the coordinator answers a moment before this
        # session knows that its generation has ended.
        return error.code in _FROM_PEERS or isinstance(error, Evicted)
    # torch's own, by class in some back ends and versions, by text in others.
    kind = getattr(dist, "DistError", None)
    if kind is not None and isinstance(error, kind):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and (
        "gloo" in text or "nccl" in text
    )


def _clear(error: Optional[BaseException]) -> None:
    """Has an error that is no more refer to nothing, such as a model."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
