"""The internals of Accelerate that this package uses, checked before use."""

from __future__ import annotations

import inspect
from typing import Any, Callable, Optional, Sequence

import accelerate
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from .errors import InvalidArgument
from .schedule import canonical_hook, names_own_hook
from .torch import _session
from .torch._follow import check_exchange
from .torch._hooks import HookWords

# Of an Accelerator, of its GradientState, and of DistributedDataParallelKwargs.
_USED = (
    "ddp_handler", "distributed_type", "gradient_accumulation_steps",
    "gradient_state", "num_processes", "process_index", "scaler", "step",
    "_models", "_optimizers",
)
_USED_OF_STATE = ("end_of_dataloader", "plugin_kwargs")
_USED_OF_HANDLER = (
    "comm_hook", "comm_wrapper", "comm_state_option", "register_comm_hook",
    "to_kwargs",
)
_HOOKS = ("no", "fp16", "bf16", "power_sgd", "batched_power_sgd")
_WRAPPERS = _HOOKS[:3]
_SHARDED = ("dp_shard", "tp", "cp", "sp")


def check(
    accelerator: Any, exchange: str, hook: Optional[HookWords] = None
) -> None:
    """Raises InvalidArgument, or Error with the code FAILED_PRECONDITION, if
    models of an Accelerator cannot be followed."""
    check_exchange(exchange, hook)
    if not isinstance(accelerator, accelerate.Accelerator):
        raise InvalidArgument(
            "an accelerate.Accelerator can be attached, not a %s"
            % type(accelerator).__qualname__
        )
    _check_names(accelerator, _USED, "Accelerator")
    _check_names(accelerator.gradient_state, _USED_OF_STATE, "GradientState")
    handler = _handler(accelerator)
    _check_names(handler, _USED_OF_HANDLER, "DistributedDataParallelKwargs")
    _check_kind(accelerator)
    if accelerator._models:
        raise _session._refused(
            "the Accelerator has prepared %d models already, which cannot be "
            "followed any more: call attach() before prepare()"
            % len(accelerator._models)
        )
    if getattr(handler, "is_attached", False):
        raise _session._refused("the Accelerator is attached already")
    if getattr(DistributedDataParallel, "_coxswain_follows", False):
        raise _session._refused(
            "each model of this program is followed already, by `coxswain run "
            "--follow` or follow_all(): leave out either that or attach()"
        )
    _check_hooks(handler, exchange)


def hook_of(
    accelerator: Any, exchange: str, hook: Optional[HookWords]
) -> Optional[str]:
    """Returns the canonical spec of the hook of Coxswain's that a program has
    asked for: as `hook`, or by DistributedDataParallelKwargs. None: it has not,
    or torch exchanges. Raises InvalidArgument if it is none, or both are
    given."""
    handler = _handler(accelerator)
    if exchange == "torch":
        return None
    if _word(handler, "comm_hook") == "no":
        return None if hook is None else canonical_hook(hook)
    if hook is not None:
        raise InvalidArgument(
            "both hook=%r and the comm_hook %r of DistributedDataParallelKwargs "
            "are given: leave one of them out"
            % (hook, _word(handler, "comm_hook"))
        )
    return canonical_hook(
        {
            "comm_hook": _word(handler, "comm_hook"),
            "comm_wrapper": _word(handler, "comm_wrapper"),
            "comm_state_option": handler.comm_state_option,
        }
    )


def set_handler(
    accelerator: Any, follow: Callable[[Any], Any], exchange: str
) -> None:
    """Has each model that is prepared followed, by a function that returns its
    run. Where torch exchanges, a hook that the program has asked for is
    registered with that run."""
    given = _handler(accelerator)

    class Followed(type(given)):  # type: ignore[misc]
        is_attached = True

        def register_comm_hook(self, model: Any) -> None:
            run = follow(model)
            if exchange == "torch":
                # Of the model the base calls nothing but register_comm_hook.
                super().register_comm_hook(run)

    handler = Followed.__new__(Followed)
    handler.__dict__.update(given.__dict__)
    for name in ("comm_hook", "comm_wrapper"):
        # It would silently ignore a text, which is none of its hooks.
        word = "no" if exchange != "torch" else _word(given, name)
        setattr(handler, name, _kind(word))
    accelerator.ddp_handler = handler


def _check_names(given: Any, names: Sequence[str], what: str) -> None:
    missing = [name for name in names if not hasattr(given, name)]
    if missing:
        raise InvalidArgument(
            "accelerate %s is not known to this version of Coxswain, as its %s "
            "has no %s: call coxswain.torch.follow() for each model instead"
            % (accelerate.__version__, what, ", ".join(missing))
        )


def _check_kind(accelerator: Any) -> None:
    kind = accelerator.distributed_type
    name = str(getattr(kind, "value", kind))
    if name != "NO" and not name.startswith("MULTI_"):
        raise InvalidArgument(
            "an Accelerator with %s cannot be attached: that exchanges "
            "gradients by itself, and only DistributedDataParallel has "
            "communication hooks" % name
        )
    parallelism = getattr(accelerator, "parallelism_config", None)
    for name in _SHARDED:
        if getattr(parallelism, name + "_enabled", False):
            raise InvalidArgument(
                "an Accelerator with %s_size above 1 cannot be attached: its "
                "models are no DistributedDataParallel, which alone has "
                "communication hooks" % name
            )


def _check_hooks(handler: Any, exchange: str) -> None:
    own = exchange != "torch" and names_own_hook(_word(handler, "comm_hook"))
    for name, valid in (("comm_hook", _HOOKS), ("comm_wrapper", _WRAPPERS)):
        if own and name == "comm_hook":
            continue
        if _word(handler, name) not in valid:
            raise InvalidArgument(
                "%s is %r, and not one of %s"
                % (name, _word(handler, name), ", ".join(valid))
            )
    hook, wrapper = _word(handler, "comm_hook"), _word(handler, "comm_wrapper")
    if wrapper != "no" and hook == "no":
        raise InvalidArgument(
            "comm_wrapper is %r, and there is no comm_hook that it could wrap"
            % wrapper
        )
    if not hook.endswith("power_sgd") or exchange != "torch":
        return
    valid_options = list(
        inspect.signature(powerSGD_hook.PowerSGDState).parameters
    )[1:]
    for option in handler.comm_state_option:
        if option not in valid_options:
            raise InvalidArgument(
                "comm_state_option has %r, and PowerSGDState takes %s"
                % (option, ", ".join(valid_options))
            )


def _handler(accelerator: Any) -> Any:
    given = accelerator.ddp_handler
    if given is None:
        given = accelerate.DistributedDataParallelKwargs()
    return given


def _word(handler: Any, name: str) -> str:
    given = getattr(handler, name)
    return str(getattr(given, "value", given))


def _kind(word: str) -> Any:
    from accelerate.utils import DDPCommunicationHookType

    return DDPCommunicationHookType(word)
