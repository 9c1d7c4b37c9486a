"""Woodlot parties that Flower starts: what ``examples/flower`` calls at the SuperLink and at the SuperNodes.

Flower starts one process at every SuperNode and says which order is to be run. From there on parties dial the
coordinator themselves, over Woodlot's own stream and with Woodlot's identities, for as long as the order takes.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from woodlot.engines.one_job import export_model
from woodlot.engines.signed_order import SignedOrder
from woodlot.exceptions import ConfigError, JobFailed, PartyAwayError
from woodlot.identity.identity import Identity
from woodlot.jobs.job_messages import JobFacts
from woodlot.jobs.kind import outcome_of
from woodlot.service.client import ENDED
from woodlot.service.config import CoordinatorConfig, PartyConfig
from woodlot.service.coordinator import Coordinator
from woodlot.service.party import Party

logger = logging.getLogger(__name__)

COORDINATOR_FILE = "WOODLOT_COORDINATOR_FILE"
"""Environment of the SuperLink: where its ``coordinator.toml`` is. It is not for a run to say."""

PARTY_FILE = "party"
"""Setting of a SuperNode (``--node-config``): where its ``party.toml`` is."""

JOIN_SECONDS = 120.0
"""How long the coordinator waits for parties that Flower has started."""

LOST_SECONDS = 60.0
"""How long a party tries to reach a coordinator that is away before it gives its process back to Flower."""

_FAREWELL_SECONDS = 20.0  # for the parties to be told that the job has ended
_PAUSE = 0.2


def coordinator_config() -> CoordinatorConfig:
    """The settings of the coordinator at this SuperLink, or ConfigError."""
    path = os.environ.get(COORDINATOR_FILE)
    if not path:
        raise ConfigError(f"start the SuperLink with {COORDINATOR_FILE} in its environment: where coordinator.toml is")
    return CoordinatorConfig.load(path)


def lead(config: CoordinatorConfig, signed: SignedOrder, start_parties: Callable[[], None], folder: Path) -> JobFacts:
    """Run an order at the SuperLink, and leave its model in a folder; if it was begun before, it goes on.

    Parameters
    ----------
    config : CoordinatorConfig
        Where to listen, and what to keep where.
    signed : SignedOrder
        What is to be done.
    start_parties : callable
        Has Flower start the parties; called when the coordinator listens.
    folder : Path
        Where the model goes, for `woodlot.load`.

    Raises
    ------
    PartyAwayError
        If parties of the order did not come.
    JobFailed
        If the job ends without a model.

    """
    parties = signed.content.parties
    with Coordinator(config) as coordinator:
        coordinator.start()
        start_parties()

        def all_here() -> bool:
            return set(parties) <= set(coordinator.hub.connected())

        if not _wait_for(all_here, JOIN_SECONDS):
            away = tuple(party for party in parties if party not in coordinator.hub.connected())
            raise PartyAwayError(f"{', '.join(away)} did not come within {JOIN_SECONDS:.0f} s", away)
        job = coordinator.take(signed.order, signed.signature, signed.certificate)
        facts = _follow(coordinator, job)
        if facts.state == "done" and outcome_of(facts.kind) == "model":
            export_model(coordinator, facts.model, folder)
        if facts.state != "stopped":  # else there is no farewell: the job goes on one day
            _wait_for(lambda: job not in dict(coordinator.store.ended_untold()), _FAREWELL_SECONDS)
    if facts.state != "done":
        again = "; run the same order again to go on" if facts.state == "stopped" else ""
        raise JobFailed(f"job {job} {facts.standing}: {facts.error}{again}")
    return facts


def _follow(coordinator: Coordinator, job: str) -> JobFacts:
    live = coordinator.enqueue(job)
    seen = 0
    while live is not None and live.facts.state not in ENDED:
        with suppress(TimeoutError):  # looked at again, for the engine may have ended it meanwhile
            seen = live.watch(seen).result(1.0).version
    stored = coordinator.store.job(job)
    if stored is None:
        raise JobFailed(f"job {job} is not recorded")
    return stored.facts if live is None else live.facts


def take_part(config: PartyConfig, job: str, parties: Sequence[str]) -> bool:
    """Be a party of one job, in a process that a SuperNode has started.

    Parameters
    ----------
    config : PartyConfig
        Whom to dial, what there is, and who may do what.
    job : str
        The job, after which this returns.
    parties : sequence of str
        Who takes part; a party that is not among them does nothing.

    Returns
    -------
    bool
        Whether the job has ended here; False if this party has no part in it.

    Raises
    ------
    PartyAwayError
        If the coordinator could not be reached any more. The same order, run again, goes on.

    """
    if Identity.load(config.identity).name not in parties:
        return False
    with Party(config) as party:
        party.start()
        seen = time.monotonic()
        while not party.has_ended(job):
            if party.connected:
                seen = time.monotonic()
            elif time.monotonic() - seen > LOST_SECONDS:
                raise PartyAwayError(f"the coordinator could not be reached for {LOST_SECONDS:.0f} s")
            time.sleep(_PAUSE)
        time.sleep(_PAUSE)  # the reply to the farewell is on its way
        return True


def _wait_for(met: Callable[[], bool], seconds: float) -> bool:
    until = time.monotonic() + seconds
    while not met():
        if time.monotonic() > until:
            return False
        time.sleep(_PAUSE)
    return True
