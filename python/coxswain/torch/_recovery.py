"""How the ranks of a new generation come to the same state.

As client/elastic/rank_facts.h has it for programs in C++: the lowest rank of
those with the newest step is the source; those that are behind, and newcomers,
copy what it has.
"""

from __future__ import annotations

import array
import contextlib
import dataclasses
import logging
import random
from typing import Callable, Dict, Iterable, Iterator, List, Optional
from typing import Sequence, Tuple

import torch

from ..errors import Code, Error, data_loss
from ..session import Session
from ._bytes import Reader, number
from ._copies import broadcast_bytes, broadcast_tensors
from ._hooks import HookExchange
from ._elastic_state import State, tensors_of
from ._replay import Replay
from ._replay_plan import COUNT, ReplayFacts, Version, named, plan_replay

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class CaughtUp:
    """What a newcomer has taken of the members' state while it waited. It
    counts for nothing but for what it has to copy itself.

    lineage, trained, step: of that state, as in Standing and State.
    undo: goes back to what this worker had before. forget: gives that up.
    """

    lineage: int
    trained: int
    step: int
    undo: Callable[[], None]
    forget: Callable[[], None]


@dataclasses.dataclass
class Standing:
    """What a rank has from earlier generations.

    lineage: a random number, made where training begins and copied with the
        state: states of different lineages have nothing in common. 0: there is
        no state yet.
    recovered: the last generation that this rank began to train in; 0: none.
    trained: the one in which the state's last step was taken.
    hook, hook_world: what its hook of Coxswain's remembers, and the number of
        ranks that its errors are scaled for; 0: there is none.
    caught_up: what it has in place of a state of its own; None: nothing.
    damage: which pieces of that have arrived damaged, each in a sentence.
    behind, took_part: as the generation began, this rank has copied the state
        of another one; it has taken all steps that the ranks go on from.
    replay: what it keeps to take steps again.
    """

    lineage: int = 0
    recovered: int = 0
    trained: int = 0
    hook: bytes = b""
    hook_world: int = 0
    caught_up: Optional[CaughtUp] = None
    damage: Tuple[str, ...] = ()
    behind: bool = False
    took_part: bool = False
    replay: Replay = dataclasses.field(default_factory=Replay)

    def recover_hook(self, exchange: HookExchange) -> float:
        """Has a generation's hook go on with what is kept. All ranks call it.
        Returns what the errors of this rank were multiplied by."""
        return exchange.recover(
            self.hook, self.hook_world, self.behind, self.took_part
        )

    def keep_hook(
        self, exchange: HookExchange, world_size: int, undo_last: bool
    ) -> None:
        """Keeps what the hook remembers at the end of its generation."""
        try:
            self.hook = exchange.release(undo_last)
            self.hook_world = world_size
        except Error as error:
            self.hook, self.hook_world = b"", 0
            _log.warning("what the hook of this rank remembers is lost: %s", error)


@dataclasses.dataclass(frozen=True)
class Recovery:
    """How a generation began.

    began: no rank had a state of a generation before: training begins.
    source: the rank whose state others have copied; None: all had the same.
    copied: this rank has.
    warnings: training that is lost, each in a sentence; the same on all ranks,
        but for what a newcomer has found damaged.
    caught_up: this rank had taken parameters and optimizer while it waited.
    """

    generation: int
    rank: int
    world_size: int
    step: int
    began: bool
    source: Optional[int]
    copied: bool
    warnings: Tuple[str, ...]
    caught_up: bool = False


@dataclasses.dataclass(frozen=True)
class _Facts:
    """What a rank reports of its state: the numbers that travel."""

    has_state: int
    lineage: int
    recovered: int
    trained: int
    step: int
    layout: int
    parameters: int  # hashes of their bits, ...
    rest: int  # ... of the optimizers' tensors ...
    loose: int  # ... and of what may differ after the same step
    # Of CaughtUp; the step is 0 where there is none. The hashes are of that.
    caught_lineage: int = 0
    caught_trained: int = 0
    caught_step: int = 0

    def has_same_step(self, other: _Facts) -> bool:
        return self._taken() == other._taken()

    def has_caught_up_with(self, other: _Facts) -> bool:
        """Returns whether it has taken all of this state while it waited."""
        if not self.caught_step or not other.has_state:
            return False
        taken = self.caught_lineage, self.caught_trained, self.caught_step
        return taken == (other.lineage, other.trained, other.step) and (
            self.bits() == other.bits()
        )

    def bits(self) -> Tuple[int, int]:
        return self.parameters, self.rest

    def _taken(self) -> Tuple[int, ...]:
        return self.has_state, self.lineage, self.trained, self.step


