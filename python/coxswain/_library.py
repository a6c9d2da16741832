"""The C interface, capi/coxswain.h, by ctypes: found, checked and called.

For this package only. The header explains each function and struct; names and
fields are the same here.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import math
import operator
import os
from ctypes import POINTER, c_char_p, c_double, c_int32, c_int64, c_size_t
from ctypes import c_uint64, c_void_p
from typing import Any, Optional, Type, TypeVar

from . import errors

# The version that this package needs: a library of the same major number, and a
# minor number that is not below.
ABI_MAJOR, ABI_MINOR = 1, 6

VARIABLE = "COXSWAIN_LIBRARY"
BESIDE = os.path.join(
    os.path.dirname(os.path.abspath(__file__)), "_native", "libcoxswain_c.so"
)

AGAIN = 100

# Of protobuf and gRPC: what each version of them has.
_SHARED_NAMES = ("_ZTVN6google8protobuf11MessageLiteE", "grpc_init")


class Setting(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("value", c_char_p)]


class Parameter(ctypes.Structure):
    _fields_ = [
        ("name", c_char_p),
        ("shape", POINTER(c_int64)),
        ("ndim", c_int32),
        ("dtype", c_int32),
    ]


class JoinOptions(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("flags", c_uint64),
        ("coordinator", c_char_p),
        ("job", c_char_p),
        ("node", c_char_p),
        ("slot", c_int32),
        ("world_size", c_int32),
        ("min_world_size", c_int32),
        ("reserved", c_int32),
        ("attempt", c_int64),
        ("address", c_char_p),
        ("backend", c_char_p),
        ("tls_ca", c_char_p),
        ("tls_cert", c_char_p),
        ("tls_key", c_char_p),
        ("token_file", c_char_p),
        ("join_timeout_ms", c_int64),
        ("collective_timeout_ms", c_int64),
        ("plan", c_char_p),
        ("settings", POINTER(Setting)),
        ("setting_count", c_size_t),
        ("parameters", POINTER(Parameter)),
        ("parameter_count", c_size_t),
        ("newcomer", c_uint64),
    ]


class SessionInfo(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("rank", c_int32),
        ("world_size", c_int32),
        ("local_rank", c_int32),
        ("reserved", c_int32),
        ("generation", c_int64),
        ("job", c_char_p),
    ]


class MemberInfo(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("rank", c_int32),
        ("local_rank", c_int32),
        ("node", c_char_p),
        ("host", c_char_p),
        ("address", c_char_p),
        ("slot", c_int32),
        ("reserved", c_int32),
    ]


class Event(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("kind", c_int32),
        ("rank", c_int32),
        ("generation", c_int64),
        ("term", c_int64),
        ("text", c_char_p),
    ]


class Ticket(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("flags", c_uint64),
        ("stream", c_char_p),
        ("step", c_int64),
        ("micro_batches", c_int32),
        ("micro", c_int32),
        ("window", c_int32),
        ("reserved", c_int32),
        ("weight", c_double),
        ("hook", c_char_p),
        ("layout", c_uint64),
        ("digest", c_uint64),
        ("checksum", c_uint64),
        ("skip", c_char_p),
        ("pipeline", c_uint64),
        ("replicated_checksum", c_uint64),
    ]


class Vote(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("refuse", c_int32),
        ("reserved", c_int32),
        ("reason", c_char_p),
    ]


class Decision(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("commit", c_int32),
        ("plan_changed", c_int32),
        ("reason", c_char_p),
        ("stop", c_char_p),
        ("regroup", c_char_p),
        ("checkpoint", c_char_p),
        ("plan_version", c_int64),
        ("accumulation", c_int32),
        ("reserved", c_int32),
        ("hook", c_char_p),
    ]


class PlanInfo(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("flags", c_uint64),
        ("version", c_int64),
        ("accumulation", c_int32),
        ("reserved", c_int32),
        ("max_steps", c_int64),
        ("progress_timeout_ms", c_int64),
        ("hook", c_char_p),
        ("words", c_char_p),
    ]


class Piece(ctypes.Structure):
    _fields_ = [
        ("name", c_char_p),
        ("data", c_void_p),
        ("size", c_size_t),
        ("flags", c_uint64),
    ]


class Checkpoint(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("flags", c_uint64),
        ("step", c_int64),
        ("reason", c_char_p),
        ("metadata", POINTER(Setting)),
        ("metadata_count", c_size_t),
        ("pieces", POINTER(Piece)),
        ("piece_count", c_size_t),
        ("keep_every", c_int64),
        ("keep_last", c_int32),
        ("reserved", c_int32),
    ]


class CheckpointReport(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("busy", c_int32),
        ("code", c_int32),
        ("step", c_int64),
        ("checkpoint", c_char_p),
        ("error", c_char_p),
    ]


class CheckpointInfo(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("step", c_int64),
        ("bytes", c_int64),
        ("created_ms", c_int64),
        ("id", c_char_p),
        ("hook", c_char_p),
        ("world_size", c_int32),
        ("reserved", c_int32),
        ("metadata", POINTER(Setting)),
        ("metadata_count", c_size_t),
    ]


class PieceInfo(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("name", c_char_p),
        ("data", c_void_p),
        ("data_size", c_size_t),
        ("rank", c_int32),
        ("reserved", c_int32),
    ]


class Slot(ctypes.Structure):
    _fields_ = [
        ("parameter", c_int32),
        ("reserved", c_int32),
        ("offset", c_int64),
        ("count", c_int64),
    ]


class Bytes(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("size", c_size_t)]


class HookStanding(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("flags", c_uint64),
        ("state", c_void_p),
        ("state_size", c_size_t),
        ("world_size", c_int32),
        ("reserved", c_int32),
    ]


class Bucket(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("index", c_int32),
        ("last", c_int32),
        ("data", c_void_p),
        ("count", c_int64),
        ("slots", POINTER(Slot)),
        ("slot_count", c_size_t),
        ("dtype", c_int32),
        ("reserved", c_int32),
    ]


class HookOption(ctypes.Structure):
    _fields_ = [
        ("name", c_char_p),
        ("default_value", c_char_p),
        ("help", c_char_p),
        ("type", c_int32),
        ("reserved", c_int32),
    ]


class Collective(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("kind", c_int32),
        ("op", c_int32),
        ("root", c_int32),
        ("dtype", c_int32),
        ("data", c_void_p),
        ("count", c_int64),
        ("output", c_void_p),
        ("output_count", c_int64),
    ]


class StateTensor(ctypes.Structure):
    _fields_ = [
        ("kind", c_char_p),
        ("parameter", c_char_p),
        ("shape", POINTER(c_int64)),
        ("ndim", c_int32),
        ("dtype", c_int32),
        ("data", c_void_p),
        ("flags", c_uint64),
    ]


_CODE, _PLACE = c_int32, POINTER(c_void_p)
# The functions of a hook. They take the lock of the interpreter.
HOOK_FUNCTIONS = {
    "make": ctypes.CFUNCTYPE(
        _CODE, c_void_p, c_char_p, POINTER(Setting), c_size_t, _PLACE
    ),
    "configure": ctypes.CFUNCTYPE(
        _CODE, c_void_p, POINTER(Parameter), c_size_t, c_int32
    ),
    "begin": ctypes.CFUNCTYPE(
        _CODE, c_void_p, POINTER(Bucket), c_int32, c_int32, _PLACE
    ),
    "advance": ctypes.CFUNCTYPE(_CODE, c_void_p, POINTER(Collective)),
    "end": ctypes.CFUNCTYPE(None, c_void_p),
    "commit": ctypes.CFUNCTYPE(_CODE, c_void_p),
    "rollback": ctypes.CFUNCTYPE(None, c_void_p),
    "save": ctypes.CFUNCTYPE(
        _CODE, c_void_p, POINTER(POINTER(StateTensor)), POINTER(c_size_t)
    ),
    "load": ctypes.CFUNCTYPE(
        _CODE, c_void_p, POINTER(StateTensor), c_size_t
    ),
    "destroy": ctypes.CFUNCTYPE(None, c_void_p),
}


class Hook(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("name", c_char_p),
        ("help", c_char_p),
        ("version", c_char_p),
        ("options", POINTER(HookOption)),
        ("option_count", c_size_t),
        ("data", c_void_p),
        *HOOK_FUNCTIONS.items(),
    ]


class Part(ctypes.Structure):
    _fields_ = [
        ("data", c_void_p),
        ("size", c_size_t),
        ("parameter", c_int32),
        ("reserved", c_int32),
    ]


class TakenStep(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("flags", c_uint64),
        ("progress", c_int64),
        ("rest", c_void_p),
        ("rest_size", c_size_t),
        ("state", POINTER(Part)),
        ("state_count", c_size_t),
    ]


_REST = [c_void_p, c_size_t]
_PARTS = ctypes.CFUNCTYPE(
    _CODE, c_void_p, *_REST, POINTER(POINTER(Part)), POINTER(c_size_t)
)
# The functions of a newcomer, likewise.
NEWCOMER_FUNCTIONS = {
    "begin": ctypes.CFUNCTYPE(_CODE, c_void_p, *_REST),
    "state": _PARTS,
    "averages": _PARTS,
    "step": ctypes.CFUNCTYPE(_CODE, c_void_p, *_REST, c_int32),
    "undo": ctypes.CFUNCTYPE(_CODE, c_void_p),
}


class NewcomerCalls(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("data", c_void_p),
        *NEWCOMER_FUNCTIONS.items(),
    ]


class CaughtUp(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("caught_up", c_int32),
        ("reserved", c_int32),
        ("lineage", c_int64),
        ("trained", c_int64),
        ("progress", c_int64),
        ("damage", c_char_p),
    ]


_SESSION, _CALL = c_uint64, POINTER(c_uint64)
_BYTES = [c_char_p, c_size_t]
_VALUE = [POINTER(c_void_p), POINTER(c_size_t)]

# Name -> (result, arguments); a function that may wait ends with _CALL.
FUNCTIONS = {
    "cx_abi_version": (c_int32, []),
    "cx_version": (c_char_p, []),
    "cx_last_error_code": (c_int32, []),
    "cx_last_error_message": (c_char_p, []),
    "cx_last_error_kind": (c_int32, []),
    "cx_last_error_ranks": (c_size_t, [POINTER(c_int32), c_size_t]),
    "cx_wait": (c_int32, [_CALL]),
    "cx_cancel": (c_int32, [_CALL]),
    "cx_set_interrupt": (None, [c_void_p, c_void_p]),
    "cx_set_background": (c_int32, [c_int32]),
    "cx_join": (c_int32, [POINTER(JoinOptions), POINTER(c_uint64), _CALL]),
    "cx_rejoin": (c_int32, [_SESSION, POINTER(c_uint64), _CALL]),
    "cx_configure": (c_int32, [_SESSION, POINTER(Parameter), c_size_t]),
    "cx_leave": (c_int32, [_SESSION, c_char_p, c_int32, _CALL]),
    "cx_close": (c_int32, [_SESSION]),
    "cx_info": (c_int32, [_SESSION, POINTER(SessionInfo)]),
    "cx_member": (c_int32, [_SESSION, c_int32, POINTER(MemberInfo), _CALL]),
    "cx_status": (c_int32, [_SESSION]),
    "cx_next_event": (c_int32, [_SESSION, c_int64, POINTER(Event), _CALL]),
    "cx_report_progress": (c_int32, [_SESSION, c_int64]),
    "cx_report_wait": (c_int32, [_SESSION, c_int32]),
    "cx_note_micro_batch": (c_int32, [_SESSION]),
    "cx_barrier": (c_int32, [_SESSION, c_char_p, c_int64, _CALL]),
    "cx_store_set": (c_int32, [_SESSION, c_char_p, *_BYTES, _CALL]),
    "cx_store_get": (c_int32, [_SESSION, c_char_p, c_int64, *_VALUE, _CALL]),
    "cx_store_wait": (
        c_int32,
        [_SESSION, POINTER(c_char_p), c_size_t, c_int64, _CALL],
    ),
    "cx_store_add": (
        c_int32,
        [_SESSION, c_char_p, c_int64, POINTER(c_int64), _CALL],
    ),
    "cx_store_compare_set": (
        c_int32,
        [_SESSION, c_char_p, *_BYTES, *_BYTES, *_VALUE, POINTER(c_int32),
         _CALL],
    ),
    "cx_store_delete": (
        c_int32,
        [_SESSION, c_char_p, POINTER(c_int32), _CALL],
    ),
    "cx_store_count_keys": (
        c_int32,
        [_SESSION, c_char_p, POINTER(c_int64), _CALL],
    ),
    "cx_announce": (c_int32, [_SESSION, POINTER(Ticket)]),
    "cx_grant": (c_int32, [_SESSION, c_char_p, _CALL]),
    "cx_decide": (
        c_int32,
        [_SESSION, c_char_p, POINTER(Vote), POINTER(Decision), _CALL],
    ),
    "cx_request": (c_int32, [_SESSION, c_int32, c_char_p]),
    "cx_plan": (c_int32, [_SESSION, POINTER(PlanInfo)]),
    "cx_canonical_hook": (c_int32, [c_char_p, c_int32, POINTER(c_char_p)]),
    "cx_hooks": (c_int32, [POINTER(c_char_p)]),
    "cx_exchange_open": (
        c_int32,
        [_SESSION, c_char_p, POINTER(Parameter), c_size_t, _CALL],
    ),
    "cx_exchange_bucket": (c_int32, [_SESSION, c_char_p, POINTER(Bucket)]),
    "cx_exchange_wait": (c_int32, [_SESSION, c_char_p, _CALL]),
    "cx_hook_save": (
        c_int32,
        [_SESSION, c_char_p, c_int32, *_VALUE, _CALL],
    ),
    "cx_hook_load": (
        c_int32,
        [_SESSION, c_char_p, POINTER(Bytes), c_size_t],
    ),
    "cx_hook_register": (c_int32, [POINTER(Hook)]),
    "cx_hook_fail": (None, [c_char_p]),
    "cx_hooks_end": (c_int32, []),
    "cx_hook_release": (
        c_int32,
        [_SESSION, c_char_p, c_int32, *_VALUE, _CALL],
    ),
    "cx_hook_recover": (
        c_int32,
        [_SESSION, c_char_p, POINTER(HookStanding), POINTER(c_double), _CALL],
    ),
    "cx_source_open": (c_int32, [_SESSION, c_int64]),
    "cx_source_wants": (c_int32, [_SESSION, POINTER(c_int32)]),
    "cx_source_averages": (c_int32, [_SESSION, POINTER(Part), c_size_t]),
    "cx_source_step": (c_int32, [_SESSION, POINTER(TakenStep)]),
    "cx_source_drop": (c_int32, [_SESSION]),
    "cx_newcomer_listen": (
        c_int32,
        [POINTER(JoinOptions), POINTER(NewcomerCalls), POINTER(c_uint64)],
    ),
    "cx_newcomer_finish": (
        c_int32,
        [c_uint64, c_int64, POINTER(CaughtUp), _CALL],
    ),
    "cx_all_reduce": (
        c_int32,
        [_SESSION, c_void_p, c_int64, c_int32, c_int32, _CALL],
    ),
    "cx_broadcast": (
        c_int32,
        [_SESSION, c_void_p, c_int64, c_int32, c_int32, _CALL],
    ),
    "cx_all_gather": (
        c_int32,
        [_SESSION, c_void_p, c_int64, c_void_p, c_int64, c_int32, _CALL],
    ),
    "cx_checkpoint_save": (c_int32, [_SESSION, POINTER(Checkpoint)]),
    "cx_checkpoint_saved": (
        c_int32,
        [_SESSION, c_int64, POINTER(CheckpointReport), _CALL],
    ),
    "cx_checkpoint_find": (
        c_int32,
        [_SESSION, c_char_p, POINTER(CheckpointInfo), _CALL],
    ),
    "cx_checkpoint_at": (
        c_int32,
        [_SESSION, c_int64, POINTER(CheckpointInfo), _CALL],
    ),
    "cx_checkpoint_load": (
        c_int32,
        [_SESSION, c_char_p, POINTER(CheckpointInfo), _CALL],
    ),
    "cx_checkpoint_piece": (
        c_int32,
        [_SESSION, c_int64, POINTER(PieceInfo)],
    ),
    "cx_checkpoint_hook": (c_int32, [_SESSION, c_char_p, _CALL]),
    "cx_checkpoint_release": (c_int32, [_SESSION]),
}


def _path() -> str:
    given = os.environ.get(VARIABLE)
    if given:
        return given
    if os.path.exists(BESIDE):
        return BESIDE
    raise ImportError(
        "libcoxswain_c.so is not installed beside the package (%s): set %s to "
        "its path" % (BESIDE, VARIABLE)
    )


def _mode() -> int:
    """Returns how the library is to be loaded.

    A program that has opened one of these with RTLD_GLOBAL offers it to each
    library that is loaded later. Ours would call into it, and crash: then our
    copies come first. Not always, because that bypasses a preloaded malloc,
    too.
    """
    loaded = ctypes.CDLL(None)
    if any(hasattr(loaded, name) for name in _SHARED_NAMES):
        return ctypes.DEFAULT_MODE | getattr(os, "RTLD_DEEPBIND", 0)
    return ctypes.DEFAULT_MODE


@functools.lru_cache(maxsize=None)
def library() -> ctypes.CDLL:
    """Returns the library, loaded by the first call.

    Raises ImportError, with one sentence, if there is none, or it is not of
    the ABI that this package needs.
    """
    path = _path()
    try:
        loaded = ctypes.CDLL(path, mode=_mode())
        found = loaded.cx_abi_version()
    except (OSError, AttributeError) as error:
        raise ImportError(
            "%s is no library of Coxswain that can be loaded: %s"
            % (path, error)
        ) from error
    if found >> 16 != ABI_MAJOR or found & 0xFFFF < ABI_MINOR:
        raise ImportError(
            "%s has version %d.%d of the C interface, and this package needs "
            "%d.%d: install the two from one release"
            % (path, found >> 16, found & 0xFFFF, ABI_MAJOR, ABI_MINOR)
        )
    for name, (result, arguments) in FUNCTIONS.items():
        function = getattr(loaded, name)
        function.restype = result
        function.argtypes = arguments
    return loaded


@functools.lru_cache(maxsize=None)
def end_calls_at_exit() -> None:
    """Has the library call no function of Python's once the interpreter ends:
    its threads would enter one that is gone. For what gives it functions, before
    the session begins, which is left before that. Once in a process."""
    atexit.register(library().cx_hooks_end)


def check(code: int, generation: Optional[int] = None) -> None:
    """Raises the error of this thread's last call unless it was OK."""
    if code == 0:
        return
    lib = library()
    ranks = (c_int32 * lib.cx_last_error_ranks(None, 0))()
    lib.cx_last_error_ranks(ranks, len(ranks))
    message = lib.cx_last_error_message().decode(errors="replace")
    raise errors.make(
        code, lib.cx_last_error_kind(), message, tuple(ranks), generation
    )


