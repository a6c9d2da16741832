"""A worker's membership of a job."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import enum
import os
from types import TracebackType
from typing import Any, Iterator, List, Mapping, Optional, Sequence, Type

from . import _library
from ._data import Elements, Parameter, parameters_of
from .checkpoints import Checkpoints
from .errors import DeadlineExceeded, Error, InvalidArgument
from .schedule import Plan, PlanWords, Schedule, plan_text
from .store import Store

_OPERATIONS = {"sum": 0, "min": 1, "max": 2}
_NO_ENVIRONMENT, _PLAIN_DATA = 1, 2
_STOP, _DRAIN, _CHECKPOINT = range(3)


class EventKind(enum.IntEnum):
    """The kind of an event. A kind that only a newer library knows becomes a
    WARNING, whose text explains it."""

    JOINED = 0
    COORDINATOR_LOST = 1  # training goes on meanwhile
    REATTACHED = 2
    MEMBER_LEFT = 3  # cleanly
    PLAN_CHANGED = 4
    REGROUP = 5  # the generation ends after this step
    WARNING = 6
    GENERATION_ENDED = 7  # `rank` was lost, or None. The last one

    @classmethod
    def _missing_(cls, value: object) -> Optional[EventKind]:
        return cls.WARNING if isinstance(value, int) else None


@dataclasses.dataclass(frozen=True)
class Event:
    """An event of a session."""

    kind: EventKind
    rank: Optional[int]
    generation: int
    term: int  # of the coordinator
    text: str  # a sentence


@dataclasses.dataclass(frozen=True)
class Member:
    """A worker that holds a rank."""

    rank: int
    local_rank: int
    node: str
    slot: int
    host: str
    address: str


@contextlib.contextmanager
def background() -> Iterator[None]:
    """Marks the waits of this thread as beside training, within a block:

        with coxswain.background():
            session.store.wait(["evaluated"], timeout=600)

    Others of this worker train meanwhile, so these waits do not make it one
    that waits for others: plans with a stall_timeout ask.
    """
    lib = _library.library()
    before = lib.cx_set_background(1)
    try:
        yield
    finally:
        lib.cx_set_background(before)


def _settings(settings: Mapping[str, str]) -> Any:
    array = (_library.Setting * len(settings))()
    for struct, (name, value) in zip(array, settings.items()):
        struct.name = _library.encode(name)
        struct.value = _library.encode(str(value))
    return array


class Session:
    """A worker's membership of one generation of a job.

        with coxswain.Session.join(plan={"accumulation": 4}) as session:
            ...  # session.rank, session.store, session.schedule, ...

    As a context manager it leaves at the end of the block: cleanly, or as
    failed if the block raises an exception, so that the other ranks stop with
    its text. A session that is open when the process exits counts as failed.

    The generation ends when a member is lost. Then each call that waits raises
    PeerLost, RanksDiffer or another Error with the reason. A program that can
    go on calls rejoin for the session of the next one.

    Threads: any thread may call any method, but one at a time calls
    collectives, and one at a time the methods of a schedule. Calls that wait
    let other threads run, and Ctrl-C ends them. What it has cancelled is not
    undone: capi/coxswain.h, WAITING. Forked processes have no session: methods
    raise an Error there, and the end of a block or of the process does nothing.

    asked: the plan that this program asked for, as NAME=VALUE words. The plan
        in force is schedule.plan, and may be another: the coordinator decides
        it.
    """

    def __init__(self, handle: int) -> None:
        """For join."""
        self._handle = handle
        self._open = True
        self._process = os.getpid()
        self.generation: Optional[int] = None
        self.asked = ""
        self._plan: Optional[Plan] = None  # of Schedule
        info = _library.make(_library.SessionInfo)
        self._check(
            _library.library().cx_info(handle, ctypes.byref(info))
        )
        self.rank: int = info.rank
        self.world_size: int = info.world_size
        self.local_rank: int = info.local_rank
        self.generation = info.generation
        self.job: str = _library.decode(info.job)
        self.store = Store(self)
        self.schedule = Schedule(self)
        self.checkpoints = Checkpoints(self)

    @classmethod
    def join(
        cls,
        *,
        plan: PlanWords = "",
        settings: Optional[Mapping[str, str]] = None,
        parameters: Sequence[Parameter] = (),
        coordinator: Optional[str] = None,
        job: Optional[str] = None,
        node: Optional[str] = None,
        slot: int = 0,
        world_size: int = 0,
        min_world_size: int = 0,
        attempt: int = 0,
        address: Optional[str] = None,
        backend: Optional[str] = None,
        tls_ca: Optional[str] = None,
        tls_cert: Optional[str] = None,
        tls_key: Optional[str] = None,
        token_file: Optional[str] = None,
        join_timeout: float = 0,
        collective_timeout: float = 0,
        environment: bool = True,
        plain_data: bool = False,
        _newcomer: Any = None,
    ) -> Session:
        """Joins a job, and waits until all members have.

        plan: what this program asks for, which the coordinator compares over
            the ranks: {"accumulation": 4, "hook": "bf16", "tail": "drop"}, or
            the same as text, "accumulation=4 hook=bf16 tail=drop".
        settings: further names and values that all ranks must have in common,
            such as a seed.
        parameters: those of the model, likewise; see configure.
        coordinator: HOST:PORT. This and the following arguments come from the
            variables that `coxswain run` sets if they are not given
            (capi/coxswain.h has their names); `node` and `slot` are given
            together. No variable is read if `environment` is false.
        join_timeout, collective_timeout: seconds; 0: the default, 5 minutes.
            The second is that of connecting the ranks and of each collective.
        plain_data: ranks do not encrypt what they exchange, where they would
            as they speak TLS with the coordinator. For all ranks or none.

        Raises InvalidArgument, naming the argument or the variable;
        DeadlineExceeded if the coordinator did not answer, and MembersMissing
        if members did not come; ManifestsDiffer; JobFinished.
        """
        given_settings = _settings(settings or {})
        given_parameters = parameters_of(parameters)
        options = _library.make(_library.JoinOptions)
        options.flags = (0 if environment else _NO_ENVIRONMENT) | (
            _PLAIN_DATA if plain_data else 0
        )
        for name, text in (
            ("coordinator", coordinator), ("job", job), ("node", node),
            ("address", address), ("backend", backend), ("tls_ca", tls_ca),
            ("tls_cert", tls_cert), ("tls_key", tls_key),
            ("token_file", token_file),
        ):
            setattr(options, name, _library.encode(text))
        options.slot = _library.int32("slot", slot)
        options.world_size = _library.int32("world_size", world_size)
        options.min_world_size = _library.int32(
            "min_world_size", min_world_size
        )
        options.attempt = _library.int64("attempt", attempt)
        options.join_timeout_ms = _library.milliseconds(join_timeout)
        options.collective_timeout_ms = _library.milliseconds(
            collective_timeout
        )
        options.settings = given_settings
        options.setting_count = len(given_settings)
        options.parameters = given_parameters
        options.parameter_count = len(given_parameters)
        asked = plan_text(plan)
        options.plan = _library.encode(asked)
        if _newcomer is not None:  # of coxswain.torch.elastic
            options.newcomer = _newcomer.listen(options)
        session = cls._opened_by("cx_join", ctypes.byref(options))
        session.asked = asked
        return session

    def rejoin(self) -> Session:
        """Joins the next generation, as the same worker with the same
        arguments, and waits until it is complete, as join does.

        Called when this generation has ended, after a decision to regroup, or
        to end it; leaves it cleanly. This session is of no other use
        afterwards, and must still be closed, once this has returned.

        Raises as join; Evicted or another Error if this worker has called
        leave, or another process has its place. After an exception such as
        KeyboardInterrupt it cannot join again.
        """
        session = self._opened_by(
            "cx_rejoin", self._handle, generation=self.generation
        )
        session.asked = self.asked
        return session

    @classmethod
    def _opened_by(
        cls, name: str, argument: Any, generation: Optional[int] = None
    ) -> Session:
        handle = ctypes.c_uint64()
        try:
            _library.call(
                name, argument, ctypes.byref(handle), generation=generation
            )
            return cls(handle.value)
        except BaseException:
            # No other code can close it.
            if handle.value:
                _library.library().cx_close(handle.value)
            raise

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        if self._forked() or not self._open:
            return
        try:
            if error is None:
                self.leave("done")
            else:
                self._leave_failed(error)
        finally:
            self.close()

    def _leave_failed(self, error: BaseException) -> None:
        try:
            text = " ".join(str(error).split())
            self.leave(
                "%s: %s" % (type(error).__name__, text[:500]), failed=True
            )
        except Exception:
            pass  # The exception that is under way matters more.

    def leave(self, reason: str = "done", failed: bool = False) -> None:
        """Ends the membership; a second call does nothing.

        failed: the other ranks stop as well, with this reason; waits for the
        coordinator for 5 seconds at most. Otherwise they go on without this
        one.
        """
        self._call("cx_leave", _library.encode_reason(reason), int(failed))

    def close(self) -> None:
        """Closes the session, which is left as failed if it was not left. That
        cannot be interrupted, and waits 5 seconds at most for the coordinator,
        and for exchanges that are aborted with it. Raises DeadlineExceeded if
        one of these still uses a program's memory 10 seconds after
        collective_timeout: the session is closed then, too. A second call, and
        one in a forked process, does nothing."""
        if not self._open or self._forked():
            return
        try:
            self.checkpoints._release()
        except Error:
            pass  # The memory goes, whatever still uses it.
        self._open = False
        self._check(_library.library().cx_close(self._handle))

    @property
    def ended(self) -> Optional[Error]:
        """The error that ended the generation; None while it lasts."""
        try:
            self._check(_library.library().cx_status(self._handle))
        except Error as error:
            return error
        return None

    def member(self, rank: int) -> Member:
        """Returns the worker that holds a rank. Raises InvalidArgument if there
        is no such rank."""
        info = _library.make(_library.MemberInfo)
        self._call(
            "cx_member", _library.int32("rank", rank), ctypes.byref(info)
        )
        return Member(
            info.rank,
            info.local_rank,
            _library.decode(info.node),
            info.slot,
            _library.decode(info.host),
            _library.decode(info.address),
        )

    def members(self) -> List[Member]:
        """Returns all workers, by rank."""
        return [self.member(rank) for rank in range(self.world_size)]

    def next_event(self, timeout: float = 0) -> Optional[Event]:
        """Returns the next event, or None if there is none within `timeout`
        seconds. For one reader; beyond 256 waiting events the oldest are
        dropped. Raises Error with the code OUT_OF_RANGE after the last.
        """
        event = _library.make(_library.Event)
        try:
            self._call(
                "cx_next_event",
                _library.milliseconds(timeout),
                ctypes.byref(event),
            )
        except DeadlineExceeded:
            return None
        return Event(
            EventKind(event.kind),
            None if event.rank < 0 else event.rank,
            event.generation,
            event.term,
            _library.decode(event.text),
        )

    def barrier(self, tag: str, timeout: float = 300) -> None:
        """Waits at the coordinator until all ranks have called it with this
        tag, `timeout` seconds at most. Raises DeadlineExceeded, naming those
        that have not. If an exception such as KeyboardInterrupt ends the wait,
        this rank still counts as arrived.
        """
        self._call(
            "cx_barrier", _library.encode(tag), _library.milliseconds(timeout)
        )

    def configure(self, parameters: Sequence[Parameter]) -> None:
        """Sets the model's parameters where they are known only after join:
        each exchange from then on fails if ranks have set different ones.
        """
        given = parameters_of(parameters)
        self._check(
            _library.library().cx_configure(self._handle, given, len(given))
        )

    def report_progress(self, steps: int) -> None:
        """Reports how many optimizer steps this worker has taken, for `coxswain
        status`."""
        self._check(
            _library.library().cx_report_progress(
                self._handle, _library.int64("steps", steps)
            )
        )

    def report_wait(self, waits: bool) -> None:
        """Reports whether this worker waits for others in what Coxswain does
        not exchange: plans with a stall_timeout ask."""
        self._check(
            _library.library().cx_report_wait(self._handle, int(waits))
        )

    def request_stop(self, reason: str) -> None:
        """Asks all ranks to stop after the next decision: see Decision.stop."""
        self._request(_STOP, reason)

    def request_drain(self, reason: str) -> None:
        """Asks that the others go on without this rank after one of the next
        steps: see Decision.regroup."""
        self._request(_DRAIN, reason)

    def request_checkpoint(self, reason: str) -> None:
        """Asks all ranks to save their state after one of the next steps: see
        Decision.checkpoint."""
        self._request(_CHECKPOINT, reason)

    # ---- collectives: all ranks call the same, in the same order ----

    def all_reduce(self, data: Any, op: str = "sum") -> None:
        """Replaces each element by the sum, "min" or "max" over all ranks.

        data: a writable, contiguous buffer of numbers of any shape in the
            memory of the CPU: array.array("d", ...), a NumPy array, a
            memoryview. The same number of elements and type on all ranks.

        Raises InvalidArgument if the buffer cannot be exchanged, or ranks call
        different collectives; PeerLost if one was lost; DeadlineExceeded after
        collective_timeout. After an exception such as KeyboardInterrupt `data`
        is undefined, and further collectives of the session fail.
        """
        if op not in _OPERATIONS:
            raise InvalidArgument("op is %r, not sum, min or max" % (op,))
        with Elements(data) as mine:
            self._call("cx_all_reduce", *mine.arguments, _OPERATIONS[op])

    def broadcast(self, data: Any, root: int = 0) -> None:
        """Copies the buffer of the rank `root` into those of all others.
        Arguments and errors as all_reduce."""
        with Elements(data) as mine:
            self._call(
                "cx_broadcast", *mine.arguments, _library.int32("root", root)
            )

    def all_gather(self, data: Any, output: Any) -> None:
        """Fills `output` with the buffers of all ranks, by rank. It has
        world_size times as many elements as `data`, which may be read-only.
        Errors as all_reduce."""
        given = Elements(data, writable=False)
        with given as mine, Elements(output) as everything:
            if mine.dtype != everything.dtype:
                raise InvalidArgument("data and output have different types")
            self._call(
                "cx_all_gather",
                *mine.arguments[:2],
                *everything.arguments,
            )

    # ---- for this package ----

    def _forked(self) -> bool:
        return os.getpid() != self._process

    def _call(self, name: str, *arguments: Any) -> None:
        _library.call(
            name, self._handle, *arguments, generation=self.generation
        )

    def _check(self, code: int) -> None:
        _library.check(code, self.generation)

    def _request(self, request: int, reason: str) -> None:
        self._check(
            _library.library().cx_request(
                self._handle, request, _library.encode_reason(reason)
            )
        )