_COUNT = len(dataclasses.fields(_Facts))


def recover(session: Session, state: State, standing: Standing) -> Recovery:
    """Brings all ranks to the state of the last step that any of them has
    taken, and checks that they hold the same bits then. Called by all ranks.

    Of three or more in step, one with other bits than most of them takes their
    state over, which is a warning. Where no majority has the same, all go back
    to a step of which they had, if they have kept copies of it (plan_replay).
    A rank takes over what it lacks once all of it has come: if a member is lost
    before, it still has what it had.

    Raises Error with the code FAILED_PRECONDITION, naming ranks whose model has
    other tensors, on these, and with ABORTED on the others; with DATA_LOSS if
    ranks hold different bits of the same step without a majority, or no rank
    has a whole state though there was one, and on a rank that cannot take the
    copy over; that of plan_replay; and the session's errors, such as PeerLost.
    """
    facts, source, damaged = _compare(session, state, standing)
    differ = _differ(facts, source, _in_step(facts, source, damaged))
    replayed: List[str] = []
    if differ is not None:
        replayed.append(_go_back(session, state, standing, facts, source, differ))
        facts, source, damaged = _compare(session, state, standing)
    newest = facts[source]
    # States that belong to no generation yet may be anything.
    in_step = _in_step(facts, source, damaged)
    same = [
        one.has_caught_up_with(newest) or i in in_step
        for i, one in enumerate(facts)
    ]
    with _after_all(session):
        _check_bits(facts, source, in_step)
    behind = [i for i, one in enumerate(same) if not one and i != source]
    copies = session.rank in behind
    if copies or not newest.has_state:
        _give_up(standing)
    if session.rank in damaged:
        # Where fewer are left, it would contradict them without a majority.
        state.whole = False
    if behind:
        _copy(session, state, source, newest.step, copies)
    # From here on it holds what all hold, whatever becomes of the rest.
    state.whole = True
    standing.behind = copies
    standing.took_part = (
        standing.lineage == newest.lineage
        and standing.recovered >= newest.trained
    )
    if standing.caught_up is None:
        _note_state(standing, newest)
    if behind:
        now = _exchange(session, _facts_of(state, standing))
        with _after_all(session):
            _check_bits(now, source, range(len(now)))
    loose = [
        i for i, one in enumerate(facts)
        if same[i] and one.loose != newest.loose
    ]
    _copy_loose(session, state, source, loose)
    caught_up = standing.caught_up is not None
    if standing.caught_up is not None:
        # Before this it has no counters of that state.
        state.keep(newest.step)
        _note_state(standing, newest)
        standing.caught_up.forget()
        standing.caught_up = None
    damage, standing.damage = standing.damage, ()
    standing.recovered = session.generation or 0
    version = Version(standing.lineage, standing.trained, state.step)
    replayed += standing.replay.begin(
        standing.recovered, session.world_size, version
    )
    return Recovery(
        generation=session.generation or 0,
        rank=session.rank,
        world_size=session.world_size,
        step=state.step,
        began=not newest.has_state,
        source=source if behind else None,
        copied=copies,
        warnings=(*replayed, *_warnings(facts, source, loose, damaged), *damage),
        caught_up=caught_up,
    )


def _compare(
    session: Session, state: State, standing: Standing
) -> Tuple[List[_Facts], int, Sequence[int]]:
    """Returns what the ranks have, whose state all go on with, and those in its
    step whose bits most others contradict."""
    facts = _exchange(session, _facts_of(state, standing))
    source, damaged = _majority(facts, _source(facts))
    with _after_all(session):
        _check_layouts(facts, source, session.rank)
        _check_not_lost(facts, source)
    return facts, source, damaged


@contextlib.contextmanager
def _after_all(session: Session) -> Iterator[None]:
    """Raises the block's error, which all ranks find in the same facts, once all
    have found it: the first one that ends its generation ends it for those, too,
    that still receive the facts, and they would wait for it in the next one."""
    try:
        yield
    except Error:
        with contextlib.suppress(Exception):
            session.all_gather(
                array.array("q", [0]),
                array.array("q", [0]) * session.world_size,
            )
        raise


def _in_step(
    facts: Sequence[_Facts], source: int, damaged: Sequence[int] = ()
) -> List[int]:
    """Returns the ranks that have the source's state, and are not damaged."""
    newest = facts[source]
    return [
        i for i, one in enumerate(facts)
        if newest.has_state and one.has_same_step(newest) and i not in damaged
    ]


