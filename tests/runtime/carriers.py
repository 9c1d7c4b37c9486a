"""Carriers for tests: they take requests to sessions in this process, by threads or with faults on the way."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed

from woodlot.runtime.drivers.carried import Numbered
from woodlot.runtime.sessions import Sessions

MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108 - the parent of temporary folders
"""Where tests put many short-lived journals: a disk would make each of them wait for it."""

JOB = "0123456789abcdef" * 2


class ThreadCarrier:
    """Asks the sessions of all parties at once, each in a thread."""

    def __init__(self, sessions: Mapping[str, Sessions], job: str = JOB) -> None:
        self._sessions = sessions
        self._job = job
        self._pool = ThreadPoolExecutor(max_workers=len(sessions))

    def carry(self, requests: Mapping[str, Numbered], on_reply: Callable[[str, bytes], None]) -> None:
        waiting = {
            self._pool.submit(self._sessions[party].answer, self._job, *request[:2]): party
            for party, request in requests.items()
        }
        for done in as_completed(waiting):
            on_reply(waiting[done], done.result())

    def close(self) -> None:
        self._pool.shutdown()
