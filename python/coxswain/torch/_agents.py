"""A round of torchrun's agents, which is a generation of their job."""

from __future__ import annotations

import logging
import threading

from ..errors import Error
from ..session import Session

# How often the agents decide together whether to go on.
INTERVAL_S = 0.5
# How long an agent waits for the decision by which it may leave.
_DECISION_TIMEOUT_S = 5.0

_logger = logging.getLogger(__name__)


class Round:
    """One generation, as one agent sees it.

    A thread takes part in the decisions of all agents, which bring each of them
    what is to happen next: a new round, because an agent has asked for it or
    others wait to join, or the end of all rounds.

    closed: not empty: there are no more rounds, and why.
    """

    def __init__(self, session: Session) -> None:
        """session: that of the generation; leave and next close it."""
        self.session = session
        self.closed = ""
        self._why = ""  # another round is to begin
        self._decided = threading.Event()  # the thread has ended
        self._stopping = threading.Event()
        self._thread = threading.Thread(
            target=self._take_part, name="coxswain-rendezvous", daemon=True
        )
        self._thread.start()

    def over(self) -> str:
        """Returns why another round is to begin; empty if none is."""
        if self.closed:
            return ""
        if not self._why:
            ended = self.session.ended
            if ended is not None:
                self._end(str(ended))
        return self._why

    def close(self, reason: str) -> None:
        """Notifies all agents that there are no more rounds; waits for them, 5
        seconds at most."""
        if self.closed or self._decided.is_set():
            return
        try:
            self.session.request_stop(reason)
        except Error:
            return  # The generation has ended.
        self._decided.wait(_DECISION_TIMEOUT_S)

    def next(self) -> Session:
        """Joins the next round. Raises as Session.rejoin, after which it may be
        called again."""
        if not self._decided.is_set():
            try:
                self.session.request_drain("its workers are started again")
                self._decided.wait(_DECISION_TIMEOUT_S)
            except Error:
                pass  # The generation has ended.
        joined = self.session.rejoin()
        self._finish()
        return joined

    def leave(self, reason: str) -> bool:
        """Ends the membership; returns whether the coordinator was notified."""
        try:
            self.session.leave(reason)
            return True
        except Error as error:
            _logger.warning("the rendezvous was not left: %s", error)
            return False
        finally:
            self._finish()

    def _finish(self) -> None:
        self._stopping.set()
        self._thread.join(_DECISION_TIMEOUT_S)
        self.session.close()

    def _end(self, why: str) -> None:
        if not self._why:
            self._why = why
            _logger.warning(
                "job %r: the agents meet again: %s", self.session.job, why
            )

    def _take_part(self) -> None:
        schedule = self.session.schedule
        try:
            while not self._stopping.wait(INTERVAL_S):
                schedule.announce(schedule.plan.accumulation)
                decision = schedule.decide()
                if decision.stop:
                    self.closed = decision.stop
                    break
                if decision.regroup:
                    self._end(decision.regroup)
                    break
        except Error as error:
            if not self._stopping.is_set():
                self._end(str(error))
        finally:
            self._decided.set()
