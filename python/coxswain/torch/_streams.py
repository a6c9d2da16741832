"""The streams of the models of this process, in the order of follow()."""

from __future__ import annotations

import array
import gc
import weakref
from typing import Any, Dict, List, Mapping

from ..errors import InvalidArgument
from ..schedule import Schedule
from ..session import Session

# Streams of one process; models beyond that share them, or take those of models
# that are gone, in the same way on all ranks. The coordinator's limit is 64.
_MAX_STREAMS = 48
# The same list in all sessions of the process.
schedules: List[Schedule] = []
_followed = 0
# By stream: a weak reference to the last model, and its number.
_users: Dict[str, Any] = {}
# Where streams go on from that were resumed; others from 0.
_positions: Dict[str, int] = {}


def next_schedule(session: Session, shares: bool) -> Schedule:
    """Returns the next model's stream, which take_stream takes; shares: another
    model may train on it. Raises InvalidArgument if one does and it must
    not."""
    global _followed
    if not schedules or schedules[0]._session is not session:
        schedules[:] = [session.schedule]
        _followed = 0
        _positions.clear()
        _users.clear()
    if _followed < _MAX_STREAMS or shares:
        place = _followed % _MAX_STREAMS
    else:
        place = _unused_place(session)
    if place == len(schedules):
        schedule = Schedule(session, "train.%d" % (place + 1))
        schedule.step = _positions.get(schedule.stream, 0)
        schedules.append(schedule)
    return schedules[place]


def _unused_place(session: Session) -> int:
    """Returns which stream's model is gone on all ranks, the one that is the
    oldest. All of them call it."""
    gc.collect()  # Models refer to themselves.
    users = [_users.get(one.stream) for one in schedules[:_MAX_STREAMS]]
    exist = array.array("b", [bool(one and one[0]()) for one in users])
    session.all_reduce(exist, "max")
    free = [place for place, one in enumerate(exist) if not one]
    if not free:
        raise InvalidArgument(
            'exchange="coxswain" is for %d models of a process at a time, each '
            "with a hook of its own, and this is number %d: give the run of "
            "one that does not train any more as `continues`, or leave "
            "`exchange` out" % (_MAX_STREAMS, _followed + 1)
        )
    return min(free, key=lambda place: users[place][1] if users[place] else -1)


def take_stream(schedule: Schedule, model: Any, new: bool) -> None:
    """Notes the model that trains on a stream; new: on one of next_schedule."""
    global _followed
    _followed += new
    _users[schedule.stream] = weakref.ref(model), _followed


def go_on_at(positions: Mapping[str, int]) -> None:
    """Has streams go on after so many steps each, and others at 0."""
    _positions.update(positions)
    for schedule in schedules:
        schedule.step = positions.get(schedule.stream, 0)
