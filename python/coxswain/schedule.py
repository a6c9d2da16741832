"""What ranks announce of each exchange, and what all of them decide."""

from __future__ import annotations

import ctypes
import dataclasses
import json
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Set
from typing import Union

from . import _library
from .errors import InvalidArgument

if TYPE_CHECKING:
    from .session import Session

PlanWords = Union[str, Mapping[str, Any]]

_END_OF_DATA, _WEIGHT, _CHECKSUM, _REPLICATED_CHECKSUM = 1, 2, 4, 8
_SYNC_EACH_BATCH, _COMMIT_VOTE, _STRICT, _NOT_ENFORCED = 1, 2, 4, 8
_SPEC, _YAML = 0, 1


def plan_text(plan: PlanWords) -> str:
    """Returns a plan as NAME=VALUE words with spaces between them. Raises
    InvalidArgument, naming the word, if its value is empty or has spaces."""
    if isinstance(plan, str):
        return plan
    words = []
    for name, value in plan.items():
        if isinstance(value, bool):
            value = str(value).lower()
        value = canonical_hook(value) if name == "hook" else str(value)
        if not value or any(letter.isspace() for letter in value):
            raise InvalidArgument("the plan's %s is %r" % (name, value))
        words.append("%s=%s" % (name, value))
    return " ".join(words)


def canonical_hook(hook: Union[str, Mapping[str, Any]]) -> str:
    """Returns a hook's spec in its canonical form.

    hook: a spec, such as "fp16(powersgd(rank=4))", or the names of Accelerate
        with their values: {"comm_hook": "power_sgd", "comm_wrapper": "fp16",
        "comm_state_option": {"matrix_approximation_rank": 4}}, where comm_hook
        may also be a spec of the program's own hook.

    Raises InvalidArgument, naming what is wrong and what is valid.
    """
    if isinstance(hook, Mapping):
        own = _own_spec(hook)
        if own is None:
            return hook_from_yaml(json.dumps(hook, default=_word))
        hook = own
    return _canonical(str(hook), _SPEC)


# The names of the program's own hooks.
own_hooks: Set[str] = set()


def names_own_hook(word: str) -> bool:
    """Returns whether a text such as "mine(rank=2)" names one of these."""
    return word.split("(")[0].strip() in own_hooks


def _own_spec(hook: Mapping[str, Any]) -> Optional[str]:
    """Returns the spec of a hook of the program's own that is given by the
    names of Accelerate; None if it is none."""
    spec = _word(hook.get("comm_hook", ""))
    if not names_own_hook(spec):
        return None
    options = hook.get("comm_state_option") or {}
    if options:
        if "(" in spec:
            raise InvalidArgument(
                "both comm_hook %r and comm_state_option %r have options: give "
                "one of them" % (spec, dict(options))
            )
        spec += "(%s)" % ",".join(
            "%s=%s" % (name, _value(value)) for name, value in options.items()
        )
    wrapper = _word(hook.get("comm_wrapper") or "no")
    return spec if wrapper == "no" else "%s(%s)" % (wrapper, spec)


def _value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _word(value: Any) -> str:
    # Accelerate's are enumerations.
    return str(getattr(value, "value", value))


def hook_from_yaml(text: str) -> str:
    """Returns the canonical spec of a hook that is given in YAML or JSON, also
    by the names of Accelerate: comm_hook, comm_wrapper, comm_state_option.
    Raises as canonical_hook."""
    return _canonical(text, _YAML)


def _canonical(text: str, form: int) -> str:
    spec = ctypes.c_char_p()
    _library.check(
        _library.library().cx_canonical_hook(
            _library.encode(text), form, ctypes.byref(spec)
        )
    )
    return _library.decode(spec.value)


def hooks_json() -> str:
    """Returns all hooks and their options, as `coxswain hooks --json` does."""
    text = ctypes.c_char_p()
    _library.check(_library.library().cx_hooks(ctypes.byref(text)))
    return _library.decode(text.value)