def call(name: str, *arguments: Any, generation: Optional[int] = None) -> None:
    """Calls a function that may wait, and waits for its end.

    In between Python handles signals: an exception of theirs, such as
    KeyboardInterrupt, cancels the call. The caller keeps alive what arguments
    point to, so a second exception, while the first one cancels the call, must
    not prevent that.
    """
    lib = library()
    pending = c_uint64(0)
    place = ctypes.byref(pending)
    another: Optional[BaseException] = None
    try:
        code = getattr(lib, name)(*arguments, place)
        while code == AGAIN:
            code = lib.cx_wait(place)
    finally:
        over = not pending.value
        while not over:
            try:
                lib.cx_cancel(place)
                over = True
            except BaseException as error:
                another = error
        if another is not None:
            raise another
    check(code, generation)


_Struct = TypeVar("_Struct", bound=ctypes.Structure)


def make(struct: Type[_Struct]) -> _Struct:
    """Returns a struct with its size set, and defaults otherwise."""
    made = struct()
    made.size = ctypes.sizeof(struct)
    return made


def encode(text: Optional[str]) -> Optional[bytes]:
    """Returns what the library takes for a text; None stays None."""
    if text is None:
        return None
    data = utf8(text)
    if b"\0" in data:
        raise errors.InvalidArgument("%r has a NUL character" % text)
    return data


def utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise errors.InvalidArgument(
            "%a has characters that UTF-8 does not" % text
        ) from error


def encode_reason(text: str) -> bytes:
    """Returns a text for display; characters that UTF-8 lacks are replaced."""
    return text.replace("\0", " ").encode(errors="replace")


def decode(data: Optional[bytes]) -> str:
    return (data or b"").decode(errors="replace")


def milliseconds(seconds: float) -> int:
    """Returns a timeout of so many seconds in whole milliseconds. Raises
    InvalidArgument if it is negative or NaN."""
    if not seconds >= 0:
        raise errors.InvalidArgument("a timeout of %r seconds" % seconds)
    # Rounded up: a short timeout is not one of 0, which does not wait.
    return math.ceil(min(seconds * 1000, 2**53))


def whole(name: str, value: Any, low: int, high: int) -> int:
    """Returns an integer for the library, which ctypes would cut to its
    size. Raises InvalidArgument, naming the argument."""
    try:
        number = operator.index(value)
    except TypeError:
        raise errors.InvalidArgument(
            "%s is %r, not an integer" % (name, value)
        ) from None
    if low <= number <= high:
        return number
    raise errors.InvalidArgument(
        "%s is %d, not %d to %d" % (name, number, low, high)
    )


def int32(name: str, value: Any) -> int:
    return whole(name, value, -(2**31), 2**31 - 1)


def int64(name: str, value: Any) -> int:
    return whole(name, value, -(2**63), 2**63 - 1)


def uint64(name: str, value: Any) -> int:
    return whole(name, value, 0, 2**64 - 1)
