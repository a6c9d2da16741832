"""Hooks of a program's own, registered with the library and called by it.

The library calls them on threads of its own, which take the interpreter's lock
for each call. No exception leaves a call: it becomes the error of the exchange.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import inspect
import itertools
import logging
import os
import textwrap
import threading
import traceback
from typing import Any, Callable, Dict, List, Optional, Tuple, Union

import torch

from .. import _library
from .._data import _DTYPES, Parameter
from ..errors import Code, Error, InvalidArgument, refused
from ..schedule import own_hooks
from ._own_hook import RESERVED, Bucket, Comm, Exchange, Hook, Kept
from ._own_hook import dtype_name, view

_log = logging.getLogger("coxswain")

_INT, _FLOAT, _BOOL, _TEXT = range(4)
_OWN = 1  # a flag of a state's tensors
_VERSION_LETTERS = 16

Definition = Union[type, Callable[..., Any]]
_Option = Tuple[str, Any, int]


def hook(
    name: Union[str, Definition, None] = None, *, version: Optional[str] = None
) -> Any:
    """Registers a hook of the program's own: a class derived from Hook, or a
    generator function of (bucket, comm) that is its exchange.

        @cx.hook
        def mean(bucket, comm, factor=1.0):
            total = yield comm.all_reduce(bucket.tensor)
            total.mul_(factor / comm.size)

    Arguments that have defaults are options. From then on specs and plans can
    name it, such as "mean(factor=0.5)" or "fp16(mean)". In all processes of the
    job, before they join.

    name: by default that of the function, or of the class in lower case.
    version: of its code, which all ranks must have in common; by default a hash
        of the source text.

    Raises InvalidArgument for a definition that makes no sense; Error with the
    code ALREADY_EXISTS where another hook has the name, or FAILED_PRECONDITION
    where the process has joined.
    """
    if name is not None and not isinstance(name, str):
        return hook()(name)

    def register(definition: Definition) -> Definition:
        _register(_Registered(definition, name, version))
        return definition

    return register


class _Registered:
    """A hook as it was registered."""

    def __init__(
        self,
        definition: Definition,
        name: Optional[str],
        version: Optional[str],
    ) -> None:
        if inspect.isclass(definition):
            if not issubclass(definition, Hook):
                raise InvalidArgument(
                    "%s is not derived from coxswain.torch.Hook"
                    % definition.__qualname__
                )
            self.name = name or definition.__name__.lower()
            self.make: Callable[..., Any] = definition
            skipped = 0
        elif inspect.isgeneratorfunction(definition):
            self.name = name or definition.__name__
            self.make = functools.partial(_FunctionHook, definition)
            skipped = 2  # the bucket, and comm
        else:
            raise InvalidArgument(
                "%r is neither a class nor a generator function: a hook yields "
                "collectives" % (definition,)
            )
        self.options = _options(definition, skipped)
        self.version = _version(definition) if version is None else version
        self.help = (inspect.getdoc(definition) or "").split("\n")[0]

    def values(self, texts: Dict[str, str]) -> Dict[str, Any]:
        """Returns the options of a spec as arguments."""
        read: Dict[int, Callable[[str], Any]] = {
            _INT: int, _FLOAT: float, _TEXT: str, _BOOL: "true".__eq__,
        }
        return {
            name: read[kind](texts[name]) for name, _, kind in self.options
        }


class _FunctionHook(Hook):
    def __init__(self, function: Callable[..., Any], **options: Any) -> None:
        self._function = function
        self._options = options

    def exchange(self, bucket: Bucket, comm: Comm) -> Any:
        return self._function(bucket, comm, **self._options)


def _options(definition: Any, skipped: int) -> List[_Option]:
    parameters = list(inspect.signature(definition).parameters.values())
    found = []
    for one in parameters[skipped:]:
        kind = {bool: _BOOL, int: _INT, float: _FLOAT, str: _TEXT}.get(
            type(one.default)
        )
        if kind is None or one.kind is one.POSITIONAL_ONLY:
            raise InvalidArgument(
                "the argument %r of %s is no option: options have a default "
                "that is an int, a float, a bool or a str"
                % (one.name, definition.__qualname__)
            )
        found.append((one.name, one.default, kind))
    return found


def _version(definition: Any) -> str:
    try:
        source = textwrap.dedent(inspect.getsource(definition))
    except (OSError, TypeError):
        return "no source"
    return hashlib.sha256(source.encode()).hexdigest()[:_VERSION_LETTERS]


# By number, which the library is given as `data`.
_registered: Dict[int, _Registered] = {}
_numbers = itertools.count(1)


def _register(given: _Registered) -> None:
    for number, one in _registered.items():
        # A module that is loaded again.
        if one.name == given.name and one.version == given.version:
            _registered[number] = given
            return
    struct = _library.make(_library.Hook)
    struct.name = _library.encode(given.name)
    struct.help = _library.encode_reason(given.help)
    struct.version = _library.encode(given.version)
    options = (_library.HookOption * len(given.options))()
    for option, (name, default, kind) in zip(options, given.options):
        text = repr(default).lower() if kind == _BOOL else str(default)
        option.name = _library.encode(name)
        option.default_value = _library.encode(text)
        option.type = kind
    struct.options = options
    struct.option_count = len(options)
    number = next(_numbers)
    struct.data = number
    for name, function in _FUNCTIONS.items():
        setattr(struct, name, function)
    _library.check(
        _library.library().cx_hook_register(ctypes.byref(struct))
    )
    _library.end_calls_at_exit()
    _registered[number] = given
    own_hooks.add(given.name)


# ---- what the library has ----


class _Made:
    """A hook that the library has, with what its buckets keep."""

    def __init__(self, made: Hook, name: str) -> None:
        self.hook = made
        self.name = name
        self.parameters: List[Parameter] = []
        self.current: Kept = {}
        self._staged: Kept = {}
        self._same: Dict[str, bool] = {}
        # What the library reads of the last `save`.
        self.saved: Any = None

    def configure(self, parameters: List[Parameter]) -> None:
        self.parameters = parameters
        self.current = {
            key: kept for key, kept in self.current.items()
            if self._fits(key[1], kept)
        }

    def begin(self, given: Any, rank: int, size: int) -> Exchange:
        bucket = Bucket(given, self.parameters, self.current)
        return Exchange(self.hook, bucket, Comm(rank, size))

    def stage(self, exchange: Exchange) -> None:
        staged, same = exchange.staged()
        self._staged.update(staged)
        self._same.update((kind, True) for kind in same)

    def commit(self) -> None:
        staged, self._staged = self._staged, {}
        self.hook.commit()
        self.current.update(staged)
        self.hook.step += 1

    def rollback(self) -> None:
        self._staged = {}
        self.hook.rollback()

    def save(self) -> List[Tuple[str, str, torch.Tensor, int]]:
        tensors = [("int", "", torch.tensor(self.hook.step), 0)]
        shapes = {one.name: tuple(one.shape) for one in self.parameters}
        for (kind, name), kept in sorted(self.current.items()):
            flags = 0 if self._same.get(kind) else _OWN
            tensors.append((kind, name, kept.reshape(shapes[name]), flags))
        for name, value in sorted(self.hook.state_dict().items()):
            tensors.append((*self._kind_of(name, value), 0))
        return tensors

    def load(self, tensors: List[Tuple[str, str, torch.Tensor, int]]) -> None:
        current: Kept = {}
        state: Dict[str, Any] = {}
        step = 0
        same: Dict[str, bool] = {}
        for kind, name, tensor, flags in tensors:
            if kind == "int" and not name:
                step = int(tensor)
            elif kind in RESERVED:
                state[name] = tensor if kind == "state" else tensor.item()
            elif not self._fits(name, tensor):
                raise refused(
                    "the state has %r of a parameter %r with %d elements, and "
                    "the model has none such" % (kind, name, tensor.numel())
                )
            else:
                current[kind, name] = tensor.flatten()
                same[kind] = not flags & _OWN
        if state:
            self.hook.load_state_dict(state)
        self.current, self._staged, self._same = current, {}, same
        self.hook.step = step

    def _fits(self, name: str, kept: torch.Tensor) -> bool:
        return any(
            one.name == name and _count(one.shape) == kept.numel()
            for one in self.parameters
        )

    def _kind_of(
        self, name: str, value: Any
    ) -> Tuple[str, str, torch.Tensor]:
        if isinstance(value, torch.Tensor):
            if value.is_cpu and dtype_name(value) in _DTYPES:
                return "state", name, value.detach()
        elif isinstance(value, int) and name:
            return "int", name, torch.tensor(int(value))
        elif isinstance(value, float):
            return "float", name, torch.tensor(value, dtype=torch.float64)
        raise InvalidArgument(
            "state_dict() of the hook %s has %r, which is no number and no "
            "tensor on the CPU" % (self.name, name)
        )


def _count(shape: Any) -> int:
    count = 1
    for extent in shape:
        count *= extent
    return count


_things: Dict[int, Any] = {}  # hooks and exchanges, by what stands for them
_of_exchange: Dict[int, _Made] = {}
_lock = threading.Lock()


def _add(thing: Any) -> int:
    with _lock:
        number = next(_numbers)
        _things[number] = thing
    return number


# ---- errors ----

_last: Optional[Tuple[str, BaseException]] = None


def cause_of(error: Error) -> Optional[BaseException]:
    """Returns the exception of a hook that has become this error, if one has;
    forgets it."""
    global _last
    last, _last = _last, None
    if last is not None and last[0] in str(error):
        return last[1]
    return None


def _failed(error: BaseException, keep: bool) -> int:
    """Passes an exception on to the library; keep: for cause_of."""
    global _last
    text = str(error)
    code = Code.UNKNOWN
    if isinstance(error, Error):
        code = error.code
    else:
        text = "%s: %s" % (type(error).__name__, text)
        frames = traceback.extract_tb(error.__traceback__)
        theirs = [
            frame for frame in frames if frame.filename not in _OUR_FILES
        ]
        if theirs:
            text += " (%s, line %s)" % (
                os.path.basename(theirs[0].filename), theirs[0].lineno,
            )
    text = " ".join(text.split())
    if keep:
        _last = text, error
    _library.library().cx_hook_fail(_library.encode_reason(text))
    return int(code)


_OUR_FILES = (__file__, inspect.getfile(Hook))


def _answers(name: str) -> Callable[[Callable[..., None]], Any]:
    """Makes the function of that name in cx_hook; of what it raises it returns
    the code."""

    def make(function: Callable[..., None]) -> Any:
        def call(*arguments: Any) -> int:
            try:
                function(*arguments)
                return 0
            except BaseException as error:
                return _failed(error, name in ("begin", "advance"))

        return _library.HOOK_FUNCTIONS[name](call)

    return make


def _tells(name: str) -> Callable[[Callable[..., None]], Any]:
    """Makes a function that has no result."""

    def make(function: Callable[..., None]) -> Any:
        def call(*arguments: Any) -> None:
            try:
                function(*arguments)
            except BaseException:
                _log.exception("a hook's %s", name)

        return _library.HOOK_FUNCTIONS[name](call)

    return make


# ---- what the library calls ----


@_answers("make")
def _make(data: int, spec: bytes, given: Any, count: int, place: Any) -> None:
    registered = _registered[data]
    texts = {
        _library.decode(given[i].name): _library.decode(given[i].value)
        for i in range(count)
    }
    made = registered.make(**registered.values(texts))
    place[0] = _add(_Made(made, registered.name))


@_answers("configure")
def _configure(made: int, given: Any, count: int, size: int) -> None:
    parameters = []
    for one in given[:count]:
        parameters.append(
            Parameter(
                _library.decode(one.name),
                tuple(one.shape[: one.ndim]) if one.ndim else (),
                _DTYPES[one.dtype],
            )
        )
    _things[made].configure(parameters)


@_answers("begin")
def _begin(made: int, bucket: Any, rank: int, size: int, place: Any) -> None:
    owner = _things[made]
    number = _add(owner.begin(bucket.contents, rank, size))
    _of_exchange[number] = owner
    place[0] = number


@_answers("advance")
def _advance(exchange: int, place: Any) -> None:
    found = _things[exchange].advance()
    if found is None:
        _of_exchange[exchange].stage(_things[exchange])
        return
    struct = place.contents
    struct.kind, struct.op, struct.root = found.kind, found.op, found.root
    struct.dtype = _DTYPES.index(dtype_name(found.data))
    struct.data, struct.count = found.data.data_ptr(), found.data.numel()
    if found.output is not None:
        struct.output = found.output.data_ptr()
        struct.output_count = found.output.numel()


@_tells("end")
def _end(exchange: int) -> None:
    del _of_exchange[exchange]
    _things.pop(exchange).close()


@_answers("commit")
def _commit(made: int) -> None:
    _things[made].commit()


@_tells("rollback")
def _rollback(made: int) -> None:
    _things[made].rollback()


@_answers("save")
def _save(made: int, place: Any, count: Any) -> None:
    tensors = _things[made].save()
    array = (_library.StateTensor * len(tensors))()
    kept: List[Any] = [array]
    for struct, (kind, name, tensor, flags) in zip(array, tensors):
        tensor = tensor.contiguous()
        shape = (ctypes.c_int64 * tensor.dim())(*tensor.shape)
        kept.append((tensor, shape))
        struct.kind = _library.encode(kind)
        struct.parameter = _library.encode(name)
        struct.shape = shape
        struct.ndim = tensor.dim()
        struct.dtype = _DTYPES.index(dtype_name(tensor))
        struct.data = tensor.data_ptr()
        struct.flags = flags
    _things[made].saved = kept
    place[0] = array
    count[0] = len(tensors)


@_answers("load")
def _load(made: int, given: Any, count: int) -> None:
    tensors = []
    for one in given[:count]:
        shape = one.shape[: one.ndim] if one.ndim else []
        tensor = view(one.data, _count(shape), one.dtype).clone()
        tensors.append(
            (
                _library.decode(one.kind),
                _library.decode(one.parameter),
                tensor.reshape(tuple(shape)),
                one.flags,
            )
        )
    _things[made].load(tensors)


@_tells("destroy")
def _destroy(made: int) -> None:
    del _things[made]


_FUNCTIONS = {
    "make": _make,
    "configure": _configure,
    "begin": _begin,
    "advance": _advance,
    "end": _end,
    "commit": _commit,
    "rollback": _rollback,
    "save": _save,
    "load": _load,
    "destroy": _destroy,
}
