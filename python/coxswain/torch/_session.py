"""The session of a torch program, and torch's process group over it."""

from __future__ import annotations

import atexit
import contextlib
import datetime
import itertools
import os
import sys
from types import TracebackType
from typing import Any, Callable, Iterator, List, Optional, Tuple, Type
from urllib.parse import unquote, urlsplit

import torch.distributed as dist

from ..errors import DeadlineExceeded, Error, InvalidArgument
from ..errors import refused as _refused
from ..session import Session
from . import torchrun
from ._store import TorchStore

# How long after an error of torch the coordinator may take to report the loss.
_VERDICT_SECONDS = 5
# Never set.
_NEVER = "coxswain/never"

_Hook = Callable[
    [Type[BaseException], BaseException, Optional[TracebackType]], Any
]


class _Process:
    """The one session that a process has, and how it ends."""

    def __init__(self) -> None:
        self.session: Optional[Session] = None
        # What is to be done before it is left cleanly.
        self.before_leaving: List[Callable[[], Any]] = []
        self._uncaught: Optional[BaseException] = None
        self._before: _Hook = sys.excepthook

    def begin(self, session: Session) -> None:
        if self.session is not None:
            self.session = session  # of the next generation
            return
        self.session = session
        self._before, sys.excepthook = sys.excepthook, self._note
        atexit.register(self._end)

    def _note(
        self,
        kind: Type[BaseException],
        error: BaseException,
        trace: Optional[TracebackType],
    ) -> None:
        self._uncaught = error
        self._before(kind, error, trace)
        if self.session is None or not isinstance(error, RuntimeError):
            return
        # If torch notices first that a rank is lost, outside of a backward
        # pass, its own error names no rank.
        ended = None if isinstance(error, Error) else verdict(self.session)
        if ended is not None:
            self._uncaught = ended
            print("coxswain: %s" % ended, file=sys.stderr)

    def _end(self) -> None:
        if self.session is None or self.session._forked():
            return
        try:
            # As at the end of a block: cleanly, or with the exception.
            error = self._uncaught
            try:
                if error is None:
                    self.finish()
            except Exception as problem:
                # Training is over, and has not failed with it.
                print(
                    "coxswain: before leaving the job: %s: %s"
                    % (type(problem).__name__, problem),
                    file=sys.stderr,
                )
            self.session.__exit__(type(error) if error else None, error, None)
        except Error as problem:
            print("coxswain: leaving the job: %s" % problem, file=sys.stderr)

    def finish(self) -> None:
        """Does what is to be done before the session is left cleanly. Raises
        an error of it once all of it is done."""
        with contextlib.ExitStack() as actions:
            for action in self.before_leaving:
                actions.callback(action)
            self.before_leaving.clear()


_process = _Process()


def init(
    plan: Any = "",
    *,
    process_group: bool = True,
    process_group_backend: Optional[str] = None,
    process_group_timeout: Optional[float] = None,
    **join: Any,
) -> Session:
    """Joins the job, and waits until all of its workers have.

    plan: what the program asks for, as in Session.join, such as
        {"accumulation": 4, "commit_vote": True}.
    process_group: whether to make torch's default process group, over the
        coordinator's store, unless there is one; with `process_group_backend`,
        such as "gloo" (by default torch chooses), and `process_group_timeout`
        in seconds (by default torch's).
    join: more arguments of Session.join. Without them all comes from the
        variables that `coxswain run` or torchrun has set; with torchrun,
        COXSWAIN_COORDINATOR must name the coordinator as well.

    Sets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE and, where it is
    missing, MASTER_ADDR, for libraries that read them. The session ends with
    the process: cleanly, or as failed with the text of an uncaught exception.
    `leave` ends it before.

    Raises as Session.join; Error with the code FAILED_PRECONDITION if the
    process has a session, or torch's process group has another rank for it.
    """
    if _process.session is not None:
        raise _refused(
            "this process has joined job %r already: coxswain.torch.session() "
            "returns its session" % _process.session.job
        )
    arguments = dict(torchrun.join_arguments(os.environ, given=join), **join)
    session = Session.join(plan=plan, **arguments)
    try:
        _check_rank(session)
        _export(session)
        if process_group and not dist.is_initialized():
            _init_process_group(
                session, process_group_backend, process_group_timeout
            )
    except BaseException as error:
        session.__exit__(type(error), error, error.__traceback__)
        raise
    _process.begin(session)
    return session


