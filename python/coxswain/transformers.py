"""transformers.Trainer under Coxswain: one line before train().

    coxswain.torch.init(plan={"accumulation": 4})
    arguments = TrainingArguments(..., gradient_accumulation_steps=4)
    trainer = Trainer(model=model, args=arguments, train_dataset=data)
    coxswain.transformers.attach(trainer)
    trainer.train()

Importing this module imports torch, accelerate and transformers.
"""

from __future__ import annotations

import os
from typing import Any, Callable, Mapping, Optional

import transformers as _transformers
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from . import _accelerator
from .accelerate import Attached
from .errors import InvalidArgument
from .schedule import Decision
from .session import Session
from .torch import _session
from .torch._hooks import HookWords

_USED = ("accelerator", "add_callback", "args", "is_in_train")


def attach(
    trainer: Any,
    *,
    session: Optional[Session] = None,
    exchange: str = "torch",
    hook: Optional[HookWords] = None,
    plan: Optional[Mapping[str, Any]] = None,
    skip_non_finite: bool = False,
    on_decision: Optional[Callable[[Decision], None]] = None,
) -> Attached:
    """Follows what a Trainer trains; it stops and saves when the decision is to
    do so.

    trainer: a transformers.Trainer that does not train yet. Make its
        TrainingArguments after coxswain.torch.init(): they make torch's process
        group.
    other arguments: as for coxswain.accelerate.attach; the number of
        micro-batches is that of gradient_accumulation_steps.

    With exchange="coxswain" each checkpoint of the Trainer also gets what the
    hook remembers, in a file for each rank; its folder is one that all ranks
    share. train(resume_from_checkpoint=...) restores it, on any number of ranks,
    from output_dir/checkpoint-STEP, or from the folder that
    TrainingArguments.resume_from_checkpoint names.

    Training uses the plan's accumulation as it is when it begins. If that
    changes while it trains, train() raises Error with the code
    FAILED_PRECONDITION: a Trainer fetches whole windows, and counts an epoch's
    steps before it. Make such changes with `coxswain plan set ...
    at=generation`, and start the job again.

    Raises as coxswain.accelerate.attach.
    """
    missing = [name for name in _USED if not hasattr(trainer, name)]
    if not isinstance(trainer, _transformers.Trainer):
        raise InvalidArgument(
            "a transformers.Trainer can be attached, not a %s"
            % type(trainer).__qualname__
        )
    if missing:
        raise InvalidArgument(
            "transformers %s is not known to this version of Coxswain, as its "
            "Trainer has no %s: call coxswain.torch.follow() in a Trainer's "
            "_wrap_model instead"
            % (_transformers.__version__, ", ".join(missing))
        )
    _accelerator.check(trainer.accelerator, exchange, hook)
    attached = AttachedTrainer(trainer, exchange, hook)
    attached.begin(session, plan, skip_non_finite, on_decision)
    trainer.add_callback(_Callback(attached))
    return attached


class AttachedTrainer(Attached):
    """A Trainer that is attached to a session. Made by `attach`."""

    name = "Trainer"

    def __init__(
        self, trainer: Any, exchange: str, hook: Optional[HookWords]
    ) -> None:
        """For attach."""
        super().__init__(trainer.accelerator, exchange, hook)
        self.trainer = trainer

    # ---- for this package ----

    def accumulation(self) -> int:
        # That of the Accelerator is 1: a Trainer counts by itself.
        return int(self.trainer.args.gradient_accumulation_steps)

    def set_accumulation(self, accumulation: int, running: bool) -> None:
        if running or self.trainer.is_in_train:
            raise _session._refused(
                "the plan of job %r has accumulation=%d now, which a Trainer "
                "cannot follow while it trains, as it fetches whole windows "
                "of %d: use `coxswain plan set %s accumulation=%d "
                "at=generation`, and start the job again"
                % (
                    self.session.job,
                    accumulation,
                    self.accumulation(),
                    self.session.job,
                    accumulation,
                )
            )
        self.trainer.args.gradient_accumulation_steps = accumulation

    def end_of_data(self) -> bool:
        # Where data has no length the loader has ended before its last window,
        # which is short.
        fetched = getattr(
            self.trainer, "current_gradient_accumulation_steps", None
        )
        if fetched is not None and fetched < self.accumulation():
            return True
        return super().end_of_data()


class _Callback(_transformers.TrainerCallback):
    def __init__(self, attached: Attached) -> None:
        self._attached = attached

    def on_train_begin(
        self, args: Any, state: Any, control: Any, **unused: Any
    ) -> None:
        # A Trainer does not say which checkpoint it goes on from.
        given = args.resume_from_checkpoint
        named = isinstance(given, str) and os.path.isdir(given)
        if state.global_step:
            self._attached.load_hooks(given if named else _folder(args, state))

    def on_save(
        self, args: Any, state: Any, control: Any, **unused: Any
    ) -> None:
        # Its trials have folders that are not known here.
        if not state.is_hyper_param_search:
            self._attached.save_hooks(_folder(args, state))

    def on_step_end(
        self, args: Any, state: Any, control: Any, **unused: Any
    ) -> Any:
        if self._attached.stopping:
            control.should_training_stop = True
        if self._attached.checkpoint:
            control.should_save = True
        return control


def _folder(args: Any, state: Any) -> str:
    """Returns where a Trainer saves the step that it has taken."""
    return os.path.join(
        args.output_dir, "%s-%d" % (PREFIX_CHECKPOINT_DIR, state.global_step)
    )
