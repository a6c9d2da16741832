"""A program's state as bytes, which no code is run to read.

A module is what client/resume/tensor_bytes.h of the C++ library describes: its
parameters and buffers by name, type and shape. Programs in C++ that have the
same names go on from it, and the reverse.

Any other state is _MAGIC, the class of what it is of, its structure as JSON,
and its tensors as above. Elastic training sends the same structures from rank
to rank, and the tensors beside them.
"""

from __future__ import annotations

import base64
import collections
import json
from typing import Any, Callable, Dict, Iterable, List, Mapping, Tuple

import torch

from ..checkpoints import Memory
from ..errors import InvalidArgument, data_loss, refused
from ._bytes import Reader, number, text

# What follows the bytes of a module: never their beginning, the number of its
# tensors.
_MAGIC = b"CXPY0001"
_MOST_DIFFERENCES = 8
_DTYPES = {
    "Float": torch.float32, "Double": torch.float64, "Half": torch.float16,
    "BFloat16": torch.bfloat16, "Long": torch.int64, "Int": torch.int32,
    "Short": torch.int16, "Char": torch.int8, "Byte": torch.uint8,
    "UInt16": torch.uint16, "UInt32": torch.uint32, "UInt64": torch.uint64,
    "Bool": torch.bool, "ComplexFloat": torch.complex64,
    "ComplexDouble": torch.complex128,
}
# As programs in C++ without libtorch write them.
_SHORT = {
    "float32": "Float", "float64": "Double", "float16": "Half",
    "bfloat16": "BFloat16", "int64": "Long", "int32": "Int", "int8": "Char",
    "uint8": "Byte",
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}

# What a state may be made of, besides tensors.
_PLAIN = (bool, int, float, str, type(None))


def bare(module: torch.nn.Module) -> torch.nn.Module:
    """Returns what DistributedDataParallel and torch.compile have wrapped."""
    while True:
        if isinstance(module, torch.nn.parallel.DistributedDataParallel):
            module = module.module
        elif hasattr(module, "_orig_mod"):
            module = module._orig_mod
        else:
            return module


def save_module(module: torch.nn.Module) -> List[Any]:
    """Returns the parts of a module's bytes."""
    return _save_tensors(_tensors_of(module))


def check_module(data: memoryview, module: torch.nn.Module) -> Callable[[], None]:
    """Returns a function that loads a module's bytes. Raises Error with the
    code FAILED_PRECONDITION, listing what differs in the module."""
    return _check_tensors(data, _tensors_of(module))


def save_tensor(name: str, tensor: torch.Tensor) -> List[Any]:
    return _save_tensors([(name, tensor)])


def check_tensor(
    data: memoryview, name: str, tensor: torch.Tensor
) -> Callable[[], None]:
    return _check_tensors(data, [(name, tensor)])


def save_state(kind: str, state: Any) -> List[Any]:
    """Returns the parts of the bytes of a state, as state_dict returns it, of
    an object of this class. Raises InvalidArgument, naming the part that cannot
    be saved."""
    tensors: List[Tuple[str, torch.Tensor]] = []
    tree = tree_of(state, kind, "", tensors)
    if isinstance(state, Mapping) and "param_groups" in state:
        # For programs in C++, which do not read the structure.
        # Without a rate, or with None, the optimizer has one of its own.
        rates = [
            float(group.get("lr") or 0) for group in state["param_groups"]
        ]
        name = "%d/learning_rates" % len(tensors)
        tensors.append((name, torch.tensor(rates, dtype=torch.float64)))
    form = json.dumps(tree, separators=(",", ":"))
    return [_MAGIC + text(kind) + text(form), *_save_tensors(tensors)]


def load_state(data: memoryview, kind: str, name: str) -> Any:
    """Returns a state, of an object of this class. Raises Error with the code
    FAILED_PRECONDITION if it is of another one, or of a program in C++."""
    if bytes(data[: len(_MAGIC)]) != _MAGIC:
        raise refused(
            "%r was saved by a program in C++, whose format is libtorch's own: "
            "go on with the rest, as by resume(objects=[\"model\"])" % name
        )
    reader = Reader(data[len(_MAGIC) :])
    saved = reader.text()
    if saved != kind:
        raise refused("%r was saved of %s, and is %s here" % (name, saved, kind))
    try:
        tree = json.loads(reader.text())
        tensors = [_tensor(*one) for one in _forms(reader).values()]
        return value_of(tree, tensors)
    except (IndexError, RecursionError, TypeError, ValueError) as error:
        raise data_loss(
            "the state of %r cannot be read: %s" % (name, error)
        ) from None


