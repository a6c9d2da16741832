"""The exceptions of Coxswain.

A message states what happened, to whom, and what to do next. Programs decide by
the class, by `code` and by `ranks`.
"""

from __future__ import annotations

import enum
from typing import Dict, Optional, Tuple, Type


class Code(enum.IntEnum):
    """The codes of capi/coxswain.h, which are gRPC's. One that only a library
    that is newer than this package knows is UNKNOWN."""

    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16

    @classmethod
    def _missing_(cls, value: object) -> Optional[Code]:
        return cls.UNKNOWN if isinstance(value, int) else None


class Error(RuntimeError):
    """Any error of Coxswain.

    code: its Code.
    ranks: the ranks that it is about, such as the one that was lost; may be
        empty.
    generation: that of the session that raised it; None before there is one.
    """

    code = Code.UNKNOWN
    ranks: Tuple[int, ...] = ()
    generation: Optional[int] = None


class InvalidArgument(Error, ValueError):
    """An argument is not valid: the message names it."""

    code = Code.INVALID_ARGUMENT


class DeadlineExceeded(Error, TimeoutError):
    """A timeout has passed: the message names what was waited for."""

    code = Code.DEADLINE_EXCEEDED


class NotFound(Error, LookupError):
    """There is no such key."""

    code = Code.NOT_FOUND


class Unavailable(Error, ConnectionError):
    """The coordinator or a peer cannot be reached."""

    code = Code.UNAVAILABLE


class RanksDiffer(Error):
    """Ranks did different things in a step, or nothing: `ranks` names them."""


class PeerLost(Error):
    """A member of the generation was lost: `ranks` names it."""


class MembersMissing(DeadlineExceeded):
    """Members did not come in time: `ranks` names those that have ranks."""


class ManifestsDiffer(Error):
    """Members asked for different plans, settings or parameters at join."""


class JobFinished(Error):
    """The job has ended cleanly while this worker waited to join."""


class Evicted(Error):
    """The coordinator has evicted this worker, or its generation has ended."""


_BY_KIND: Dict[int, Type[Error]] = {
    1: RanksDiffer,
    2: PeerLost,
    3: MembersMissing,
    4: ManifestsDiffer,
    5: JobFinished,
    6: Evicted,
}
_BY_CODE: Dict[int, Type[Error]] = {
    one.code: one
    for one in (InvalidArgument, DeadlineExceeded, NotFound, Unavailable)
}


def make(
    code: int,
    kind: int,
    message: str,
    ranks: Tuple[int, ...] = (),
    generation: Optional[int] = None,
) -> Error:
    """Returns the exception for an error of the library; `kind` is a
    cx_error_kind."""
    error = (_BY_KIND.get(kind) or _BY_CODE.get(code) or Error)(message)
    error.code = Code(code)
    error.ranks = ranks
    error.generation = generation
    return error


def refused(reason: str) -> Error:
    """Returns an error with the code FAILED_PRECONDITION."""
    return make(Code.FAILED_PRECONDITION, 0, reason)


def data_loss(reason: str) -> Error:
    """Returns an error with the code DATA_LOSS."""
    return make(Code.DATA_LOSS, 0, reason)
