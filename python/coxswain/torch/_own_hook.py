"""Hooks of a program's own: what its author writes, and what it is given.

_own_calls registers them, and calls them for the library.
"""

from __future__ import annotations

import ctypes
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

import torch

from .._data import _DTYPES, Parameter
from ..errors import InvalidArgument, refused

# How the library numbers collectives.
_ALL_REDUCE, _BROADCAST, _ALL_GATHER, _REDUCE_SCATTER, _ALL_TO_ALL = range(1, 6)
_OPERATIONS = {"sum": 0, "min": 1, "max": 2}

# Of what a state has beside what buckets keep.
RESERVED = ("state", "int", "float")

# (kind, parameter) -> what is kept, flat; and the kinds that are the same on
# all ranks.
Kept = Dict[Tuple[str, str], torch.Tensor]


class Hook:
    """A communication hook of a program's own: averages buckets of gradients
    over the ranks. For the decorator `hook`; docs/python.md explains it.

    Each keyword argument of __init__, which has a default of type int, float,
    bool or str, is an option of the hook's spec. One object is made for each
    model that is followed; also to check a spec.

    step: the number of steps that have counted; the same on all ranks.
    """

    step = 0

    def exchange(self, bucket: Bucket, comm: Comm) -> Iterator[Any]:
        """A generator: leaves the average over all ranks in bucket.tensor.

        Yields collectives, one at a time: `total = yield
        comm.all_reduce(tensor)` goes on when that is done. Meanwhile the
        exchanges of other buckets go on, on the same thread. All ranks yield
        the same collectives, in the same order, with as many elements.

        An exception is an error of backward(), on all ranks in the end.
        Gradients are not recorded by autograd.
        """
        raise NotImplementedError

    def commit(self) -> None:
        """The step counts: called at the end of backward(), where `self` may
        change. What bucket.kept has returned is handled without it."""

    def rollback(self) -> None:
        """The step is undone: `self` is to be as it was before."""

    def state_dict(self) -> Dict[str, Any]:
        """Returns what the hook remembers between steps, besides what
        bucket.kept has returned: tensors and numbers by name, the same on all
        ranks; rank 0's is saved."""
        return {}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Takes over what state_dict has returned, on any number of ranks."""


class Collective:
    """What a Comm has begun, for `yield`."""

    __slots__ = ("name", "kind", "op", "root", "data", "output")

    def __init__(
        self,
        name: str,
        kind: int,
        data: torch.Tensor,
        output: Optional[torch.Tensor] = None,
        op: int = 0,
        root: int = 0,
    ) -> None:
        self.name = name
        self.kind = kind
        self.data = data
        self.output = output
        self.op = op
        self.root = root

    @property
    def result(self) -> torch.Tensor:
        return self.data if self.output is None else self.output


class Comm:
    """The collectives of an exchange, over all ranks. Each returns what the
    generator has to yield before it begins the next one; `yield` returns the
    result, the same bits on all ranks.

    Tensors are contiguous, on the CPU, and of float32, float64, float16,
    bfloat16, int8, int32, int64 or uint8; they are not to be changed until the
    result is there.

    rank, size: of this process, and how many ranks there are.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self._made: Optional[Collective] = None

    def all_reduce(self, tensor: torch.Tensor, op: str = "sum") -> Collective:
        """Replaces each element by the sum, "min" or "max" over all ranks."""
        return self._make("all_reduce", _ALL_REDUCE, tensor, op=_op(op))

    def broadcast(self, tensor: torch.Tensor, root: int = 0) -> Collective:
        """Copies the tensor of the rank `root` to all."""
        return self._make("broadcast", _BROADCAST, tensor, root=root)

    def all_gather(self, tensor: torch.Tensor) -> Collective:
        """Results in the tensors of all ranks: one of shape [size, ...]."""
        _check(tensor, "all_gather")
        output = tensor.new_empty((self.size, *tensor.shape))
        return self._make("all_gather", _ALL_GATHER, tensor, output)

    def reduce_scatter(
        self, tensor: torch.Tensor, op: str = "sum"
    ) -> Collective:
        """Results in this rank's part of the sum (or "min", "max"): of `size`
        parts of the tensor's first dimension, which that divides."""
        _check(tensor, "reduce_scatter")
        output = tensor.new_empty(
            (self._parts(tensor, "reduce_scatter"), *tensor.shape[1:])
        )
        return self._make(
            "reduce_scatter", _REDUCE_SCATTER, tensor, output, op=_op(op)
        )

    def all_to_all(self, tensor: torch.Tensor) -> Collective:
        """Results in part number `rank` of each rank's tensor, by rank: of
        `size` parts of its first dimension, which that divides."""
        _check(tensor, "all_to_all")
        self._parts(tensor, "all_to_all")
        output = torch.empty_like(tensor)
        return self._make("all_to_all", _ALL_TO_ALL, tensor, output)

    def _parts(self, tensor: torch.Tensor, name: str) -> int:
        extent = tensor.shape[0] if tensor.dim() else 1
        if extent % self.size:
            raise InvalidArgument(
                "%s has a tensor of shape %s, whose first dimension has no %d "
                "equal parts" % (name, tuple(tensor.shape), self.size)
            )
        return extent // self.size

    def _make(
        self, name: str, kind: int, tensor: Any, *more: Any, **named: int
    ) -> Collective:
        _check(tensor, name)
        if self._made is not None:
            raise refused(
                "exchange() begins %s, and has not yielded its %s yet: write "
                "`result = yield comm.%s(...)`"
                % (name, self._made.name, self._made.name)
            )
        self._made = Collective(name, kind, tensor, *more, **named)
        return self._made