def _words(text: str) -> Dict[str, str]:
    """Returns the NAME=VALUE words of a text; values may have parentheses with
    spaces within."""
    pieces: List[str] = [""]
    depth = 0
    for letter in text:
        depth += (letter == "(") - (letter == ")")
        if letter == " " and depth == 0:
            pieces.append("")
        else:
            pieces[-1] += letter
    return dict(piece.split("=", 1) for piece in pieces if piece)


@dataclasses.dataclass(frozen=True)
class Plan:
    """When gradients are exchanged, and how: docs/schedule.md.

    accumulation: micro-batches of this rank in each window.
    max_steps: optimizer steps of the training; 0: no bound.
    progress_timeout: seconds that a rank may make no progress.
    words: the whole plan, such as {"accumulation": "4", "tail": "flush", ...}.
    """

    version: int
    accumulation: int
    hook: str
    max_steps: int
    progress_timeout: float
    sync_each_batch: bool
    commit_vote: bool
    strict: bool
    enforced: bool
    words: Mapping[str, str] = dataclasses.field(repr=False)


@dataclasses.dataclass(frozen=True)
class Decision:
    """What all ranks do after an exchange.

    commit: false: all skip the step; `reason` names the ranks that asked for
        it, and why.
    stop, regroup, checkpoint: not empty: all stop after this step, join the
        next generation after it, or save their state after it, and why.
    plan_changed: the schedule's plan is another from the next step on.
    """

    commit: bool
    reason: str
    stop: str
    regroup: str
    checkpoint: str
    plan_changed: bool


