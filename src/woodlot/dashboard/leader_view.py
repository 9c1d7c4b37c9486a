"""What a party keeps of the jobs that it leads, read only: what the coordinator has of others."""

from __future__ import annotations

from woodlot.dashboard.views import CoordinatorView
from woodlot.identity.identity import Identity
from woodlot.jobs.job_messages import ModelFacts
from woodlot.service.config import PartyConfig
from woodlot.service.party import LED


class LeaderView(CoordinatorView):
    """What a party knows as the leader of jobs: models with their answers, scores and receipts.

    Parameters
    ----------
    config : PartyConfig
        Names its state folder.

    """

    def __init__(self, config: PartyConfig) -> None:
        identity = Identity.load(config.identity)
        self._open(f"{identity.name} (leader)", config.state, config.state / LED, identity)

    def keeps(self, facts: ModelFacts) -> bool:
        """Every model that is known here is kept here."""
        return True
