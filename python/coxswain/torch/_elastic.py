"""Training through changes of the job's members, in one process."""

from __future__ import annotations

import contextlib
import logging
import os
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional

import torch
from torch.nn.parallel.distributed import DistributedDataParallel

from ..errors import Code, Error, InvalidArgument
from ..schedule import Decision
from ..session import Session
from . import _replay, _stepped, torchrun
from ._catch_up import Newcomer, Source
from ._drain import Drain
from ._follow import Run, checked_every, follow
from ._generations import Ending, Generations
from ._hooks import HookExchange
from ._recovery import Recovery, Standing
from ._elastic_state import State
from ._wrapper import unwrap, wrap

# Arguments of follow that elastic has no use for.
_REFUSED = (
    "checkpoint", "checkpoint_own", "checkpoint_own_errors", "stop_on_sigterm",
)

_logger = logging.getLogger(__name__)
# Of the one job that a process has.
_has_warned = False


class Regrouping(Error):
    """The generation ends after the step before this one. For elastic, which
    goes on in the next one: a program lets it pass."""

    code = Code.ABORTED


def elastic(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    train: Callable[[Training], None],
    *,
    plan: Any = "",
    also: Optional[Mapping[str, Any]] = None,
    step: int = 0,
    counter: Optional[Mapping[str, int]] = None,
    ddp: Optional[Mapping[str, Any]] = None,
    follow: Optional[Mapping[str, Any]] = None,
    process_group_backend: Optional[str] = None,
    process_group_timeout: float = 300,
    drain_on_sigterm: bool = True,
    on_recovery: Optional[Callable[[Recovery], None]] = None,
    catch_up: bool = True,
    replay: str = "two_ranks",
    max_replays: int = 3,
    **join: Any,
) -> Ending:
    """Joins a job, and trains through changes of its members:

        def train(t):  # once in each generation
            while t.step < 1000 and t.going:
                with t.accumulate():
                    x, y = batch(t.counter["rows"] + t.rank * 32)
                    t.backward(loss(t.ddp(x), y))
                t.counter["rows"] += t.world_size * 32
                if t.sync:
                    t.step_optimizer()

        cx.elastic(model, optimizer, train)

    When a rank is lost, the others go on in their processes: errors of the
    generation leave `train`, the step that was under way is undone, and `train`
    is called in the next generation, whose ranks have all copied the state of
    the last step that any of them has taken. Workers that are added, or started
    again, wait until a step ends, and copy it too, or take it while they wait.
    docs/elastic.md explains it.

    model: the module itself. Each generation makes a DistributedDataParallel of
        it, t.ddp, with the arguments `ddp`, and follows that with the arguments
        `follow`, such as {"scaler": scaler}: see coxswain.torch.follow. Those
        of checkpoints are refused: a program saves by itself.
    train: returns when it is done, or not t.going. Whatever decides what it
        does next it reads from t.step and t.counter, which belong to the state,
        and not from variables of its own.
    plan, join: as for init.
    also: more of what all ranks have in common, by name: objects with
        state_dict() and load_state_dict(), such as a scheduler of learning
        rates or a GradScaler.
    step, counter: those of the state that the model and the optimizer have
        now, where training begins from a checkpoint that the program has read.
        If the workers have trained on, what they have counts.
    process_group_backend, process_group_timeout: of torch's default process
        group, which each generation makes anew; by default Gloo for a model on
        the CPU, NCCL otherwise.
    drain_on_sigterm: SIGTERM asks this worker to finish its step and leave; one
        that comes 2 s later or more ends the process.
    on_recovery: called when a generation begins.
    catch_up: whether newcomers take the parameters and the optimizer's tensors
        from members while these train, where they can: docs/elastic.md. Such a
        worker's optimizer takes the members' steps on another thread, before
        `train` is called. False on members: newcomers copy the state when these
        regroup.
    replay: where ranks hold different bits of the same step and no majority the
        same, whether all go back to the last step of which they held the same,
        and take the steps since then again, so that the rank that was wrong is
        found and named: "two_ranks", where there are two, "always", "never".
        For plans with a checksum_every; each rank keeps copies of the state
        then, and needs memory for them: docs/elastic.md. The same on all ranks.
    max_replays: so many in a row, without a step of which the ranks held the
        same bits after it, end the job. The same on all ranks.

    Returns why it has ended. Raises what `train` raises if no change of members
    is the cause, and the errors of Session.join; Error with the code DATA_LOSS
    if ranks hold different bits of the same step, and no replay helps.
    """
    _check(model, follow or {})
    replays = _replay.Replay(replay, max_replays)
    arguments = dict(torchrun.join_arguments(os.environ, given=join), **join)
    objects = {"optimizer": optimizer}
    for name, one in (also or {}).items():
        if name in objects:
            raise InvalidArgument("also has another %r" % name)
        objects[name] = one
    state = State(model, objects, step, counter or {})
    stepped = _stepped_of(model, optimizer, also or {}) if catch_up else None
    parameter = next(model.parameters())

    with contextlib.ExitStack() as stack:
        drain = Drain()
        if drain_on_sigterm:
            stack.enter_context(drain.by_sigterm())

        def once(session: Session, recovery: Recovery, held: List[Any]) -> bool:
            if on_recovery is not None:
                on_recovery(recovery)
            standing = generations.standing
            training = Training(
                model, optimizer, state, drain, session, recovery,
                Source(session, stepped, standing.lineage), standing.replay,
            )
            with training._following(
                dict(ddp or {}), dict(follow or {}), standing, held
            ):
                return training._call(train)

        generations = Generations(
            state, drain, once,
            on_cpu=parameter.device.type == "cpu",
            backend=process_group_backend,
            timeout=process_group_timeout,
            replay=replays,
        )
        newcomer = None if stepped is None else Newcomer(stepped)

        def join_first() -> Session:
            if newcomer is None:
                return Session.join(plan=plan, **arguments)
            return newcomer.joined(
                lambda: Session.join(
                    plan=plan, _newcomer=newcomer, **arguments
                ),
                generations.standing,
            )

        return generations.run(join_first)


