"""DistributedDataParallel, followed: announced and decided by all ranks.

What torch does, and what this module does then:

    a training forward       counts a micro-batch
    the exchange begins      announces it
    all gradients are there  waits for the exchange, or the generation's end
    DDP has finished         waits for the decision; errors leave backward()

The last two are callbacks of the autograd engine: the first is queued before
DDP queues its own end of the pass, and the second by the first, so after it.
Such a callback belongs to one pass, and layers may run passes within the one
over the model (reentrant checkpointing). So the first is queued with the last
bucket, as DDP's own is; or, without buckets, where a pass reaches the model's
outputs, which is the outermost one.

Where torch exchanges by Gloo and without a hook, the beginning of the exchange
is noticed by a hook on one parameter's gradient, which costs nothing for each
bucket. Elsewhere, and where Coxswain exchanges, it is the first bucket, by a
communication hook.
"""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional
from typing import Sequence

import torch
from torch.nn.parallel.distributed import DistributedDataParallel

from ..checkpoints import Checkpoint, Saved
from ..errors import InvalidArgument, refused
from ..schedule import Decision, Plan, Schedule, _words
from ..session import Session
from . import _session
from ._checkpoint import Kept
from ._copies import checksum
from ._exchange import Exchange, complete
from ._hooks import HookExchange, HookWords, check_hook
from ._model import exchanged_parameters, find_tensors, goes_by_gloo, has_hook
from ._model import last_parameter, layout, missing_gradients, pass_number
from ._model import queue_callback, supported, within_pass
from ._run_refs import Forgotten, WeakRun, exchange_bucket, on_gradient
from ._streams import go_on_at, next_schedule, schedules, take_stream

_REFUSE = "refuse"  # of the plan's uneven_data; without it, too


def follow(
    model: Any,
    optimizer: Optional[torch.optim.Optimizer] = None,
    *,
    exchange: str = "torch",
    hook: Optional[HookWords] = None,
    session: Optional[Session] = None,
    end_of_data: Optional[Callable[[], bool]] = None,
    on_decision: Optional[Callable[[Decision], None]] = None,
    scaler: Any = None,
    skip_non_finite: bool = False,
    continues: Optional[Run] = None,
    checkpoint: Optional[Mapping[str, Any]] = None,
    checkpoint_own: Sequence[str] = (),
    checkpoint_own_errors: bool = True,
    stop_on_sigterm: bool = True,
) -> Run:
    """Has each exchange of a model's gradients announced and decided.

    model: a DistributedDataParallel without communication hook yet (see
        Run.register_comm_hook), on the CPU or on GPUs; what torch.compile made
        of one as well. The first one is the stream "train", others "train.2"
        and so on, in the order of these calls, which all ranks have in common.
    optimizer: its step() then raises Error within a window.
    exchange: "torch": torch exchanges, by the model's process group and its
        hooks. "coxswain": Coxswain does, by the plan's hook, on CPUs; all ranks
        call this in the same order, for 48 models at most that exist at a time.
    hook: sets nothing: with "coxswain" it is compared with the hook that the
        program has asked the plan for, by init(plan={"hook": ...}), and another
        one is an error. As canonical_hook takes it.
    session: by default that of coxswain.torch.init().
    end_of_data: returns, when an exchange begins, whether the end of the data
        has cut its window short; with Run.accumulate it is not needed.
    on_decision: called with each decision, at the end of backward().
    scaler: a torch.amp.GradScaler, where one is used: it has to see a step that
        is skipped.
    skip_non_finite: this rank votes against a step for which its own gradients
        are not finite. The plan needs commit_vote=true. Costs a pass over the
        gradients and, on a GPU, a wait for it.
    continues: the run of a model that does not train any more: this one goes on
        with its stream, and with what Run.keep has set. Changes of the plan and checkpoints come with "train"
        only.
    checkpoint, checkpoint_own, checkpoint_own_errors, stop_on_sigterm: as for
        Run.keep.

    Raises InvalidArgument for a model that cannot be followed, or a plan whose
    hook the exchange does not have; nothing has changed then.
    """
    check_exchange(exchange, hook)
    joined = _session.session() if session is None else session
    followed = supported(model)
    if has_hook(followed):
        raise InvalidArgument(
            "the model has a communication hook, and takes only one: call "
            "follow() first, and register it by Run.register_comm_hook"
        )
    plan = joined.schedule.plan
    if skip_non_finite and not plan.commit_vote:
        raise InvalidArgument(
            "skip_non_finite is a vote, and the plan counts none: "
            'init(plan={"commit_vote": True})'
        )
    if exchange == "torch":
        _check_plan(plan)
    elif hook is not None:
        asked = _words(joined.asked).get("hook", "allreduce")
        check_hook(hook, asked, plan.hook)
    if continues is None:
        schedule = next_schedule(joined, exchange == "torch")
    else:
        schedule = continues.schedule
    parts: Any
    if exchange == "torch":
        parts = Exchange(joined, followed.process_group)
    else:
        parts = HookExchange(joined, schedule, followed)
    run = Run(
        followed, schedule, joined, parts, end_of_data, on_decision, scaler
    )
    run._skip_non_finite = skip_non_finite
    if continues is not None:
        run._kept = continues._kept
    if checkpoint is not None:
        run.keep(
            checkpoint, checkpoint_own, own_errors=checkpoint_own_errors,
            stop_on_sigterm=stop_on_sigterm,
        )
    run._attach()
    if optimizer is not None:
        optimizer.register_step_pre_hook(run._check_step)
    take_stream(schedule, followed, new=continues is None)
    return run


