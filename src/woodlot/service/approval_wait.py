"""Jobs that wait until the owners of some parties' data approve them.

Such a job has no worker: nothing of it runs. The coordinator brings its opening to the parties that have not decided,
again and again, as the first request of the job. As long as a party answers `ApprovalPending`, neither side records
anything. Any other answer the party has recorded, so that the job, when it runs again, is answered the same.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor

from woodlot.exceptions import RemoteProtocolError, WoodlotError
from woodlot.jobs.hosting import JobHost
from woodlot.protocols.core.message import ApprovalPending, Message, Refusal
from woodlot.runtime.codec import decode, encode
from woodlot.runtime.drivers.carried import LONGEST_BRIEF, Carrier, Numbered
from woodlot.service.live import LiveJob

logger = logging.getLogger(__name__)

ASK_SECONDS = 1.0
"""How soon the parties of a job that waits are asked again at first."""
SLOWEST_SECONDS = 10.0
"""How soon at the latest: who has waited for long is asked less often."""

_ANSWER_SECONDS = 10.0  # how long a party may take; it is asked again later
_THREADS = 8


class _Waiting:
    """One job: whom it waits for, since when, and when they are asked next."""

    def __init__(self, live: LiveJob, parties: tuple[str, ...], now: float) -> None:
        self.live = live
        self.parties = parties
        self.since = now
        self.due = now + ASK_SECONDS
        self.asking = False

    def put_off(self, now: float) -> None:
        self.due = now + min(max(ASK_SECONDS, (now - self.since) / 30), SLOWEST_SECONDS)


class ApprovalWait:
    """The jobs of a coordinator that wait for approval.

    Parameters
    ----------
    host : JobHost
        Its store has the orders.
    reach : callable
        What carries requests to parties; parameters as for `Hub.carrier`.
    connected : callable
        Returns the parties that are connected now.
    on_decided : callable
        Takes a job that can run again: all have decided, or one has refused.

    """

    def __init__(
        self,
        host: JobHost,
        reach: Callable[..., Carrier],
        connected: Callable[[], Collection[str]],
        on_decided: Callable[[LiveJob], None],
    ) -> None:
        self._host = host
        self._reach = reach
        self._connected = connected
        self._on_decided = on_decided
        self._lock = threading.Lock()
        self._waiting: dict[str, _Waiting] = {}
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="woodlot-approval")

    def add(self, live: LiveJob, parties: tuple[str, ...]) -> None:
        """Have a job wait for the owners of these parties."""
        job, names = live.facts.job, ", ".join(parties)
        logger.info("job %s waits for the approval of %s", job, names, extra={"job": job, "party": names})
        with self._lock:
            self._waiting[job] = _Waiting(live, parties, time.monotonic())

    def look(self) -> list[LiveJob]:
        """Ask whose turn it is; returns jobs that were cancelled and wait no more."""
        now, cancelled = time.monotonic(), []
        with self._lock:
            for job, waiting in list(self._waiting.items()):
                if waiting.asking:
                    continue
                if waiting.live.cancelled.is_set():
                    del self._waiting[job]
                    cancelled.append(waiting.live)
                elif now >= waiting.due:
                    waiting.asking = True
                    self._pool.submit(self._ask, waiting)
        return cancelled

    def _ask(self, waiting: _Waiting) -> None:
        decided: dict[str, Message] = {}
        job = waiting.live.facts.job
        try:
            decided = self._decided(waiting)
        except WoodlotError as error:  # away, silent or at its end: it is asked again
            logger.debug("job %s: the approval is asked for later: %s", job, error, extra={"job": job})
        except Exception:
            logger.exception("job %s: the approval is asked for later", job, extra={"job": job})
        left = tuple(party for party in waiting.parties if party not in decided)
        over = not left or any(isinstance(reply, Refusal) for reply in decided.values())
        with self._lock:
            if over:
                self._waiting.pop(waiting.live.facts.job, None)
            else:
                waiting.put_off(time.monotonic())
                waiting.asking = False
        if over:
            self._on_decided(waiting.live)
        elif left != waiting.parties:
            waiting.parties = left
            waiting.live.change(approval=left)

    def _decided(self, waiting: _Waiting) -> dict[str, Message]:
        """What those parties answer whose owners have decided."""
        job = waiting.live.facts.job
        stored = self._host.store.job(job)
        here = self._connected()
        asked = [party for party in waiting.parties if party in here]
        if stored is None or not asked:
            return {}
        request = Numbered(1, encode(self._host.opening(stored)), LONGEST_BRIEF)
        decided: dict[str, Message] = {}

        def on_reply(party: str, data: bytes) -> None:
            try:
                reply = decode(data)
            except RemoteProtocolError as error:  # the job itself says so, when it runs
                reply = Refusal.from_exception(error)
            if not isinstance(reply, ApprovalPending):
                decided[party] = reply

        late = threading.Event()
        timer = threading.Timer(_ANSWER_SECONDS, late.set)
        timer.daemon = True
        timer.start()
        carrier = self._reach(job, wait_seconds=_ANSWER_SECONDS, cancelled=late)
        try:
            carrier.carry(dict.fromkeys(asked, request), on_reply)
        finally:
            timer.cancel()
            carrier.close()
        return decided

    def close(self) -> None:
        """Wait for what is being asked; whatever carries it must be closed before."""
        self._pool.shutdown()