def _stepped_of(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    also: Mapping[str, Any],
) -> Optional[_stepped.Stepped]:
    reason = _stepped.refusal(model, optimizer, also)
    if not reason:
        return _stepped.Stepped(model, optimizer)
    _logger.info("newcomers copy the state when the members regroup: %s", reason)
    return None


def _check(model: Any, given: Mapping[str, Any]) -> None:
    if isinstance(model, DistributedDataParallel):
        raise InvalidArgument(
            "elastic makes a DistributedDataParallel in each generation: give "
            "it the module, and the wrapper's arguments as ddp={...}"
        )
    if getattr(DistributedDataParallel, "_coxswain_follows", False):
        raise InvalidArgument(
            "elastic follows its models itself: start the program without "
            "--follow"
        )
    refused = [name for name in _REFUSED if name in given]
    if refused:
        raise InvalidArgument(
            "follow has %s, and elastic saves no checkpoints: leave it out, and "
            "save in the training function; SIGTERM is drain_on_sigterm"
            % ", ".join(refused)
        )
    if next(model.parameters(), None) is None:
        raise InvalidArgument("the model has no parameters")


def _warn_of_checkpoint(reason: str) -> None:
    global _has_warned
    if not _has_warned:
        _has_warned = True
        _logger.warning(
            "a checkpoint is asked for (%s), and elastic saves none: save in "
            "the training function",
            reason,
        )


