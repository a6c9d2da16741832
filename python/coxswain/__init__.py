"""Coxswain for Python: ranks that agree on each step, or an error that names
those that do not.

The package needs nothing but the standard library and libcoxswain_c.so, which
is beside it, or at the path in the variable COXSWAIN_LIBRARY. Importing it
loads neither.
"""

from ._data import Parameter
from .checkpoints import Checkpoint, Checkpoints, Loaded, Saved
from .errors import (
    Code,
    DeadlineExceeded,
    Error,
    Evicted,
    InvalidArgument,
    JobFinished,
    ManifestsDiffer,
    MembersMissing,
    NotFound,
    PeerLost,
    RanksDiffer,
    Unavailable,
)
from .schedule import (
    Decision,
    Plan,
    Schedule,
    canonical_hook,
    hook_from_yaml,
    hooks_json,
)
from .session import Event, EventKind, Member, Session, background
from .store import Store

__all__ = [
    "Checkpoint",
    "Checkpoints",
    "Code",
    "DeadlineExceeded",
    "Decision",
    "Error",
    "Event",
    "EventKind",
    "Evicted",
    "InvalidArgument",
    "JobFinished",
    "Loaded",
    "ManifestsDiffer",
    "Member",
    "MembersMissing",
    "NotFound",
    "Parameter",
    "PeerLost",
    "Plan",
    "RanksDiffer",
    "Saved",
    "Schedule",
    "Session",
    "Store",
    "Unavailable",
    "background",
    "canonical_hook",
    "hook_from_yaml",
    "hooks_json",
]