def check_groups(state: Any, groups: List[Any]) -> None:
    """Raises Error with the code FAILED_PRECONDITION if an optimizer with these
    groups of parameters cannot take a state of an optimizer."""
    try:
        saved = [len(group["params"]) for group in state["param_groups"]]
    except (KeyError, TypeError):
        raise data_loss("it has no groups of parameters") from None
    here = [len(group["params"]) for group in groups]
    if saved != here:
        raise refused(
            "it was saved with groups of %s parameters, and has groups of %s "
            "here" % (_joined(saved), _joined(here))
        )


def _joined(sizes: List[int]) -> str:
    return ", ".join(map(str, sizes)) or "no"


def class_of(thing: Any) -> str:
    kind = type(thing)
    return "%s.%s" % (kind.__module__, kind.__qualname__)


# ---- tensors ----


def _tensors_of(
    module: torch.nn.Module,
) -> List[Tuple[str, torch.Tensor]]:
    """Returns parameters and persistent buffers, each once, by the names that
    libtorch has for them."""
    module = bare(module)
    found: List[Tuple[str, torch.Tensor]] = list(module.named_parameters())
    passing = set()
    for path, inner in module.named_modules():
        if type(inner).get_extra_state is not torch.nn.Module.get_extra_state:
            raise InvalidArgument(
                "the module %r has an extra state (get_extra_state), which is "
                "no tensor: save it as an object of its own" % path
            )
        for name in inner._non_persistent_buffers_set:
            passing.add(path + "." + name if path else name)
    found += [
        (name, buffer)
        for name, buffer in module.named_buffers()
        if name not in passing
    ]
    return found


def form_of(tensor: torch.Tensor, name: str) -> str:
    """Returns type and shape as a text. Raises InvalidArgument for a tensor
    that has none."""
    known = _NAMES.get(tensor.dtype)
    if known is None or tensor.layout != torch.strided:
        raise InvalidArgument(
            "%r is a tensor of %s, %s, which cannot be saved"
            % (name, tensor.dtype, tensor.layout)
        )
    return "%s [%s]" % (known, ", ".join(map(str, tensor.shape)))


def _save_tensors(tensors: Iterable[Tuple[str, torch.Tensor]]) -> List[Any]:
    given = list(tensors)
    parts: List[Any] = [number(len(given))]
    for name, tensor in given:
        dense = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
        size = dense.numel() * dense.element_size()
        parts.append(text(name) + text(form_of(tensor, name)) + number(size))
        parts.append(Memory(dense.data_ptr(), size, dense))
    return parts


def _check_tensors(
    data: memoryview, here: List[Tuple[str, torch.Tensor]]
) -> Callable[[], None]:
    if bytes(data[: len(_MAGIC)]) == _MAGIC:
        raise refused("what was saved is the state of an object, and no tensors")
    saved = _forms(Reader(data))
    rest = dict(saved)
    differences = []
    for name, tensor in here:
        form = form_of(tensor, name)
        if name not in rest:
            differences.append("%s (%s) not in the checkpoint" % (name, form))
        elif rest[name][0] != form:
            differences.append(
                "%s: saved %s, here %s" % (name, rest[name][0], form)
            )
        rest.pop(name, None)
    for name, (form, _) in rest.items():
        differences.append("%s (%s) only in the checkpoint" % (name, form))
    if differences:
        more = len(differences) - _MOST_DIFFERENCES
        shown = differences[:_MOST_DIFFERENCES]
        if more > 0:
            shown.append("and %d more" % more)
        raise refused("it is of another model: " + "; ".join(shown))

    def load() -> None:
        with torch.no_grad():
            for name, tensor in here:
                tensor.copy_(_tensor(saved[name][0], saved[name][1]))

    return load