def begin_generation(session: Session) -> None:
    """Makes a session the one of this process, as init does; it follows the one
    before, if there is one."""
    _process.begin(session)
    _export(session)


def session() -> Session:
    """Returns the session of this process. Raises Error with the code
    FAILED_PRECONDITION before init."""
    if _process.session is None:
        raise _refused(
            "this process has joined no job: call coxswain.torch.init() first"
        )
    return _process.session


def leave(reason: str = "done", failed: bool = False) -> None:
    """Ends the session before the process ends; see Session.leave. Unless it
    has failed, saves of Run.finish are waited for. A second call does
    nothing."""
    joined = session()
    try:
        if not failed:
            _process.finish()
    finally:
        joined.leave(reason, failed)


def verdict(
    session: Session, seconds: float = _VERDICT_SECONDS
) -> Optional[Error]:
    """Returns why the generation has ended, after an error of torch's, which
    may come so many seconds before that; None if it goes on."""
    try:
        session.store.get(_NEVER, timeout=seconds)
    except DeadlineExceeded:
        return None
    except Error as error:
        # The session's own has the kind, such as PeerLost.
        return session.ended or error
    return None


_groups = itertools.count()


def group_store(session: Session) -> TorchStore:
    """Returns a store for a process group: a new one for each call, in the same
    order on all ranks, because torch expects an empty store."""
    return TorchStore(session, "torch/%d/" % next(_groups))


def before_leaving(session: Session, action: Callable[[], Any]) -> None:
    """Has this done before that session is left cleanly, if it is the
    process's."""
    if session is _process.session:
        _process.before_leaving.append(action)


def current() -> Optional[Session]:
    """Returns the session of this process, or None before init."""
    return _process.session


def _check_rank(session: Session) -> None:
    """Raises Error if the rank or the world size differs from that of torchrun,
    or of a process group that the program has made by itself."""
    given: Tuple[Any, Any]
    if dist.is_initialized():
        given = dist.get_rank(), dist.get_world_size()
        origin = "torch's process group"
    elif torchrun.is_worker(os.environ):
        given = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        origin = "torchrun"
    else:
        return
    if given != (session.rank, session.world_size):
        raise _refused(
            "%s has made this process rank %d of %d, and the coordinator rank "
            "%d of %d: call coxswain.torch.init() before init_process_group, "
            "and start all ranks by one launcher"
            % (origin, *given, session.rank, session.world_size)
        )


def _export(session: Session) -> None:
    if torchrun.is_worker(os.environ):
        return
    mine = session.member(session.rank)
    local_size = os.environ.get("COXSWAIN_LOCAL_WORLD_SIZE")
    if local_size is None:
        local_size = str(
            sum(one.node == mine.node for one in session.members())
        )
    os.environ.update(
        RANK=str(session.rank),
        WORLD_SIZE=str(session.world_size),
        LOCAL_RANK=str(session.local_rank),
        LOCAL_WORLD_SIZE=local_size,
    )
    if "MASTER_ADDR" not in os.environ:
        os.environ["MASTER_ADDR"] = session.member(0).host


def _init_process_group(
    session: Session, backend: Optional[str], timeout: Optional[float]
) -> None:
    options = {}
    if timeout is not None:
        options["timeout"] = datetime.timedelta(seconds=timeout)
    dist.init_process_group(
        backend,
        store=group_store(session),
        rank=session.rank,
        world_size=session.world_size,
        **options,
    )


def _rendezvous(
    url: str, **unused: Any
) -> Iterator[Tuple[TorchStore, int, int]]:
    """Serves init_process_group(init_method="coxswain://HOST:PORT/JOB"); each
    part may be left out if its variable is set."""
    joined = current()
    if joined is None:
        parts = urlsplit(url)
        arguments = {}
        if parts.netloc:
            arguments["coordinator"] = parts.netloc
        if parts.path.strip("/"):
            arguments["job"] = unquote(parts.path.strip("/"))
        for pair in filter(None, parts.query.split("&")):
            name, _, value = pair.partition("=")
            if name == "world_size" and value != "-1":
                try:
                    arguments["world_size"] = int(value)
                except ValueError:
                    raise InvalidArgument(
                        "world_size=%r in %r is not a number" % (value, url)
                    ) from None
        joined = init(process_group=False, **arguments)
    yield group_store(joined), joined.rank, joined.world_size
    raise _refused(
        "a session's process group is made once: start another attempt of the "
        "job instead"
    )


try:
    dist.register_rendezvous_handler("coxswain", _rendezvous)
except RuntimeError:
    pass  # The module was loaded before.
