"""What a rank of an elastic job keeps to take steps again.

As client/elastic/replay.h has it for programs in C++: a copy of the state of the
last step of which all ranks are known to hold the same bits, one of a step that
is being compared, and what is replayed (_replay_plan).
"""

from __future__ import annotations

import dataclasses
import logging
import zlib
from typing import Callable, List, Optional, Sequence

import torch

from ..errors import Error, InvalidArgument
from ..session import Session
from ._copies import checksum
from ._elastic_state import State
from ._replay_plan import CopyFacts, Dispute, ReplayFacts, Version, wrong_in

_log = logging.getLogger(__name__)

# Of elastic.
MODES = ("two_ranks", "always", "never")


class _Kept:
    """A rank's whole state between two steps, in the memory of the CPU."""

    def __init__(
        self, version: Version, state: State, hook: bytes, hook_world: int,
        confirmed: bool,
    ) -> None:
        """Raises what `State.save` does, and torch's errors of memory."""
        self.version = version
        self.confirmed = confirmed
        self.hook, self.hook_world = hook, hook_world
        # Before they are copied: a bit that changes then is found.
        self._bits = checksum(state.parameters())
        self._parameters = _copied(state.parameters())
        self._buffers = _copied(state.buffers())
        self._text, tensors = state.save()
        self._tensors = _copied(tensors)
        self._counter = state.save_counter()
        self._rest = self._checksum()

    def _checksum(self) -> int:
        """Of all but the parameters."""
        seed = 0
        for part in (self._text, self._counter, self.hook):
            seed = zlib.crc32(part, seed)
        return checksum(self._buffers + self._tensors, seed)

    def facts(self) -> CopyFacts:
        """Looks at each bit of the copy."""
        if checksum(self._parameters) != self._bits:
            return CopyFacts()
        if self._checksum() != self._rest:
            return CopyFacts()
        return CopyFacts(1, int(self.confirmed), *self.version, self._bits)

    def restore(self, state: State) -> None:
        # What loads tensors may keep them, and change them in place.
        state.take(
            self.version.step, self._parameters, self._buffers, self._text,
            _copied(self._tensors), self._counter,
        )


def _copied(tensors: Sequence[torch.Tensor]) -> List[torch.Tensor]:
    return [one.detach().to("cpu", copy=True) for one in tensors]


def _facts_of(kept: Optional[_Kept]) -> CopyFacts:
    return CopyFacts() if kept is None else kept.facts()


@dataclasses.dataclass(frozen=True)
class Result:
    """What a replay has found. wrong: ranks; none: it is unknown."""

    step: int
    from_step: int
    wrong: Sequence[int]