def shape_of(form: str) -> Tuple[torch.dtype, List[int]]:
    """Returns type and shape of a text. Raises Error with the code DATA_LOSS if
    it has none."""
    name, _, shape = form.partition(" ")
    dtype = _DTYPES.get(name)
    numbers = shape[1:-1].replace(" ", "")
    if dtype is None or shape[:1] != "[" or shape[-1:] != "]":
        raise data_loss("%r is no type and shape of a tensor" % form)
    try:
        extents = [int(one) for one in numbers.split(",") if numbers]
    except ValueError:
        raise data_loss("%r is no shape of a tensor" % form) from None
    return dtype, extents


def _tensor(form: str, data: memoryview) -> torch.Tensor:
    dtype, shape = shape_of(form)
    size = torch.empty((), dtype=dtype).element_size()
    count = 1
    for extent in shape:
        count *= extent
    if min(shape, default=0) < 0 or count * size != len(data):
        raise data_loss("%d bytes are no tensor %s" % (len(data), form))
    if count == 0:
        try:
            return torch.empty(shape, dtype=dtype)
        except RuntimeError as error:
            raise data_loss("%s is no tensor: %s" % (form, error)) from None
    # torch takes memory that may be written to.
    return torch.frombuffer(bytearray(data), dtype=dtype).reshape(shape)


def _forms(reader: Reader) -> Dict[str, Tuple[str, memoryview]]:
    """Returns type and shape, and the elements, of the tensors that are left,
    by name."""
    found = {}
    for _ in range(reader.number()):
        name, form = reader.text(), reader.text()
        kind, _, shape = form.partition(" ")
        form = "%s %s" % (_SHORT.get(kind, kind), shape)
        found[name] = (form, reader.take(reader.number()))
    if not reader.done():
        raise data_loss("these bytes are not those of a model")
    return found


# ---- structure ----


def tree_of(
    value: Any, kind: str, path: str, tensors: List[Tuple[str, torch.Tensor]]
) -> Any:
    """Returns what JSON has for a value, of an object of this class: lists begin
    with what they are. Its tensors go to the list, with names. Raises
    InvalidArgument, naming the part that is nothing of that."""

    def inner(one: Any, name: Any) -> Any:
        return tree_of(one, kind, "%s/%s" % (path, name), tensors)

    if isinstance(value, torch.Tensor):
        # Unique, although keys of several types may read alike.
        tensors.append(("%d%s" % (len(tensors), path), value))
        return ["tensor", len(tensors) - 1]
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, (bytes, bytearray)):
        return ["bytes", base64.b64encode(value).decode()]
    if isinstance(value, Mapping):
        form = "count" if isinstance(value, collections.Counter) else "dict"
        return [
            form,
            [[inner(key, "key"), inner(one, key)] for key, one in value.items()],
        ]
    for form, sequence in (("list", list), ("tuple", tuple), ("set", set)):
        if isinstance(value, sequence):
            return [form, [inner(one, i) for i, one in enumerate(value)]]
    raise InvalidArgument(
        "the state of %s has a %s at %r, which cannot be saved or copied: "
        "numbers, texts, bytes, tensors, and lists, tuples, sets and dicts of "
        "them can" % (kind, class_of(value), path or "/")
    )


def value_of(tree: Any, tensors: List[torch.Tensor]) -> Any:
    """Returns the value of what JSON has. Raises IndexError, TypeError,
    ValueError or RecursionError for something else."""
    if not isinstance(tree, list):
        return tree
    form, content = tree
    if form == "tensor":
        if content < 0:
            raise IndexError("a tensor has the number %d" % content)
        return tensors[content]
    if form == "bytes":
        return base64.b64decode(content, validate=True)
    if form in ("dict", "count"):
        pairs = {
            value_of(key, tensors): value_of(one, tensors) for key, one in content
        }
        return collections.Counter(pairs) if form == "count" else pairs
    kinds: Dict[str, Any] = {"list": list, "tuple": tuple, "set": set}
    if form not in kinds:
        raise ValueError("%r is no part of a state" % (form,))
    return kinds[form](value_of(one, tensors) for one in content)
