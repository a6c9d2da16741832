"""Checkpoints of a job, which the coordinator keeps."""

from __future__ import annotations

import ctypes
import dataclasses
from types import TracebackType
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Sequence
from typing import Tuple, Type

from . import _library
from .errors import Code, Error, make, refused

if TYPE_CHECKING:
    from .session import Session

# CX_PIECE_OWN, CX_CHECKPOINT_OWN_ERRORS
_OWN = 1
_OWN_ERRORS = 1
# What the names of pieces begin with that hold the state of a stream's hook.
_HOOK = ".hook/"
# Of which index the library has no more.
_NO_RANK = -1


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint of the job, as the coordinator has it.

    step: optimizer steps that were done. created: seconds since 1970.
    hook: the canonical spec of that whose state it has.
    world_size: the number of ranks that saved it.
    metadata: such as {"position/train": "120"}.
    """

    id: str
    step: int
    bytes: int
    created: float
    hook: str
    world_size: int
    metadata: Mapping[str, str] = dataclasses.field(repr=False)


@dataclasses.dataclass(frozen=True)
class Saved:
    """What became of the last checkpoint that was saved.

    busy: one is in progress, or waits.
    step: of the last one that has ended; None: there is none.
    id: its id; empty: it was not saved, and `error` has why.
    """

    busy: bool
    step: Optional[int]
    id: str
    error: Optional[Error]


class Loaded:
    """A checkpoint that was loaded, in the memory of the library until the end
    of its block, or until the next one is loaded:

        with session.checkpoints.load("newest") as loaded:
            weights = bytes(loaded.pieces["weights"])

    checkpoint: its description.
    pieces: by name, those that are the same for all ranks.
    own: by name and rank, those of each of the ranks that saved it; on as many
        ranks, where it has each rank's own errors of the hook, this rank's.

    Pieces raise ValueError after that; slices of them must not be used.
    """

    def __init__(self, session: Session, checkpoint: Checkpoint) -> None:
        """For Checkpoints.load."""
        self._session = session
        self._released = False
        self.checkpoint = checkpoint
        self.pieces: Dict[str, memoryview] = {}
        self.own: Dict[Tuple[str, int], memoryview] = {}
        piece = _library.make(_library.PieceInfo)
        index = 0
        while self._read(index, piece):
            kind = ctypes.c_char * piece.data_size
            data = memoryview(b"")
            if piece.data_size:
                data = memoryview(kind.from_address(piece.data))
            data = data.cast("B").toreadonly()
            name = _library.decode(piece.name)
            if piece.rank == _NO_RANK:
                self.pieces[name] = data
            else:
                self.own[name, piece.rank] = data
            index += 1

    def _read(self, index: int, piece: _library.PieceInfo) -> bool:
        """Reads a piece; returns whether there is one with this number."""
        try:
            self._session._check(
                _library.library().cx_checkpoint_piece(
                    self._session._handle, index, ctypes.byref(piece)
                )
            )
        except Error as error:
            if error.code == Code.OUT_OF_RANGE:
                return False
            raise
        return True

    def load_hooks(self) -> None:
        """Has the hooks of the session's streams go on from it, with which
        Coxswain exchanges: at once, or when their models are followed. Between
        steps; all ranks call it. Raises Error with the code FAILED_PRECONDITION
        if it is of another hook or model; that hook is as it was."""
        names = {name for name, _ in self.own if name.startswith(_HOOK)}
        streams = [name[len(_HOOK) :] for name in sorted(names)]
        for stream in [self._session.schedule.stream, *streams]:
            self._session._call("cx_checkpoint_hook", _library.encode(stream))

    def __enter__(self) -> Loaded:
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        try:
            self.release()
        except Error:
            if error is None:
                raise

    def release(self) -> None:
        """Frees the memory; a second call does nothing. Raises Error with the
        code FAILED_PRECONDITION if an object, such as an array, still uses a
        piece."""
        if self._released:
            return
        for view in (*self.pieces.values(), *self.own.values()):
            try:
                view.release()
            except BufferError:
                raise refused(
                    "a piece of checkpoint %r is still used, as by "
                    "numpy.frombuffer: copy it, or delete what uses it, and "
                    "call release() again" % self.checkpoint.id
                ) from None
        self._released = True
        self.pieces, self.own = {}, {}
        self._session._check(
            _library.library().cx_checkpoint_release(self._session._handle)
        )


class Checkpoints:
    """What a job goes on from in new processes, on any number of ranks: named
    pieces of bytes, kept by the coordinator, as a whole or not at all.

    Of a session, as Session.checkpoints. docs/checkpoints.md.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._loaded: Optional[Loaded] = None

    def save(
        self,
        step: int,
        pieces: Mapping[str, Any],
        own: Optional[Mapping[str, Any]] = None,
        *,
        reason: str = "",
        own_errors: bool = False,
        metadata: Optional[Mapping[str, str]] = None,
        keep_last: int = 0,
        keep_every: int = 0,
    ) -> None:
        """Copies the pieces, and what the hooks remember by which Coxswain
        exchanges, and saves them while the program goes on; all ranks call it
        after the same step, whose decision asks for it.

        step: optimizer steps that were done.
        pieces: bytes or other contiguous buffers, by name, or a list of them
            that are joined: the same on all ranks, of which rank 0's are saved.
        own: likewise, pieces of which each rank has its own.
        own_errors: saves the errors of each rank's hook, in place of their
            mean: training goes on bit by bit on as many ranks. The same for all
            saves of a session.
        metadata: further names and values, the same on all ranks.
        keep_last, keep_every: which earlier checkpoints stay; by default as the
            coordinator has it.

        One save is in progress at a time, and a newer one takes the place of
        one that waits. What becomes of it is in the log, and `wait` has it.
        Raises InvalidArgument.
        """
        kept = _Pieces()
        if self._session.rank == 0:
            for name, data in pieces.items():
                kept.add(name, data, 0)
        for name, data in (own or {}).items():
            kept.add(name, data, _OWN)
        given = _library.make(_library.Checkpoint)
        given.flags = _OWN_ERRORS if own_errors else 0
        given.step = _library.int64("step", step)
        given.reason = _library.encode_reason(reason)
        settings = (_library.Setting * len(metadata or {}))()
        for struct, (name, value) in zip(settings, (metadata or {}).items()):
            struct.name = _library.encode(name)
            struct.value = _library.encode(str(value))
        given.metadata = settings
        given.metadata_count = len(settings)
        given.pieces = kept.array()
        given.piece_count = len(kept.structs)
        given.keep_last = _library.int32("keep_last", keep_last)
        given.keep_every = _library.int64("keep_every", keep_every)
        self._session._check(
            _library.library().cx_checkpoint_save(
                self._session._handle, ctypes.byref(given)
            )
        )

    def saved(self) -> Saved:
        """Returns what became of the last one; does not wait."""
        report = _library.make(_library.CheckpointReport)
        try:
            self._session._call("cx_checkpoint_saved", 0, ctypes.byref(report))
        except Error as error:
            if error.code != Code.DEADLINE_EXCEEDED:
                raise
        return self._report(report)

    def wait(self, timeout: float) -> Saved:
        """Waits until no save is in progress, and returns what became of the
        last one. Before the session is left, which ends one that is. Raises
        DeadlineExceeded after `timeout` seconds."""
        report = _library.make(_library.CheckpointReport)
        self._session._call(
            "cx_checkpoint_saved",
            _library.milliseconds(timeout),
            ctypes.byref(report),
        )
        return self._report(report)

    def _report(self, report: _library.CheckpointReport) -> Saved:
        error = None
        if report.code:
            error = make(
                report.code,
                0,
                _library.decode(report.error),
                generation=self._session.generation,
            )
        return Saved(
            bool(report.busy),
            None if report.step < 0 else report.step,
            _library.decode(report.checkpoint),
            error,
        )

    def find(self, which: str = "newest") -> Checkpoint:
        """Returns a checkpoint of the job, by its id, by its step, or "newest":
        the last one made. Raises NotFound."""
        info = _library.make(_library.CheckpointInfo)
        self._session._call(
            "cx_checkpoint_find",
            _library.encode(str(which)),
            ctypes.byref(info),
        )
        return _described(info)

    def list(self, most: int = 100) -> Sequence[Checkpoint]:
        """Returns the complete checkpoints of the job, newest first, `most` of
        them at most."""
        found: List[Checkpoint] = []
        info = _library.make(_library.CheckpointInfo)
        while len(found) < most:
            try:
                self._session._call(
                    "cx_checkpoint_at", len(found), ctypes.byref(info)
                )
            except Error as error:
                if error.code != Code.OUT_OF_RANGE:
                    raise
                break
            found.append(_described(info))
        return found

    def load(self, which: str = "newest") -> Loaded:
        """Loads a checkpoint, which any number of ranks may have saved. With
        "newest" all ranks call it, and load the same one. What was loaded
        before is released.

        Raises NotFound if there is none, and Error with the code DATA_LOSS if
        what is stored is damaged.
        """
        self._release()
        info = _library.make(_library.CheckpointInfo)
        self._session._call(
            "cx_checkpoint_load",
            _library.encode(str(which)),
            ctypes.byref(info),
        )
        self._loaded = Loaded(self._session, _described(info))
        return self._loaded

    def _release(self) -> None:
        if self._loaded is not None:
            self._loaded.release()
            self._loaded = None


