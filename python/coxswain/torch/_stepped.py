"""What the steps of an optimizer change, where these act on each element alone:
a process that has it after one step, and the averages of all later ones, has it
after those, bit by bit.

As client/torch/elastic/module_catch_up.h has it for programs in C++: a member
describes it and sends it, and a newcomer takes it, and the steps.
"""

from __future__ import annotations

import collections
import dataclasses
import json
from typing import Any, Dict, List, Mapping, Optional, Tuple

import torch

from ..errors import InvalidArgument, data_loss
from . import _state
from ._elastic_state import parsed, tensors_of

# Of torch.optim, which is not there yet where this is imported while torch is
# (`coxswain run --follow`).
_KNOWN = (
    "SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "Adamax", "NAdam",
    "RAdam",
)
# Of a group of parameters: what is no option of its step.
_NO_OPTIONS = ("params", "param_names")
_PLAIN = (bool, int, float, type(None))

# A tensor, and the number of the parameter that it belongs to.
Part = Tuple[torch.Tensor, int]


@dataclasses.dataclass
class _Backup:
    values: List[torch.Tensor]
    state: Any
    options: List[Dict[str, Any]]


def refusal(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    also: Mapping[str, Any],
) -> str:
    """Returns why newcomers of a program copy the state when the members
    regroup; empty: they can take it before."""
    if type(optimizer) not in [getattr(torch.optim, one) for one in _KNOWN]:
        return (
            "%s is no optimizer whose steps are known to act on each element "
            "alone" % _state.class_of(optimizer)
        )
    if any(isinstance(one, torch.optim.Optimizer) for one in also.values()):
        return "`also` has another optimizer"
    places = {id(one) for one in model.parameters()}
    for group in optimizer.param_groups:
        # Of a fused one a GradScaler has the step itself change the averages.
        if group.get("fused"):
            return "the optimizer is fused"
        if any(id(one) not in places for one in group["params"]):
            return "the optimizer has a parameter that the model has not"
        if len({id(one) for one in group["params"]}) < len(group["params"]):
            return "the optimizer has a parameter twice"
        for name, one in group.items():
            if name not in _NO_OPTIONS and _has_tensor(one):
                return "the optimizer's option %r is a tensor" % (name,)
    if not all(_is_dense(one) for one in model.parameters()):
        return "a parameter is not contiguous in the CPU's memory"
    return ""


def _has_tensor(option: Any) -> bool:
    if isinstance(option, (list, tuple)):  # such as betas
        return any(_has_tensor(one) for one in option)
    return isinstance(option, torch.Tensor)


def _is_dense(tensor: torch.Tensor) -> bool:
    return (
        tensor.layout is torch.strided
        and tensor.is_cpu
        and tensor.is_contiguous()
    )


