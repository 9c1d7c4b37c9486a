"""What the jobs of one user may take up on the coordinator's disk in a day."""

from __future__ import annotations

import threading
import time

from woodlot.exceptions import PolicyError
from woodlot.jobs.job_store import JobStore

MAX_BYTES = 256 << 20
"""Bytes that the record keeps of one user's jobs of the last `DAY_SECONDS`: some 100,000 jobs."""

DAY_SECONDS = 86_400.0
COUNT_SECONDS = 60.0
"""How soon it is counted again for a user who was refused: counting takes time that is everybody's."""


class Allowance:
    """Refuses orders of users who have filled their share.

    Parameters
    ----------
    store : JobStore
        Where jobs are recorded.

    """

    def __init__(self, store: JobStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._at_most: dict[str, int] = {}  # by user, what was recorded when it was last counted, and all since
        self._refused: dict[str, float] = {}  # by user, when it was last counted and was too much

    def take(self, user: str, n_bytes: int) -> None:
        """Count an order that is about to be recorded.

        Raises
        ------
        PolicyError
            If there would be too much of this user.

        """
        with self._lock:
            total = self._at_most.get(user)
            is_known = time.monotonic() - self._refused.get(user, -COUNT_SECONDS) < COUNT_SECONDS
            if total is None or (total + n_bytes > MAX_BYTES and not is_known):  # some has ended or is of yesterday
                total = self._store.bytes_of_user(user, time.time() - DAY_SECONDS)
            if total + n_bytes > MAX_BYTES:
                self._at_most[user] = total
                if not is_known:
                    self._refused[user] = time.monotonic()
                raise PolicyError(
                    f"your jobs of the last 24 hours take up {total:,} bytes here, and {MAX_BYTES:,} is the most; "
                    "cancel those that have stopped, or order later"
                )
            self._at_most[user] = total + n_bytes
