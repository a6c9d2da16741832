"""SIGTERM as a request to finish the step and leave."""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import Any, Iterator, Optional

from ..session import Session

REASON = "it was asked to drain"


class Drain:
    """Whether this worker is to leave, and whether the others know."""

    def __init__(self) -> None:
        self.requested = False
        self._asked: Optional[Session] = None

    @contextlib.contextmanager
    def by_sigterm(self) -> Iterator[None]:
        """Has the first SIGTERM ask for it; the second one does what it did
        before. Does nothing on another thread than the main one, where Python
        cannot set a handler."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.getsignal(signal.SIGTERM)

        def note(*unused: Any) -> None:
            self.requested = True
            signal.signal(signal.SIGTERM, before)

        if before is None:  # It is not Python's, and could not be set again.
            before = signal.SIG_DFL
        signal.signal(signal.SIGTERM, note)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)

    def after_step(self, session: Session) -> None:
        """Asks the others, once in each generation, to go on without this
        rank."""
        if self.requested and self._asked is not session:
            self._asked = session
            session.request_drain(REASON)
