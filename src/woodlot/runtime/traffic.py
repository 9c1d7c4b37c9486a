"""Counts the messages that a service exchanges, by type, for its metrics: no content, no names, no jobs."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Literal, NamedTuple

from woodlot.runtime.codec import kind_of
from woodlot.runtime.drivers.carried import Carrier, Numbered, Travel
from woodlot.runtime.peers import Peer

UNREADABLE_TYPE = "unreadable"
"""The type under which bytes count that are no message: a sender cannot add types of its own."""

_REFUSALS = ("Refusal", "Unanswered", "Declined")

Direction = Literal["in", "out"]


class TrafficCounts(NamedTuple):
    """What was counted so far.

    Attributes
    ----------
    messages, n_bytes : dict of (direction, type) to int
        Messages, and their bytes before compression.
    refused : dict of (who, type) to int
        Messages that were refused "here", by this service, or "there", by the one they were sent to.
    seconds_since_contact : float or None
        Since the other side was last heard; None: never.

    """

    messages: dict[tuple[str, str], int]
    n_bytes: dict[tuple[str, str], int]
    refused: dict[tuple[str, str], int]
    seconds_since_contact: float | None


class Traffic:
    """Counters of one service since its start; may be used by several threads at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._messages: Counter[tuple[str, str]] = Counter()
        self._bytes: Counter[tuple[str, str]] = Counter()
        self._refused: Counter[tuple[str, str]] = Counter()
        self._heard: float | None = None

    def hear(self) -> None:
        """Note that the other side was heard just now."""
        self._heard = time.monotonic()

    def count(self, direction: Direction, data: bytes) -> str:
        """Count one encoded message; returns its type."""
        kind = kind_of(data) or UNREADABLE_TYPE
        with self._lock:
            self._messages[direction, kind] += 1
            self._bytes[direction, kind] += len(data)
        if direction == "in":
            self.hear()
        return kind

    def refuse(self, who: Literal["here", "there"], kind: str) -> None:
        """Count a message of some type that was refused."""
        with self._lock:
            self._refused[who, kind] += 1

    def counts(self) -> TrafficCounts:
        """Return all counters."""
        with self._lock:
            since = None if self._heard is None else time.monotonic() - self._heard
            return TrafficCounts(dict(self._messages), dict(self._bytes), dict(self._refused), since)

    def answered(self, request: bytes, answer: Callable[[], bytes]) -> bytes:
        """Count a request, answer it, and count the reply."""
        kind = self.count("in", request)
        try:
            reply = answer()
        except BaseException:
            self.refuse("here", kind)
            raise
        self._count_reply(kind, reply)
        return reply

    def served(
        self, serve: Callable[[Peer, bytes], bytes | Future[bytes]]
    ) -> Callable[[Peer, bytes], bytes | Future[bytes]]:
        """Count what users ask and are answered, now or later."""

        def counted(user: Peer, request: bytes) -> bytes | Future[bytes]:
            kind = self.count("in", request)
            reply = serve(user, request)
            if isinstance(reply, Future):
                reply.add_done_callback(lambda done: self._count_later(kind, done))
            else:
                self._count_reply(kind, reply)
            return reply

        return counted

    def _count_later(self, kind: str, done: Future[bytes]) -> None:
        if not done.cancelled() and done.exception() is None:
            self._count_reply(kind, done.result())

    def _count_reply(self, kind: str, reply: bytes) -> None:
        if self.count("out", reply) in _REFUSALS:
            self.refuse("here", kind)

    def carrier(self, carrier: Carrier) -> Carrier:
        """Count what a carrier takes to parties and brings back."""
        return _CountedCarrier(carrier, self)


class _CountedCarrier:
    """A carrier whose messages are counted."""

    def __init__(self, carrier: Carrier, traffic: Traffic) -> None:
        self._carrier = carrier
        self._traffic = traffic

    def carry(
        self,
        requests: Mapping[str, Numbered],
        on_reply: Callable[[str, bytes], None],
        *,
        wait_seconds: float | None = None,
    ) -> Travel | None:
        """Count the requests, carry them, and count the replies; see `Carrier`."""
        kinds = {party: self._traffic.count("out", request.data) for party, request in requests.items()}

        def counted(party: str, data: bytes) -> None:
            if self._traffic.count("in", data) in _REFUSALS and party in kinds:
                self._traffic.refuse("there", kinds[party])
            on_reply(party, data)

        return self._carrier.carry(requests, counted, wait_seconds=wait_seconds)

    def close(self) -> None:
        """See `Carrier`."""
        self._carrier.close()