def check_exchange(exchange: str, hook: Optional[HookWords]) -> None:
    """Raises InvalidArgument if there is no such exchange, or it does not take
    a hook."""
    if exchange not in ("torch", "coxswain"):
        raise InvalidArgument(
            'exchange is %r; there is "torch", with which torch exchanges, and '
            '"coxswain"' % (exchange,)
        )
    if exchange == "torch" and hook is not None:
        raise InvalidArgument(
            "the hook %r is one of Coxswain's, which exchanges with "
            'exchange="coxswain" only; register torch\'s by '
            "Run.register_comm_hook" % (hook,)
        )


def checked_every(plan: Plan) -> int:
    """Returns how many steps lie between two of which the parameters are
    compared; 0: none are."""
    every = plan.words.get("checksum_every", "0") if plan.enforced else "0"
    return int(every)


def _check_plan(plan: Plan) -> None:
    if plan.hook != "allreduce":
        raise InvalidArgument(
            'the plan\'s hook is %r, and with exchange="torch" it is torch that '
            "exchanges: leave hook out, and register one of torch's hooks, or "
            'give exchange="coxswain"' % plan.hook
        )


class Run:
    """A model that is followed. Made by `follow`; for the training thread.

    With the plan's windows and loss scale:

        for i, (x, y) in enumerate(batches):
            with run.accumulate(end_of_data=i + 1 == len(batches)):
                (loss(model(x), y) * run.loss_scale).backward()
            if run.sync:
                optimizer.step()
                optimizer.zero_grad()
            if run.stopping:
                break

    A program may use no_sync() and a scale of its own instead: both are
    compared with the plan.

    The backward pass that ends an exchange raises RanksDiffer, PeerLost or
    another Error with the reason, on all ranks; the generation is over then.
    Where the decision is to skip the step, gradients are None after it, so that
    an optimizer changes nothing; with a GradScaler they are infinite, and it
    halves its scale as after an overflow.

    sync: whether the window ends with this micro-batch: step the optimizer.
    decision: the last one; None before it.
    skipped: whether it was to skip the step.
    stopping: not empty: leave the training loop, and why.
    """

    def __init__(
        self,
        model: DistributedDataParallel,
        schedule: Schedule,
        session: Session,
        exchange: Any,
        end_of_data: Optional[Callable[[], bool]],
        on_decision: Optional[Callable[[Decision], None]],
        scaler: Any,
    ) -> None:
        """For follow. exchange: an Exchange, or a HookExchange."""
        self.session = session
        self.schedule = schedule
        self.sync = False
        self.decision: Optional[Decision] = None
        self.stopping = ""
        self._model = model
        self._layout = layout(model)
        self._exchange = exchange
        self._end_of_data = end_of_data
        self._on_decision = on_decision
        self._scaler = scaler
        self._skip_non_finite = False
        # Of the window: forwards that were counted, those that `accumulate` has
        # begun (None: it is not used), and whether the data ends with it.
        self._counted = 0
        self._begun: Optional[int] = None
        self._at_end = False
        # The hook at the beginning of an exchange that torch makes without a
        # communication hook; None: the model has ours.
        self._gradient_hook: Any = None
        self._forward_hooks: List[Any] = []
        # The pass over the model that is under way, as the engine numbers it;
        # None if its end is not waited for. How many have ended. Whether the
        # last outputs have no tensor by which a pass could be noticed.
        self._pass: Optional[int] = None
        self._passes = 0
        self._opaque = False
        # Layers run passes of their own; whether that was found out.
        self._reentrant: Optional[bool] = None
        # A backward pass is to exchange: the last forward was not in no_sync,
        # and one since the last exchange was not.
        self._synced = False
        self._expected = False
        # Of the exchange. With static_graph torch delays all buckets of the
        # first pass to its end, and finishes it before a callback of ours.
        self._at_once = bool(getattr(model, "static_graph", False))
        self._under_way = False
        self._outside = False
        self._micro = 0
        self._error: Optional[BaseException] = None
        self._skip = ""
        self._stop = ""
        self._refusal = ""
        self._kept: Optional[Kept] = None

    @property
    def plan(self) -> Plan:
        """The plan that the next exchange follows."""
        return self.schedule.plan

    @property
    def skipped(self) -> bool:
        return self.decision is not None and not self.decision.commit

    @property
    def loss_scale(self) -> float:
        """The factor for the mean loss of a micro-batch, 1 / accumulation. A
        window that the end of the data cuts short is corrected after its
        exchange."""
        return 1 / self.schedule.plan.accumulation

    @contextlib.contextmanager
    def accumulate(self, end_of_data: bool = False) -> Iterator[Run]:
        """Runs a micro-batch, forward and backward, by the plan: only the last
        one of a window exchanges, unless the plan has sync_each_batch. One that
        is left without a backward pass, by an exception or `continue`, is not
        counted.

        end_of_data: it is the last one of the data.
        """
        if self._kept is not None:
            self._kept.save_if_due()
        plan = self.schedule.plan
        begun = (self._begun or 0) + 1
        self._begun = begun
        self._at_end = end_of_data
        self.sync = end_of_data or begun >= plan.accumulation
        counted, passes, self._opaque = self._counted, self._passes, False
        try:
            if self.sync or plan.sync_each_batch:
                yield self
            else:
                with self._model.no_sync():
                    yield self
        finally:
            if self._passes == passes and not self._opaque:
                # It was left before its backward pass, and is none.
                self._begun = begun - 1
                self._counted = min(counted, self._counted)
                self.sync = False
            elif self.sync:
                self._begun = 0

    def skip(self, reason: str) -> None:
        """Asks, before the backward pass that exchanges, that all ranks skip
        this step: where the loss is NaN, for example."""
        self._skip = reason

    def request_stop(self, reason: str) -> None:
        """Asks all ranks to stop after the same step: see `stopping`."""
        self.session.request_stop(reason)

    # ---- checkpoints ----

    def keep(
        self,
        objects: Mapping[str, Any],
        own: Sequence[str] = (),
        *,
        own_errors: bool = True,
        stop_on_sigterm: bool = True,
    ) -> None:
        """Sets what the checkpoints of the job are made of; of the run of the
        first model, before its first step, on all ranks alike. All ranks save
        after the steps whose decision asks for it.

        objects: modules, tensors, and objects with state_dict and
            load_state_dict, by name, which are the same on all ranks. Those
            that are added later are saved, too. Programs in C++ read "model",
            by the names of its parameters and buffers, and with libtorch an
            "optimizer" that is AdamW, Adam or SGD.
        own: the names of those of which each rank has its own. On another
            number of ranks their load_state_dicts is called with the states of
            all ranks that saved them.
        own_errors: of a hook that Coxswain exchanges by, each rank's errors are
            saved, with which training goes on bit by bit on as many ranks; or
            only their mean, in so many times fewer bytes.
        stop_on_sigterm: SIGTERM is a request, of this process, to save after
            the step under way and to stop all ranks: see `stopping`. Called by
            the main thread.

        Raises InvalidArgument, naming what cannot be saved.
        """
        if self.schedule is not self.session.schedule or self._kept is not None:
            raise refused(
                "checkpoints belong to the first model that is followed, and "
                "are set once: this is the stream %r" % self.schedule.stream
            )
        sigterm = stop_on_sigterm and self.schedule.plan.enforced
        exchanges = isinstance(self._exchange, HookExchange)
        self._kept = Kept(
            self.session, schedules, objects, own, sigterm, exchanges,
            own_errors,
        )
        _session.before_leaving(self.session, self.finish)

    @property
    def counters(self) -> Dict[str, int]:
        """What the program counts, such as rows of its data: integers by name,
        0 at first, and part of each checkpoint, also for programs in C++. The
        same on all ranks; the same object for the whole training."""
        return self._keeping().record.counters

    @property
    def resumed(self) -> Optional[Checkpoint]:
        """The checkpoint that this training goes on from; None: from none."""
        return None if self._kept is None else self._kept.resumed

    def resume(
        self,
        which: str = "newest",
        objects: Optional[Sequence[str]] = None,
    ) -> int:
        """Goes on from a checkpoint of the job, which any number of ranks may
        have saved: by its id, by its step, or from the newest one. All ranks
        call it, before the first step. Returns the step at which training goes
        on: 0 where the job has no checkpoint yet.

        objects: the names of those that are loaded, all by default: others in
            the checkpoint are left out, and so is the state of its hook.

        Raises NotFound if there is none of that name, and Error with the code
        FAILED_PRECONDITION, stating what differs, if it is of another model or
        optimizer, or DATA_LOSS if it is damaged; no object has changed then.
        Where an object's own load_state_dict raises, the error says so, and
        names the objects that have changed.
        """
        kept = self._keeping()
        if kept.record.progress or self.schedule.step:
            raise refused("resume() comes before the first step")
        positions = kept.resume(which, objects)
        go_on_at(positions)
        step = self.schedule.step
        self._begin_at(step)
        self.session.report_progress(step)
        return step

    def save_if_asked(self) -> bool:
        """Saves, if the last decision asks for it; returns whether it did.
        Without this call that is done when the next micro-batch begins, at
        which a program may have drawn its data already. Call it where a step of
        the program is over, also for its scheduler and its data."""
        return self._keeping().save_if_due()

    def finish(self, timeout: Optional[float] = None) -> Saved:
        """Waits for the save in progress, `timeout` seconds at most: 60 by
        default, and 8 after SIGTERM. Called when the process's session is left
        cleanly, or before, at the end of training. Returns what became of it; a
        save that failed was logged. SIGTERM then is again what it was
        before."""
        return self._keeping().finish(timeout)

    def _keeping(self) -> Kept:
        if self._kept is None:
            raise refused(
                "this run has no checkpoints: follow(model, optimizer, "
                'checkpoint={"model": model, "optimizer": optimizer})'
            )
        return self._kept

    def register_comm_hook(
        self, state: Any, hook: Callable[..., Any]
    ) -> None:
        """Registers a communication hook of torch, as that of
        DistributedDataParallel does; before the first backward pass. All ranks
        must have the same one. Raises InvalidArgument if the model has one
        already."""
        if isinstance(self._exchange, HookExchange):
            raise InvalidArgument(
                'with exchange="coxswain" the hook is the plan\'s (%s): leave '
                "torch's out, or exchange" % self.plan.hook
            )
        if self._exchange.hook is not None:
            raise InvalidArgument(
                "the model has the communication hook %s already"
                % self._exchange.name()
            )
        self._exchange.hook = (state, hook)
        self._take_buckets()

    def state_dict(self) -> Dict[str, Any]:
        """Returns what the hook remembers, such as error feedback; the same on
        all ranks, which all call it, between steps. With exchange="coxswain";
        otherwise there is nothing, as with hooks of torch."""
        if not isinstance(self._exchange, HookExchange):
            return {}
        return {"hook": self._exchange.save(whole=True)}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Takes over what state_dict returned, on any number of ranks, all of
        which call it, between steps. Raises Error with the code
        FAILED_PRECONDITION if it is another hook's or another model's."""
        if "hook" in state:
            if not isinstance(self._exchange, HookExchange):
                raise InvalidArgument(
                    "the state is of a hook of Coxswain's: follow the model "
                    'with exchange="coxswain"'
                )
            self._exchange.load([state["hook"]])

    def _attach(self) -> None:
        if self._needs_buckets(self.schedule.plan):
            self._model.register_comm_hook(WeakRun(self), exchange_bucket)
        else:
            # What DDP waits for, too: only passes that accumulate go by it.
            edge = torch.autograd.graph.get_gradient_edge(
                last_parameter(self._model)
            )
            self._gradient_hook = edge.node.register_prehook(on_gradient(self))
        self._forward_hooks = [
            self._model.register_forward_pre_hook(self._on_forward),
            self._model.register_forward_hook(self._on_output),
        ]

    def _detach(self) -> List[Any]:
        """Ends what the model's parameters still call, so that another model
        can be made of them; returns what refers to torch's process group."""
        for hook in self._forward_hooks:
            hook.remove()
        if self._gradient_hook is not None:
            self._gradient_hook.remove()
        exchange = self._exchange
        del self._exchange
        return [exchange]

    def _needs_buckets(self, plan: Plan) -> bool:
        """Returns whether torch must pass each bucket to this package, which
        then costs a call of Python for each."""
        model = self._model
        return (
            isinstance(self._exchange, HookExchange)
            or self._exchange.hook is not None
            or self._skip_non_finite
            or plan.strict  # nothing is exchanged before the grant
            # torch may end its exchange before the pass over the model ends.
            or bool(self._reentrant)
            or plan.words.get("uneven_data", _REFUSE) != _REFUSE
            # Those of join() are exchanged outside of a backward pass.
            or model._join_config.enable
            or self._at_once
            or model.find_unused_parameters
            or not goes_by_gloo(model)
        )

    def _take_buckets(self) -> None:
        """Has torch pass the buckets to this package from the next exchange
        on."""
        if self._gradient_hook is not None:
            self._gradient_hook.remove()
            self._gradient_hook = None
            self._model.register_comm_hook(WeakRun(self), exchange_bucket)

    # ---- what torch calls ----

    def _on_forward(self, module: Any, inputs: Any) -> None:
        if not torch.is_grad_enabled():
            return
        if self._kept is not None:
            self._kept.save_if_due()
        self._synced = module.require_backward_grad_sync
        self._expected = self._expected or self._synced
        if module._join_config.enable:
            self._take_buckets()
        if module.training:
            self._counted += 1
            self.schedule.note_micro_batch()

    def _on_output(self, module: Any, inputs: Any, output: Any) -> None:
        if not torch.is_grad_enabled():
            return
        found = [one for one in find_tensors(output) if one.requires_grad]
        for one in found:
            one.register_hook(self._on_pass)
        self._opaque = not found

    def _on_pass(self, gradient: Any) -> None:
        """Called when a pass reaches an output of the model."""
        number = pass_number()
        if number != self._pass:
            self._pass = number
            _queue(self._end_of_pass)

    def _on_gradient(self, gradients: Any) -> None:
        """Called when one parameter has its gradient, and torch has not
        exchanged all of them yet."""
        # Accelerate can have a pass exchange after forwards in no_sync.
        sooner = not self._synced and self._model.require_forward_param_sync
        if self._under_way or not (self._expected or sooner):
            return
        if self._model._comm_hooks:
            raise InvalidArgument(
                "the model was given a communication hook by its own "
                "register_comm_hook: use that of Run"
            )
        self._begin()
        if self._error is not None:
            error, self._error = self._error, None
            self._under_way = False
            raise error

    def _on_bucket(self, bucket: Any) -> Any:
        if not self._under_way:
            self._begin()
        future = None
        if self._error is None:
            try:
                if self._skip_non_finite and not _finite(bucket.buffer()):
                    self._refusal = self._refusal or (
                        "gradients of its bucket %d are not finite"
                        % bucket.index()
                    )
                future = self._exchange.launch(bucket)
                if self._at_once:
                    self._exchange.wait_at_once()
            except BaseException as error:
                # Raised from here it would leave DDP unusable.
                self._error = error
        if bucket.is_last():
            if self._outside:
                self._finish_outside()
            else:
                _queue(self._after_gradients)
        return complete(bucket.buffer()) if future is None else future

    def _begin(self) -> None:
        self._under_way = True
        self._expected = False
        self._error = None
        self._refusal = ""
        number = pass_number()
        # In DistributedDataParallel.join() a rank without data goes on
        # exchanging, zeros, outside of a backward pass.
        self._outside = number is None
        if number is not None and self._pass is None:
            self._pass = number
            _queue(self._end_of_pass)
        if self._pass != number and not self._outside:
            self._reentrant = True
        try:
            self._announce()
            self.schedule.await_grant()
        except BaseException as error:
            self._error = error

    def _announce(self) -> None:
        if self._kept is not None:
            self._kept.before_ticket()
        plan = self.schedule.plan
        ends = self._at_end
        if not ends and self._end_of_data is not None:
            ends = self._end_of_data()
        if self._outside:
            count = 0
        elif plan.sync_each_batch:
            count = 1
        else:
            count = self._window()
        free = plan.words.get("windows") == "program"
        skip, self._skip = self._skip, ""
        self.schedule.announce(
            count,
            micro=self._micro if plan.sync_each_batch else 0,
            window=count if free and count else None,
            end_of_data=ends,
            hook=self._exchange.name(),
            layout=self._layout,
            checksum=self._checksum(plan),
            skip=skip,
        )

    def _checksum(self, plan: Plan) -> Optional[int]:
        """Returns that of the parameters, if the plan has it compared before
        this step, and all ranks hold the same: in join() one without data takes
        no steps, and has the others' parameters at the end only."""
        every = checked_every(plan)
        if every == 0 or self.schedule.step % every != 0 or self._micro > 0:
            return None
        if self._model._join_config.enable:
            return None
        return checksum(exchanged_parameters(self._model))

    def _window(self) -> int:
        """Returns how many micro-batches the exchange sums up: as `accumulate`
        has begun them, each of any number of forwards, or else forwards."""
        return self._begun or max(self._counted, 1)

    def _end_of_pass(self) -> None:
        """Called when a pass over the model has ended; DDP's end of it comes
        next, unless it was within it."""
        self._pass = None
        self._passes += 1
        if self._gradient_hook is None:
            _queue(self._check_pass)
        elif self._under_way:
            if self._opaque and within_pass():
                self._under_way = False
                raise InvalidArgument(
                    "the model has reentrant checkpointing, and returns no "
                    "tensor that torch finds, by which the end of the whole "
                    "pass could be noticed: use checkpoint(..., "
                    "use_reentrant=False), or return tensors, tuples, dicts or "
                    "dataclasses"
                )
            if self._reentrant is None:
                self._reentrant = missing_gradients(self._model) is None
            self._after_gradients()

    def _check_pass(self) -> None:
        """Called after DDP's end of a pass, if that comes."""
        missing = missing_gradients(self._model)
        if missing is None or within_pass():
            return
        # There was no last bucket.
        error, self._error = self._error, None
        if error is None and isinstance(self._exchange, HookExchange):
            error = self._exchange.incomplete(missing)
        if error is not None:
            self._under_way = False
            raise error

    def _after_gradients(self) -> None:
        """Called when all gradients of the model are there, and DDP has not
        copied yet what was exchanged."""
        self._under_way = False
        by_torch = self._gradient_hook is not None
        if self._error is None:
            try:
                self._exchange.wait(for_group=by_torch)
            except BaseException as error:
                self._error = error
        if self._error is not None and (
            self._exchange.abandon()
            or by_torch
            or self._model.find_unused_parameters
        ):
            error, self._error = self._error, None
            # DDP would wait for buckets that do not come, or for its own
            # exchange of which parameters were used.
            raise error
        _queue(self._after_pass)

    def _after_pass(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error
        self._decide()

    def _finish_outside(self) -> None:
        self._under_way = False
        error, self._error = self._error, None
        if error is not None:
            raise error
        self._exchange.wait()
        self._decide()

    def _decide(self) -> None:
        plan = self.schedule.plan
        counted, self._counted = self._window(), 0
        self._at_once = False
        before = self.schedule.step
        decision = self.schedule.decide(not self._refusal, self._refusal)
        self.decision = decision
        ends = self.schedule.step > before
        self._micro = 0 if ends else self._micro + 1
        if not decision.commit:
            self._drop_gradients()
        elif self._begun and counted < plan.accumulation:
            self._correct_scale(plan.accumulation / counted)
        if ends:
            self.session.report_progress(self.schedule.step)
        # With sync_each_batch a window that has begun is ended first.
        self._stop = decision.stop or self._stop
        if ends and self._stop:
            self.stopping = self._stop
        elif 0 < plan.max_steps <= self.schedule.step:
            self.stopping = self._reached(plan)
        if self._kept is not None:
            self._kept.decided(decision, ends)
        if decision.plan_changed:
            if not isinstance(self._exchange, HookExchange):
                _check_plan(self.schedule.plan)
        if self._gradient_hook is not None:
            if self._needs_buckets(self.schedule.plan):
                self._take_buckets()
        if self._on_decision is not None:
            self._on_decision(decision)

    def _begin_at(self, step: int) -> None:
        """Has the first step be the one after that many."""
        self.schedule.step = step
        if 0 < self.schedule.plan.max_steps <= step:
            self.stopping = self._reached(self.schedule.plan)

    @staticmethod
    def _reached(plan: Plan) -> str:
        return "max_steps=%d is reached" % plan.max_steps

    def _drop_gradients(self) -> None:
        for parameter in self._model.parameters():
            if self._scaler is None:
                parameter.grad = None
            elif parameter.grad is not None:
                # None would be an error of the scaler.
                parameter.grad.fill_(float("inf"))

    def _correct_scale(self, factor: float) -> None:
        if self.schedule.plan.sync_each_batch:
            return
        for parameter in self._model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(factor)

    def _check_step(self, *unused: Any) -> None:
        if self._counted == 0:
            return
        raise refused(
            "optimizer step on stream %r after %d of %d micro-batches: step "
            "after the backward pass that exchanges gradients"
            % (
                self.schedule.stream,
                self._counted,
                self.schedule.plan.accumulation,
            )
        )

    def __reduce__(self) -> Any:
        # A model may be pickled, and is not followed where it is loaded.
        return (Forgotten, ())


def _queue(callback: Callable[[], None]) -> None:
    assert queue_callback is not None  # supported() has looked
    queue_callback(callback)


def _finite(buffer: torch.Tensor) -> bool:
    # The sum is one pass, and finite almost always.
    if bool(torch.isfinite(buffer.sum())):
        return True
    return bool(torch.isfinite(buffer).all())
