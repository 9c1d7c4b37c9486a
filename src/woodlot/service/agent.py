"""What the processes that dial the coordinator have in common: parties, helpers and key services."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from sqlite3 import Connection
from types import TracebackType
from typing import Self, TypeVar

from woodlot.data.whole_files import finish_writing
from woodlot.exceptions import IdentityError
from woodlot.identity.certificates import REVOKED
from woodlot.identity.identity import Identity, Trust
from woodlot.identity.revocation_source import RevocationSource
from woodlot.jobs.tally import JobTally
from woodlot.protocols.core.message import ApprovalPending, Unanswered
from woodlot.runtime.drivers import Handler
from woodlot.runtime.drivers.grpc_line import PartyLine
from woodlot.runtime.journal import Journal
from woodlot.runtime.protocol_versions import APPROVALS
from woodlot.runtime.second_copy import SECOND_COPY, SecondCopy
from woodlot.runtime.sessions import Sessions
from woodlot.runtime.traffic import Traffic
from woodlot.service.config import MemberConfig, PartyConfig
from woodlot.service.monitor import Monitor
from woodlot.service.open_metrics import MetricFamily
from woodlot.service.service_metrics import agent_health, agent_metrics

logger = logging.getLogger(__name__)

R = TypeVar("R")

JOURNAL = "journal.sqlite"


def load_identity(folder: Path, what: str) -> Identity:
    """The identity in a folder, or an `IdentityError`; all members that dial in have the role of a party."""
    identity = Identity.load(folder)
    if identity.role != "party":
        raise IdentityError(f"{folder} is the identity of a {identity.role}; a {what} needs its own")
    return identity


def pending_reply(version: int) -> Unanswered:
    """What a coordinator is answered whose order waits for approval: one of an older version cannot wait for it."""
    if version >= APPROVALS:
        return ApprovalPending.told()
    reason = "its owner has not approved this job yet; resume the job when it is approved (woodlot jobs resume)"
    return Unanswered(kind="internal", reason=reason)


class Agent:
    """One member's process: an identity, a journal of all jobs, and a line to the coordinator.

    Parameters
    ----------
    config : PartyConfig or MemberConfig
        Whom to dial, and where everything is.
    what : str
        What errors and logs call it.

    """

    def __init__(self, config: PartyConfig | MemberConfig, what: str) -> None:
        identity = load_identity(config.identity, what)
        self.identity = identity
        self.role = what
        self.tally = JobTally()
        self.traffic = Traffic()
        self.monitor: Monitor | None = None
        self.trust = Trust(
            identity.authority,
            config.identity / REVOKED,
            may_be_missing=True,
            source=None if config.revocations is None else RevocationSource(config.revocations),
        )

    def _connect(self, config: PartyConfig | MemberConfig, open_job: Callable[[str], Handler]) -> None:
        """Open the journal, and prepare the line; the state folder must be there."""
        if config.monitor.listen is not None:
            self.monitor = Monitor(config.monitor.listen, lambda: agent_health(self), lambda: agent_metrics(self))
        self._journal = Journal(config.state / JOURNAL, durable=True)  # its lock: nobody else writes there now
        with ExitStack() as stack:
            stack.callback(self._journal.close)
            finish_writing(config.state)
            self._copy = SecondCopy(config.state / SECOND_COPY)
            stack.callback(self._copy.close)
            restored = self._copy.reconcile(self._journal)
            stack.pop_all()
        if restored:
            logger.warning(
                "%s is new: %d orders that were taken before, and what was spent of privacy, are taken over from %s",
                JOURNAL, restored, SECOND_COPY,
            )  # fmt: skip
        self._sessions = Sessions(
            self.identity.name,
            open_job,
            journal=self._journal,
            limit=config.message_limit,
            copy=self._copy,
            pending=lambda: pending_reply(self._line.version),
        )
        self._line = PartyLine(
            str(config.coordinator),
            self.identity.credentials,
            self._answer_line,
            on_greeting=self._on_greeting,
            message_limit=config.message_limit,
        )

    def _answer_line(self, job: str, number: int, request: bytes) -> bytes:
        """Answer a request that has come over the line, and count it."""
        return self.traffic.answered(request, lambda: self.answer(job, number, request))

    def _on_greeting(self, data: bytes) -> None:
        self.traffic.hear()
        self._learn_revocations(data)

    def _learn_revocations(self, data: bytes) -> None:
        """The coordinator passes on the authority's list: it is signed, so it need not be trusted for that."""
        if data:
            try:
                self.trust.update(data)
            except IdentityError as error:
                logger.warning("the coordinator sent a list of revocations that is not taken: %s", error)

    def start(self) -> None:
        """Dial, now and whenever the line is down."""
        logger.info("%s %s", self.role, self.identity.name)
        if self.monitor is not None:
            self.monitor.start()
        self.trust.warn()
        self._line.start()

    def answer(self, job: str, number: int, request: bytes) -> bytes:
        """Answer a request that has come another way than over the line; see `Sessions.answer`."""
        return self._sessions.answer(job, number, request)

    def has_ended(self, job: str) -> bool:
        """Whether the coordinator has said that a job is over."""
        return self._journal.job(job).ended

    @property
    def connected(self) -> bool:
        """Whether the line is up."""
        return self._line.connected

    @property
    def trouble(self) -> str:
        """Why the line is down, where that is known."""
        return self._line.trouble

    def consult(self, reader: Callable[[Connection], R]) -> R:
        """Read from the journal's database."""
        return self._journal.consult(reader)

    def own_metrics(self) -> list[MetricFamily]:
        """Metrics that only this sort of service has."""
        return []

    def wait_connected(self, timeout: float) -> bool:
        """Whether the line is up within some seconds."""
        return self._line.wait_connected(timeout)

    def close(self) -> None:
        """Hang up, when what is being worked on is done."""
        if self.monitor is not None:
            self.monitor.close()
        self._line.stop()
        self._journal.close()
        self._copy.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
