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
_SIZES = {
    "float32": 4, "float64": 8, "float16": 2, "int8": 1, "int32": 4,
    "uint8": 1, "int64": 8,
}


@dataclasses.dataclass(frozen=True)
class Parameter:
    """A parameter of the model, which the coordinator compares over the ranks.

    shape: its extents in elements, () for a scalar. dtype: such as "float32".
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
    """Returns them as an array of structs, which keeps alive what it points to.
    Raises InvalidArgument if a type or an extent is not valid."""
    array = (_library.Parameter * len(parameters))()
    for struct, one in zip(array, parameters):
        struct.name = _library.encode(one.name)
        struct.shape = (ctypes.c_int64 * len(one.shape))(
            *[_library.int64("the shape of %a" % one.name, extent)
              for extent in one.shape]
        )
        struct.ndim = len(one.shape)
        struct.dtype = _dtype(one.dtype)
    return array


class Elements:
    """A buffer of numbers, whose address does not change within a with block.

    writable: data is written to it. Otherwise a read-only buffer is copied.
    """

    def __init__(self, data: Any, writable: bool = True) -> None:
        self._view = memoryview(data)
        view = self._view
        name = _FORMATS.get(view.format.lstrip("@=<"))
        # A format has another size in the standard form than in the native.
        if name is None or view.itemsize != _SIZES[name]:
            raise InvalidArgument(
                "elements of the format %r are not exchanged" % view.format
            )
        if not view.c_contiguous or (writable and view.readonly):
            raise InvalidArgument(
                "the buffer is not %scontiguous"
                % ("writable and " if writable else "")
            )
        self.dtype = _dtype(name)
        self._copy: Any = None
        self._bytes: Optional[memoryview] = None

    def __enter__(self) -> Elements:
        count = self._view.nbytes // self._view.itemsize
        address = None
        if count > 0:
            self._bytes = self._view.cast("B")
            if self._view.readonly:
                kind = ctypes.c_char * self._view.nbytes
                self._copy = kind.from_buffer_copy(self._bytes)
                address = ctypes.addressof(self._copy)
            else:
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
