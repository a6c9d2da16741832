"""Coxswain's own exchange of DistributedDataParallel's buckets."""

from __future__ import annotations

import ctypes
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

import torch

from .. import _library
from .._data import _DTYPES, Parameter, parameters_of
from ..errors import Code, Error, InvalidArgument
from ..schedule import Schedule, canonical_hook
from ..session import Session
from . import _own_calls
from ._model import check_group, pass_number

HookWords = Union[str, Mapping[str, Any]]

# CX_HOOK_BEHIND, CX_HOOK_TOOK_PART
_BEHIND, _TOOK_PART = 1, 2
# CX_HOOK_OWN
_OWN = 2

# Buckets that the library may still use, by session and stream: an exception in
# a pass must not free them.
_in_use: Dict[Tuple[int, bytes], List[torch.Tensor]] = {}


def forget(session: Session) -> None:
    """Gives up the buckets of a session that is closed."""
    for key in [key for key in _in_use if key[0] == session._handle]:
        del _in_use[key]


class HookExchange:
    """The buckets of one exchange, handed over to the plan's hook.

    For one thread: the one that autograd runs hooks on. Has what Exchange has.
    """

    # None of torch's.
    hook = None

    def __init__(
        self, session: Session, schedule: Schedule, model: Any
    ) -> None:
        """Makes the hook, and connects the ranks: all of them call it. The hook
        of a stream goes on if another model does.

        Raises InvalidArgument for a model or a plan that the library cannot
        exchange.
        """
        self._session = session
        self._stream = schedule._stream
        self._model = model
        self._index: Dict[int, int] = {}
        self._slots: Dict[Tuple[int, int], Any] = {}
        self._rebuilt: Any = None  # of the model's, when slots were kept
        self._is_last = False
        self._key = (session._handle, self._stream)
        check_group(model, session.world_size)
        parameters = self._parameters()
        self._names = [one.name for one in parameters]
        specs = parameters_of(parameters)
        session._call("cx_exchange_open", self._stream, specs, len(specs))

    def name(self) -> Optional[str]:
        """None: that of the plan."""
        return None

    def launch(self, bucket: Any) -> Any:
        """Begins the exchange of a bucket; None: torch gets its buffer, which
        is complete once `wait` has returned."""
        buffer = bucket.buffer()
        if buffer.layout is not torch.strided:
            raise _sparse("gradients of bucket %d are" % bucket.index())
        handed = _library.make(_library.Bucket)
        handed.index = bucket.index()
        self._is_last = bucket.is_last()
        handed.last = int(self._is_last)
        handed.data = buffer.data_ptr()
        handed.count = buffer.numel()
        handed.dtype = _dtype(buffer)
        slots = self._slots_of(bucket, buffer)
        handed.slots = slots
        handed.slot_count = len(slots)
        _in_use.setdefault(self._key, []).append(buffer)
        self._session._check(
            _library.library().cx_exchange_bucket(
                self._session._handle, self._stream, ctypes.byref(handed)
            )
        )
        return None

    def wait(self, for_group: bool = False) -> None:
        """Waits until all buckets hold averages. Raises the session's error,
        such as PeerLost, if the generation ends first; Error with the code
        FAILED_PRECONDITION if torch has not handed over all of them."""
        if not self._is_last:
            raise self.incomplete()
        try:
            self._session._call("cx_exchange_wait", self._stream)
        except Error as error:
            cause = _own_calls.cause_of(error)
            if cause is None:
                raise
            raise error from cause
        _in_use.pop(self._key, None)

    def incomplete(self, places: Sequence[int] = ()) -> Error:
        """Returns the error of a pass at whose end buckets are missing; places:
        those of the parameters without gradient."""
        names = [self._names[one] for one in places if one < len(self._names)]
        error = Error(
            "torch has handed over %d buckets, and not the last one: %s no "
            "gradient, because this pass does not use them, or they were "
            "frozen after the model was made; make the model with "
            "find_unused_parameters=True, or anew"
            % (
                len(_in_use.get(self._key, ())),
                "%d parameters, such as %r, have" % (len(names), names[0])
                if names
                else "some parameters have",
            )
        )
        error.code = Code.FAILED_PRECONDITION
        return error

    def wait_at_once(self) -> None:
        """Waits if torch does so at the end of the buckets, before a callback
        of ours."""
        if self._is_last:
            self.wait()

    def abandon(self) -> bool:
        """Returns whether torch would wait for what is under way."""
        return False

    # ---- the hook's state ----

    def save(self, whole: bool) -> bytes:
        """Returns this rank's part of what the hook remembers, or all of it.
        All ranks call it, between steps."""
        return self._saved(int(whole))

    def _saved(self, whole: int) -> bytes:
        data, size = ctypes.c_void_p(), ctypes.c_size_t()
        self._session._call(
            "cx_hook_save",
            self._stream,
            whole,
            ctypes.byref(data),
            ctypes.byref(size),
        )
        return _bytes_at(data, size)

    def load(self, parts: Sequence[bytes]) -> None:
        """Takes over what was saved: the parts of all ranks, or the whole."""
        array = (_library.Bytes * len(parts))()
        kept = [ctypes.c_char_p(part) for part in parts]
        for struct, text, part in zip(array, kept, parts):
            struct.data = ctypes.cast(text, ctypes.c_void_p)
            struct.size = len(part)
        self._session._check(
            _library.library().cx_hook_load(
                self._session._handle, self._stream, array, len(array)
            )
        )

    # ---- from one generation to the next ----

    def save_own(self) -> bytes:
        """Returns what this rank's hook remembers, between steps, for
        `recover`. Other ranks need not call it."""
        return self._saved(_OWN)

    def release(self, undo_last: bool) -> bytes:
        """Returns what this rank's hook remembers, however the generation has
        ended; nothing is exchanged after it. undo_last: the step that was
        decided last is none."""
        data, size = ctypes.c_void_p(), ctypes.c_size_t()
        self._session._call(
            "cx_hook_release",
            self._stream,
            int(undo_last),
            ctypes.byref(data),
            ctypes.byref(size),
        )
        return _bytes_at(data, size)

    def recover(
        self, kept: bytes, world_size: int, behind: bool, took_part: bool
    ) -> float:
        """Has the hook go on with what `release` or `save_own` has returned on
        this rank, in a generation of that many ranks; b"": nothing. All ranks call it, before
        the first step. behind, took_part: see Standing. Returns what the errors
        of this rank were multiplied by."""
        standing = _library.make(_library.HookStanding)
        standing.flags = _BEHIND * behind + _TOOK_PART * took_part
        text = ctypes.c_char_p(kept)
        standing.state = ctypes.cast(text, ctypes.c_void_p)
        standing.state_size = len(kept)
        standing.world_size = world_size
        scale = ctypes.c_double()
        self._session._call(
            "cx_hook_recover",
            self._stream,
            ctypes.byref(standing),
            ctypes.byref(scale),
        )
        return scale.value

    # ---- the rest ----

    def _parameters(self) -> List[Parameter]:
        model = self._model
        ignored = model.parameters_to_ignore
        for name, layer in model.module.named_modules():
            if getattr(layer, "sparse", None) is True and isinstance(
                layer, (torch.nn.Embedding, torch.nn.EmbeddingBag)
            ):
                raise _sparse("%r is an embedding whose gradients are" % name)
        found = []
        for name, parameter in model.module.named_parameters():
            if not parameter.requires_grad or name in ignored:
                continue
            if not parameter.is_cpu:
                raise InvalidArgument(
                    'exchange="coxswain" is for models on the CPU, and '
                    "parameter %r is on %s: leave `exchange` out, and register "
                    "one of torch's hooks" % (name, parameter.device)
                )
            _dtype(parameter)
            self._index[id(parameter)] = len(found)
            kind = str(parameter.dtype).split(".")[-1]
            found.append(Parameter(name, tuple(parameter.shape), kind))
        return found

    def _slots_of(self, bucket: Any, buffer: torch.Tensor) -> Any:
        """Returns where the gradients lie. To ask torch takes long."""
        # torch rearranges buckets once: in a forward pass, or, without a note
        # of it, in join() on a rank that has no data left.
        rebuilt = getattr(self._model, "_has_rebuilt_buckets", None)
        joined = pass_number() is None
        if rebuilt is None or rebuilt != self._rebuilt or joined:
            self._slots.clear()
            self._rebuilt = rebuilt
        key = bucket.index(), buffer.numel()
        slots = self._slots.get(key)
        if slots is None:
            parameters, gradients = bucket.parameters(), bucket.gradients()
            slots = (_library.Slot * len(parameters))()
            offset = 0  # Gradients without elements have no address.
            for slot, parameter, gradient in zip(slots, parameters, gradients):
                slot.parameter = self._index[id(parameter)]
                slot.offset = offset
                slot.count = gradient.numel()
                offset += slot.count
            self._slots[key] = slots
        return slots


