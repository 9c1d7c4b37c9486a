"""Whose job is next: users take turns, and a job that waits for a party keeps nobody else's from running.

A job is begun when all its parties are connected; until then it waits here, and takes up no worker. One that loses a
party later keeps its worker only as long as no other job could use it: then it gives way, comes back here, and goes on
from its journal when the party is there again, as after a restart of the coordinator. However it waits, it stops when a
party has been away for too long.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from typing import Any

from woodlot.runtime.drivers.carried import Carrier
from woodlot.runtime.drivers.grpc_carrier import away_too_long
from woodlot.service.live import LiveJob

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.2
"""How often it is looked who has come or gone."""

GIVE_WAY_SECONDS = 2.0
"""How long a job at work waits for a party before it gives way: who is back sooner costs it nothing."""


class _Turn:
    """A job in the queue or at work.

    In the queue: which parties it waits for, and for how long each was away. At work: what carries its requests, and
    since when it has waited for somebody.
    """

    def __init__(self, live: LiveJob, needs: tuple[str, ...]) -> None:
        self.live = live
        self.needs = needs
        self.away = dict.fromkeys(needs, 0.0)
        self.looked = time.monotonic()
        self.carrier: Carrier | None = None
        self.spare_after = 0.0
        self.waits_since: float | None = None
        self.gives_way = False

    def missing(self, here: Collection[str]) -> tuple[str, ...]:
        return tuple(party for party in self.needs if party not in here)

    def pass_time(self, missing: tuple[str, ...], now: float) -> None:
        """Count for how long parties are away, and have the user know for whom the job waits."""
        for party in missing:
            self.away[party] += now - self.looked
        self.looked = now
        self.tell(missing)

    def tell(self, missing: tuple[str, ...]) -> None:
        if missing != self.live.facts.waiting_for:
            if missing:
                job, parties = self.live.facts.job, ", ".join(missing)
                logger.info("job %s waits for %s", job, parties, extra={"job": job, "party": parties})
            self.live.change(waiting_for=missing)

    def has_waited(self, now: float) -> bool:
        """Whether it has waited at work for long enough to give way."""
        facts = self.live.facts
        self.waits_since = (self.waits_since or now) if facts.waiting_for else None
        # a round that can do without a party goes on by itself; the first one needs everybody
        patience = GIVE_WAY_SECONDS if facts.phase == "open" else max(GIVE_WAY_SECONDS, self.spare_after)
        return self.waits_since is not None and now - self.waits_since >= patience

    def give_way(self, carrier: Carrier, now: float) -> None:
        self.gives_way = True
        self.needs = self.live.facts.waiting_for
        self.away = dict.fromkeys(self.needs, now - (self.waits_since or now))
        self.looked = now
        carrier.close()  # ends its wait; see `Carrier`


class JobQueue:
    """Jobs that wait for their turn, and those at work.

    Parameters
    ----------
    connected : callable
        Returns the parties that are connected now.
    patience : float
        How many seconds a job waits for a party that is away.

    """

    def __init__(self, connected: Callable[[], Collection[str]], patience: float) -> None:
        self._connected = connected
        self._patience = patience
        self._changed = threading.Condition()
        self._lines: dict[str, deque[_Turn]] = {}  # by user, the one who is next first
        self._at_work: dict[str, _Turn] = {}
        self._n_idle = 0
        self._closed = False

    def put(self, live: LiveJob) -> None:
        """Add a job. One that was begun before goes on in its turn, whoever is there: it may do without some."""
        turn = _Turn(live, live.facts.parties if live.facts.started is None else ())
        with self._changed:
            turn.tell(turn.missing(self._connected()))
            self._lines.setdefault(live.facts.user, deque()).append(turn)
            self._changed.notify()

    def take(self, *, wait: bool = True) -> LiveJob | None:
        """The next job that can run, as soon as there is one; None: the queue is closed, or nobody is to wait."""
        with self._changed:
            self._n_idle += 1
            try:
                while not self._closed:
                    turn = self._next()
                    if turn is not None:
                        turn.tell(())
                        self._at_work[turn.live.facts.job] = turn
                        return turn.live
                    if not wait:
                        break
                    self._changed.wait(LOOK_SECONDS)
                return None
            finally:
                self._n_idle -= 1

    def _next(self) -> _Turn | None:
        """The first job that can run of the first user who has one; this user is then behind all others."""
        here = self._connected()
        for user, line in self._lines.items():
            turn = next((turn for turn in line if not turn.missing(here)), None)
            if turn is not None:
                self._remove(turn)
                if user in self._lines:
                    self._lines[user] = self._lines.pop(user)
                return turn
        return None

    def _remove(self, turn: _Turn) -> None:
        user = turn.live.facts.user
        self._lines[user].remove(turn)
        if not self._lines[user]:
            del self._lines[user]

    def begin(self, job: str, carrier: Carrier, spare_after: float | None) -> None:
        """Note what carries the requests of a job at work, and after how many seconds it can do without a party."""
        turn = self._at_work.get(job)  # a scoring has not waited here
        if turn is not None:
            turn.spare_after = spare_after or 0.0
            turn.carrier = carrier

    def leave(self, job: str) -> None:
        """Forget a job whose work has come to its end."""
        with self._changed:
            self._at_work.pop(job, None)

    def put_back(self, job: str) -> bool:
        """Take a job back that was to give way, as the next of its user; False: it was not."""
        with self._changed:
            turn = self._at_work.get(job)
            if turn is None or not turn.gives_way:
                return False
            del self._at_work[job]
            turn.carrier, turn.waits_since, turn.gives_way = None, None, False
            turn.live.change(state="queued", waiting_for=turn.needs)
            self._lines.setdefault(turn.live.facts.user, deque()).appendleft(turn)
            self._changed.notify()
            return True

    def look(self) -> list[tuple[LiveJob, dict[str, Any]]]:
        """See who has come or gone, and have a job give way that waits where another could run.

        Returns
        -------
        list of (LiveJob, dict)
            Jobs that end in the queue, with what is to be recorded: they were cancelled, or a party stayed away.

        """
        here, ends, n_ready = self._connected(), [], 0
        with self._changed:
            now = time.monotonic()
            for turn in [turn for line in self._lines.values() for turn in line]:
                missing = turn.missing(here)
                turn.pass_time(missing, now)
                late = tuple(party for party in missing if turn.away[party] >= self._patience)
                if turn.live.cancelled.is_set():
                    ends.append((turn.live, {"state": "cancelled"}))
                elif late:
                    error = away_too_long(late, turn.away[late[0]], self._patience)
                    ends.append((turn.live, {"state": "stopped", "error": str(error)}))
                else:
                    n_ready += not missing
                    continue
                self._remove(turn)
            self._make_room(n_ready, now)
        return ends

    def _make_room(self, n_ready: int, now: float) -> None:
        """Have the job at work that has waited longest give way, if somebody needs its worker."""
        at_work = list(self._at_work.values())
        n_free = self._n_idle + sum(turn.gives_way for turn in at_work)
        waiting = [turn for turn in at_work if turn.has_waited(now) and not turn.gives_way]
        if waiting and n_ready > n_free:
            turn = min(waiting, key=lambda turn: turn.waits_since or now)
            if turn.carrier is not None:
                turn.give_way(turn.carrier, now)

    def close(self) -> None:
        """Hand out no more jobs."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
