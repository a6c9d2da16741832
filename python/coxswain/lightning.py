"""Lightning under Coxswain: a callback.

    coxswain.torch.init(plan={"accumulation": 4})
    trainer = Trainer(
        strategy="ddp", devices=2, accumulate_grad_batches=4,
        callbacks=[coxswain.lightning.Follow()],
    )
    trainer.fit(model, data)

For Lightning 2, as `lightning` or as `pytorch_lightning`: the one that the
program has imported, if it has. Importing this module imports it, and torch.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any, Dict, Optional

import torch

from . import torch as _torch
from .errors import InvalidArgument
from .schedule import Decision, _words
from .session import Session
from .torch import _session
from .torch._copies import bytes_of
from .torch._hooks import HookWords


def _library() -> Any:
    names = ["lightning.pytorch", "pytorch_lightning"]
    for name in names:
        if name in sys.modules:
            return sys.modules[name]
    for name in names:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError:
            continue
    raise ModuleNotFoundError(
        "coxswain.lightning needs the package lightning or pytorch_lightning"
    )


_lightning = _library()


class Follow(_lightning.Callback):  # type: ignore[misc]
    """Follows the model of trainer.fit(): each of its exchanges is announced
    and decided, and training stops when the decision is to stop.

    run: the coxswain.torch.Run of the model, while it is fitted and afterwards.

    If the plan's accumulation changes while it trains, fit() raises Error with
    the code FAILED_PRECONDITION: Lightning fixes an epoch's windows at its
    first batch.

    Where Coxswain exchanges, Lightning's checkpoints have what the hook
    remembers, and fit(ckpt_path=...) restores it on any number of ranks.
    """

    def __init__(
        self,
        *,
        session: Optional[Session] = None,
        exchange: str = "torch",
        hook: Optional[HookWords] = None,
        skip_non_finite: bool = False,
    ) -> None:
        """Arguments as for coxswain.torch.follow."""
        super().__init__()
        self._exchange = exchange
        self._hook = hook
        self.run: Optional[_torch.Run] = None
        self._given = session
        self._skip_non_finite = skip_non_finite
        self._trainer: Any = None
        # Of a checkpoint that was loaded before the model is followed.
        self._resumed: Dict[str, Any] = {}

    # ---- what Lightning calls ----

    def state_dict(self) -> Dict[str, Any]:
        """Returns what the hook remembers, as tensors; all ranks call it."""
        if self.run is None:
            return {}
        return {
            name: torch.frombuffer(bytearray(data), dtype=torch.uint8)
            for name, data in self.run.state_dict().items()
        }

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        self._resumed = dict(state_dict)

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Raises InvalidArgument for a model that cannot be followed, and for
        a plan that contradicts the Trainer."""
        session = self._given or _session.session()
        self._trainer = trainer
        self._check_ranks(session)
        self._adopt(session)
        self.run = _torch.follow(
            trainer.strategy.model,
            session=session,
            exchange=self._exchange,
            hook=self._hook,
            end_of_data=self._end_of_data,
            scaler=getattr(trainer.strategy.precision_plugin, "scaler", None),
            skip_non_finite=self._skip_non_finite,
            on_decision=self._decided,
        )
        resumed, self._resumed = self._resumed, {}
        if self._exchange == "coxswain":
            self.run.load_state_dict(
                {name: bytes_of(one) for name, one in resumed.items()}
            )

    def on_train_batch_end(self, trainer: Any, *unused: Any) -> None:
        """Ends training where the decision was to stop."""
        if self.run is not None and self.run.stopping:
            trainer.should_stop = True

    # ---- the rest ----

    def _end_of_data(self) -> bool:
        return bool(self._trainer.is_last_batch)

    def _check_ranks(self, session: Session) -> None:
        given = self._trainer.global_rank, self._trainer.world_size
        if given != (session.rank, session.world_size):
            raise _session._refused(
                "Lightning has made this process rank %d of %d, and the "
                "coordinator rank %d of %d: call coxswain.torch.init() before "
                "Trainer(), with devices and num_nodes as it was started"
                % (*given, session.rank, session.world_size)
            )

    def _adopt(self, session: Session) -> None:
        plan = session.schedule.plan
        if plan.words.get("windows") == "program":
            return
        own = int(self._trainer.accumulate_grad_batches)
        asked = int(_words(session.asked).get("accumulation", "1"))
        if own not in (1, asked):
            raise InvalidArgument(
                "the Trainer was made for accumulate_grad_batches=%d, and this "
                "program joined job %r with accumulation=%d: give both "
                'the same value, as in coxswain.torch.init(plan={"accumulation": %d})'
                % (own, session.job, asked, own)
            )
        self._trainer.accumulate_grad_batches = plan.accumulation

    def _decided(self, decision: Decision) -> None:
        assert self.run is not None
        plan = self.run.plan
        own = self._trainer.accumulate_grad_batches
        free = plan.words.get("windows") == "program"
        if not decision.plan_changed or free or plan.accumulation == own:
            return
        raise _session._refused(
            "the plan of job %r has accumulation=%d now, and Lightning cannot "
            "change accumulate_grad_batches=%d within an epoch: use `coxswain "
            "plan set %s accumulation=%d at=generation`, and start the job "
            "again"
            % (
                self.run.session.job,
                plan.accumulation,
                own,
                self.run.session.job,
                plan.accumulation,
            )
        )
