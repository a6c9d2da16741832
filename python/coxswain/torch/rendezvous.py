"""torchrun --rdzv-backend coxswain: docs/torchrun.md.

Importing this module imports torch. torchrun finds `creator` by the entry
point "coxswain" of the group "torchrun.handlers".
"""

from __future__ import annotations

import logging
import os
import socket
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousGracefulExitError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStateError,
    RendezvousStoreInfo,
    RendezvousTimeoutError,
)

from ..errors import (
    Code,
    DeadlineExceeded,
    Error,
    InvalidArgument,
    JobFinished,
    ManifestsDiffer,
    Unavailable,
)
from ..session import Session
from . import torchrun
from ._agents import Round
from ._store import TorchStore

BACKEND = "coxswain"

# The job that the agents of a torchrun job are members of. Its generations are
# the rounds of the rendezvous.
_AGENTS = ".agents"

_FILES = ("tls_ca", "tls_cert", "tls_key", "token_file")
_JOIN_TIMEOUT_S = 900  # torchrun's own
# Agents of one job on one host.
_MAX_SLOTS = 64
_RETRY_S = 1.0

_logger = logging.getLogger(__name__)


def creator() -> Callable[[RendezvousParameters], RendezvousHandler]:
    """Returns the function that makes a handler of torchrun's options."""
    return create


def create(params: RendezvousParameters) -> RendezvousHandler:
    """Returns a handler for the options of one torchrun.

    Raises ValueError, naming the option, if one is not valid or is missing.
    """
    # torchrun always adds its own "timeout".
    unknown = sorted(
        set(params.config) - {*_FILES, "join_timeout", "timeout"}
    )
    if unknown:
        raise ValueError(
            "--rdzv-conf has %s, and the backend coxswain knows join_timeout, "
            "%s" % (", ".join(unknown), ", ".join(_FILES))
        )
    if params.run_id == torchrun.UNNAMED:
        raise ValueError(
            "the backend coxswain needs a name for the job, which no other "
            "job at the coordinator has: give --rdzv-id"
        )
    torchrun.check_name(params.run_id, "--rdzv-id", len(_AGENTS))
    coordinator = (
        params.endpoint.strip() or os.environ.get("COXSWAIN_COORDINATOR", "")
    )
    if not coordinator:
        raise ValueError(
            "the backend coxswain needs the coordinator's HOST:PORT: give "
            "--rdzv-endpoint, or set COXSWAIN_COORDINATOR"
        )
    security = {
        name: str(
            params.get(name) or os.environ.get("COXSWAIN_" + name.upper(), "")
        )
        for name in _FILES
    }
    timeout = params.get_as_int(
        "join_timeout", params.get_as_int("timeout", _JOIN_TIMEOUT_S)
    )
    if not timeout or timeout < 0:
        raise ValueError(
            "join_timeout=%s of --rdzv-conf is no number of seconds above 0"
            % timeout
        )
    return Handler(params, coordinator, security, timeout)


