"""The coordinator's key-value store."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Sequence, Tuple, Union

from . import _library
from .errors import NotFound

if TYPE_CHECKING:
    from .session import Session

Value = Union[bytes, bytearray, memoryview, str]


def _bytes(value: Value) -> bytes:
    return _library.utf8(value) if isinstance(value, str) else bytes(value)


class Store:
    """Small values that the ranks of one generation share.

    Keys have at most 1 KiB, values at most 1 MiB; all are deleted when the
    generation ends. Timeouts are seconds. Safe from any thread.

    Errors besides those named: Unavailable if the coordinator could not be
    reached for 30 seconds; PeerLost, RanksDiffer or another Error with the code
    ABORTED once the generation has ended. A change that an exception such as
    KeyboardInterrupt has cancelled may still take effect, later.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    def _call(self, name: str, *arguments: Any) -> None:
        self._session._call(name, *arguments)

    def set(self, key: str, value: Value) -> None:
        """Sets a value; text is stored as UTF-8."""
        data = _bytes(value)
        self._call("cx_store_set", _library.encode(key), data, len(data))

    def get(self, key: str, timeout: float = 0) -> bytes:
        """Returns a value; waits for it for `timeout` seconds at most.

        Raises NotFound if there is none and the timeout is 0, or
        DeadlineExceeded if it did not come in time.
        """
        value, size = ctypes.c_void_p(), ctypes.c_size_t()
        self._call(
            "cx_store_get",
            _library.encode(key),
            _library.milliseconds(timeout),
            ctypes.byref(value),
            ctypes.byref(size),
        )
        return ctypes.string_at(value.value or 0, size.value)

    def wait(self, keys: Sequence[str], timeout: float) -> None:
        """Waits until all keys exist, `timeout` seconds at most. Raises as
        get."""
        names = [_library.encode(key) for key in keys]
        self._call(
            "cx_store_wait",
            (ctypes.c_char_p * len(names))(*names),
            len(names),
            _library.milliseconds(timeout),
        )

    def check(self, keys: Sequence[str]) -> bool:
        """Returns whether all keys exist, without waiting for them."""
        try:
            self.wait(keys, 0)
        except NotFound:
            return False
        return True

    def add(self, key: str, amount: int) -> int:
        """Adds to a decimal counter, which begins with 0; returns the sum.
        Raises Error with the code FAILED_PRECONDITION if the value is no
        number, or the sum does not fit 64 bits."""
        total = ctypes.c_int64()
        self._call(
            "cx_store_add",
            _library.encode(key),
            _library.int64("amount", amount),
            ctypes.byref(total),
        )
        return total.value

    def compare_set(
        self, key: str, expected: Value, desired: Value
    ) -> Tuple[bytes, bool]:
        """Sets `desired` if the value is `expected`.

        An empty `expected` also stands for a key that does not exist. Returns
        the value afterwards, and whether it was set. Raises NotFound if the key
        does not exist and `expected` is not empty.
        """
        before, after = _bytes(expected), _bytes(desired)
        value, size = ctypes.c_void_p(), ctypes.c_size_t()
        swapped = ctypes.c_int32()
        self._call(
            "cx_store_compare_set",
            _library.encode(key),
            before,
            len(before),
            after,
            len(after),
            ctypes.byref(value),
            ctypes.byref(size),
            ctypes.byref(swapped),
        )
        return (
            ctypes.string_at(value.value or 0, size.value),
            bool(swapped.value),
        )

    def append(self, key: str, value: Value) -> None:
        """Appends to a value, which begins empty; no other change comes in
        between."""
        data = _bytes(value)
        while True:
            try:
                before = self.get(key)
            except NotFound:
                before = b""
            try:
                if self.compare_set(key, before, before + data)[1]:
                    return
            except NotFound:  # deleted meanwhile
                continue

    def delete(self, key: str) -> bool:
        """Deletes a key; returns whether there was one."""
        existed = ctypes.c_int32()
        self._call(
            "cx_store_delete", _library.encode(key), ctypes.byref(existed)
        )
        return bool(existed.value)

    def count(self, prefix: str = "") -> int:
        """Returns how many keys begin with `prefix`; without one, also those
        by which communicators connect."""
        found = ctypes.c_int64()
        self._call(
            "cx_store_count_keys", _library.encode(prefix), ctypes.byref(found)
        )
        return found.value