def _go_back(
    session: Session,
    state: State,
    standing: Standing,
    facts: Sequence[_Facts],
    source: int,
    otherwise: Error,
) -> str:
    """Where ranks hold different bits without a majority: takes this one back to
    a step in which all held the same. Returns a warning. Raises `otherwise` if
    they cannot."""
    replay = standing.replay
    own = array.array("q", replay.facts().numbers())
    numbers = array.array("q", [0]) * (COUNT * session.world_size)
    session.all_gather(own, numbers)
    with _after_all(session):
        plan = plan_replay(
            facts,
            _in_step(facts, source),
            [
                ReplayFacts.of_numbers(numbers[i:i + COUNT])
                for i in range(0, len(numbers), COUNT)
            ],
            replay.max_replays,
            otherwise,
        )
    generation = session.generation or 0
    replay.note_dispute(plan.dispute, session.rank, generation)
    goes_back = session.rank in plan.goes_back
    kept = replay.find(plan.dispute.source) if goes_back else None
    if kept is not None:
        with _taking(session.rank):
            kept.restore(state)
        standing.lineage = kept.version.lineage
        # So it counts for more than the state that it has gone back from, should
        # a rank still come with that.
        standing.trained = standing.recovered = generation
        standing.hook, standing.hook_world = kept.hook, kept.hook_world
    elif goes_back or session.rank in plan.drops:
        # It takes over that of another rank. Its errors are those of a later
        # step.
        state.whole = False
        standing.hook, standing.hook_world = b"", 0
    return plan.warning


def _note_state(standing: Standing, newest: _Facts) -> None:
    standing.lineage = newest.lineage
    standing.trained = newest.trained


def _give_up(standing: Standing) -> None:
    """What this rank has taken while it waited is not what the others have, or
    all that is left of it: what it had before is what training may begin with,
    or what it may have to go back to."""
    caught_up, standing.caught_up = standing.caught_up, None
    if caught_up is not None:
        _log.warning(
            "what this worker has taken, of step %d, is not what the members "
            "have: they ended earlier, or compute other bits; it copies their "
            "state",
            caught_up.step,
        )
        caught_up.undo()


def _facts_of(state: State, standing: Standing) -> _Facts:
    parameters, rest, loose = state.checksums()
    return _Facts(
        has_state=int(standing.lineage != 0 and state.whole),
        lineage=standing.lineage or random.SystemRandom().getrandbits(62) + 1,
        recovered=standing.recovered,
        trained=standing.trained,
        step=state.step,
        layout=state.layout(),
        parameters=parameters,
        rest=rest,
        loose=loose,
        **_caught(standing.caught_up),
    )


def _caught(caught_up: Optional[CaughtUp]) -> Dict[str, int]:
    if caught_up is None:
        return {}
    return {
        "caught_lineage": caught_up.lineage,
        "caught_trained": caught_up.trained,
        "caught_step": caught_up.step,
    }


def _exchange(session: Session, own: _Facts) -> List[_Facts]:
    numbers = array.array("q", dataclasses.astuple(own))
    everything = array.array("q", [0]) * (_COUNT * session.world_size)
    session.all_gather(numbers, everything)
    return [
        _Facts(*everything[i:i + _COUNT])
        for i in range(0, len(everything), _COUNT)
    ]


def _source(facts: Sequence[_Facts]) -> int:
    """Returns the lowest rank of those whose state all go on with.

    In a lineage a rank that returns after others have trained without it does
    not count, whatever its step. Of lineages the one with more steps counts,
    whenever it was trained.
    """
    firsts: Dict[int, int] = {}
    for i, one in enumerate(facts):
        # Ranks without a state are lineages of their own.
        key = one.lineage if one.has_state else -1 - i
        first = facts[firsts.setdefault(key, i)]
        if (one.trained, one.step) > (first.trained, first.step):
            firsts[key] = i
    return max(
        firsts.values(),
        key=lambda i: (
            facts[i].has_state, facts[i].step, facts[i].trained, -i
        ),
    )


def _majority(
    facts: Sequence[_Facts], source: int
) -> Tuple[int, Sequence[int]]:
    """Returns whose state all go on with, and which ranks in its step have
    other bits than most of them: none where there is no majority."""
    in_step = _in_step(facts, source)
    for candidate in in_step:
        others = [
            i for i in in_step if facts[i].bits() != facts[candidate].bits()
        ]
        if 2 * len(others) < len(in_step):
            return candidate, others
    return source, ()


def _check_layouts(
    facts: Sequence[_Facts], source: int, rank: int
) -> None:
    others = [
        i for i, one in enumerate(facts) if one.layout != facts[source].layout
    ]
    if not others:
        return
    error = Error(
        "the model of %s has other tensors than that of rank %d, whose state "
        "all ranks continue from: start all workers with the same model"
        % (named(others), source)
    )
    # With nothing trained yet it is unknown whose model is meant.
    at_fault = rank in others or not facts[source].has_state
    error.code = Code.FAILED_PRECONDITION if at_fault else Code.ABORTED
    error.ranks = tuple(others)
    raise error


