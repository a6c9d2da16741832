"""What a training counts, as programs in C++ save it, too: the bytes of
client/elastic/elastic_record.h."""

from __future__ import annotations

import dataclasses
import operator
from typing import Any, Dict

from ..errors import InvalidArgument, data_loss
from ._bytes import Reader, number, text


class Counters(Dict[str, int]):
    """Integers of 64 bits by name, 0 at first: `counters["rows"] += 1`. Raises
    InvalidArgument for anything else."""

    def __missing__(self, name: str) -> int:
        return 0

    def __setitem__(self, name: str, value: int) -> None:
        super().__setitem__(name, checked(name, value))


@dataclasses.dataclass
class Record:
    """progress: exchanges that were decided. position: ended windows, by
    stream. counters, blobs: the program's."""

    progress: int = 0
    position: Dict[str, int] = dataclasses.field(default_factory=dict)
    counters: Dict[str, int] = dataclasses.field(default_factory=Counters)
    blobs: Dict[str, bytes] = dataclasses.field(default_factory=dict)


def save(record: Record) -> bytes:
    """Returns the bytes of a record. Zeros and what is empty are left out.
    Raises InvalidArgument, naming a counter that is no integer."""
    parts = [number(record.progress)]
    # update() and setdefault() of a dict go past __setitem__.
    counters = {
        name: checked(name, one) for name, one in record.counters.items()
    }
    for numbers in (record.position, counters):
        given = sorted((name, one) for name, one in numbers.items() if one)
        parts.append(number(len(given)))
        for name, one in given:
            parts += [text(name), number(one)]
    kept = sorted((name, one) for name, one in record.blobs.items() if one)
    parts.append(number(len(kept)))
    for name, blob in kept:
        parts += [text(name), number(len(blob)), blob]
    return b"".join(parts)


def checked(name: Any, value: Any) -> int:
    """Returns a counter as an int. Raises InvalidArgument, naming it, if it is
    none of 64 bits."""
    if not isinstance(name, str):
        raise InvalidArgument("the counter %r is not named by a text" % (name,))
    try:
        whole = operator.index(value)
    except TypeError:
        whole = None
    if whole is None or not -(2**63) <= whole < 2**63:
        raise InvalidArgument(
            "the counter %r is %r, and counters are integers of 64 bits: put "
            "other values into an object with state_dict" % (name, value)
        )
    return whole


def load(data: memoryview) -> Record:
    """Returns the record of these bytes. Raises Error with the code DATA_LOSS
    if they are none."""
    reader = Reader(data)
    record = Record(progress=reader.number())
    for numbers in (record.position, record.counters):
        for _ in range(reader.number()):
            name = reader.text()
            numbers[name] = reader.number()
    for _ in range(reader.number()):
        name = reader.text()
        record.blobs[name] = bytes(reader.take(reader.number()))
    if reader.done():
        return record
    raise data_loss("bytes follow the record of the training")
