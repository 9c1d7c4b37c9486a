"""How many jobs of which kind a service has taken, is at work on, and has seen end: for its metrics and its log."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from typing import NamedTuple

from woodlot.jobs.orders import Order

logger = logging.getLogger(__name__)


class JobCounts(NamedTuple):
    """What was counted since the start of the process.

    Attributes
    ----------
    taken : dict of str to int
        Jobs that were taken, by kind.
    ended : dict of (kind, outcome) to int
        Jobs that have ended.
    open : dict of str to str
        The kinds of the jobs that have been opened here and have not ended.

    """

    taken: dict[str, int]
    ended: dict[tuple[str, str], int]
    open: dict[str, str]


class JobTally:
    """Counts jobs; may be used by several threads at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken: Counter[str] = Counter()
        self._ended: Counter[tuple[str, str]] = Counter()
        self._open: dict[str, str] = {}

    def take(self, job: str, kind: str, *, again: bool = False) -> None:
        """Note that a job is opened; with `again`, one that was taken before, by this process or an earlier one."""
        with self._lock:
            if not again and job not in self._open:
                self._taken[kind] += 1
            self._open[job] = kind

    def end(self, job: str, outcome: str) -> str | None:
        """Note how a job has ended; returns its kind, None where it was not open in this process."""
        with self._lock:
            kind = self._open.pop(job, None)
            if kind is not None:
                self._ended[kind, outcome] += 1
            return kind

    def counts(self) -> JobCounts:
        """Return all counters."""
        with self._lock:
            return JobCounts(dict(self._taken), dict(self._ended), dict(self._open))


def log_taken(order: Order, user: str) -> None:
    """Log that a party, a helper or a key service takes part in a job."""
    logger.info(
        "job %s: %s, ordered by %s, with %s", order.job, order.kind, user, ", ".join(order.parties),
        extra={"job": order.job, "kind": order.kind, "user": user},
    )  # fmt: skip


def log_end(tally: JobTally, job: str) -> None:
    """Count and log that the coordinator has said that a job is over; how it went is told to its user only."""
    kind = tally.end(job, "ended")
    logger.info(
        "job %s has ended", job, extra={"job": job, "state": "ended"} | ({} if kind is None else {"kind": kind})
    )
