"""A party inside a host that has its own way of bringing messages: what answers them, and its state folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from woodlot.data.sources import TableSource
from woodlot.identity.identity import Identity, Trust
from woodlot.jobs.home import PartyHome
from woodlot.jobs.party_job import PartyJob
from woodlot.jobs.party_store import PartyStore
from woodlot.jobs.policy import Policy
from woodlot.jobs.privacy_rules import PrivacyConfig
from woodlot.runtime.journal import Journal
from woodlot.runtime.sessions import Sessions

JOURNAL = "journal.sqlite"


class PartyHost:
    """Answers the requests of all jobs at one party, as its service would.

    Parameters
    ----------
    folder : Path
        Its state folder.
    identity, trust
        Who the party is, and whom it believes.
    tables : mapping of str to TableSource
        What it has.
    policy : Policy
        Who may do what with it.
    n_jobs : int
        Threads.
    shared_secret : bytes, optional
        The configured secret of the alignment.

    """

    def __init__(
        self,
        folder: Path,
        identity: Identity,
        trust: Trust,
        tables: Mapping[str, TableSource],
        policy: Policy,
        *,
        n_jobs: int,
        shared_secret: bytes | None = None,
    ) -> None:
        self._store = PartyStore(folder, identity.name, policy.predictions_per_day, policy.trainings_per_day)
        self._journal = Journal(folder / JOURNAL, durable=False)
        sessions = Sessions(identity.name, lambda job: PartyJob(home, job), journal=self._journal)
        home = PartyHome(
            identity=identity,
            trust=trust,
            tables=dict(tables),
            policy=policy,
            store=self._store,
            shared_secret=shared_secret,
            end_job=sessions.end,
            pending_charges=sessions.pending_charges,
            replays=sessions.replays,
            n_jobs=n_jobs,
            privacy=PrivacyConfig(),
        )
        self.answer = sessions.answer

    def close(self) -> None:
        """Close the files of the state folder."""
        self._journal.close()
        self._store.close()
