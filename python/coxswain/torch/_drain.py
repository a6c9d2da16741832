"""SIGTERM as a request to finish the step and leave."""

from __future__ import annotations

import contextlib
from typing import Iterator, Optional

from ..session import Session
from ._sigterm import Sigterm

REASON = "it was asked to drain"


class Drain:
    """Whether this worker is to leave, and whether the others know."""

    def __init__(self) -> None:
        self._signal: Optional[Sigterm] = None
        self._asked: Optional[Session] = None

    @property
    def requested(self) -> bool:
        return self._signal is not None and self._signal.came

    @contextlib.contextmanager
    def by_sigterm(self) -> Iterator[None]:
        """Has SIGTERM ask for it, until the block ends."""
        self._signal = Sigterm(passes_on=False)
        try:
            yield
        finally:
            self._signal.restore()

    def after_step(self, session: Session) -> None:
        """Asks the others, once in each generation, to go on without this
        rank."""
        if self.requested and self._asked is not session:
            self._asked = session
            session.request_drain(REASON)
