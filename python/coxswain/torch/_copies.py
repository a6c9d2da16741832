"""The bytes of tensors, exchanged by a session's collectives.

Those end with the generation, whatever torch's own process group waits for.
"""

from __future__ import annotations

import ctypes
import struct
import zlib
from typing import Iterator, List, Sequence

import torch

from ..errors import Code, Error
from ..session import Session

# Of small tensors that travel together. A larger one travels alone.
_CHUNK_BYTES = 16 << 20
# Of bytes that travel with their number, so that most come in one broadcast.
_FIRST_BYTES = 16 << 10
# The most that an element's size is a divisor of.
_ALIGNMENT = 16
_MAX_BYTES = 1 << 30
_NUMBER = struct.Struct("<q")


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """Returns its bytes in the memory of the CPU, row-major; a copy or not."""
    dense = tensor.detach().cpu().contiguous().reshape(-1)
    return dense.view(torch.uint8)


def _memory(flat: torch.Tensor) -> memoryview:
    if flat.numel() == 0:
        return memoryview(bytearray())
    kind = ctypes.c_uint8 * flat.numel()
    return memoryview(kind.from_address(flat.data_ptr()))


def bytes_of(tensor: torch.Tensor) -> bytes:
    """Returns the bits of a tensor, row-major."""
    flat = _flat(tensor)
    return bytes(_memory(flat))


def checksum(tensors: Sequence[torch.Tensor], seed: int = 0) -> int:
    """Returns a hash of the bits of tensors, whatever their strides."""
    for tensor in tensors:
        flat = _flat(tensor)
        seed = zlib.crc32(_memory(flat), seed)
    return seed


def broadcast_bytes(session: Session, data: bytes, root: int) -> bytes:
    """Returns the bytes of the rank `root`, on all ranks. Raises Error with the
    code RESOURCE_EXHAUSTED, on all ranks, if these are more than 1 GiB."""
    sends = session.rank == root
    first = bytearray(_NUMBER.size + _FIRST_BYTES)
    if sends:
        _NUMBER.pack_into(first, 0, len(data))
        head = data[:_FIRST_BYTES]
        first[_NUMBER.size:_NUMBER.size + len(head)] = head
    session.broadcast(first, root)
    (size,) = _NUMBER.unpack_from(first)
    if not 0 <= size <= _MAX_BYTES:
        error = Error(
            "rank %d has %d bytes of state besides its tensors, and at most %d "
            "are copied between workers" % (root, size, _MAX_BYTES)
        )
        error.code = Code.RESOURCE_EXHAUSTED
        raise error
    left = size - _FIRST_BYTES
    if left <= 0:
        return bytes(first[_NUMBER.size:_NUMBER.size + size])
    rest = bytearray(data[_FIRST_BYTES:] if sends else left)
    session.broadcast(rest, root)
    return bytes(first[_NUMBER.size:] + rest)


def broadcast_tensors(
    session: Session, tensors: Sequence[torch.Tensor], root: int, takes: bool
) -> List[torch.Tensor]:
    """Sends the bits of the rank `root`, whose tensors have the same types and
    sizes as those of this rank. Returns them as new tensors where this rank
    takes them, which leaves its own as they are; otherwise nothing."""
    received: List[torch.Tensor] = []
    for group in _groups(tensors):
        places, size = [], 0
        for tensor in group:
            places.append(size)
            nbytes = tensor.numel() * tensor.element_size()
            size += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        staged = torch.zeros(size, dtype=torch.uint8)
        if session.rank == root:
            for tensor, place in zip(group, places):
                flat = _flat(tensor)
                staged[place:place + flat.numel()].copy_(flat)
        if size:
            session.broadcast(_memory(staged), root)
        if not takes:
            continue
        for tensor, place in zip(group, places):
            nbytes = tensor.numel() * tensor.element_size()
            bits = staged[place:place + nbytes].view(tensor.dtype)
            # With memory of its own: it may outlive the others.
            received.append(bits.reshape(tensor.shape).clone())
    return received


def _groups(tensors: Sequence[torch.Tensor]) -> Iterator[List[torch.Tensor]]:
    group: List[torch.Tensor] = []
    size = 0
    for tensor in tensors:
        nbytes = tensor.numel() * tensor.element_size()
        if group and size + nbytes > _CHUNK_BYTES:
            yield group
            group, size = [], 0
        group.append(tensor)
        size += nbytes
    if group:
        yield group