class Stepped:
    """The parameters of a model, and what its optimizer keeps of them.

    For one thread at a time: that of the library while this worker waits, and
    then that which trains.
    """

    def __init__(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer
    ) -> None:
        """Of a program without a refusal."""
        self._optimizer = optimizer
        self._parameters = list(model.parameters())
        numbers = {id(one): i for i, one in enumerate(self._parameters)}
        # Those of the optimizer, in its order, with their numbers.
        self._trained: List[Part] = [
            (one, numbers[id(one)])
            for group in optimizer.param_groups
            for one in group["params"]
        ]
        self._backup: Optional[_Backup] = None

    # ---- of a member ----

    def options(self) -> Any:
        """Returns what JSON has for the options of the optimizer's step, such
        as learning rates. Raises InvalidArgument if it has nothing for one."""
        tensors: List[Any] = []
        options = [
            {key: one for key, one in group.items() if key not in _NO_OPTIONS}
            for group in self._optimizer.param_groups
        ]
        tree = _state.tree_of(options, "the optimizer", "", tensors)
        if tensors:
            raise InvalidArgument("an option of the optimizer is a tensor")
        return tree

    def used(self) -> List[int]:
        """Returns which parameters of the optimizer have an average."""
        return [int(one.grad is not None) for one, _ in self._trained]

    def averages(self) -> List[Part]:
        """Returns the averages, as the optimizer is about to read them. Raises
        InvalidArgument for one that is sparse."""
        found = []
        for parameter, number in self._trained:
            if parameter.grad is None:
                continue
            average = parameter.grad.detach()
            if average.layout is not torch.strided or not average.is_cpu:
                raise InvalidArgument("an average is sparse")
            found.append((average.contiguous(), number))
        return found

    def describe(self, options: Any, used: List[int], begins: bool) -> bytes:
        """Returns what a newcomer needs to take a step with these options and
        averages, and, where one begins with the state after it, to make that.
        """
        given: Dict[str, Any] = {"options": options, "used": used}
        if begins:
            tensors: List[Tuple[str, torch.Tensor]] = []
            places = {id(one): i for i, (one, _) in enumerate(self._trained)}
            # In the optimizer's order, of which its checksums are.
            kept = [
                (places[id(parameter)], dict(one))
                for parameter, one in self._optimizer.state.items()
            ]
            given["state"] = _state.tree_of(kept, "the optimizer", "", tensors)
            given["tensors"] = [
                _state.form_of(one, name) for name, one in tensors
            ]
        return json.dumps(given).encode()

    # ---- of both ----

    def parts(self) -> List[Part]:
        """Returns the tensors, in an order that ranks with the same state have
        in common. Raises InvalidArgument for one that is not known."""
        found: List[Part] = [
            (one.detach(), i) for i, one in enumerate(self._parameters)
        ]
        state = self._optimizer.state
        known = 0
        for parameter, number in self._trained:
            if parameter not in state:
                continue
            known += 1
            for name, one in sorted(state[parameter].items()):
                if isinstance(one, torch.Tensor):
                    _check_form(name, parameter, one)
                    found.append((one.detach(), number))
                elif not isinstance(one, _PLAIN):
                    raise _unknown(name)
        if known != len(state):
            raise InvalidArgument(
                "the optimizer keeps something of what is no parameter"
            )
        return found

    # ---- of a newcomer ----

    def begin(self, rest: bytes) -> None:
        """Makes the state that a member has described, with any values. Raises
        Error with the code DATA_LOSS if it is of another optimizer."""
        given = parsed(rest)
        made = self._made(given, rest)
        self._drop_averages()
        self._backup = _Backup(
            [one.detach().clone() for one in self._parameters],
            self._optimizer.state,
            [dict(group) for group in self._optimizer.param_groups],
        )
        self._optimizer.state = made

    def _made(self, given: Mapping[str, Any], rest: bytes) -> Any:
        made: Any = collections.defaultdict(dict)
        tensors = tensors_of(rest)
        # Of the sizes of parameters, and not of what is written there.
        shapes = {one.shape for one, _ in self._trained} | {torch.Size()}
        if any(one.shape not in shapes for one in tensors):
            raise _another()
        tensors = [torch.zeros_like(one, device="cpu") for one in tensors]
        try:
            for place, kept in _state.value_of(given["state"], tensors):
                parameter = self._trained[place][0]
                for name, one in kept.items():
                    if isinstance(one, torch.Tensor):
                        _check_form(name, parameter, one)
                made[parameter] = dict(kept)
        except (
            AttributeError, InvalidArgument, LookupError, RecursionError,
            TypeError, ValueError,
        ) as error:
            raise _another() from error
        return made

    def places_of(self, rest: bytes) -> List[Part]:
        """Returns the memory for the averages of a step."""
        used = parsed(rest).get("used")
        if not isinstance(used, list) or len(used) != len(self._trained):
            raise _another()
        found = []
        for flag, (parameter, number) in zip(used, self._trained):
            if not flag:
                parameter.grad = None
                continue
            if parameter.grad is None:
                parameter.grad = torch.empty_like(parameter.detach())
            found.append((parameter.grad, number))
        return found

    def step(self, rest: bytes, applied: bool) -> None:
        """Takes the step, by the averages that have come, if it was taken."""
        if not applied:
            return
        groups = self._optimizer.param_groups
        try:
            options = _state.value_of(parsed(rest)["options"], [])
            if len(options) != len(groups):
                raise _another()
            for group, given in zip(groups, options):
                group.update(
                    {name: given[name] for name in given
                     if name not in _NO_OPTIONS}
                )
        except (LookupError, RecursionError, TypeError, ValueError) as error:
            raise _another() from error
        # The averages stay, as memory for the next ones.
        self._optimizer.step()

    def undo(self) -> None:
        """Goes back to what was there before `begin`."""
        self._drop_averages()
        backup, self._backup = self._backup, None
        if backup is None:
            return
        self._optimizer.state = backup.state
        for group, before in zip(
            self._optimizer.param_groups, backup.options
        ):
            group.clear()
            group.update(before)
        with torch.no_grad():
            for parameter, value in zip(self._parameters, backup.values):
                parameter.copy_(value)

    def forget(self) -> None:
        """`undo` will not be called."""
        self._drop_averages()
        self._backup = None

    def _drop_averages(self) -> None:
        for parameter, _ in self._trained:
            parameter.grad = None


def _check_form(
    name: Any, parameter: torch.Tensor, tensor: torch.Tensor
) -> None:
    """Raises InvalidArgument unless each element belongs to one of the
    parameter's, or the tensor to all of it."""
    if not _is_dense(tensor) or tensor.shape not in (
        parameter.shape, torch.Size()
    ):
        raise _unknown(name)


def _unknown(name: Any) -> InvalidArgument:
    return InvalidArgument(
        "what the optimizer keeps as %r is not known to belong to single "
        "elements" % (name,)
    )


def _another() -> Exception:
    return data_loss("the description of a state is that of another optimizer")
