"""The checkpoints of a model that is followed, and the way back from them."""

from __future__ import annotations

import logging
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

import torch

from ..checkpoints import Checkpoint, Loaded, Saved
from ..errors import DeadlineExceeded, Error, InvalidArgument, NotFound
from ..errors import data_loss, refused
from ..schedule import Decision, Schedule
from ..session import Session
from . import _record, _state
from ._sigterm import Sigterm

_log = logging.getLogger("coxswain")

# As programs in C++ name them.
_NAMES = {"model": ".model", "optimizer": ".optimizer"}
_RECORD = "elastic"
_POSITION = "position/"
_NEWEST = "newest"
_SIGTERM = "SIGTERM"
# How long the end of a training waits for a save; `coxswain run` kills what has
# not ended 10 s after SIGTERM.
_FINISH_S = 60
_FINISH_AFTER_SIGTERM_S = 8


class Kept:
    """What the checkpoints of a run are made of. For Run.

    record: what the training counts.
    resumed: the checkpoint that it goes on from; None: from none.
    """

    def __init__(
        self,
        session: Session,
        schedules: List[Schedule],
        objects: Mapping[str, Any],
        own: Sequence[str],
        sigterm: bool,
        exchanges: bool,
        own_errors: bool,
    ) -> None:
        """exchanges: Coxswain does, by hooks that the checkpoints have the
        state of."""
        self.record = _record.Record()
        self.resumed: Optional[Checkpoint] = None
        self._session = session
        self._schedules = schedules
        self._objects = objects
        self._own = set(own)
        self._check_objects()
        self._exchanges = exchanges
        # Those that torch exchanges by have none here.
        self._own_errors = exchanges and own_errors
        self._due = ""
        self._ends = False
        self._signal = Sigterm() if sigterm else None

    # ---- in a training ----

    def before_ticket(self) -> None:
        """Asks all ranks for what SIGTERM asks for, both with one ticket, so
        that one decision has both."""
        if self._signal is not None and self._signal.take():
            self._session.request_checkpoint(_SIGTERM)
            self._session.request_stop(_SIGTERM)

    def decided(self, decision: Decision, ends: bool) -> None:
        """Notes a decision; `ends`: the window has ended with it."""
        self.record.progress += 1
        # A step that is skipped asks for nothing, and may be the last.
        last = "" if decision.commit else decision.stop
        self._due = decision.checkpoint or self._due or last
        self._ends = ends

    def save_if_due(self) -> bool:
        """Copies the state if the last window's decision asks for it. Returns
        whether it did. Raises InvalidArgument if a state has something that
        cannot be saved; an error of the save itself is logged, and does not end
        training."""
        if not self._due or not self._ends:
            return False
        reason, self._due = self._due, ""
        try:
            self._save(reason)
        except InvalidArgument:
            raise
        except Exception as error:
            _log.error(
                "the state of step %d is not saved: %s: %s",
                self._schedules[0].step,
                type(error).__name__,
                error,
            )
        return True

    def finish(self, timeout: Optional[float] = None) -> Saved:
        """Saves what is due, and waits for the save in progress."""
        if timeout is None:
            told = self._signal is not None and self._signal.came
            timeout = _FINISH_AFTER_SIGTERM_S if told else _FINISH_S
        self.save_if_due()
        try:
            saved = self._session.checkpoints.wait(timeout)
        except DeadlineExceeded as error:
            _log.warning("left before the checkpoint was saved: %s", error)
            saved = self._session.checkpoints.saved()
        if self._signal is not None:
            self._signal.restore()
        return saved

    def _save(self, reason: str) -> None:
        record = self.record
        record.position = {one.stream: one.step for one in self._schedules}
        pieces: Dict[str, Any] = {}
        own: Dict[str, Any] = {}
        for name, thing in self._objects.items():
            if name in self._own:
                own[_blob(name)] = _parts(name, thing)
            elif self._session.rank == 0:
                pieces[_blob(name)] = _parts(name, thing)
        pieces[_RECORD] = _record.save(record)
        self._session.checkpoints.save(
            self._schedules[0].step,
            pieces,
            own,
            reason=reason,
            own_errors=self._own_errors,
            metadata={
                _POSITION + stream: str(step)
                for stream, step in record.position.items()
            },
        )

    # ---- before one ----

    def resume(
        self, which: str, objects: Optional[Sequence[str]]
    ) -> Dict[str, int]:
        """Loads a checkpoint. Returns the positions of its streams."""
        try:
            loaded = self._session.checkpoints.load(which)
        except NotFound:
            if which != _NEWEST:
                raise
            return {}
        with loaded:
            self._apply(loaded, objects)
        self.resumed = loaded.checkpoint
        return self.record.position

    def _apply(
        self, loaded: Loaded, objects: Optional[Sequence[str]]
    ) -> None:
        found, hook = loaded.checkpoint, self._schedules[0].plan.hook
        if objects is None and found.hook != hook and not self._exchanges:
            raise refused(
                "checkpoint %r was saved with the hook %s, and the plan's is "
                "%s here: name what to go on with, as by "
                'resume(objects=["model"])' % (found.id, found.hook, hook)
            )
        wanted = list(self._objects if objects is None else objects)
        unknown = [name for name in wanted if name not in self._objects]
        if unknown:
            raise InvalidArgument(
                "objects has %r, and the checkpoints of this program have %s"
                % (unknown[0], ", ".join(self._objects))
            )
        record = self._record_of(loaded)
        # All of them are checked first, so that an error changes nothing.
        loads = [self._load_of(loaded, name) for name in wanted]
        if objects is None and self._exchanges:
            wanted.insert(0, "the hook")
            loads.insert(0, lambda: _load_hooks(loaded))
        for i, load in enumerate(loads):
            try:
                load()
            except Error:
                raise
            except Exception as error:
                raise refused(
                    "checkpoint %r: %r cannot load its state: %s: %s; these "
                    "have changed: %s"
                    % (
                        found.id,
                        wanted[i],
                        type(error).__name__,
                        error,
                        ", ".join(wanted[:i]) or "none",
                    )
                ) from error
        here = self.record.counters  # to which the program may refer
        here.clear()
        here.update(record.counters)
        record.counters = here
        self.record = record

    def _record_of(self, loaded: Loaded) -> _record.Record:
        data = loaded.pieces.get(_RECORD)
        record = _record.Record() if data is None else _record.load(data)
        record.position = {}
        for name, value in loaded.checkpoint.metadata.items():
            if not name.startswith(_POSITION):
                continue
            if not (value.isascii() and value.isdigit()):
                raise data_loss(
                    "checkpoint %r has %r as its %s"
                    % (loaded.checkpoint.id, value, name)
                )
            record.position[name[len(_POSITION) :]] = int(value)
        return record

    def _load_of(self, loaded: Loaded, name: str) -> Callable[[], None]:
        found, thing, blob = loaded.checkpoint, self._objects[name], _blob(name)
        size = self._session.world_size
        ranks = sorted(rank for one, rank in loaded.own if one == blob)
        every = [loaded.own[blob, rank] for rank in ranks]
        several = False
        if name not in self._own and blob in loaded.pieces:
            every = [loaded.pieces[blob]]
        elif found.world_size == size and self._session.rank in ranks:
            # It need not have those of the others.
            every = [loaded.own[blob, self._session.rank]]
        elif not every or ranks != list(range(found.world_size)):
            raise refused(
                "checkpoint %r has no %r: name what to go on with, as by "
                'resume(objects=["model"])' % (found.id, name)
            )
        elif not hasattr(thing, "load_state_dicts"):
            raise refused(
                "%r was saved by each of %d ranks, and there are %d now: give "
                "it a method load_state_dicts(states), which is called with "
                "those of all ranks" % (name, len(every), size)
            )
        else:
            several = True
        try:
            return _loading(name, thing, every, several)
        except Error as error:
            error.args = (
                "checkpoint %r, %r: %s" % (found.id, name, error),
            )
            raise

    def _check_objects(self) -> None:
        for name, thing in self._objects.items():
            if not name or name[0] == "." or name == _RECORD or "/" in name:
                raise InvalidArgument("%r cannot be the name of a state" % name)
            if isinstance(thing, torch.Tensor) or hasattr(
                thing, "load_state_dict"
            ):
                _parts(name, thing)  # Raises what a save would.
                continue
            raise InvalidArgument(
                "%r is a %s, and neither a tensor nor an object with "
                "state_dict and load_state_dict"
                % (name, _state.class_of(thing))
            )
        unknown = sorted(self._own - set(self._objects))
        if unknown:
            raise InvalidArgument(
                "checkpoint_own has %r, which is not in checkpoint" % unknown[0]
            )