def _check_not_lost(facts: Sequence[_Facts], source: int) -> None:
    if facts[source].has_state:
        return
    for i, one in enumerate(facts):
        if one.recovered:
            raise data_loss(
                "rank %d has trained before, but no rank has a whole state: "
                "those that had one were lost; start the job again from a "
                "checkpoint" % i
            )


def _check_bits(
    facts: Sequence[_Facts], source: int, compared: Iterable[int]
) -> None:
    error = _differ(facts, source, compared)
    if error is not None:
        raise error


def _differ(
    facts: Sequence[_Facts], source: int, compared: Iterable[int]
) -> Optional[Error]:
    """Returns the error of ranks with other bits than the source; None: all
    have the same."""
    bits = facts[source].bits()
    others = [i for i in compared if facts[i].bits() != bits]
    if not others:
        return None
    error = data_loss(
        "the parameters or the optimizer's tensors of %s are not those of rank "
        "%d after the same step %d: the ranks have trained apart, or their "
        "memory is damaged; start the job again from a checkpoint"
        % (named(others), source, facts[source].step)
    )
    error.ranks = tuple(others)
    return error


def _copy(
    session: Session, state: State, source: int, step: int, takes: bool
) -> None:
    """Takes part in the copying, and takes the copy over where it is needed."""
    parameters = broadcast_tensors(
        session, state.parameters(), source, takes
    )
    buffers = broadcast_tensors(session, state.buffers(), source, takes)
    rest = _rest(session, state, source, takes)
    if takes:
        with _taking(source):
            state.take(step, parameters, buffers, *rest)


def _copy_loose(
    session: Session, state: State, source: int, loose: Sequence[int]
) -> None:
    """Copies what ranks may hold different bits of after the same step: all of
    it, or nothing where a member is lost meanwhile."""
    takes = session.rank in loose
    rest = _rest(session, state, source, takes, True) if loose else None
    buffers = broadcast_tensors(session, state.buffers(), source, True)
    if takes and rest is not None:
        with _taking(source):
            state.take_rest(*rest)
    state.take_buffers(buffers)


@contextlib.contextmanager
def _taking(source: int) -> Iterator[None]:
    """Raises Error with the code DATA_LOSS if a block fails to take over what
    has come."""
    try:
        yield
    except Exception as error:
        # Half of it is there, and training must not begin with that.
        raise data_loss(
            "the state of rank %d cannot be taken over: %s; start this worker "
            "again" % (source, error)
        ) from error


def _rest(
    session: Session,
    state: State,
    source: int,
    takes: bool,
    loose: bool = False,
) -> Tuple[bytes, List[torch.Tensor], bytes]:
    """Returns what State.take_rest takes over, where this rank does. loose:
    without what a step changes."""
    packed = b""
    tensors: List[torch.Tensor] = []
    if session.rank == source:
        text, tensors = state.save_loose() if loose else state.save()
        counter = state.save_counter()
        packed = number(len(counter)) + counter + text
    reader = Reader(memoryview(broadcast_bytes(session, packed, source)))
    counter = bytes(reader.take(reader.number()))
    text = bytes(reader.rest())
    if session.rank != source:
        tensors = tensors_of(text)
    return text, broadcast_tensors(session, tensors, source, takes), counter


def _warnings(
    facts: Sequence[_Facts],
    source: int,
    loose: Sequence[int],
    damaged: Sequence[int] = (),
) -> List[str]:
    newest = facts[source]
    found = [
        "rank %d has trained apart from the others, from a beginning of its "
        "own, and was at step %d; it goes on with the state of rank %d, of "
        "step %d" % (i, one.step, source, newest.step)
        for i, one in enumerate(facts)
        if one.has_state and one.lineage != newest.lineage
    ]
    if damaged:
        found.append(
            "%s had other bits than most ranks after the same step %d: damaged "
            "memory, wrong arithmetic, or a program that depends on the rank; "
            "replaced by the state of rank %d"
            % (named(damaged), newest.step, source)
        )
    # A newcomer has none of its own.
    others = [i for i in loose if not facts[i].has_caught_up_with(newest)]
    if others:
        found.append(
            "the counters, the optimizer's options, such as learning rates, or "
            "the objects in `also` of %s were not those of rank %d after the "
            "same step; all ranks continue from the latter's"
            % (named(others), source)
        )
    return found
