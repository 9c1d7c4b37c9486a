"""What the coordinator holds of its users' requests: the bytes that wait, and the answers for those who ask again."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import TypeAlias

KEPT_BYTES = 64 << 20
"""Replies to users that are kept, the youngest first, in case their connection broke before they had them."""

KEPT_SECONDS = 60.0
"""For how long; a user that has not come back by then has given up."""

_KEY_BYTES = 200  # about what a kept reply takes beside itself

_Key: TypeAlias = tuple[str, str, int]


class Room:
    """Bytes of one user's requests that may be held at the same time; one request always fits."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._held = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def take(self, n_bytes: int) -> None:
        """Wait until there is room for so many bytes, and hold them."""
        while self._held and self._held + n_bytes > self._size:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            await turn
        self._held += n_bytes

    def give_back(self, n_bytes: int) -> None:
        """So many bytes are held no longer."""
        self._held -= n_bytes
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)


class Answers:
    """Replies to users by request, those at work and as many of the finished ones as there is room for."""

    def __init__(self) -> None:
        self._work: dict[_Key, asyncio.Future[bytes]] = {}
        self._finished: deque[tuple[float, _Key, int]] = deque()
        self._n_bytes = 0

    def get(self, key: _Key) -> asyncio.Future[bytes] | None:
        """The answer to a request that has come before."""
        return self._work.get(key)

    def add(self, key: _Key, work: asyncio.Future[bytes]) -> None:
        """An answer is being made."""
        self._work[key] = work
        work.add_done_callback(lambda done: self._keep(key, done))

    def _keep(self, key: _Key, done: asyncio.Future[bytes]) -> None:
        if done.cancelled() or done.exception() is not None:
            del self._work[key]
            return
        now, size = time.monotonic(), _KEY_BYTES + len(done.result())
        self._finished.append((now, key, size))
        self._n_bytes += size
        while self._finished and (self._n_bytes > KEPT_BYTES or self._finished[0][0] < now - KEPT_SECONDS):
            _, oldest, size = self._finished.popleft()
            self._n_bytes -= size
            del self._work[oldest]
