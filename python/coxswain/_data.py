"""Parameters and buffers of numbers, as the library takes them."""

from __future__ import annotations

import ctypes
import dataclasses
from typing import Any, Optional, Sequence, Tuple, Union

from . import _library
from .errors import InvalidArgument

_DTYPES = (
    "float32", "float64", "float16", "bfloat16", "int8", "int32", "int64",
    "uint8",
)
# By the format of a buffer, which is a code of the struct module.
_FORMATS = {
    "f": "float32", "d": "float64", "e": "float16", "b": "int8", "i": "int32",
    "B": "uint8", "q": "int64", "l": "int64",
}


@dataclasses.dataclass(frozen=True)
class Parameter:
    """A parameter of the model, for the comparison of the ranks.

    shape: its extents, () for a scalar. dtype: such as "float32".
    """

    name: str
    shape: Sequence[int] = ()
    dtype: str = "float32"


def _dtype(name: str) -> int:
    if name in _DTYPES:
        return _DTYPES.index(name)
    raise InvalidArgument(
        "%r is not one of %s" % (name, ", ".join(_DTYPES))
    )


def parameters_of(parameters: Sequence[Parameter]) -> Any:
    """Returns them as an array of structs, which keeps what it points to."""
    array = (_library.Parameter * len(parameters))()
    for struct, one in zip(array, parameters):
        struct.name = _library.encode(one.name)
        struct.shape = (ctypes.c_int64 * len(one.shape))(*one.shape)
        struct.ndim = len(one.shape)
        struct.dtype = _dtype(one.dtype)
    return array


class Elements:
    """A buffer of numbers, which stays where it is while it is entered."""

    def __init__(self, data: Any) -> None:
        self._view = memoryview(data)
        view = self._view
        name = _FORMATS.get(view.format.lstrip("@=<"))
        if name is None:
            raise InvalidArgument(
                "elements of the format %r are not exchanged" % view.format
            )
        if view.readonly or not view.c_contiguous:
            raise InvalidArgument("the buffer is not writable and contiguous")
        self.dtype = _dtype(name)
        self._bytes: Optional[memoryview] = None

    def __enter__(self) -> Elements:
        count = self._view.nbytes // self._view.itemsize
        address = None
        if count > 0:
            self._bytes = self._view.cast("B")
            address = ctypes.addressof(
                ctypes.c_char.from_buffer(self._bytes)
            )
        self.arguments: Tuple[Union[int, None], ...] = (
            address, count, self.dtype,
        )
        return self

    def __exit__(self, *unused: Any) -> None:
        if self._bytes is not None:
            self._bytes.release()
        self._view.release()
