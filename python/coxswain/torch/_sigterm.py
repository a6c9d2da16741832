"""SIGTERM as a request to a program that trains."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any, Callable

# One so soon after the first is the same.
_SAME_S = 2


class Sigterm:
    """SIGTERM as a request, once; a later one does what it did before. One that
    comes at once is the same, which reaches a process group and is passed on by
    its launcher, too. Does nothing on another thread than the main one, where
    Python cannot set a handler.

    came: whether it has come.
    """

    def __init__(
        self,
        passes_on: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """passes_on: the first one does what it did before, too."""
        self.came = False
        self._passes_on = passes_on
        self._clock = clock
        self._came_at = 0.0
        self._taken = False
        self._process = os.getpid()
        self._before: Any = None
        self._caught = threading.current_thread() is threading.main_thread()
        if self._caught:
            self._before = signal.signal(signal.SIGTERM, self._on_signal)

    def _on_signal(self, number: int, frame: Any) -> None:
        if os.getpid() != self._process:
            # Of a process that was forked, such as a pool's, it is the end.
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        if self.came and self._clock() - self._came_at < _SAME_S:
            return
        if self.came:
            self.restore()
            os.kill(os.getpid(), number)
            return
        self.came, self._came_at = True, self._clock()
        if self._passes_on and callable(self._before):
            self._before(number, frame)

    def take(self) -> bool:
        """Returns true once, after it has come."""
        taken = self.came and not self._taken
        self._taken = self._taken or taken
        return taken

    def restore(self) -> None:
        """Has SIGTERM do what it did before."""
        main = threading.current_thread() is threading.main_thread()
        if self._caught and main:
            self._caught = False
            # None: it was not Python's, and cannot be set again.
            signal.signal(signal.SIGTERM, self._before or signal.SIG_DFL)
