"""The carrier for one process: parties with sessions of their own, each asked in a thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TypeAlias

from woodlot.runtime.drivers.carried import Numbered

Answering: TypeAlias = Callable[[str, int, bytes], bytes]
"""Answers a request, given its job and number; see `woodlot.runtime.sessions.Sessions.answer`."""


class ThreadCarrier:
    """Carries the requests of one job to parties in this process, all of a round at once.

    Parameters
    ----------
    job : str
        The job.
    parties : mapping of str to callable
        What answers at each party.

    """

    def __init__(self, job: str, parties: Mapping[str, Answering]) -> None:
        self._job = job
        self._parties = parties
        self._pool = ThreadPoolExecutor(max_workers=len(parties), thread_name_prefix="woodlot-party")

    def carry(
        self,
        requests: Mapping[str, Numbered],
        on_reply: Callable[[str, bytes], None],
        *,
        wait_seconds: float | None = None,
    ) -> None:
        """Ask all parties at once and hand on the replies as they come; see `Carrier`. Here, no party is away."""
        waiting = {
            self._pool.submit(self._parties[party], self._job, request.number, request.data): party
            for party, request in requests.items()
        }
        for done in as_completed(waiting):
            on_reply(waiting[done], done.result())

    def close(self) -> None:
        """Carry no more; returns when every party has ended the request that it is at work on."""
        self._pool.shutdown(cancel_futures=True)
