"""What elastic training keeps: a model, its optimizer, and the job's counters.

Between processes it travels as JSON and as the bytes of tensors, so that no
rank executes what another one has sent.
"""

from __future__ import annotations

import json
import zlib
from typing import Any, Dict, List, Mapping, Tuple

import torch

from ..errors import data_loss
from . import _record, _state
from ._copies import checksum


class State:
    """The state of one rank, which is that of the last step that it has taken.

    step: how many windows have ended with a decision.
    counter: the program's integers, 0 until they are set.
    whole: false if the state is that of no step, because an optimizer's step
        was cut short.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        objects: Mapping[str, Any],
        step: int,
        counter: Mapping[str, int],
    ) -> None:
        """objects: have state_dict and load_state_dict, and the same state on
        all ranks after the same step."""
        self.step = step
        self.counter: Dict[str, int] = _record.Counters()
        for name, value in counter.items():
            self.counter[name] = value
        self.whole = True
        self._model = model
        self._objects = dict(objects)
        self._in_window = False
        self._kept_counter: Dict[str, int] = {}
        self._kept_buffers: List[torch.Tensor] = []
        self.keep(step)

    def keep(self, step: int) -> None:
        """Between steps: roll_back restores the state as it is now. Raises
        InvalidArgument, naming a counter that is no integer."""
        # Before others copy it: update() of a dict goes past its checks.
        self._kept_counter = self._checked_counter()
        self.step = step
        self._in_window = False
        with torch.no_grad():
            self._kept_buffers = [one.clone() for one in self._model.buffers()]

    def begin(self) -> None:
        """A window begins. Between it and `keep` there is something to undo."""
        self._in_window = True

    @property
    def in_window(self) -> bool:
        return self._in_window

    def roll_back(self) -> None:
        """Forgets the step that is under way."""
        for parameter in self._model.parameters():
            parameter.grad = None
        if not self._in_window:
            return
        self._in_window = False
        self._set_counter(self._kept_counter)
        with torch.no_grad():
            for buffer, kept in zip(self._model.buffers(), self._kept_buffers):
                buffer.copy_(kept)

    def parameters(self) -> List[torch.Tensor]:
        return list(self._model.parameters())

    def buffers(self) -> List[torch.Tensor]:
        """Returns what ranks may hold different bits of."""
        return list(self._model.buffers())

    def layout(self) -> int:
        """Returns a hash of the names, types and sizes of all tensors."""
        named = list(self._model.named_parameters())
        named += self._model.named_buffers()
        text = "".join(
            "%s %s %s\n" % (name, one.dtype, list(one.shape))
            for name, one in named
        )
        return zlib.crc32(text.encode())

    def save(self) -> Tuple[bytes, List[torch.Tensor]]:
        """Returns the rest: JSON, and the tensors that it refers to. Raises
        InvalidArgument, naming a value that is neither."""
        return _saved(
            {name: one.state_dict() for name, one in self._objects.items()},
            self._trained(),
        )

    def save_loose(self) -> Tuple[bytes, List[torch.Tensor]]:
        """Returns the same without what a step changes: the optimizers'
        tensors."""
        return _saved(self._states()[1], self._trained())

    def take(
        self,
        step: int,
        parameters: List[torch.Tensor],
        buffers: List[torch.Tensor],
        text: bytes,
        tensors: List[torch.Tensor],
        counter: bytes,
    ) -> None:
        """Takes over the state of a peer: its parameters and buffers, and what
        `save` and `save_counter` returned there. Raises Error with the code
        DATA_LOSS if they are something else."""
        self.whole = False
        with torch.no_grad():
            for own, bits in zip(
                self.parameters() + self.buffers(), parameters + buffers
            ):
                own.copy_(bits)
        self.take_rest(text, tensors, counter)
        self.keep(step)

    def take_rest(
        self, text: bytes, tensors: List[torch.Tensor], counter: bytes
    ) -> None:
        """Takes over what `save` or `save_loose`, and `save_counter`, returned
        on a peer. Raises Error with the code DATA_LOSS if they are something
        else."""
        self.whole = False
        states, trained = _states_of(text, tensors)
        if sorted(states) != sorted(self._objects):
            raise data_loss(
                "a peer's state is of %s, and that of this worker of %s"
                % (", ".join(sorted(states)), ", ".join(sorted(self._objects)))
            )
        for parameter, flag in zip(self._model.parameters(), trained):
            if parameter.requires_grad != bool(flag):
                parameter.requires_grad_(bool(flag))
        for name, one in self._objects.items():
            state = states[name]
            if isinstance(one, torch.optim.Optimizer) and "state" not in state:
                state = dict(state, state=one.state_dict()["state"])
            one.load_state_dict(state)
            if isinstance(one, torch.optim.Optimizer):
                _keep_types(one, state)
        self._set_counter(parsed(counter))
        self.whole = True

    def take_buffers(self, buffers: List[torch.Tensor]) -> None:
        """Takes over the buffers of a peer. The state is then kept."""
        with torch.no_grad():
            for buffer, bits in zip(self.buffers(), buffers):
                buffer.copy_(bits)
        self.keep(self.step)

    def checksums(self) -> Tuple[int, int, int]:
        """Returns hashes of the parameters, of the optimizers' tensors, which a
        step changes with them, and of what the program may change after that:
        counters, which parameters are frozen, options of optimizers, and other
        objects."""
        stepped, loose = self._states()
        return (
            checksum(self.parameters()),
            _checksum_of(stepped, []),
            zlib.crc32(
                self.save_counter(), _checksum_of(loose, self._trained())
            ),
        )

    def _states(self) -> Tuple[Dict[str, Any], Dict[str, Any]]:
        """Returns what a step changes of the objects, and all else of them."""
        stepped: Dict[str, Any] = {}
        loose: Dict[str, Any] = {}
        for name, one in self._objects.items():
            state = one.state_dict()
            if isinstance(one, torch.optim.Optimizer):
                state = dict(state)
                stepped[name] = state.pop("state", {})
            loose[name] = state
        return stepped, loose

    def save_counter(self) -> bytes:
        """Raises InvalidArgument, naming a counter that is no integer."""
        # To look at a counter may make one of 0.
        used = {
            name: one for name, one in self._checked_counter().items() if one
        }
        return json.dumps(used, sort_keys=True).encode()

    def _checked_counter(self) -> Dict[str, int]:
        return {
            name: _record.checked(name, one)
            for name, one in self.counter.items()
        }

    def _trained(self) -> List[bool]:
        """Returns which parameters are trained, and not frozen."""
        return [one.requires_grad for one in self._model.parameters()]

    def _set_counter(self, values: Mapping[str, int]) -> None:
        # The program may have a reference to it.
        self.counter.clear()
        self.counter.update(values)


def parsed(text: bytes) -> Dict[str, Any]:
    """Returns an object that a peer has sent as JSON."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise data_loss("a peer's state cannot be read: %s" % error) from error
    if not isinstance(found, dict):
        raise data_loss("a peer's state is a %s" % type(found).__name__)
    return found