def _sparse(what: str) -> InvalidArgument:
    return InvalidArgument(
        'exchange="coxswain" is for dense gradients, and %s sparse: make '
        "embeddings with sparse=False, or leave `exchange` out" % what
    )


def _bytes_at(data: ctypes.c_void_p, size: ctypes.c_size_t) -> bytes:
    # string_at takes less than 2 GiB.
    kind = ctypes.c_char * size.value
    return bytes(kind.from_address(data.value or 0))


def _dtype(tensor: torch.Tensor) -> int:
    name = str(tensor.dtype).split(".")[-1]
    if name in _DTYPES and tensor.is_floating_point():
        return _DTYPES.index(name)
    raise InvalidArgument(
        'exchange="coxswain" is for float32, float64, float16 and bfloat16, and '
        "gradients are of %s" % name
    )


def check_hook(hook: HookWords, asked: str, plan_hook: str) -> None:
    """Raises InvalidArgument if a program asks for another hook than it has
    asked the plan for. That an operator has changed the plan is no
    contradiction."""
    wanted = canonical_hook(hook)
    if wanted not in (asked, plan_hook):
        raise InvalidArgument(
            "the hook is %s here, and this program joined with hook=%s: give "
            'both the same, as in coxswain.torch.init(plan={"hook": %r})'
            % (wanted, asked, wanted)
        )
