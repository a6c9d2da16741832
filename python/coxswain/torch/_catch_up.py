"""A newcomer takes the state of the members while these train, by the library:
docs/adr/0052-a-newcomer-catches-up.md. Both ends.
"""

from __future__ import annotations

import ctypes
import logging
from typing import Any, Callable, List, Optional, Sequence, Tuple

from .. import _library
from ..errors import Code, Error, data_loss
from ..session import Session
from ._recovery import CaughtUp, Standing
from ._stepped import Part, Stepped

# CX_WANTS_..., CX_STEP_...
_WANTS_STEP, _WANTS_STATE = 1, 2
_APPLIED, _LAST = 1, 2
# How long a newcomer waits while nothing comes of the members' last steps. They
# wait with it.
_LAST_STEP_S = 1.0

_log = logging.getLogger(__name__)


def _parts_of(parts: Sequence[Part]) -> Any:
    """Returns what the library takes for tensors, which stay the caller's."""
    array = (_library.Part * len(parts))()
    for struct, (tensor, number) in zip(array, parts):
        struct.data = tensor.data_ptr()
        struct.size = tensor.numel() * tensor.element_size()
        struct.parameter = number
    return array


class Source:
    """What a member has for newcomers, in one generation. For the thread that
    trains."""

    def __init__(
        self, session: Session, stepped: Optional[Stepped], lineage: int
    ) -> None:
        """stepped: None: newcomers copy the state when the members regroup."""
        self._session = session
        self._stepped = stepped
        self._copied = False  # the averages of the step under way ...
        self._taken = False  # ... which the optimizer has taken
        self._options: Any = None
        self._used: List[int] = []
        if stepped is None:
            return
        try:
            self._call("cx_source_open", lineage)
        except Error as error:
            self._stepped = None
            _log.info("newcomers copy the state: %s", error)

    def before_step(self, decided: bool, has_closure: bool) -> None:
        """Right before the optimizer's step. decided: its window has ended, and
        it is the first one after that."""
        self._copied = self._taken = False
        if self._stepped is None or not self._wants() & _WANTS_STEP:
            return
        if not decided or has_closure:
            self.drop(
                "the optimizer takes several steps in a window, or evaluates a "
                "closure"
            )
            return
        try:
            averages = self._stepped.averages()
            self._options = self._stepped.options()
            self._used = self._stepped.used()
            self._call("cx_source_averages", _parts_of(averages), len(averages))
            self._copied = True
        except Exception as error:
            self._drop_for(error)

    def after_step(self) -> None:
        """The optimizer's step has ended."""
        self._taken = self._copied

    def after_window(self, progress: int) -> None:
        """Once the state is that after a window."""
        copied, self._copied = self._copied, False
        if self._stepped is None:
            return
        wants = self._wants()
        if copied and not self._taken:
            self.drop("a step of the optimizer was cut short")
        elif wants:
            self._send(progress, copied, bool(wants & _WANTS_STATE))

    def end(self, progress: int) -> None:
        """At the end of a generation that regroups."""
        if self._stepped is not None and self._wants():
            self._send(progress, False, False, _LAST)

    def drop(self, why: str = "") -> None:
        """Gives newcomers nothing more in this generation."""
        if self._stepped is None:
            return
        self._stepped = None
        if why:
            _log.warning("newcomers copy the state at the regroup: %s", why)
        try:
            self._call("cx_source_drop")
        except Error as error:
            _log.warning("what newcomers were sent: %s", error)

    def _send(
        self, progress: int, applied: bool, begins: bool, flags: int = 0
    ) -> None:
        stepped = self._stepped
        assert stepped is not None
        try:
            rest = b""
            if self._session.rank == 0:
                options = self._options if applied else None
                used = self._used if applied else []
                rest = stepped.describe(options, used, begins)
            parts = stepped.parts()
            text = ctypes.c_char_p(rest)
            array = _parts_of(parts)
            step = _library.make(_library.TakenStep)
            step.flags = flags | (_APPLIED if applied else 0)
            step.progress = progress
            step.rest = ctypes.cast(text, ctypes.c_void_p)
            step.rest_size = len(rest)
            step.state = array
            step.state_count = len(array)
            self._call("cx_source_step", ctypes.byref(step))
        except Exception as error:
            self._drop_for(error)

    def _drop_for(self, error: Exception) -> None:
        self.drop("%s: %s" % (type(error).__name__, error))

    def _wants(self) -> int:
        wants = ctypes.c_int32()
        self._call("cx_source_wants", ctypes.byref(wants))
        return wants.value

    def _call(self, name: str, *arguments: Any) -> None:
        function = getattr(_library.library(), name)
        self._session._check(function(self._session._handle, *arguments))


