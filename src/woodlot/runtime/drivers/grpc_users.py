"""What the coordinator holds: of users' requests and parties' replies the bytes, of answers those to ask again for."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from woodlot.exceptions import RemoteProtocolError
from woodlot.runtime.frames import LARGE, Label

KEPT_BYTES = 64 << 20
"""Replies to users that are kept, newest first, in case their connection broke before they had them."""

KEPT_SECONDS = 60.0
"""For how long; a user that has not come back by then has given up."""

_KEY_BYTES = 200  # about what a kept reply takes beside itself

_Key: TypeAlias = tuple[str, str, int]


class HeldBytes:
    """Bytes of one user's requests, or one party's replies, that may be held at the same time; one always fits."""

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


class Arrival:
    """The request that is arriving on a user's connection: one at a time, and in its room from the beginning.

    Parameters
    ----------
    room : HeldBytes
        The user's.
    seconds : float
        How long a request may take to arrive.
    on_late : callable
        Called when one takes longer.

    """

    def __init__(self, room: HeldBytes, seconds: float, on_late: Callable[[], object]) -> None:
        self._room = room
        self._seconds = seconds
        self._on_late = on_late
        self._n_bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    async def begin(self, n_bytes: int) -> None:
        """Wait until there is room for a request of so many bytes, and hold it."""
        await self._room.take(n_bytes)
        self._n_bytes = n_bytes
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._on_late)

    def complete(self) -> None:
        """The request is there; who goes on with it gives its room back."""
        if self._timer is not None:
            self._timer.cancel()
        self._n_bytes, self._timer = 0, None

    def give_up(self) -> None:
        """Give back the room of a request that will not arrive, if there is one."""
        if self._timer is not None:
            self._room.give_back(self._n_bytes)
            self.complete()


class LargeReply:
    """The large reply that is arriving on a party's connection: one at a time, and in its room from the beginning."""

    def __init__(self, room: HeldBytes) -> None:
        self._room = room
        self._arriving: tuple[Label, int] | None = None

    async def begin(self, label: Label, n_bytes: int) -> None:
        """Wait until there is room for a reply, if it is a large one, and hold it."""
        if n_bytes <= LARGE:
            return
        if self._arriving is not None:  # to wait here would keep the other from ever being complete
            raise RemoteProtocolError(f"two replies of more than {LARGE:,} bytes at the same time")
        await self._room.take(n_bytes)
        self._arriving = (label, n_bytes)

    def complete(self, label: Label) -> Callable[[], None] | None:
        """A reply is there; of a large one, returns what gives its room back."""
        if self._arriving is None or self._arriving[0] != label:
            return None
        (_, n_bytes), self._arriving = self._arriving, None
        return partial(self._room.give_back, n_bytes)

    def give_up(self) -> None:
        """Give back the room of a reply that will not arrive, if there is one."""
        if self._arriving is not None:
            self._room.give_back(self._arriving[1])
            self._arriving = None


class UserReplies:
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
