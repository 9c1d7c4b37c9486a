"""What both ends of a gRPC connection share: TLS, settings, and the thread in which gRPC lives."""

from __future__ import annotations

import asyncio
import math
import os
import sys
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import nullcontext
from typing import Any, Final, TypeVar

from woodlot.exceptions import LocalProtocolError
from woodlot.runtime.frames import FRAME_LIMIT, LARGE, Label, split
from woodlot.runtime.peers import Credentials

# gRPC has no setting for the lowest version of TLS, but it has one for the ciphers of TLS 1.2, read when it is
# imported. Named is one that needs a key shared beforehand. Nobody has such a key, which leaves TLS 1.3.
_CIPHER_SETTING = "GRPC_SSL_CIPHER_SUITES"
_NO_TLS_1_2 = "ECDHE-PSK-CHACHA20-POLY1305"
_too_late = "grpc" in sys.modules and os.environ.get(_CIPHER_SETTING) != _NO_TLS_1_2
os.environ[_CIPHER_SETTING] = _NO_TLS_1_2
# Otherwise it tells on standard error of every idle connection that the coordinator has ended.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

import grpc as grpc  # noqa: E402 - the others import it from here, so that the setting comes first
import grpc.aio  # noqa: E402

SERVER_NAME: Final = "coordinator.woodlot"
"""The name in the coordinator's certificate, and in no other; clients insist on it whatever address they dial."""

SERVICE: Final = "woodlot.Coordinator"
INSTANCE: Final = "woodlot-instance"
"""Metadata of a stream: random, and the same for all connections that one line of a process opens."""

PARTY_METHOD: Final = "Party"
USER_METHOD: Final = "User"

SILENCE_MS: Final = 5_000
"""A peer that does not answer a ping for so long is taken for dead. A frozen one would go unnoticed otherwise."""

PING_EVERY_MS: Final = 1_500
"""A peer that has sent nothing for so long is sent a ping."""

IN_FLIGHT: Final = 256 << 10
"""The bytes that are sent ahead of the peer's reading, and the longest frame that is sent.

A ping waits behind them: on a line of less than 100 kB/s more would look like a dead peer, for ever.
"""

_SLACK = 1 << 10  # bytes of a gRPC message beyond our frame

BROKEN: Final = (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError)
"""What a write to a stream that has ended may raise."""

T = TypeVar("T")


def check_tls() -> None:
    """Refuse to listen where TLS 1.2 could not be turned off."""
    if _too_late:
        raise LocalProtocolError(
            "the grpc package was imported before this driver, too late to turn TLS 1.2 off; import "
            f"{__name__} first, or start the program with {_CIPHER_SETTING}={_NO_TLS_1_2} in its environment"
        )


def options(frame_limit: int = FRAME_LIMIT) -> list[tuple[str, int]]:
    """The settings of a connection, at either end."""
    return [
        ("grpc.max_send_message_length", frame_limit + _SLACK),
        ("grpc.max_receive_message_length", frame_limit + _SLACK),
        ("grpc.max_metadata_size", 16 << 10),
        ("grpc.keepalive_time_ms", PING_EVERY_MS),
        ("grpc.keepalive_timeout_ms", SILENCE_MS),
        ("grpc.http2.ping_timeout_ms", SILENCE_MS),
        ("grpc.http2.lookahead_bytes", IN_FLIGHT),
        # It would send pings in the middle of long messages, and let far more than the above be in flight.
        ("grpc.http2.bdp_probe", 0),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", PING_EVERY_MS // 3),
        ("grpc.max_concurrent_streams", 1_000),
    ]


class Writer:
    """Sends messages on one stream, which takes one frame at a time.

    Parameters
    ----------
    write : callable
        Sends one frame and returns when there is room for another.
    frame_limit : int
        The longest frame that the peer takes, in bytes.

    """

    def __init__(self, write: Callable[[bytes], Coroutine[Any, Any, None]], *, frame_limit: int = FRAME_LIMIT) -> None:
        self._write = write
        self._frame_limit = min(frame_limit, IN_FLIGHT)
        self._turn = asyncio.Lock()
        self._large = asyncio.Lock()

    async def send(
        self, label: Label, data: bytes, *, worked: float = 0.0, on_frame: Callable[[int], None] | None = None
    ) -> None:
        """Send a message; others may be sent in between its frames, but only one large one at a time.

        Parameters
        ----------
        label, data, worked
            As for `split`.
        on_frame : callable, optional
            Told the length of each frame before it leaves.

        """
        async with self._large if len(data) > LARGE else nullcontext():
            for frame in split(label, data, frame_limit=self._frame_limit, compress=True, worked=worked):
                async with self._turn:
                    if on_frame is not None:
                        on_frame(len(frame))
                    await self._write(frame)

    async def send_whole(self, label: Label, data: bytes) -> None:
        """Send a message with nothing in between its frames."""
        async with self._turn:
            for frame in split(label, data, frame_limit=self._frame_limit, compress=True):
                await self._write(frame)


class Tasks:
    """Tasks of one connection, which end with it at the latest."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start `work`; what it raises is for it to deal with."""
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    def cancel(self) -> None:
        """End all of them."""
        for task in tuple(self._running):
            task.cancel()


class _Events:
    """The one event loop of this process, in a thread of its own that ends with the process.

    gRPC binds itself to the first loop that it meets and does not let go, hence one loop and no end to it.
    """

    def __init__(self) -> None:
        self._gate = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def loop(self) -> asyncio.AbstractEventLoop:
        with self._gate:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="grpc-events", daemon=True).start()
            return self._loop


_events = _Events()


def event_loop() -> asyncio.AbstractEventLoop:
    """The event loop in which everything of gRPC happens."""
    return _events.loop()


def spawn(work: Coroutine[Any, Any, T]) -> Future[T]:
    """Start `work` in the event loop, from any other thread."""
    return asyncio.run_coroutine_threadsafe(work, event_loop())


def call_later(seconds: float, call: Callable[[], object]) -> None:
    """Call something quick, in the event loop, after some seconds; from any thread."""
    loop = event_loop()
    loop.call_soon_threadsafe(lambda: loop.call_later(seconds, call))


def limit_wait(future: Future[Any], seconds: float, on_late: Callable[[], object]) -> None:
    """Call something quick, in the event loop, unless a future is done in some seconds; from any thread."""
    loop = event_loop()
    # One NaN among the loop's timers, and none of them is in order any more: others are then never due.
    delay = seconds if 0.0 < seconds < math.inf else 0.0

    def begin() -> None:
        timer = loop.call_later(delay, on_late)
        future.add_done_callback(lambda _: loop.call_soon_threadsafe(timer.cancel))

    loop.call_soon_threadsafe(begin)


def client_channel(address: str, credentials: Credentials, *, frame_limit: int = FRAME_LIMIT) -> grpc.aio.Channel:
    """A channel to the coordinator, which gives up rather than reconnect: who uses it has its own pace."""
    return grpc.aio.secure_channel(
        address,
        grpc.ssl_channel_credentials(credentials.authority, credentials.key, credentials.certificate),
        options=[
            *options(frame_limit),
            ("grpc.ssl_target_name_override", SERVER_NAME),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.enable_retries", 0),
        ],
    )
