"""Hugging Face Accelerate under Coxswain: one line before prepare().

    coxswain.torch.init(plan={"accumulation": 4})
    accelerator = Accelerator()
    attached = coxswain.accelerate.attach(accelerator)
    model, optimizer, data = accelerator.prepare(model, optimizer, data)

The program's loop stays as it is: each model that is prepared is followed, and
the number of micro-batches is that of the job's plan. Importing this module
imports torch and accelerate.
"""

from __future__ import annotations

import logging
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

from . import _accelerator, _hook_files
from . import torch as _torch
from .checkpoints import Checkpoint, Saved
from .errors import InvalidArgument
from .schedule import Decision, Plan, _words
from .session import Session
from .torch import _session
from .torch._hooks import HookWords

_log = logging.getLogger("coxswain")


def attach(
    accelerator: Any,
    *,
    session: Optional[Session] = None,
    exchange: str = "torch",
    hook: Optional[HookWords] = None,
    plan: Optional[Mapping[str, Any]] = None,
    skip_non_finite: bool = False,
    on_decision: Optional[Callable[[Decision], None]] = None,
) -> Attached:
    """Follows each model that an Accelerator prepares from now on.

    accelerator: made after coxswain.torch.init(), or under a launcher of
        torch's, which has set its variables. What it was given by
        DistributedDataParallelKwargs(comm_hook=...) is used: as a hook of
        torch, or, with exchange="coxswain", as Coxswain's of that name.
    session: by default that of coxswain.torch.init(), which is called if it
        was not: then the plan asks for the Accelerator's own number of
        micro-batches and hook, and for what `plan` has.
    exchange, hook, skip_non_finite, on_decision: as for coxswain.torch.follow.

    With exchange="coxswain", save_state() also saves what the hook remembers,
    in a file for each rank, and load_state() restores it on any number of
    ranks. The folder is one that all ranks share.

    A change of the plan's accumulation at run time is followed from the window
    that it begins with.

    Raises InvalidArgument for an Accelerator whose models cannot be followed,
    and for a plan that contradicts it; Error with the code FAILED_PRECONDITION
    where it is too late.
    """
    _accelerator.check(accelerator, exchange, hook)
    attached = Attached(accelerator, exchange, hook)
    attached.begin(session, plan, skip_non_finite, on_decision)
    return attached


