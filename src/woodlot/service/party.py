"""A party's process: it dials the coordinator, checks every order against its policy, and answers."""

from __future__ import annotations

from woodlot.data.spool import Spool
from woodlot.service.agent import Agent
from woodlot.service.config import PartyConfig
from woodlot.service.party_home import PartyHome
from woodlot.service.party_jobs import PartyJob
from woodlot.service.party_store import PartyStore
from woodlot.trees.parallel import effective_jobs
from woodlot.trees.room import Room


class Party(Agent):
    """One organisation's agent.

    Parameters
    ----------
    config : PartyConfig
        Whom to dial, what there is, and who may do what.

    """

    def __init__(self, config: PartyConfig) -> None:
        super().__init__(config, "party")
        self._store = PartyStore(config.state, self.identity.name, config.policy.predictions_per_day)
        home = PartyHome(
            identity=self.identity,
            trust=self._trust,
            tables=config.tables,
            policy=config.policy,
            store=self._store,
            shared_secret=config.alignment.read_secret(),
            end_job=lambda job: self._sessions.end(job),
            till=lambda job: self._sessions.till(job),
            n_jobs=effective_jobs(config.n_jobs),
            privacy=config.privacy,
            room=None if config.memory is None else Room(Spool(config.state), config.memory),
        )
        try:
            self._connect(config, lambda job: PartyJob(home, job))
        except BaseException:
            self._store.close()
            raise

    def close(self) -> None:
        """Hang up, when what is being worked on is done."""
        super().close()
        self._store.close()