class _Pieces:
    """Structs of pieces, and what keeps their memory alive."""

    def __init__(self) -> None:
        self.structs: List[_library.Piece] = []
        self._kept: List[Any] = []

    def add(self, name: str, data: Any, flags: int) -> None:
        encoded = _library.encode(name)
        parts = data if isinstance(data, (list, tuple)) else [data]
        for part in parts or [b""]:
            address, size = self._memory(part)
            self.structs.append(
                _library.Piece(encoded, address, size, flags)
            )

    def _memory(self, part: Any) -> Tuple[int, int]:
        if isinstance(part, Memory):
            self._kept.append(part.owner)
            return part.address, part.size
        view = memoryview(part).cast("B")
        # ctypes takes the address of memory that may be written to.
        if view.readonly:
            held = ctypes.c_char_p(bytes(view))
            self._kept.append(held)
            return ctypes.cast(held, ctypes.c_void_p).value or 0, view.nbytes
        if not view.nbytes:
            return 0, 0
        block = (ctypes.c_char * view.nbytes).from_buffer(view)
        self._kept.append(block)
        return ctypes.addressof(block), view.nbytes

    def array(self) -> Any:
        return (_library.Piece * len(self.structs))(*self.structs)


@dataclasses.dataclass(frozen=True)
class Memory:
    """Memory of another library, such as a tensor's, as part of a piece. The
    owner keeps it alive."""

    address: int
    size: int
    owner: Any


def _described(info: _library.CheckpointInfo) -> Checkpoint:
    return Checkpoint(
        id=_library.decode(info.id),
        step=info.step,
        bytes=info.bytes,
        created=info.created_ms / 1000,
        hook=_library.decode(info.hook),
        world_size=info.world_size,
        metadata={
            _library.decode(info.metadata[i].name): _library.decode(
                info.metadata[i].value
            )
            for i in range(info.metadata_count)
        },
    )
