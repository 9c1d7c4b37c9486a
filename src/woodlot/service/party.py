"""A party's process: it dials the coordinator, checks every order against its policy, and answers."""

from __future__ import annotations

from woodlot.data.spool import Spool
from woodlot.jobs.approvals import Approvals
from woodlot.jobs.home import PartyHome
from woodlot.jobs.hosting import JobHost
from woodlot.jobs.job_store import JobStore
from woodlot.jobs.led.leader_desk import QUESTIONS, LeaderDesk
from woodlot.jobs.party_job import PartyJob
from woodlot.jobs.party_store import PartyStore
from woodlot.runtime.cluster import Connection
from woodlot.service.agent import Agent
from woodlot.service.config import PartyConfig
from woodlot.service.open_metrics import MetricFamily
from woodlot.service.party_check import check_start
from woodlot.service.service_metrics import privacy_metrics
from woodlot.trees.parallel import effective_jobs
from woodlot.trees.room import WorkingMemory

LED = "led"
"""The folder in the state folder with what this party keeps of the jobs that it leads; see `JobStore`."""


class Party(Agent):
    """One organisation's agent.

    Parameters
    ----------
    config : PartyConfig
        Whom to dial, what there is, and who may do what.

    """

    def __init__(self, config: PartyConfig) -> None:
        super().__init__(config, "party")
        check_start(config)
        self._config = config
        self._store = PartyStore(
            config.state,
            self.identity.name,
            config.policy.predictions_per_day,
            config.policy.trainings_per_day,
            config.policy.evaluations_per_day,
            config.policy.explanations_per_day,
        )
        self._approvals = Approvals(config.state, config.policy.approval_days)
        self._led = JobStore(config.state / LED)
        n_jobs = effective_jobs(config.n_jobs)
        self._desk = LeaderDesk(self.identity, self.trust, config.policy, self._led, config.message_limit)
        self._cluster = None if config.cluster is None else Connection(config.cluster)
        home = PartyHome(
            identity=self.identity,
            trust=self.trust,
            tables=config.tables,
            policy=config.policy,
            store=self._store,
            shared_secret=config.alignment.read_secret(),
            end_job=lambda job: self._sessions.end(job),
            pending_charges=lambda job: self._sessions.pending_charges(job),
            replays=lambda job: self._sessions.replays(job),
            n_jobs=n_jobs,
            privacy=config.privacy,
            room=_room(config),
            cluster=self._cluster,
            device=config.compute.device,
            tally=self.tally,
            lead=JobHost(self.identity, self.trust, self._led, n_jobs),
            approvals=self._approvals,
        )
        try:
            self._connect(config, lambda job: PartyJob(home, job))
        except BaseException:
            self._store.close()
            self._approvals.close()
            self._led.close()
            raise

    def answer(self, job: str, number: int, request: bytes) -> bytes:
        """Answer a request: a user's question to this party as a leader, or one of a job; see `Sessions.answer`."""
        return self._desk.answer(request) if job == QUESTIONS else super().answer(job, number, request)

    def own_metrics(self) -> list[MetricFamily]:
        """What this party has spent of its privacy."""
        return self.consult(lambda db: privacy_metrics(self._config, self.identity.name, db))

    def close(self) -> None:
        """Hang up, when what is being worked on is done."""
        super().close()
        self._store.close()
        self._approvals.close()
        self._led.close()
        if self._cluster is not None:
            self._cluster.close()


def _room(config: PartyConfig) -> WorkingMemory | None:
    """Tables go to the disk where memory is limited, and where they are spread since they may not fit."""
    if config.memory is None and config.cluster is None:
        return None
    return WorkingMemory(Spool(config.state), config.memory)
