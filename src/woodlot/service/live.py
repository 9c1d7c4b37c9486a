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
from woodlot.runtime.drivers.grpc_wire import call_later

logger = logging.getLogger(__name__)

PROGRESS_SECONDS = 0.5
"""How often the progress of a running job is written to disk, at most."""

NEWS_SECONDS = 0.05
"""How often those who wait are told of progress alone, at most: each time they ask again. Other news come at once."""

_AT_ONCE = ("state", "phase", "waiting_for", "error")


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
        self._told = -NEWS_SECONDS  # when somebody was last told
        self._marked = facts.version  # the last version that was more than progress
        self._is_set = False  # whether those who wait will be told of progress

    def change(self, **fields: Any) -> JobFacts:
        """Change some of the facts; those who wait hear of progress alone a little later, together with more of it."""
        with self._lock:
            before = self.facts
            self.facts = msgspec.structs.replace(before, version=before.version + 1, **fields)
            if any(getattr(before, name) != getattr(self.facts, name) for name in _AT_ONCE):
                self._marked = self.facts.version
            is_due = self._is_due(before.version)
            if not is_due and self._watching:
                self._set_timer()
        if is_due:
            self._tell()
        return self.facts

    def watch(self, seen: int) -> Future[JobFacts]:
        """The facts, as soon as they are not those that were ``seen``; nobody's thread waits for it meanwhile."""
        news: Future[JobFacts] = Future()
        with self._lock:
            is_new = self.facts.version != seen
            waits = not self._released and (not is_new or not self._is_due(seen))
            if waits:
                self._watching.add(news)
                if is_new:
                    self._set_timer()
            else:
                self._told = time.monotonic()
        if not waits:
            news.set_result(self.facts)
        return news

    def _is_due(self, seen: int) -> bool:
        """Whether who has seen this version is told now: of more than progress, or not of too much progress."""
        # after a restart the count may be behind what somebody has seen before
        return not seen <= self.facts.version or self._marked > seen or self._quiet() <= 0

    def _quiet(self) -> float:
        """Seconds until somebody is told of progress again."""
        return NEWS_SECONDS - (time.monotonic() - self._told)

    def _set_timer(self) -> None:
        if not self._is_set:
            self._is_set = True
            call_later(max(self._quiet(), 0.0), self._tell)

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
            self._is_set = False
            if watching:
                self._told = time.monotonic()
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
