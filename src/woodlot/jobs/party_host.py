"""Members inside a host that has its own way of bringing messages: what answers them, and their state folders."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from woodlot.data.sources import TableSource
from woodlot.data.whole_files import state_folder
from woodlot.identity.identity import Identity, Trust
from woodlot.jobs.hidden.helper_dealing import DealerBook
from woodlot.jobs.home import PartyHome
from woodlot.jobs.key_store import KEYS_FOLDER, KeyStore
from woodlot.jobs.member_job import MemberHome, MemberJob, MemberRole
from woodlot.jobs.party_job import PartyJob
from woodlot.jobs.party_store import PartyStore
from woodlot.jobs.policy import Policy
from woodlot.jobs.privacy_rules import PrivacyConfig
from woodlot.runtime.drivers import Handler
from woodlot.runtime.journal import Journal
from woodlot.runtime.sessions import Sessions

JOURNAL = "journal.sqlite"


class _Host:
    """Answers the requests of all jobs at one member, by its journal."""

    def __init__(self, folder: Path, name: str, open_job: Callable[[str], Handler]) -> None:
        self._journal = Journal(folder / JOURNAL, durable=False)
        self._sessions = Sessions(name, open_job, journal=self._journal)
        self.answer = self._sessions.answer

    def close(self) -> None:
        """Close the files of the state folder."""
        self._journal.close()


class PartyHost(_Host):
    """A party, which answers as its service would.

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
    ) -> None:
        self._store = PartyStore(
            folder,
            identity.name,
            policy.predictions_per_day,
            policy.trainings_per_day,
            policy.evaluations_per_day,
            policy.explanations_per_day,
        )
        super().__init__(folder, identity.name, lambda job: PartyJob(home, job))
        home = PartyHome(
            identity=identity,
            trust=trust,
            tables=dict(tables),
            policy=policy,
            store=self._store,
            shared_secret=None,
            end_job=self._sessions.end,
            pending_charges=self._sessions.pending_charges,
            replays=self._sessions.replays,
            n_jobs=n_jobs,
            privacy=PrivacyConfig(),
        )

    def close(self) -> None:
        """Close the files of the state folder."""
        super().close()
        self._store.close()


class MemberHost(_Host):
    """A helper or a key service; parameters as for `PartyHost`.

    Parameters
    ----------
    role : {"helper", "key service"}
        Which of the two.

    """

    def __init__(
        self, folder: Path, role: MemberRole, identity: Identity, trust: Trust, policy: Policy, *, n_jobs: int
    ) -> None:
        state_folder(folder)
        super().__init__(folder, identity.name, lambda job: MemberJob(home, job, self._sessions.end))
        home = MemberHome(
            role=role,
            identity=identity,
            trust=trust,
            policy=policy,
            store=KeyStore(folder / KEYS_FOLDER, forgets=role == "key service"),
            dealt=DealerBook(folder),
            n_jobs=n_jobs,
            replays=self._sessions.replays,
        )