def _load_hooks(loaded: Loaded) -> None:
    try:
        loaded.load_hooks()
    except Error as error:
        error.args = (
            "checkpoint %r: %s; name what to go on with, as by "
            'resume(objects=["model"])' % (loaded.checkpoint.id, error),
        )
        raise


def _blob(name: str) -> str:
    return _NAMES.get(name, name)


def _parts(name: str, thing: Any) -> List[Any]:
    from ._follow import Run  # which imports this module

    if isinstance(thing, Run):
        # All ranks call its state_dict, and here rank 0 alone would.
        raise InvalidArgument(
            "%r is a coxswain.torch.Run, and a checkpoint has its steps anyway: "
            "leave it out, and name the model and the optimizer" % name
        )
    if isinstance(thing, torch.nn.Module):
        return _state.save_module(thing)
    if isinstance(thing, torch.Tensor):
        return _state.save_tensor(name, thing)
    return _state.save_state(_kind(thing), thing.state_dict())


def _loading(
    name: str, thing: Any, every: List[memoryview], several: bool
) -> Callable[[], None]:
    """Returns a function that loads what was saved into an object."""
    if not several and isinstance(thing, torch.nn.Module):
        return _state.check_module(every[0], thing)
    if not several and isinstance(thing, torch.Tensor):
        return _state.check_tensor(every[0], name, thing)
    states = [_state.load_state(data, _kind(thing), name) for data in every]
    if several:
        return lambda: thing.load_state_dicts(states)
    if isinstance(thing, torch.optim.Optimizer):
        _state.check_groups(states[0], thing.param_groups)
    return lambda: thing.load_state_dict(states[0])


def _kind(thing: Any) -> str:
    if type(thing).__module__.startswith("accelerate."):
        # What it has wrapped.
        thing = getattr(thing, "optimizer", getattr(thing, "scheduler", thing))
    return _state.class_of(thing)