def _keep_types(
    optimizer: torch.optim.Optimizer, state: Mapping[str, Any]
) -> None:
    """Has an optimizer that has loaded a state hold its tensors as they are
    there: torch casts them to the types of parameters."""
    places: Dict[Any, Any] = {}
    for saved, group in zip(state["param_groups"], optimizer.param_groups):
        places.update(zip(saved["params"], group["params"]))
    for key, given in state["state"].items():
        place = places.get(key, key)
        loaded = optimizer.state[place]
        optimizer.state[place] = _as_given(given, loaded)


def _as_given(given: Any, loaded: Any) -> Any:
    """Returns a value with the devices of another one's tensors."""
    if isinstance(given, torch.Tensor) and isinstance(loaded, torch.Tensor):
        return given.to(loaded.device)
    if isinstance(given, dict) and isinstance(loaded, dict):
        return {key: _as_given(one, loaded.get(key)) for key, one in given.items()}
    if isinstance(given, (list, tuple)) and isinstance(loaded, type(given)):
        return type(given)(map(_as_given, given, loaded))
    return given


# What value_of raises, and a tree that is of something else.
_UNREADABLE = (
    ArithmeticError, AttributeError, LookupError, RecursionError, TypeError,
    ValueError,
)


def _saved(
    states: Mapping[str, Any], trained: List[bool]
) -> Tuple[bytes, List[torch.Tensor]]:
    found: List[Tuple[str, torch.Tensor]] = []
    trees = {
        name: _state.tree_of(one, repr(name), "", found)
        for name, one in states.items()
    }
    forms = [_state.form_of(one, name) for name, one in found]
    text = json.dumps(
        {"objects": trees, "tensors": forms, "trained": trained}
    )
    return text.encode(), [one.detach() for _, one in found]


def _states_of(
    text: bytes, tensors: List[torch.Tensor]
) -> Tuple[Dict[str, Any], List[Any]]:
    """Returns states by name, and which parameters are trained. Raises Error
    with the code DATA_LOSS if they cannot be read."""
    try:
        found = parsed(text)
        states = {
            name: _state.value_of(tree, tensors)
            for name, tree in found["objects"].items()
        }
        return states, list(found["trained"])
    except _UNREADABLE as error:
        raise data_loss("a peer's state cannot be read: %r" % error) from error


def _checksum_of(states: Mapping[str, Any], trained: List[bool]) -> int:
    text, tensors = _saved(states, trained)
    return checksum(tensors, zlib.crc32(text))


def tensors_of(text: bytes) -> List[torch.Tensor]:
    """Returns tensors of the types and sizes that `State.save` has noted,
    without memory. Raises Error with the code DATA_LOSS if it has not."""
    found = []
    try:
        for form in parsed(text)["tensors"]:
            dtype, shape = _state.shape_of(form)
            found.append(torch.empty(shape, dtype=dtype, device="meta"))
    # torch raises RuntimeError for sizes that are none.
    except (*_UNREADABLE, RuntimeError) as error:
        raise data_loss(
            "the tensors of a peer's state cannot be read: %r" % error
        ) from error
    return found