class Training:
    """One generation, as the training function sees it. Ends with it.

    ddp: the model, as this generation's DistributedDataParallel.
    run: what follows it.
    recovery: how the generation began.
    error_scale: what this rank's errors of the hook were multiplied by, where
        Coxswain exchanges; 0: it has begun without.
    """

    ddp: DistributedDataParallel
    run: Run

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        state: State,
        drain: Drain,
        session: Session,
        recovery: Recovery,
        source: Source,
        replay: _replay.Replay,
    ) -> None:
        """For elastic."""
        self.session = session
        self.recovery = recovery
        self._model = model
        self._optimizer = optimizer
        self._state = state
        self._drain = drain
        self._source = source
        self._replay = replay
        self._regroup = ""
        self.error_scale = 1.0

    @property
    def rank(self) -> int:
        return self.session.rank

    @property
    def world_size(self) -> int:
        return self.session.world_size

    @property
    def step(self) -> int:
        """How many windows have ended with a decision, including those that
        were skipped."""
        return self._state.step

    @property
    def counter(self) -> Dict[str, int]:
        """The program's integers, 0 until it sets them. They are the job's: all
        ranks change them alike. What is changed in a window is undone with it,
        and what is changed after step_optimizer belongs to that step."""
        return self._state.counter

    @property
    def going(self) -> bool:
        """False if the function is to return: the members change, the job
        stops, or the plan's max_steps are done."""
        return not self._regroup and not self.run.stopping

    @property
    def stopping(self) -> str:
        """Empty, or why all ranks are to stop after this step."""
        return self.run.stopping

    @property
    def sync(self) -> bool:
        """Whether the window ends with this micro-batch: step the optimizer."""
        return self.run.sync

    @contextlib.contextmanager
    def accumulate(self, end_of_data: bool = False) -> Iterator[None]:
        """Runs a micro-batch, as Run.accumulate."""
        if self._regroup:
            raise Regrouping(
                "the generation ends with the step before this one: %s"
                % self._regroup
            )
        if not self._state.in_window or self._decided():
            # A step may have been left out. What the program has changed since
            # the last one belongs to that.
            self._keep()
            self._replay.before_step(
                checked_every(self.run.plan), self._state, self._save_hook
            )
        self._state.begin()
        with self.run.accumulate(end_of_data):
            yield

    def backward(self, loss: torch.Tensor) -> None:
        """Runs the backward pass of a micro-batch, whose mean loss this is;
        with the plan's scale, and that of a GradScaler."""
        scaler = self.run._scaler
        scaled = loss * self.run.loss_scale
        (scaled if scaler is None else scaler.scale(scaled)).backward()

    def step_optimizer(self) -> None:
        """Takes the step that was decided, which adds 1 to `step`, and drops
        the gradients."""
        scaler = self.run._scaler
        if scaler is None:
            self._optimizer.step()
        else:
            scaler.step(self._optimizer)
            scaler.update()
        self._keep()
        self._optimizer.zero_grad()

    # ---- for elastic ----

    @contextlib.contextmanager
    def _following(
        self,
        ddp: Mapping[str, Any],
        given: Mapping[str, Any],
        standing: Standing,
        held: List[Any],
    ) -> Iterator[None]:
        """Makes the wrapper of this generation, for a block. Adds to `held`
        what refers to the process group afterwards."""
        wrapped = wrap(self._model, self.session, ddp)
        named = dict(given)
        notify = named.pop("on_decision", None)

        def on_decision(decision: Decision) -> None:
            self._regroup = decision.regroup or self._regroup
            if decision.checkpoint:
                _warn_of_checkpoint(decision.checkpoint)
            if notify is not None:
                notify(decision)

        with contextlib.ExitStack() as ending:
            ending.callback(lambda: held.extend(unwrap(wrapped)))
            run = follow(
                wrapped, session=self.session, on_decision=on_decision, **named
            )
            ending.callback(lambda: held.extend(run._detach()))
            run._begin_at(self._state.step)
            self.ddp, self.run = wrapped, run
            if isinstance(run._exchange, HookExchange):
                exchange = run._exchange
                self.error_scale = standing.recover_hook(exchange)
                ending.callback(
                    lambda: standing.keep_hook(
                        exchange, self.world_size, self._decided()
                    )
                )
            for hook in (
                self._optimizer.register_step_pre_hook(self._before_step),
                self._optimizer.register_step_post_hook(self._after_step),
            ):
                ending.callback(hook.remove)
            yield

    def _call(self, train: Callable[[Training], None]) -> bool:
        """Returns whether the generation ends for the next one."""
        try:
            train(self)
        except Regrouping:
            pass
        except BaseException:
            # They would wait for more, and the members for them.
            self._source.drop()
            raise
        # A window that was begun and left is none.
        if self._state.whole:
            if not self._state.in_window:
                self._keep()
        if self._regroup and self._state.whole:
            self._source.end(self._state.step)
        else:
            self._source.drop()
        return bool(self._regroup)

    def _decided(self) -> bool:
        return self.run.schedule.step > self._state.step

    def _before_step(
        self, unused: Any, arguments: Any, named: Mapping[str, Any]
    ) -> None:
        self.run._check_step()
        self._state.whole = False
        # The first is the optimizer.
        given = [*arguments[1:], *named.values()]
        self._source.before_step(
            self._decided(), any(one is not None for one in given)
        )

    def _after_step(self, *unused: Any) -> None:
        self._state.whole = True
        self._source.after_step()
        self._keep()

    def _keep(self) -> None:
        taken = self._decided()
        self._state.keep(self.run.schedule.step)
        if taken:
            self._source.after_window(self._state.step)
            found = self._replay.after_step(self._state.step)
            if found is not None:
                _replay.log(self.session, found)
            self._drain.after_step(self.session)

    def _save_hook(self) -> bytes:
        exchange = self.run._exchange
        return exchange.save_own() if isinstance(exchange, HookExchange) else b""
