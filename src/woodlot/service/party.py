"""A party's process: it dials the coordinator, checks every order against its policy, and answers."""

from __future__ import annotations

import logging
from types import TracebackType
from typing import Self

from woodlot.exceptions import IdentityError
from woodlot.runtime.drivers.grpc_line import PartyLine
from woodlot.runtime.journal import Journal
from woodlot.runtime.sessions import Sessions
from woodlot.service.certificates import REVOKED
from woodlot.service.config import PartyConfig
from woodlot.service.identity import Identity, Trust
from woodlot.service.party_home import PartyHome
from woodlot.service.party_jobs import PartyJob
from woodlot.service.party_store import PartyStore
from woodlot.trees.parallel import effective_jobs

logger = logging.getLogger(__name__)

JOURNAL = "journal.sqlite"


class Party:
    """One organisation's agent.

    Parameters
    ----------
    config : PartyConfig
        Whom to dial, what there is, and who may do what.

    """

    def __init__(self, config: PartyConfig) -> None:
        identity = Identity.load(config.identity)
        if identity.role != "party":
            raise IdentityError(f"{config.identity} is the identity of a {identity.role}; a party needs its own")
        revoked = config.identity / REVOKED
        self.identity = identity
        self._trust = Trust(identity.authority, revoked if revoked.exists() else None)
        self._store = PartyStore(config.state, identity.name, config.policy.predictions_per_day)
        try:
            self._journal = Journal(config.state / JOURNAL, durable=True)
        except BaseException:
            self._store.close()
            raise
        home = PartyHome(
            identity=identity,
            trust=self._trust,
            tables=config.tables,
            policy=config.policy,
            store=self._store,
            shared_secret=config.alignment.read_secret(),
            end_job=lambda job: self._sessions.end(job),
            till=lambda job: self._sessions.till(job),
            n_jobs=effective_jobs(config.n_jobs),
            privacy=config.privacy,
        )
        self._sessions = Sessions(
            identity.name, lambda job: PartyJob(home, job), journal=self._journal, limit=config.message_limit
        )
        self._line = PartyLine(
            str(config.coordinator),
            identity.credentials,
            self._sessions.answer,
            on_greeting=self._learn_revocations,
            message_limit=config.message_limit,
        )

    def _learn_revocations(self, data: bytes) -> None:
        """The coordinator passes on the authority's list: it is signed, so it need not be trusted for that."""
        if data:
            try:
                self._trust.update(data)
            except IdentityError as error:
                logger.warning("the coordinator sent a list of revocations that is not taken: %s", error)

    def start(self) -> None:
        """Dial, now and whenever the line is down."""
        logger.info("party %s", self.identity.name)
        self._line.start()

    def wait_connected(self, timeout: float) -> bool:
        """Whether the line is up within some seconds."""
        return self._line.wait_connected(timeout)

    def close(self) -> None:
        """Hang up, when what is being worked on is done."""
        self._line.stop()
        self._journal.close()
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
