"""torch's key-value store, kept by the coordinator."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Union

import torch.distributed as dist

from ..errors import DeadlineExceeded, NotFound
from ..store import Value

if TYPE_CHECKING:
    from ..session import Session

Timeout = Union[datetime.timedelta, float, int]

# torch keeps the C++ half of a store alive, and not this one: without a
# reference of Python's own its next use is an internal error of torch. One for
# each process group, until the process ends.
_kept: List[TorchStore] = []

_DEFAULT_TIMEOUT = datetime.timedelta(minutes=5)
_TimedOut = getattr(dist, "DistStoreError", RuntimeError)


class TorchStore(dist.Store):
    """A torch.distributed.Store: init_process_group(store=TorchStore(session)).

    Its keys are those of session.store that begin with "torch/", so it needs
    neither MASTER_ADDR nor a port, and ends with the generation. Keys have at
    most 1 KiB, values at most 1 MiB. Safe from any thread.

    A wait that passes its timeout (5 minutes, or that of set_timeout) raises
    torch.distributed.DistStoreError, whose text names the missing keys; other
    errors are those of coxswain.Store, such as PeerLost.
    """

    def __init__(self, session: Session, prefix: str = "torch/") -> None:
        """session: the one whose store it uses. prefix: that of its keys
        there."""
        super().__init__()
        self._session = session
        self._prefix = prefix
        self._timeout = _DEFAULT_TIMEOUT
        _kept.append(self)

    def set(self, key: str, value: Value) -> None:
        """Sets a value."""
        self._session.store.set(self._prefix + key, value)

    def get(self, key: str) -> bytes:
        """Returns a value, and waits until there is one."""
        return self._get(key, self._seconds())

    def add(self, key: str, value: int) -> int:
        """Adds to a decimal counter, which begins with 0; returns the sum."""
        return self._session.store.add(self._prefix + key, value)

    def append(self, key: str, value: Value) -> None:
        """Appends to a value, which begins empty."""
        self._session.store.append(self._prefix + key, value)

    def compare_set(
        self, key: str, expected_value: Value, desired_value: Value
    ) -> bytes:
        """Sets the value if it is `expected_value`, or if there is none and
        that is empty; returns the value afterwards, or `expected_value` where
        there is none."""
        try:
            return self._session.store.compare_set(
                self._prefix + key, expected_value, desired_value
            )[0]
        except NotFound:
            if isinstance(expected_value, str):
                return expected_value.encode()
            return bytes(expected_value)

    def check(self, keys: Sequence[str]) -> bool:
        """Returns whether all keys exist."""
        return self._session.store.check(self._names(keys))

    def wait(
        self, keys: Sequence[str], timeout: Optional[Timeout] = None
    ) -> None:
        """Waits until all keys exist."""
        seconds = self._seconds(timeout)
        try:
            self._session.store.wait(self._names(keys), seconds)
        except (DeadlineExceeded, NotFound) as error:
            raise self._timed_out(keys, seconds) from error

    def delete_key(self, key: str) -> bool:
        """Deletes a key; returns whether there was one."""
        return self._session.store.delete(self._prefix + key)

    def multi_get(self, keys: Sequence[str]) -> List[bytes]:
        """Returns several values, and waits until all exist."""
        return [self.get(key) for key in keys]

    def multi_set(self, keys: Sequence[str], values: Sequence[Value]) -> None:
        """Sets several values."""
        for key, value in zip(keys, values):
            self.set(key, value)

    def has_extended_api(self) -> bool:
        """Returns true: the store has append, multi_get and multi_set."""
        return True

    def num_keys(self) -> int:
        """Returns how many keys there are."""
        return self._session.store.count(self._prefix)

    def set_timeout(self, timeout: datetime.timedelta) -> None:
        """Sets how long get and wait block."""
        self._timeout = timeout

    @property
    def timeout(self) -> datetime.timedelta:
        """How long get and wait block."""
        return self._timeout

    def clone(self) -> TorchStore:
        """Returns another view of the same keys, with a timeout of its own."""
        other = TorchStore(self._session, self._prefix)
        other._timeout = self._timeout
        return other

    def _get(self, key: str, seconds: float) -> bytes:
        try:
            return self._session.store.get(self._prefix + key, seconds)
        except DeadlineExceeded as error:
            raise self._timed_out([key], seconds) from error

    def _names(self, keys: Sequence[str]) -> List[str]:
        return [self._prefix + key for key in keys]

    def _seconds(self, timeout: Optional[Timeout] = None) -> float:
        given: Any = self._timeout if timeout is None else timeout
        if isinstance(given, datetime.timedelta):
            return given.total_seconds()
        return float(given)

    def _timed_out(self, keys: Sequence[str], seconds: float) -> Exception:
        missing = [key for key in keys if not self.check([key])]
        return _TimedOut(
            "wait timeout after %dms, keys: %s (job %s, at the coordinator)"
            % (seconds * 1000, ", ".join(missing or keys), self._session.job)
        )


class WrittenOnce(TorchStore):
    """A store whose keys are set once, as Gloo's are: a value that has been
    waited for is not asked for again, nor is one of this process's own. Each
    question is a round trip, and Gloo waits for a key before it gets it."""

    def __init__(self, session: Session, prefix: str) -> None:
        super().__init__(session, prefix)
        self._known: Dict[str, bytes] = {}

    def set(self, key: str, value: Value) -> None:
        super().set(key, value)
        self._known[key] = (
            value.encode() if isinstance(value, str) else bytes(value)
        )

    def get(self, key: str) -> bytes:
        known = self._known.get(key)
        return super().get(key) if known is None else known

    def wait(
        self, keys: Sequence[str], timeout: Optional[Timeout] = None
    ) -> None:
        seconds = self._seconds(timeout)
        for key in keys:
            if key not in self._known:
                self._known[key] = self._get(key, seconds)