class Attached:
    """An Accelerator that is attached to a session. Made by `attach`.

    runs: those of the models that were prepared, in that order.
    """

    # How messages call what counts micro-batches.
    name = "Accelerator"

    def __init__(
        self,
        accelerator: Any,
        exchange: str = "torch",
        hook: Optional[HookWords] = None,
    ) -> None:
        """For attach."""
        self.accelerator = accelerator
        self._exchange = exchange
        self._hook = _accelerator.hook_of(accelerator, exchange, hook)
        self.runs: List[_torch.Run] = []
        self._skip_non_finite = False
        self._on_decision: Optional[Callable[[Decision], None]] = None

    @property
    def stopping(self) -> str:
        """Not empty: leave the training loop, and why."""
        return next((run.stopping for run in self.runs if run.stopping), "")

    @property
    def skipped(self) -> bool:
        """The last decision on any of the models was to skip the step."""
        return any(run.skipped for run in self.runs)

    @property
    def checkpoint(self) -> str:
        """Not empty: all ranks save their state after this step, and why."""
        return next(
            (
                run.decision.checkpoint
                for run in self.runs
                if run.decision is not None and run.decision.checkpoint
            ),
            "",
        )

    def skip(self, reason: str) -> None:
        """Asks, before the backward pass that exchanges, that all ranks skip
        this step."""
        for run in self.runs:
            run.skip(reason)

    def request_stop(self, reason: str) -> None:
        """Asks all ranks to stop after the same step: see `stopping`."""
        self.session.request_stop(reason)

    def keep(
        self,
        objects: Mapping[str, Any],
        own: Sequence[str] = (),
        *,
        stop_on_sigterm: bool = True,
    ) -> None:
        """Sets what the checkpoints are made of that the coordinator keeps:
        after prepare(), as coxswain.torch.Run.keep, with what prepare() has
        returned. save_state() and load_state() of the Accelerator are not
        concerned."""
        self._first().keep(objects, own, stop_on_sigterm=stop_on_sigterm)

    def resume(
        self,
        which: str = "newest",
        objects: Optional[Sequence[str]] = None,
    ) -> int:
        """Goes on from a checkpoint; as coxswain.torch.Run.resume."""
        return self._first().resume(which, objects)

    @property
    def resumed(self) -> Optional[Checkpoint]:
        """As coxswain.torch.Run.resumed."""
        return self._first().resumed

    @property
    def counters(self) -> Dict[str, int]:
        """As coxswain.torch.Run.counters."""
        return self._first().counters

    def save_if_asked(self) -> bool:
        """As coxswain.torch.Run.save_if_asked."""
        return self._first().save_if_asked()

    def finish(self, timeout: Optional[float] = None) -> Saved:
        """As coxswain.torch.Run.finish."""
        return self._first().finish(timeout)

    def _first(self) -> _torch.Run:
        if self.runs:
            return self.runs[0]
        raise _session._refused(
            "no model is followed yet: this comes after prepare()"
        )

    # ---- for this package ----

    def begin(
        self,
        session: Optional[Session],
        plan: Optional[Mapping[str, Any]],
        skip_non_finite: bool,
        on_decision: Optional[Callable[[Decision], None]],
    ) -> None:
        """Joins if the program has not, and takes over the plan."""
        self._skip_non_finite = skip_non_finite
        self._on_decision = on_decision
        joined = session or _session.current()
        if joined is None:
            words = self._requested()
            if skip_non_finite:
                words["commit_vote"] = True
            if self._hook is not None:
                words["hook"] = self._hook
            words.update(plan or {})
            joined = _torch.init(words, process_group=False)
        elif plan:
            raise _session._refused(
                "job %r was joined before, with a plan of its own: give it to "
                "coxswain.torch.init()" % joined.job
            )
        self.session = joined
        self._check_ranks()
        self._check_request()
        self._adopt(joined.schedule.plan)
        _accelerator.set_handler(
            self.accelerator, self.follow, self._exchange
        )
        if self._exchange == "coxswain":
            self.accelerator.register_save_state_pre_hook(
                lambda models, weights, folder: self.save_hooks(folder)
            )
            self.accelerator.register_load_state_pre_hook(
                lambda models, folder: self.load_hooks(folder)
            )

    def follow(self, model: Any) -> _torch.Run:
        """Follows a model that was prepared."""
        # After free_memory() some of the models before it do not exist any
        # more.
        place = len(self.accelerator._models) - 1
        replaced = self.runs[place:]
        del self.runs[place:]
        run = _torch.follow(
            model,
            session=self.session,
            exchange=self._exchange,
            hook=self._hook,
            continues=replaced[0] if replaced else None,
            end_of_data=self.end_of_data,
            scaler=self.accelerator.scaler,
            skip_non_finite=self._skip_non_finite,
            on_decision=lambda decision: self._decided(run, decision),
        )
        self.runs.append(run)
        return run

    def accumulation(self) -> int:
        """Returns how many micro-batches the program sums up."""
        return int(self.accelerator.gradient_accumulation_steps)

    def set_accumulation(self, accumulation: int, running: bool) -> None:
        """Has the program sum up another number; `running`: between two of its
        windows."""
        self.accelerator.gradient_accumulation_steps = accumulation
        # Accelerate counts micro-batches, and checks the remainder.
        self.accelerator.step = 0

    def end_of_data(self) -> bool:
        """Returns whether the data ends with this micro-batch."""
        return bool(self.accelerator.gradient_state.end_of_dataloader)

    def _requested(self) -> Dict[str, Any]:
        words: Dict[str, Any] = {"accumulation": self.accumulation()}
        if self._settings().get("sync_each_batch", False):
            words["sync_each_batch"] = True
        return words

    def _settings(self) -> Any:
        return self.accelerator.gradient_state.plugin_kwargs

    def _check_ranks(self) -> None:
        mine = self.session.rank, self.session.world_size
        given = self.accelerator.process_index, self.accelerator.num_processes
        if given != mine:
            raise _session._refused(
                "Accelerate has made this process rank %d of %d, and the "
                "coordinator rank %d of %d: call coxswain.torch.init() before "
                "Accelerator(), and on CPUs use Accelerator(cpu=True)"
                % (*given, *mine)
            )

    def _check_request(self) -> None:
        """Raises InvalidArgument if the program contradicts itself. That an
        operator has changed its plan is no contradiction."""
        asked = _words(self.session.asked)
        if asked.get("windows") == "program" or self.accumulation() == 1:
            return
        wanted = asked.get("accumulation", "1")
        if int(wanted) != self.accumulation():
            raise InvalidArgument(
                "the %s was made for gradient_accumulation_steps=%d, and this "
                "program joined job %r with accumulation=%s: give both "
                'the same value, as in coxswain.torch.init(plan={"accumulation": %d})'
                % (
                    self.name,
                    self.accumulation(),
                    self.session.job,
                    wanted,
                    self.accumulation(),
                )
            )

    def _adopt(self, plan: Plan, running: bool = False) -> None:
        if plan.words.get("windows") == "program":
            return
        before = self.accumulation()
        if plan.accumulation != before:
            self.set_accumulation(plan.accumulation, running)
            if running or before != 1:
                _log.warning(
                    "job %s sums up %d micro-batches from here on, by its "
                    "plan, instead of %d",
                    self.session.job,
                    plan.accumulation,
                    before,
                )
        self._settings()["sync_each_batch"] = plan.sync_each_batch

    def save_hooks(self, folder: str) -> None:
        """Saves what the hooks remember, if Coxswain exchanges. All ranks call
        it, with a folder that they share."""
        if self._exchange != "coxswain":
            return
        for number, run in enumerate(self.runs):
            _hook_files.save(run, folder, number)

    def load_hooks(self, folder: str) -> None:
        """Loads what save_hooks has saved, on any number of ranks."""
        if self._exchange != "coxswain":
            return
        for number, run in enumerate(self.runs):
            if not _hook_files.load(run, folder, number):
                _log.warning(
                    "%s has no state of the hook %s, which begins without",
                    folder,
                    run.plan.hook,
                )

    def _decided(self, run: _torch.Run, decision: Decision) -> None:
        self._mark_optimizers(run, not decision.commit)
        if decision.plan_changed:
            self._adopt(run.plan, running=True)
        if self._on_decision is not None:
            self._on_decision(decision)

    def _mark_optimizers(self, run: _torch.Run, skipped: bool) -> None:
        """Marks the optimizers that took no step: AcceleratedScheduler then
        takes none either. With a GradScaler the optimizer does so itself."""
        mine = {id(parameter) for parameter in run._model.parameters()}
        for optimizer in self.accelerator._optimizers:
            if any(
                id(parameter) in mine
                for group in optimizer.param_groups
                for parameter in group["params"]
            ):
                optimizer._is_overflow = skipped
