"""What the ranks of an elastic job do where they hold different bits of the same
step, and no majority the same.

As client/elastic/replay_plan.h has it for programs in C++: all go back to the
last step of which they are known to have held the same, and take the steps since
then again. The rank whose bits are others then than they were was the one that
was wrong. Here is what follows from what each rank has; _replay keeps it.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Dict, List, NamedTuple, Optional, Sequence
from typing import Tuple

from ..errors import Error, data_loss

if TYPE_CHECKING:
    from ._recovery import _Facts

# Of a rank's state: hashes of the parameters, and of the optimizers' tensors.
Bits = Tuple[int, int]


class Version(NamedTuple):
    """Which state of the job: all ranks are to hold the same bits of it."""

    lineage: int = 0
    trained: int = 0
    step: int = 0

    def order(self) -> Tuple[int, int]:
        return self.trained, self.step


class CopyFacts(NamedTuple):
    """What a rank reports of a copy that it has kept of its state.

    intact: 1: there is one, and no bit of it has changed.
    confirmed: 1: all ranks are known to have held the same.
    parameters: the hash of them.
    """

    intact: int = 0
    confirmed: int = 0
    lineage: int = 0
    trained: int = 0
    step: int = 0
    parameters: int = 0

    def version(self) -> Version:
        return Version(self.lineage, self.trained, self.step)


class ReplayFacts(NamedTuple):
    """What a rank reports once the ranks have found that they differ.

    known, waiting: the copy that was confirmed last, and that of the step which
        was compared when the generation ended.
    replays: in a row.
    generation: in which the steps were taken again by the same members; 0: no
        such. step, from_step: up to the one that the ranks had differed in, and
        from which. had: this rank's bits of the former, at the first time.
    """

    known: CopyFacts = CopyFacts()
    waiting: CopyFacts = CopyFacts()
    replays: int = 0
    generation: int = 0
    step: int = 0
    from_step: int = 0
    had: Bits = (0, 0)

    def numbers(self) -> List[int]:
        """Returns what travels."""
        return [*self.known, *self.waiting, *self[2:6], *self.had]

    @staticmethod
    def of_numbers(given: Sequence[int]) -> ReplayFacts:
        copies = [CopyFacts(*given[i : i + _COPY]) for i in (0, _COPY)]
        return ReplayFacts(
            *copies, *given[2 * _COPY : -2], had=(given[-2], given[-1])
        )


_COPY = len(CopyFacts._fields)
COUNT = len(ReplayFacts().numbers())


@dataclasses.dataclass
class Dispute:
    """What ranks differ in, to be found out by a replay.

    ranks: those in this step. had: the bits of all, by rank.
    source: the state that all go back to.
    replays: in a row, with this one. generation: that it is replayed in.
    comparable: the members are those of the steps that are replayed: equal
        steps are to give equal bits.
    now: this rank's bits of the same step, once it is reached again.
    """

    step: int
    ranks: Sequence[int]
    had: Sequence[Bits]
    source: Version
    replays: int
    generation: int = 0
    comparable: bool = False
    now: Optional[Bits] = None


@dataclasses.dataclass(frozen=True)
class Plan:
    """goes_back: which ranks do, to their own copies. drops: those that have a
    state, and no copy of the other one, so they take over that of a rank that
    has. warning: for display."""

    dispute: Dispute
    goes_back: Sequence[int]
    drops: Sequence[int]
    warning: str


def plan_replay(
    facts: Sequence[_Facts],
    disputed: Sequence[int],
    replays: Sequence[ReplayFacts],
    max_replays: int,
    otherwise: Error,
) -> Plan:
    """Returns the plan, the same on all ranks: all go back to the newest state
    of which all copies, of those that are intact, have the same bits.

    Raises `otherwise` where no rank has such a copy; Error with the code
    DATA_LOSS where the same state has been replayed already, which has for each
    rank whether it had its former bits again, and where `max_replays` in a row
    have come to no agreement.
    """
    if _was_replayed(facts, disputed, replays):
        raise _repeated(facts, disputed, replays)
    state = facts[disputed[0]]
    had = [one.bits() for one in facts]
    copies = _newest(facts, disputed, replays, _parameters_differ(disputed, had))
    if copies is None:
        raise otherwise
    count = max(one.replays for one in replays) + 1
    to = copies.version
    if count > max_replays:
        raise _lost(
            disputed,
            "%s hold different bits after the same step %d, once more after %d "
            "replays in a row; look at the memory and the processors of these "
            "ranks, and start the job again from a checkpoint of step %d or "
            "before" % (named(disputed), state.step, max_replays, to.step),
        )
    # One that cannot go back is not to come with the disputed state again,
    # should it be left alone while it copies another one's.
    drops = [
        i for i, one in enumerate(facts)
        if i not in copies.ranks and one.has_state and one.lineage == to.lineage
    ]
    return Plan(
        Dispute(state.step, disputed, had, to, count),
        copies.ranks,
        drops,
        "%s had different bits after the same step %d, and no majority the "
        "same: all go back to step %d, of which they had the same bits, and "
        "take the steps since then again; the rank whose bits are others then "
        "was wrong" % (named(disputed), state.step, to.step),
    )


def wrong_in(dispute: Dispute) -> List[int]:
    """Returns the ranks that held other bits than all do now that the same step
    is reached again; none, where all held others: the steps do not give the same
    bits twice."""
    assert dispute.now is not None
    of = _compared(dispute.ranks, dispute.had)
    now = dispute.now[of]
    wrong = [i for i in dispute.ranks if dispute.had[i][of] != now]
    return [] if len(wrong) == len(dispute.ranks) else wrong


def named(ranks: Sequence[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(
        map(str, ranks)
    )


def _parameters_differ(ranks: Sequence[int], had: Sequence[Bits]) -> bool:
    return len({had[i][0] for i in ranks}) > 1


def _compared(ranks: Sequence[int], had: Sequence[Bits]) -> int:
    """Returns which of their bits distinguish the ranks."""
    return 0 if _parameters_differ(ranks, had) else 1


def _was_replayed(
    facts: Sequence[_Facts],
    disputed: Sequence[int],
    replays: Sequence[ReplayFacts],
) -> bool:
    """Returns whether these ranks had come to this state in a replay of it."""
    return all(
        replays[i].generation != 0
        and replays[i].generation == facts[i].recovered
        and replays[i].step == facts[i].step
        for i in disputed
    )


def _repeated(
    facts: Sequence[_Facts],
    disputed: Sequence[int],
    replays: Sequence[ReplayFacts],
) -> Error:
    of = _compared(disputed, [one.had for one in replays])
    same = [i for i in disputed if replays[i].had[of] == facts[i].bits()[of]]
    changed = [i for i in disputed if i not in same]
    if not changed:
        why = (
            "each had the bits again that it had had, so this is no transient "
            "fault; look for a program that depends on the rank, for kernels "
            "that depend on the processor (set ATEN_CPU_CAPABILITY to the same "
            "value on all hosts), and for a processor that computes wrongly"
        )
    elif not same:
        why = (
            "none had the bits again that it had had, so the steps do not give "
            "the same bits twice; look for random numbers that do not come from "
            "the counters, and for kernels that add in any order"
        )
    else:
        why = (
            "%s had the same bits again, and %s others; look at the memory and "
            "the processor of the latter" % (named(same), named(changed))
        )
    first = disputed[0]
    from_step = replays[first].from_step
    return _lost(
        disputed,
        "%s hold different bits after the same step %d, and did before the "
        "steps from %d on were replayed: %s, and start the job again from a "
        "checkpoint of step %d or before"
        % (named(disputed), facts[first].step, from_step, why, from_step),
    )


def _lost(ranks: Sequence[int], what: str) -> Error:
    error = data_loss(what)
    error.ranks = tuple(ranks)
    return error


@dataclasses.dataclass
class _Copies:
    """Of one version. same: their bits are."""

    version: Version
    parameters: int
    ranks: List[int] = dataclasses.field(default_factory=list)
    confirmed: bool = False
    same: bool = True


def _newest(
    facts: Sequence[_Facts],
    disputed: Sequence[int],
    replays: Sequence[ReplayFacts],
    parameters_differ: bool,
) -> Optional[_Copies]:
    """Returns those that can be gone back to."""
    state = facts[disputed[0]]
    found: Dict[Version, _Copies] = {}
    for rank, replay in enumerate(replays):
        for copy in (replay.known, replay.waiting):
            version = copy.version()
            if not copy.intact or version.lineage != state.lineage:
                continue
            copies = found.setdefault(version, _Copies(version, copy.parameters))
            copies.ranks.append(rank)
            copies.confirmed |= bool(copy.confirmed)
            copies.same &= copy.parameters == copies.parameters
    usable = [
        one for one in found.values()
        if one.same
        and one.version.order() <= (state.trained, state.step)
        # One that waits was confirmed for no rank, so all are to have it; and
        # what is compared of it are the parameters.
        and (
            one.confirmed
            or parameters_differ and set(disputed) <= set(one.ranks)
        )
    ]
    return max(usable, key=lambda one: one.version.order(), default=None)