def _op(name: str) -> int:
    if name not in _OPERATIONS:
        raise InvalidArgument("op is %r, not sum, min or max" % (name,))
    return _OPERATIONS[name]


def dtype_name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).split(".")[-1]


def _check(tensor: Any, name: str) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise InvalidArgument(
            "%s takes a tensor, not a %s" % (name, type(tensor).__qualname__)
        )
    if (
        not tensor.is_cpu
        or not tensor.is_contiguous()
        or dtype_name(tensor) not in _DTYPES
    ):
        raise InvalidArgument(
            "%s takes a contiguous tensor on the CPU of %s, not one of %s on "
            "%s%s"
            % (
                name,
                ", ".join(_DTYPES),
                dtype_name(tensor),
                tensor.device,
                "" if tensor.is_contiguous() else " with gaps",
            )
        )


def view(address: Optional[int], count: int, dtype: int) -> torch.Tensor:
    """Returns memory of the library as a tensor."""
    kind = getattr(torch, _DTYPES[dtype])
    if count == 0:
        return torch.empty(0, dtype=kind)
    size = count * torch.empty(0, dtype=kind).element_size()
    memory = (ctypes.c_char * size).from_address(address or 0)
    return torch.frombuffer(memory, dtype=kind)


class Bucket:
    """A bucket of gradients, of one type, within one exchange: its tensors are
    of no use after it.

    tensor: all gradients, flat: the sum of this rank's micro-batches, and in
        the end the average over all ranks. A view, no copy.
    index: of the bucket within the step; last: there are no more.
    names: those of its parameters, in their order.
    """

    def __init__(
        self,
        given: Any,
        parameters: Sequence[Parameter],
        current: Kept,
    ) -> None:
        self.index: int = given.index
        self.last = bool(given.last)
        self.tensor = view(given.data, given.count, given.dtype)
        slots = [given.slots[i] for i in range(given.slot_count)]
        self._slots = [
            (parameters[slot.parameter], slot.offset, slot.count)
            for slot in slots
        ]
        self._current = current
        self._kept: Dict[str, torch.Tensor] = {}
        self._same: List[str] = []

    @property
    def names(self) -> List[str]:
        return [parameter.name for parameter, _, _ in self._slots]

    def gradients(self) -> List[torch.Tensor]:
        """Returns the gradients, in the order of `names`, each a view of its
        part of `tensor`, row-major, with the shape of its parameter."""
        return [
            self.tensor[offset : offset + count].view(tuple(parameter.shape))
            for parameter, offset, count in self._slots
        ]

    def kept(self, kind: str, same: bool = False) -> torch.Tensor:
        """Returns what the hook remembers of these gradients under a name of
        its own, such as "error": a flat tensor as `tensor`, zeros at first, of
        float32 or float64. What it holds when the exchange ends is remembered
        if the step counts, unless it or the average is not finite.

        It belongs to the parameters, by name: it outlives other buckets,
        and is part of the hook's state. Each rank has its own, of which a
        checkpoint has the mean; with `same` all ranks compute the same.
        """
        if kind in RESERVED or not kind.isidentifier() or kind[:4] == "own_":
            raise InvalidArgument("kept() cannot use the name %r" % (kind,))
        if kind not in self._kept:
            wide = torch.promote_types(self.tensor.dtype, torch.float32)
            kept = torch.zeros(self.tensor.numel(), dtype=wide)
            for parameter, offset, count in self._slots:
                before = self._current.get((kind, parameter.name))
                if before is not None:
                    kept[offset : offset + count] = before
            self._kept[kind] = kept
            if same:
                self._same.append(kind)
        return self._kept[kind]

    # ---- for this package ----

    def staged(self) -> Tuple[Kept, List[str]]:
        """Returns what is kept from now on, and which kinds of it are the same
        on all ranks."""
        found: Kept = {}
        if self._kept and bool(torch.isfinite(self.tensor).all()):
            for kind, kept in self._kept.items():
                if not bool(torch.isfinite(kept).all()):
                    continue
                for parameter, offset, count in self._slots:
                    found[kind, parameter.name] = kept[offset : offset + count]
        return found, self._same


class Exchange:
    """A bucket on its way through the exchange of a hook."""

    def __init__(self, hook: Hook, bucket: Bucket, comm: Comm) -> None:
        self._bucket = bucket
        self._comm = comm
        self._name = "%s.exchange" % type(hook).__qualname__
        self._under_way: Optional[Collective] = None
        with torch.no_grad():
            self._steps = hook.exchange(bucket, comm)
        if not hasattr(self._steps, "send"):
            raise InvalidArgument(
                "%s has returned a %s and is no generator: it has to `yield` "
                "collectives" % (self._name, type(self._steps).__qualname__)
            )

    def advance(self) -> Optional[Collective]:
        """Returns the next collective; None: the bucket holds its average."""
        before, self._under_way = self._under_way, None
        result = None if before is None else before.result
        try:
            with torch.no_grad():
                found = self._steps.send(result)  # type: ignore[attr-defined]
        except StopIteration:
            if self._comm._made is not None:
                raise refused(
                    "%s has ended, and has not yielded its %s: write `result "
                    "= yield comm.%s(...)`"
                    % (self._name, self._comm._made.name, self._comm._made.name)
                ) from None
            return None
        made, self._comm._made = self._comm._made, None
        if not isinstance(found, Collective) or found is not made:
            raise InvalidArgument(
                "%s has yielded %s, and not what a method of comm has just "
                "returned" % (self._name, _shown(found))
            )
        self._under_way = made
        return made

    def staged(self) -> Tuple[Kept, List[str]]:
        return self._bucket.staged()

    def close(self) -> None:
        self._steps.close()  # type: ignore[attr-defined]


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 60 else "a " + type(value).__qualname__
