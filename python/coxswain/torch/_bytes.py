"""Numbers and texts as the C++ library writes them: 8 bytes, little-endian, and
a text after its length."""

from __future__ import annotations

import struct

from ..errors import data_loss


def number(value: int) -> bytes:
    return struct.pack("<q", value)


def text(value: str) -> bytes:
    data = value.encode()
    return number(len(data)) + data


class Reader:
    """Reads what the functions above have written. Does not trust it: raises
    Error with the code DATA_LOSS."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._at = 0

    def take(self, size: int) -> memoryview:
        end = self._at + size
        if size < 0 or end > len(self._data):
            raise data_loss("the bytes are cut short at %d" % self._at)
        taken = self._data[self._at : end]
        self._at = end
        return taken

    def number(self) -> int:
        return int(struct.unpack("<q", self.take(8))[0])

    def text(self) -> str:
        try:
            return str(self.take(self.number()), "utf-8")
        except UnicodeDecodeError:
            raise data_loss("the bytes at %d are no text" % self._at) from None

    def rest(self) -> memoryview:
        return self.take(len(self._data) - self._at)

    def done(self) -> bool:
        return self._at == len(self._data)
