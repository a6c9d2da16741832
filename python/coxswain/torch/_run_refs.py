"""A Run, as torch has it in a model: while it is there, and once it is not."""

from __future__ import annotations

import weakref
from typing import Any, Callable

from torch.distributed.algorithms.ddp_comm_hooks import default_hooks


class Forgotten:
    """A Run, as a model that was pickled has it: torch goes on alone."""

    def _on_forward(self, module: Any, inputs: Any) -> None:
        pass

    def _on_output(self, module: Any, inputs: Any, output: Any) -> None:
        pass

    def _on_bucket(self, bucket: Any) -> Any:
        return default_hooks.allreduce_hook(None, bucket)


class WeakRun:
    """A Run, as torch has it, whose references no garbage collector sees: a
    model that only refers to itself would stay for ever."""

    def __init__(self, run: Any) -> None:
        self.run: Callable[[], Any] = weakref.ref(run)

    def __reduce__(self) -> Any:
        return (ForgottenRef, ())


class ForgottenRef:
    run = Forgotten


# torch looks at annotations, and at the names.
def exchange_bucket(state, bucket):  # type: ignore[no-untyped-def]
    """The communication hook of the models that are followed."""
    return state.run()._on_bucket(bucket)


def on_gradient(run: Any) -> Callable[[Any], None]:
    """Returns what calls _on_gradient of a run while it is there."""
    weak = weakref.ref(run)

    def hook(gradients: Any) -> None:
        alive = weak()
        if alive is not None:
            alive._on_gradient(gradients)

    return hook
