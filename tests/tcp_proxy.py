"""A proxy between one member and the coordinator that sees bytes only: TLS passes through it.

It can cut the line, let it go dead without a word on either side, and make it slow.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

_PIECE = 16 << 10

T = TypeVar("T")


class TcpProxy:
    """Listens on a port of its own and passes bytes on, in a thread of its own.

    Parameters
    ----------
    target : callable
        Returns the port of the coordinator.

    Attributes
    ----------
    delay : float
        Seconds by which everything comes later, in each direction.
    rate : int or None
        Bytes per second and direction, None for all there are.
    n_connections : int
        How many there have been.
    n_bytes : int
        How many bytes have passed, in both directions.
    greeting : bytes
        The first piece that the coordinator has sent on the latest connection.

    """

    def __init__(self, target: Callable[[], int]) -> None:
        self._target = target
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._alive = asyncio.Event()
        self._alive.set()
        self.delay = 0.0
        self.rate: int | None = None
        self.n_connections = self.n_bytes = 0
        self.greeting = b""
        self.port = 0

    def start(self) -> None:
        self._thread.start()
        self._do(self._listen())

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(300)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._take, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there = await asyncio.open_connection("127.0.0.1", self._target())
        except OSError:
            writer.close()
            return
        self.n_connections += 1
        self._writers |= {writer, there[1]}
        self.greeting = b""
        for source, sink in ((reader, there[1]), (there[0], writer)):
            task = self._loop.create_task(self._pass_on(source, sink, greets=sink is writer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass_on(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, greets: bool) -> None:
        try:
            while data := await source.read(_PIECE):
                if greets and not self.greeting:
                    self.greeting = data
                if self.delay:
                    await asyncio.sleep(self.delay)
                if self.rate is not None:
                    await asyncio.sleep(len(data) / self.rate)
                await self._alive.wait()  # what was sent into a dead line arrives when the line is back, or never
                self.n_bytes += len(data)
                sink.write(data)
                await sink.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            sink.close()
            self._writers.discard(sink)

    def cut(self) -> int:
        """End every connection, on both sides, at once; returns of how many an end was still open."""
        return self._do(self._cut())

    async def _cut(self) -> int:
        open_ends = [writer for writer in self._writers if not writer.transport.is_closing()]
        for writer in open_ends:
            writer.transport.abort()
        return len(open_ends)

    def go_dead(self) -> None:
        """Pass nothing on any more and tell nobody: connections stay half open, new ones too."""
        self._loop.call_soon_threadsafe(self._alive.clear)

    def revive(self) -> None:
        """Pass on what has come meanwhile, and all that comes."""
        self._loop.call_soon_threadsafe(self._alive.set)

    def close(self) -> None:
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        self._server.close()
        self._alive.set()
        await self._cut()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
