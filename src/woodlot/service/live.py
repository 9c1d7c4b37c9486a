"""A job that is queued or running now: what it tells of itself, and those who wait for news of it."""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import msgspec

from woodlot.exceptions import JournalError
from woodlot.jobs.hosting import phase_fields, progress_fields
from woodlot.jobs.job_messages import JobFacts
from woodlot.jobs.job_store import JobStore
from woodlot.protocols.core.message import Progress
from woodlot.runtime.audit import Ledger

logger = logging.getLogger(__name__)

PROGRESS_SECONDS = 0.5
"""How often the progress of a running job is written to disk, at most."""


class LiveJob:
    """A job that is queued or running now: its facts change, and those who wait for news are told.

    One that is ``over`` does not run any more, but the disk has not taken its end yet.
    """

    def __init__(self, facts: JobFacts) -> None:
        self.facts = facts
        self.over = False
        self.cancelled = threading.Event()
        self._lock = threading.Lock()
        self._watching: set[Future[JobFacts]] = set()
        self._released = False

    def change(self, **fields: Any) -> JobFacts:
        """Change some of the facts."""
        with self._lock:
            self.facts = msgspec.structs.replace(self.facts, version=self.facts.version + 1, **fields)
        self._tell()
        return self.facts

    def watch(self, seen: int) -> Future[JobFacts]:
        """The facts, as soon as they are not those that were ``seen``; nobody's thread waits for it meanwhile."""
        news: Future[JobFacts] = Future()
        with self._lock:  # after a restart the count may be behind what somebody has seen before
            is_old = self.facts.version == seen and not self._released
            if is_old:
                self._watching.add(news)
        if not is_old:
            news.set_result(self.facts)
        return news

    def tell(self, news: Future[JobFacts]) -> None:
        """Tell one who watches how things stand, news or not."""
        with self._lock:
            waits = news in self._watching
            self._watching.discard(news)
        if waits:
            news.set_result(self.facts)

    def release(self) -> None:
        """Let go of all who wait: the coordinator ends, and must not wait for them."""
        with self._lock:
            self._released = True
        self._tell()

    def _tell(self) -> None:
        with self._lock:
            watching, self._watching = self._watching, set()
        for news in watching:
            news.set_result(self.facts)


class Watch:
    """Turns what a run tells of itself into facts for its user."""

    def __init__(self, live: LiveJob, ledger: Ledger, store: JobStore) -> None:
        self._live = live
        self._ledger = ledger
        self._store = store
        self._stored = 0.0

    def progress(self, progress: Progress) -> None:
        self._live.change(**progress_fields(progress, self._ledger))
        now = time.monotonic()
        if now - self._stored >= PROGRESS_SECONDS:  # for the dashboard, which looks at the disk only
            self._stored = now
            with suppress(JournalError):  # what only others look at must not stop the job
                self._store.update(self._live.facts)

    def phase(self, phase: str) -> None:
        self._live.change(**phase_fields(phase))

    def waiting(self, parties: tuple[str, ...]) -> None:
        if parties:
            job = self._live.facts.job
            logger.info("job %s waits for %s", job, ", ".join(parties), extra={"job": job, "party": ", ".join(parties)})
        self._live.change(waiting_for=parties)