class Newcomer:
    """What a worker takes of the members' state while it waits. Its functions
    are called by a thread of the library, which takes the interpreter's lock
    for each call; no exception leaves them."""

    def __init__(self, stepped: Stepped) -> None:
        self._stepped = stepped
        self._handle = 0
        # What the library was given pointers to.
        self._array: Any = None
        self._calls = _library.make(_library.NewcomerCalls)
        for name, kind in _library.NEWCOMER_FUNCTIONS.items():
            setattr(self._calls, name, kind(getattr(self, "_on_" + name)))

    def joined(self, join: Callable[[], Session], standing: Standing) -> Session:
        """Returns the session of `join`, which listens by this. Standing has
        what this worker has taken until then."""
        try:
            session = join()
        except BaseException:
            # The members had ended their generation, and the round failed.
            if self._finish(0.0)[0] is not None:
                self._undo()
            raise
        try:
            found = self._finish(_LAST_STEP_S)
        except BaseException as error:
            session.__exit__(type(error), error, error.__traceback__)
            raise
        standing.caught_up, standing.damage = found
        return session

    def listen(self, options: _library.JoinOptions) -> int:
        """Returns what Session.join joins with; 0: this worker takes no state
        while it waits."""
        _library.end_calls_at_exit()
        handle = ctypes.c_uint64()
        try:
            _library.check(
                _library.library().cx_newcomer_listen(
                    ctypes.byref(options),
                    ctypes.byref(self._calls),
                    ctypes.byref(handle),
                )
            )
        except Error as error:
            _log.info("does not catch up: %s", error)
        self._handle = handle.value
        return self._handle

    def _finish(
        self, timeout: float
    ) -> Tuple[Optional[CaughtUp], Tuple[str, ...]]:
        """Returns what it has taken, unless it is nothing, and which pieces were
        damaged. Raises Error with the code DATA_LOSS if it could not go back to
        what it had; has gone back after any other exception."""
        handle, self._handle = self._handle, 0
        if not handle:
            return None, ()
        found = _library.make(_library.CaughtUp)
        try:
            _library.call(
                "cx_newcomer_finish",
                handle,
                _library.milliseconds(timeout),
                ctypes.byref(found),
            )
        except BaseException:
            # It may have caught up, if a signal has ended the call.
            self._undo()
            raise
        damage = tuple(_library.decode(found.damage).splitlines())
        if not found.caught_up:
            return None, damage
        caught_up = CaughtUp(
            lineage=found.lineage,
            trained=found.trained,
            step=found.progress,
            undo=self._undo,
            forget=self._stepped.forget,
        )
        return caught_up, damage

    # ---- called by the library ----

    def _on_begin(self, data: Any, rest: Any, size: int) -> int:
        return _code_of(lambda: self._stepped.begin(_bytes(rest, size)))

    def _on_state(
        self, data: Any, rest: Any, size: int, parts: Any, count: Any
    ) -> int:
        return _code_of(lambda: self._give(self._stepped.parts(), parts, count))

    def _on_averages(
        self, data: Any, rest: Any, size: int, parts: Any, count: Any
    ) -> int:
        return _code_of(
            lambda: self._give(
                self._stepped.places_of(_bytes(rest, size)), parts, count
            )
        )

    def _on_step(self, data: Any, rest: Any, size: int, applied: int) -> int:
        return _code_of(
            lambda: self._stepped.step(_bytes(rest, size), bool(applied))
        )

    def _on_undo(self, data: Any) -> int:
        return _code_of(self._undo)

    def _undo(self) -> None:
        try:
            self._stepped.undo()
        except Exception as error:
            raise data_loss(
                "going back to its own state after catching up failed: %s; "
                "start this worker again" % error
            ) from error

    def _give(self, found: List[Part], parts: Any, count: Any) -> None:
        self._array = _parts_of(found)
        parts[0] = ctypes.cast(self._array, ctypes.POINTER(_library.Part))
        count[0] = len(found)


def _bytes(data: Any, size: int) -> bytes:
    return ctypes.string_at(data, size) if size else b""


def _code_of(function: Callable[[], None]) -> int:
    """Calls a function, and returns the code of its error, whose text the
    library gets."""
    try:
        function()
        return 0
    except BaseException as error:
        text = "%s: %s" % (type(error).__name__, error)
        _library.library().cx_hook_fail(_library.encode_reason(text))
        return int(error.code if isinstance(error, Error) else Code.INTERNAL)