class Replay:
    """Lives as long as the rank's standing. For one thread.

    A generation begins with bits that recovery has compared. After that the
    tickets of every so many-th step (checksum_every) are compared, and a
    decision on such a step confirms the state before it.
    """

    def __init__(self, mode: str = "never", max_replays: int = 3) -> None:
        """Raises InvalidArgument for a mode that is none of MODES."""
        if mode not in MODES:
            raise InvalidArgument(
                "replay is %r; there is %s" % (mode, ", ".join(map(repr, MODES)))
            )
        self.max_replays = max_replays
        self._mode = mode
        self._generation = 0
        self._world_size = 0
        self._begun = Version()  # the state that the generation begins with
        self._keep = False
        self._first = False  # its first step has not begun
        self._known: Optional[_Kept] = None
        self._waiting: Optional[_Kept] = None
        self._dispute: Optional[Dispute] = None
        self._rank = 0
        # In a row: since they had come to differ in this step.
        self._replays = 0
        self._disputed_step = 0

    def begin(
        self, generation: int, world_size: int, version: Version
    ) -> List[str]:
        """A generation begins, with a state that its ranks have agreed on.
        Returns why what was being replayed is given up, if it is: the members
        have changed, or another generation has ended before it was found out."""
        self._generation, self._world_size = generation, world_size
        self._begun = version
        self._first = True
        self._keep = (
            world_size > 1 if self._mode == "always"
            else world_size == 2 and self._mode == "two_ranks"
        )
        self._waiting = None
        if not self._keep or not _facts_of(self._known).intact:
            self._known = None
        dispute = self._dispute
        if dispute is None or dispute.generation == generation and self._keep:
            return []
        self._dispute = None
        return [
            "the members have changed, or a generation has ended, before the "
            "ranks were at step %d again, in which they had different bits: it "
            "is not found out which of them was wrong" % dispute.step
        ]

    def before_step(
        self, every: int, state: State, save_hook: Callable[[], bytes]
    ) -> None:
        """Before each step, with the plan's checksum_every: copies the state if
        it is one to go back to. An error of that is logged, and leaves it
        without copies: training goes on."""
        first, self._first = self._first, False
        dispute = self._dispute
        if dispute is not None and dispute.step == state.step:
            if dispute.now is None:
                dispute.now = state.checksums()[:2]
        if not self._keep or every <= 0:
            self._known = self._waiting = None
            return
        if not first and (
            state.step % every != 0
            or self._waiting is not None
            and self._waiting.version.step == state.step
        ):
            return
        version = self._version_at(state.step)
        if self._known is not None and self._known.version == version:
            return
        if first:
            self._known = None
        try:
            kept = _Kept(version, state, save_hook(), self._world_size, first)
        except Exception as error:
            _log.warning(
                "state_not_kept: generation %d, step %d: %s; where ranks hold "
                "different bits without a majority, steps before this one are "
                "not replayed", self._generation, state.step, error,
            )
            self._known = self._waiting = None
            return
        if first:
            self._known = kept
        else:
            self._waiting = kept

    def _version_at(self, step: int) -> Version:
        if step == self._begun.step:
            return self._begun
        return self._begun._replace(trained=self._generation, step=step)

    def after_step(self, step: int) -> Optional[Result]:
        """After each step. Returns what the replay has found, once, when ranks
        that had differed are known to hold the same bits."""
        # What it holds by now has been compared by no recovery.
        if step > self._begun.step:
            self._first = False
        if self._waiting is None or step <= self._waiting.version.step:
            return None
        self._known, self._waiting = self._waiting, None
        self._known.confirmed = True
        if self._known.version.step < self._disputed_step:
            return None
        self._replays = 0
        dispute, self._dispute = self._dispute, None
        if dispute is None:
            return None
        named = dispute.now is not None and dispute.comparable
        return Result(
            dispute.step, dispute.source.step,
            wrong_in(dispute) if named else [],
        )

    def facts(self) -> ReplayFacts:
        """When a generation begins and ranks differ."""
        facts = ReplayFacts(
            _facts_of(self._known), _facts_of(self._waiting), self._replays
        )
        dispute = self._dispute
        if dispute is None:
            return facts
        return facts._replace(
            generation=dispute.generation if dispute.comparable else 0,
            step=dispute.step,
            from_step=dispute.source.step,
            had=dispute.had[self._rank],
        )

    def note_dispute(self, dispute: Dispute, rank: int, generation: int) -> None:
        """In the generation that begins next, by this rank of it."""
        size = len(dispute.had)
        dispute.generation = generation
        # Compared to the last generation that this rank has begun.
        dispute.comparable = (
            len(dispute.ranks) == size == self._world_size
            and dispute.source.step >= self._begun.step
        )
        self._replays = dispute.replays
        self._disputed_step = dispute.step
        self._rank = rank
        self._dispute = dispute

    def find(self, version: Version) -> Optional[_Kept]:
        """Returns the copy of this state; None: there is none that is intact."""
        for kept in (self._known, self._waiting):
            if kept is not None and kept.version == version:
                if kept.facts().intact:
                    return kept
        return None


def log(session: Session, result: Result) -> None:
    """Logs what a replay has found."""
    steps = (
        "all ranks went back from step %d to step %d and took the steps again"
        % (result.step, result.from_step)
    )
    for rank in result.wrong:
        _log.warning(
            "replay_named: generation %s, rank %d%s, step %d: %s, and gave other "
            "bits than this rank had: its memory or its arithmetic was wrong, "
            "once; test the memory and the processor of its host",
            session.generation, rank, _member(session, rank), result.step, steps,
        )
    if not result.wrong:
        _log.warning(
            "replay_named_none: generation %s, step %d: %s, and gave the same "
            "bits on all ranks, but no rank's of the first time: other members "
            "or another plan, or steps that do not give the same bits twice",
            session.generation, result.step, steps,
        )


def _member(session: Session, rank: int) -> str:
    """Returns by what an operator finds the machine."""
    try:
        member = session.member(rank)
    except Error:
        return ""
    return " (%s/%d on %s)" % (member.node, member.slot, member.host)
