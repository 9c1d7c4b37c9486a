"""A job that is queued or running now, as those who wait for news of it see it."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

import msgspec

from woodlot.protocols.messages.jobs import JobFacts


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
