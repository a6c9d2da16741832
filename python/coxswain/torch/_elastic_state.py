"""What elastic training keeps: a model, its optimizer, and the job's counters.

Between processes it travels as JSON and as the bytes of tensors, so that no
rank executes what another one has sent.
"""

from __future__ import annotations

import collections
import json
import zlib
from typing import Any, Counter, Dict, Iterable, List, Mapping, Tuple

import torch

from ..errors import Code, Error, InvalidArgument
from ._copies import checksum

# The keys that stand for what JSON does not have.
_TENSOR, _TUPLE, _PAIRS = "tensor", "tuple", "pairs"


class State:
    """The state of one rank, which is that of the last step that it has taken.

    step: how many windows have ended with a decision.
    counter: the program's numbers, 0 until they are set.
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
        self.counter: Counter[str] = collections.Counter(counter)
        self.whole = True
        self._model = model
        self._objects = dict(objects)
        self._in_window = False
        self._kept_counter: Dict[str, int] = {}
        self._kept_buffers: List[torch.Tensor] = []
        self.keep(step)

    def keep(self, step: int) -> None:
        """Between steps: roll_back restores the state as it is now."""
        self.step = step
        self._in_window = False
        self._kept_counter = dict(self.counter)
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
            {name: one.state_dict() for name, one in self._objects.items()}
        )

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
        """Takes over what `save` and `save_counter` returned on a peer. Raises
        Error with the code DATA_LOSS if they are something else."""
        self.whole = False
        tree = parsed(text)
        if sorted(tree) != sorted(self._objects):
            raise data_loss(
                "a peer's state is of %s, and that of this worker of %s"
                % (", ".join(sorted(tree)), ", ".join(sorted(self._objects)))
            )
        for name, one in self._objects.items():
            state = _unpacked(tree[name], tensors)
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
        counters, options of optimizers, and other objects."""
        stepped: Dict[str, Any] = {}
        loose: Dict[str, Any] = {}
        for name, one in self._objects.items():
            state = one.state_dict()
            if isinstance(one, torch.optim.Optimizer):
                state = dict(state)
                stepped[name] = state.pop("state", {})
            loose[name] = state
        return (
            checksum(self.parameters()),
            _checksum_of(stepped),
            zlib.crc32(self.save_counter(), _checksum_of(loose)),
        )

    def save_counter(self) -> bytes:
        """Raises InvalidArgument, naming a counter that is no integer."""
        for name, value in self.counter.items():
            if not isinstance(name, str) or type(value) is not int:
                raise InvalidArgument(
                    "the counter %r is %r, and counters are integers"
                    % (name, value)
                )
        # To look at a counter may make one of 0.
        used = {name: one for name, one in self.counter.items() if one}
        return json.dumps(used, sort_keys=True).encode()

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


def data_loss(text: str) -> Error:
    error = Error(text)
    error.code = Code.DATA_LOSS
    return error


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


def _saved(states: Mapping[str, Any]) -> Tuple[bytes, List[torch.Tensor]]:
    tensors: List[torch.Tensor] = []
    tree = {
        name: _packed(one, name, tensors) for name, one in states.items()
    }
    return json.dumps(tree).encode(), tensors


def _checksum_of(states: Mapping[str, Any]) -> int:
    text, tensors = _saved(states)
    return checksum(tensors, zlib.crc32(text))


def _packed(value: Any, where: str, tensors: List[torch.Tensor]) -> Any:
    """Returns a value as what JSON has; its tensors go to the list."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, torch.Tensor):
        tensors.append(value.detach())
        return {
            _TENSOR: [
                len(tensors) - 1, str(value.dtype)[len("torch."):],
                list(value.shape),
            ]
        }
    if isinstance(value, (list, tuple)):
        items = [
            _packed(one, "%s[%d]" % (where, i), tensors)
            for i, one in enumerate(value)
        ]
        return items if isinstance(value, list) else {_TUPLE: items}
    if isinstance(value, dict):
        pairs = []
        for key, one in value.items():
            if not isinstance(key, (int, str)):
                raise _not_copied("%s has the key %r" % (where, key))
            pairs.append([key, _packed(one, "%s[%r]" % (where, key), tensors)])
        return {_PAIRS: pairs}
    raise _not_copied(
        "%s is a %s" % (where, type(value).__qualname__)
    )


def _not_copied(what: str) -> InvalidArgument:
    return InvalidArgument(
        what + ", which is not copied between workers: numbers, texts, "
        "tensors, and lists and dicts of them are"
    )


def _unpacked(value: Any, tensors: List[torch.Tensor]) -> Any:
    if isinstance(value, list):
        return [_unpacked(one, tensors) for one in value]
    if not isinstance(value, dict):
        return value
    if _TENSOR in value:
        return tensors[value[_TENSOR][0]]
    if _TUPLE in value:
        return tuple(_unpacked(one, tensors) for one in value[_TUPLE])
    return {key: _unpacked(one, tensors) for key, one in value[_PAIRS]}


def tensors_of(text: bytes) -> List[torch.Tensor]:
    """Returns tensors of the types and sizes that `State.save` has noted,
    without memory. Raises Error with the code DATA_LOSS if it has not."""
    found: Dict[int, torch.Tensor] = {}
    try:
        for tree in parsed(text).values():
            _find(tree, found)
        return [found[i] for i in range(len(found))]
    except (
        ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError,
        ValueError,
    ) as error:  # What torch raises for sizes that are none, too.
        raise data_loss(
            "the tensors of a peer's state cannot be read: %r" % error
        ) from error


def _find(value: Any, found: Dict[int, torch.Tensor]) -> None:
    items: Iterable[Any] = ()
    if isinstance(value, dict) and _TENSOR in value:
        place, dtype, shape = value[_TENSOR]
        found[place] = torch.empty(
            shape, dtype=getattr(torch, dtype), device="meta"
        )
    elif isinstance(value, dict):
        items = value.values()
    elif isinstance(value, list):
        items = value
    for one in items:
        _find(one, found)