class Schedule:
    """One stream of exchanges: announced by all ranks, and decided for all.

        for each step:
            schedule.announce(micro_batches=schedule.plan.accumulation)
            schedule.await_grant()
            ...  # exchange the gradients
            if schedule.decide().commit:
                ...  # take the optimizer step

    If a rank counts differently, runs another hook or does not announce, decide
    raises RanksDiffer on all ranks, naming it.

    For one thread at a time. Session.schedule is that of the stream "train",
    whose decisions change the plan; another loop, such as an evaluation that
    exchanges something, makes one with a name of its own.
    """

    def __init__(self, session: Session, stream: str = "train") -> None:
        self._session = session
        self._stream = _library.encode(stream)
        self._ends_window = True
        self.step = 0

    @property
    def stream(self) -> str:
        """The stream's name."""
        return _library.decode(self._stream)

    @property
    def plan(self) -> Plan:
        """The plan that the next exchange follows."""
        # Only decisions change it. Kept, because reading it takes longer than
        # everything else in a step.
        session = self._session
        plan = session._plan
        if plan is None:
            info = _library.make(_library.PlanInfo)
            session._check(
                _library.library().cx_plan(session._handle, ctypes.byref(info))
            )
            plan = session._plan = self._read(info)
        return plan

    @staticmethod
    def _read(info: _library.PlanInfo) -> Plan:
        return Plan(
            version=info.version,
            accumulation=info.accumulation,
            hook=_library.decode(info.hook),
            max_steps=info.max_steps,
            progress_timeout=info.progress_timeout_ms / 1000,
            sync_each_batch=bool(info.flags & _SYNC_EACH_BATCH),
            commit_vote=bool(info.flags & _COMMIT_VOTE),
            strict=bool(info.flags & _STRICT),
            enforced=not info.flags & _NOT_ENFORCED,
            words=_words(_library.decode(info.words)),
        )

    def note_micro_batch(self) -> None:
        """Counts a micro-batch as progress, for `coxswain status` and
        stalls."""
        self._session._check(
            _library.library().cx_note_micro_batch(self._session._handle)
        )

    def announce(
        self,
        micro_batches: int,
        *,
        window: Optional[int] = None,
        micro: int = 0,
        end_of_data: bool = False,
        weight: Optional[float] = None,
        hook: Optional[str] = None,
        layout: int = 0,
        digest: int = 0,
        checksum: Optional[int] = None,
        skip: str = "",
        pipeline: int = 0,
        replicated_checksum: Optional[int] = None,
    ) -> None:
        """Announces the exchange that begins. Does not wait.

        micro_batches: how many this rank has summed up in it; 0: it has no data
            left, which the plan must allow.
        window: how many were planned; by default the plan's accumulation.
        micro: with sync_each_batch, its place in the window, from 0.
        end_of_data: the end of the data has cut the window short.
        weight: of this rank in the average, such as its number of tokens; by
            default micro_batches.
        hook: what this program exchanges with, as canonical_hook writes it;
            by default the plan's.
        layout, digest, checksum: 64-bit hashes, which all ranks must have in
            common: of what is exchanged, of what was exchanged before, and of
            the parameters.
        skip: not empty: asks all ranks to skip this step, and why.
        pipeline: a 64-bit hash of the schedule that the window's pipeline
            runs, which ranks of one data index must have in common; 0: none.
        replicated_checksum: of the parameters that each rank along tp has
            whole, which the ranks of one stage must have in common.
        """
        ticket = _library.make(_library.Ticket)
        ticket.stream = self._stream
        ticket.step = _library.int64("step", self.step)
        ticket.micro_batches = _library.int32("micro_batches", micro_batches)
        ticket.micro = _library.int32("micro", micro)
        ticket.window = _library.int32("window", window or 0)
        ticket.hook = _library.encode(hook)
        ticket.layout = _library.uint64("layout", layout)
        ticket.digest = _library.uint64("digest", digest)
        ticket.skip = _library.encode_reason(skip)
        if end_of_data:
            ticket.flags |= _END_OF_DATA
        if weight is not None:
            ticket.flags |= _WEIGHT
            ticket.weight = weight
        if checksum is not None:
            ticket.flags |= _CHECKSUM
            ticket.checksum = _library.uint64("checksum", checksum)
        ticket.pipeline = _library.uint64("pipeline", pipeline)
        if replicated_checksum is not None:
            ticket.flags |= _REPLICATED_CHECKSUM
            ticket.replicated_checksum = _library.uint64(
                "replicated_checksum", replicated_checksum
            )
        plan = self.plan
        self._session._check(
            _library.library().cx_announce(
                self._session._handle, ctypes.byref(ticket)
            )
        )
        self._ends_window = (
            not plan.sync_each_batch
            or end_of_data
            or micro + 1 >= (window or plan.accumulation)
        )

    def await_grant(self) -> None:
        """With enforcement=strict, waits until all ranks have announced the
        same; otherwise returns at once. Raises PeerLost, RanksDiffer or another
        Error if the generation has ended. If an exception such as
        KeyboardInterrupt ends the wait, the stream fails from then on."""
        self._session._call("cx_grant", self._stream)

    def decide(self, commit: bool = True, reason: str = "") -> Decision:
        """Waits for the decision on the exchange, and returns it.

        commit, reason: false: this rank votes to skip the step, and why. Counts
            with the term commit_vote only.

        Adds 1 to `step` after the last exchange of a window. A round in which
        all ranks have announced 0 micro-batches is no step, but this rank knows
        only its own: a program that goes on after the end of its data with such
        rounds sets `step` itself. If an exception such as KeyboardInterrupt
        ends the wait, the stream fails from then on.

        Raises RanksDiffer, naming the ranks that did something else, or
        nothing; PeerLost or another Error if the generation has ended.
        """
        vote = _library.make(_library.Vote)
        vote.refuse = int(not commit)
        vote.reason = _library.encode_reason(reason)
        made = _library.make(_library.Decision)
        try:
            self._session._call(
                "cx_decide",
                self._stream,
                ctypes.byref(vote),
                ctypes.byref(made),
            )
        finally:
            if made.plan_changed:
                self._session._plan = None
        if self._ends_window:
            self.step += 1
        return Decision(
            commit=bool(made.commit),
            reason=_library.decode(made.reason),
            stop=_library.decode(made.stop),
            regroup=_library.decode(made.regroup),
            checkpoint=_library.decode(made.checkpoint),
            plan_changed=bool(made.plan_changed),
        )
