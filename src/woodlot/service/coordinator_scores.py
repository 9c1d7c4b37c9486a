"""Online scoring at the coordinator: who has which forest open, and which requests go to the parties together."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

from woodlot.exceptions import DataError, LocalProtocolError, PolicyError, WoodlotError
from woodlot.jobs.led.led_scores import RelayScorer
from woodlot.protocols.core.bits import pack
from woodlot.protocols.core.message import Message
from woodlot.protocols.vertical import score_messages as msg
from woodlot.protocols.vertical.score import Scorer
from woodlot.runtime.audit import Ledger
from woodlot.runtime.drivers import Driver
from woodlot.runtime.run import run

logger = logging.getLogger(__name__)

PATIENCE_SECONDS = 10.0
"""How long a scoring waits for a party that is away; then it ends."""
IDLE_SECONDS = 900.0
"""A scoring that is not asked for so long ends."""
MAX_OPEN = 8
"""Scorings that one user has open."""
MAX_WAITING = 512
"""Requests of one scoring that wait; more are declined."""
GATHER_SECONDS = 0.02
"""The least time between two batches of a scoring under load: what comes meanwhile goes together."""
_THREADS = 16

CLOSED = "this scoring is not open; it was closed, or the coordinator was started again: open another"


class _AskedScore(NamedTuple):
    request: msg.AskScore
    answer: Future[Message]


class ScoringJob:
    """One scoring that is open.

    Parameters
    ----------
    user : str
        Whose it is.
    scorer : Scorer or RelayScorer
        The forest; or what carries requests to the party that leads.
    driver : Driver
        Asks the parties; it is closed with the scoring.
    ledger : Ledger
        Counts rounds.
    pool : ThreadPoolExecutor
        Where it works.

    Attributes
    ----------
    on_end : callable
        Told what is to be recorded when the scoring has ended.

    """

    on_end: Callable[[dict[str, Any]], None]

    def __init__(
        self, user: str, scorer: Scorer | RelayScorer, driver: Driver, ledger: Ledger, pool: ThreadPoolExecutor
    ) -> None:
        self.user = user
        self._pool = pool
        self._scorer = scorer
        self._driver = driver
        self._ledger = ledger
        self._lock = threading.Lock()
        self._waiting: deque[_AskedScore] = deque()
        self._at_work = False
        self._is_open = True
        self._batch = 0
        self._n_rows = 0
        self._used = time.monotonic()

    @property
    def is_idle(self) -> bool:
        """Whether it has not been asked for long."""
        return time.monotonic() - self._used > IDLE_SECONDS

    def ask(self, request: msg.AskScore) -> Future[Message]:
        """The answer to a request, in its time."""
        missing = [party for party in self._scorer.asked if party not in request.sealed]
        if missing:
            raise DataError(f"the request has no ids for {', '.join(missing)}")
        asked = _AskedScore(request, Future())
        with self._lock:
            if not self._is_open:
                raise DataError(CLOSED)
            if len(self._waiting) >= MAX_WAITING:
                raise DataError(f"{MAX_WAITING} requests of this scoring wait already; ask more slowly")
            self._waiting.append(asked)
            self._used = time.monotonic()
            begins = not self._at_work
            self._at_work = True
        if begins:
            self._pool.submit(self._work)
        return asked.answer

    def close(self, ended: dict[str, Any]) -> None:
        """End it; requests that wait are declined."""
        with self._lock:
            was_open, self._is_open = self._is_open, False
            left = list(self._waiting)
            self._waiting.clear()
        for asked in left:
            asked.answer.set_exception(DataError(CLOSED))
        if was_open:
            self._driver.close()
            cost = self._ledger.cost()
            self.on_end(ended | {"rounds": cost.rounds, "bytes_by_party": cost.bytes_by_party, "n_rows": self._n_rows})

    def _work(self) -> None:
        """Ask one batch, and take a place behind the other scorings for the next, until nobody waits."""
        batch = self._next()
        if not batch:
            return
        began = time.monotonic()
        try:
            self._batch += 1
            scored = self._answers([asked.request for asked in batch])
        except Exception as error:  # noqa: BLE001 - whoever waits must get an answer, whatever went wrong
            # the driver goes on after a refusal only
            told = error if isinstance(error, DataError | PolicyError | LocalProtocolError) else self._fail(error)
            for asked in batch:
                asked.answer.set_exception(told)
        else:
            for asked, answer in zip(batch, scored, strict=True):
                self._n_rows += asked.request.n_rows
                asked.answer.set_result(answer)
            time.sleep(max(0.0, GATHER_SECONDS + began - time.monotonic()))
        self._pool.submit(self._work)

    def _answers(self, requests: list[msg.AskScore]) -> Sequence[Message]:
        """What the users of a batch are told."""
        if isinstance(self._scorer, RelayScorer):
            return run(self._scorer.score(self._batch, requests), self._driver, ledger=self._ledger)
        scored = run(self._scorer.score(self._batch, requests), self._driver, ledger=self._ledger)
        return [msg.Score(outputs=outputs, uncertain=pack(uncertain)) for outputs, uncertain in scored]

    def _fail(self, error: Exception) -> DataError:
        """End it, and say so."""
        if isinstance(error, WoodlotError):
            words = str(error)
        else:
            logger.exception("a scoring failed", exc_info=error)
            words = f"internal error ({type(error).__name__}); see the log"
        self.close({"state": "failed", "error": words})
        return DataError(f"this scoring has ended: {words}; open another when the cause is gone")

    def _next(self) -> list[_AskedScore]:
        """As many of those that wait as fit into one batch; none: there is nothing to do."""
        with self._lock:
            batch: list[_AskedScore] = []
            room = msg.MAX_BATCH_ROWS
            while self._waiting and self._waiting[0].request.n_rows <= room:
                batch.append(self._waiting.popleft())
                room -= batch[-1].request.n_rows
            self._at_work = bool(batch)
            return batch


class Scorings:
    """All scorings that are open."""

    def __init__(self) -> None:
        self._open: dict[str, ScoringJob] = {}
        self.pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="woodlot-scoring")

    def check_room(self, user: str) -> None:
        """Refuse one more than a user may have open."""
        if sum(scoring.user == user for scoring in self._open.copy().values()) >= MAX_OPEN:
            raise PolicyError(f"you have {MAX_OPEN} scorings open; close one first")

    def add(self, job: str, scoring: ScoringJob) -> None:
        """Take requests for a scoring."""
        self._open[job] = scoring

    def ask(self, user: str, request: msg.AskScore) -> Future[Message]:
        """The answer to a user's request."""
        scoring = self._open.get(request.job)
        if scoring is None or scoring.user != user:
            raise DataError(CLOSED)
        return scoring.ask(request)

    def end(self, job: str, ended: dict[str, Any]) -> bool:
        """End a scoring; False if it is not open."""
        scoring = self._open.pop(job, None)
        if scoring is not None:
            scoring.close(ended)
        return scoring is not None

    def forget(self, job: str) -> None:
        """Take no more requests for a scoring that has ended by itself."""
        self._open.pop(job, None)

    def end_idle(self) -> None:
        """End those that nobody has asked for long."""
        for job in [job for job, scoring in self._open.copy().items() if scoring.is_idle]:
            self.end(job, {"state": "done"})

    def close(self) -> None:
        """End all: the coordinator ends."""
        for job in list(self._open):
            self.end(job, {"state": "done"})
        self.pool.shutdown(cancel_futures=True)
