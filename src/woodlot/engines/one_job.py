"""A coordinator inside an engine: it does not listen, takes one order, and leaves the model in a folder."""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from woodlot.connected.connected_estimators import save_part
from woodlot.engines.signed_order import SignedOrder
from woodlot.exceptions import DataError
from woodlot.jobs.job_messages import JobFacts
from woodlot.jobs.job_store import ENDED
from woodlot.runtime.drivers.carried import Carrier
from woodlot.service.config import CoordinatorConfig
from woodlot.service.coordinator import Coordinator

logger = logging.getLogger(__name__)


class EngineCoordinator(Coordinator):
    """A coordinator whose parties are reached through an engine.

    Parameters
    ----------
    config : CoordinatorConfig
        Identity, state and limits; nothing listens.
    carrier_for : callable
        From a job's name to what carries its requests.
    parties : collection of str
        Who can be reached.

    """

    def __init__(
        self, config: CoordinatorConfig, carrier_for: Callable[[str], Carrier], parties: Collection[str]
    ) -> None:
        self._carrier_for = carrier_for
        self._parties = parties
        self._since = time.time()
        super().__init__(config)

    def carrier(
        self,
        job: str,
        *,
        wait_seconds: float,
        cancelled: threading.Event,
        on_waiting: Callable[[tuple[str, ...]], None] | None = None,
    ) -> Carrier:
        """What carries the requests of a job; how long it waits is the engine's to say."""
        return self._carrier_for(job)

    def joined(self) -> Collection[str]:
        """Who can be reached."""
        return self._parties

    def present(self) -> Mapping[str, float]:
        """Who can be reached: the engine has no others."""
        return dict.fromkeys(self._parties, self._since)

    def run(self, signed: SignedOrder) -> JobFacts:
        """Run an order to its end, or as far as it goes: from its journal, if it was begun before.

        Returns
        -------
        JobFacts
            How it stands now. One that is "stopped" goes on when the order is run again.

        """
        job = self.take(signed.order, signed.signature, signed.certificate)
        away = [party for party in signed.content.parties if party not in self._parties]
        if away:
            raise DataError(f"{', '.join(away)} cannot be reached in this run; those there are: {list(self._parties)}")
        if self.enqueue(job) is not None and (live := self._queue.take(wait=False)) is not None:
            self._work_on(live.facts.job)
        stored = self.store.job(job)
        if stored is None:
            raise DataError(f"job {job} is not recorded")
        if stored.facts.state in ENDED:
            self._drop_bodies(job)
            for party in stored.untold:
                self._messenger.tell(party, [job])
        return stored.facts


def export_model(coordinator: Coordinator, model: str, folder: Path) -> None:
    """Write the coordinator's part of a model into a folder, for `woodlot.load`; what was there is replaced."""
    shutil.rmtree(folder, ignore_errors=True)
    save_part(coordinator.store.model_part(model), folder)
    logger.info("model %s is in %s", model, folder)
