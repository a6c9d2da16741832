"""What fails in Coxswain, as exceptions.

Messages say what happened, to whom, and what to do next. What a program may
want to act upon is in the class, in `code`, and in `ranks`.
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

    code: what kind it is.
    ranks: those that it is about, such as the one that was lost; may be empty.
    generation: of the session that it comes from; None before there is one.
    """

    code = Code.UNKNOWN
    ranks: Tuple[int, ...] = ()
    generation: Optional[int] = None


class InvalidArgument(Error, ValueError):
    """An argument makes no sense: the message names it."""

    code = Code.INVALID_ARGUMENT


class DeadlineExceeded(Error, TimeoutError):
    """A timeout has passed: the message says what was waited for."""

    code = Code.DEADLINE_EXCEEDED


class NotFound(Error, LookupError):
    """There is no such key."""

    code = Code.NOT_FOUND


class Unavailable(Error, ConnectionError):
    """The coordinator or a peer cannot be reached."""

    code = Code.UNAVAILABLE


class RanksDiffer(Error):
    """Ranks did different things in a step, or nothing: `ranks` are those."""


class PeerLost(Error):
    """A member of the generation was lost: `ranks` has it."""


class MembersMissing(DeadlineExceeded):
    """Members did not come: `ranks` are those, where they have ranks."""


class ManifestsDiffer(Error):
    """Members asked for different plans, settings or parameters at join."""


class JobFinished(Error):
    """The job has ended in good order while this worker waited to join."""


class Evicted(Error):
    """The coordinator has given this worker up, or its generation is over."""


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
    """Returns the exception for an error of the library."""
    error = (_BY_KIND.get(kind) or _BY_CODE.get(code) or Error)(message)
    error.code = Code(code)
    error.ranks = ranks
    error.generation = generation
    return error