class Handler(RendezvousHandler):
    """The rendezvous of one torchrun agent, as a worker of a job of agents."""

    def __init__(
        self,
        params: RendezvousParameters,
        coordinator: str,
        security: Dict[str, str],
        join_timeout: float,
    ) -> None:
        """For create. join_timeout: seconds."""
        self._params = params
        self._coordinator = coordinator
        self._security = security
        self._join_timeout = join_timeout
        self._round: Optional[Round] = None
        # What the user has set is kept for the workers of all rounds.
        self._set_by_user = {name for name, text in os.environ.items() if text}

    def get_backend(self) -> str:
        return BACKEND

    @property
    def use_agent_store(self) -> bool:
        # Workers that need a TCPStore make one at MASTER_ADDR themselves.
        return False

    def get_run_id(self) -> str:
        return str(self._params.run_id)

    def next_rendezvous(self) -> RendezvousInfo:
        """Waits for the next generation of the agents. Called when the workers
        of all agents have ended, or are about to be stopped."""
        closed = self._round.closed if self._round is not None else ""
        if closed:
            raise RendezvousClosedError(
                "job %r has no more rounds: %s" % (self.get_run_id(), closed)
            )
        deadline = time.monotonic() + self._join_timeout
        while True:
            session = self._join(deadline)
            self._round = Round(session)
            store = TorchStore(session)
            try:
                address = RendezvousStoreInfo.build(
                    session.rank, store, self._address(session)
                )
            except Error as error:
                # It was over before it began.
                if time.monotonic() > deadline:
                    raise _explained(error) from error
                continue
            self._set_variables(session)
            return RendezvousInfo(
                store, session.rank, session.world_size, address
            )

    def num_nodes_waiting(self) -> int:
        """Returns 1 if the agents are to form their next generation, because an
        agent was lost, restarts its workers, or waits to join."""
        if self._round is None or not self._round.over():
            return 0
        return 1

    def is_closed(self) -> bool:
        return self._round is not None and bool(self._round.closed)

    def set_closed(self) -> None:
        if self._round is not None:
            self._round.close("closed")

    def shutdown(self) -> bool:
        """Notifies the other agents that there are no more rounds, and
        leaves."""
        if self._round is None:
            return True
        self._round.close("an agent has ended")
        left = self._round.leave("its agent has ended")
        self._round = None
        return left

    # ---- joining ----

    def _join(self, deadline: float) -> Session:
        slot = 0
        while True:
            try:
                if self._round is not None:
                    return self._round.next()
                return self._join_at(slot)
            except Error as error:
                known = self._round is not None
                if not known and error.code is Code.ALREADY_EXISTS:
                    # Another agent of this host has that place.
                    slot += 1
                    if slot < _MAX_SLOTS:
                        continue
                if time.monotonic() > deadline or not _may_retry(error, known):
                    raise _explained(error) from error
                _logger.warning(
                    "job %r: trying to join again: %s",
                    self.get_run_id(),
                    error,
                )
                if known and error.code is not Code.ABORTED:
                    # As another worker, then.
                    self._round.leave("it joins anew")
                    self._round = None
                slot = 0
            time.sleep(_RETRY_S)

    def _join_at(self, slot: int) -> Session:
        # COXSWAIN_* is for the workers: a plan, a backend, a node's name.
        address = os.environ.get("COXSWAIN_BIND_ADDRESS")
        return Session.join(
            coordinator=self._coordinator,
            job=self.get_run_id() + _AGENTS,
            node=socket.gethostname(),
            slot=slot,
            world_size=self._params.max_nodes,
            min_world_size=self._params.min_nodes,
            address=self._params.local_addr or address,
            join_timeout=self._join_timeout,
            environment=False,
            **self._security,
        )

    # ---- the variables of the workers ----

    def _address(self, session: Session) -> str:
        if self._params.local_addr:
            return str(self._params.local_addr)
        return session.member(session.rank).address

    def _set_variables(self, session: Session) -> None:
        """Sets the variables by which workers find their job. Workers inherit
        the environment of their agent, and each round is another attempt."""
        variables = {
            "COXSWAIN_COORDINATOR": self._coordinator,
            "COXSWAIN_JOB": self.get_run_id(),
            "COXSWAIN_ATTEMPT": str(session.generation),
        }
        for name, value in self._security.items():
            variables["COXSWAIN_" + name.upper()] = value
        for name, value in variables.items():
            if value and name not in self._set_by_user:
                os.environ[name] = value


def _may_retry(error: Error, known: bool) -> bool:
    """Returns whether an agent may try to join again.

    known: it was a member, and tried to rejoin.
    """
    if error.code is Code.ABORTED:  # the generation, or the round, has ended
        return True
    if isinstance(error, ManifestsDiffer):
        return False
    if known:  # it has lost its place
        return error.code in (Code.FAILED_PRECONDITION, Code.ALREADY_EXISTS)
    # The loss of the agent that it replaces has not been noticed yet.
    return (
        error.code is Code.FAILED_PRECONDITION
        and "ranks taken" in str(error)
    )


def _explained(error: Error) -> RendezvousError:
    kinds: List[Tuple[Any, Any]] = [
        (JobFinished, RendezvousGracefulExitError),
        (DeadlineExceeded, RendezvousTimeoutError),
        (Unavailable, RendezvousConnectionError),
        (InvalidArgument, RendezvousStateError),
    ]
    for kind, explained in kinds:
        if isinstance(error, kind):
            return explained(str(error))
    return RendezvousStateError(str(error))
