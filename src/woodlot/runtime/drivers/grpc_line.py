"""The party's and the user's end of a gRPC connection: both dial out, and neither listens."""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import TracebackType
from typing import NamedTuple, Self

from woodlot.exceptions import IdentityError, LocalProtocolError, RemoteProtocolError, WoodlotError
from woodlot.runtime.codec import DEFAULT_LIMIT
from woodlot.runtime.drivers.grpc_dial import CONNECT_SECONDS, SLOWEST_DELAY, Dialer, Down
from woodlot.runtime.drivers.grpc_wire import BROKEN, PARTY_METHOD, USER_METHOD, Tasks, Writer, event_loop, spawn
from woodlot.runtime.faults import wordless
from woodlot.runtime.frames import FRAME_LIMIT, FrameKind, Label, Parcel
from woodlot.runtime.peers import Credentials
from woodlot.runtime.protocol_versions import VERSIONS

PARTY_THREADS = 16
"""How many jobs a party works on at the same time; the others wait."""

USER_PATIENCE = 15.0
"""Seconds for which a user's request waits for a coordinator that cannot be reached."""

_USER_SLOWEST_DELAY = 1.0
_WAKE_SECONDS = 0.2
_MAX_FAILURE = 100  # characters of a failure that the coordinator names

_CLOSED = "this connection to the coordinator was closed; connect again"

logger = logging.getLogger(__name__)


class CoordinatorAwayError(WoodlotError):
    """The coordinator cannot be reached, or does not answer in time."""


class PartyLine:
    """A party's connection to the coordinator, for ever opened again.

    Parameters
    ----------
    address : str
        ``host:port`` of the coordinator.
    credentials : Credentials
        The party's.
    answer : callable
        Takes job, number and request and returns the reply. Called in one of several threads, and never for a
        request that it is still at work on: who repeats such a request gets the reply to the first.
    on_greeting : callable, optional
        Called with what the coordinator sends first, before any request of that connection is answered.
    message_limit, frame_limit : int
        The longest message and the longest frame, in bytes.
    slowest_delay : float
        Seconds between attempts to connect after many have failed.
    versions : sequence of int
        The versions of the protocol that this side speaks.

    """

    def __init__(
        self,
        address: str,
        credentials: Credentials,
        answer: Callable[[str, int, bytes], bytes],
        *,
        on_greeting: Callable[[bytes], None] | None = None,
        message_limit: int = DEFAULT_LIMIT,
        frame_limit: int = FRAME_LIMIT,
        slowest_delay: float = SLOWEST_DELAY,
        versions: Sequence[int] = VERSIONS,
    ) -> None:
        self._address = address
        self._answer = answer
        self._on_greeting = on_greeting
        self._message_limit = message_limit
        self._dialer = Dialer(
            address,
            credentials,
            PARTY_METHOD,
            self,
            kinds=(FrameKind.greeting, FrameKind.request),
            message_limit=message_limit,
            frame_limit=frame_limit,
            slowest_delay=slowest_delay,
            versions=versions,
        )
        self._running: asyncio.Task[None] | None = None
        self._connected = threading.Event()
        self._last_reason = ""
        self._tasks = Tasks()
        self._at_work: dict[Label, _Work] = {}
        self._served: set[Label] = set()  # on the present connection
        self._threads = ThreadPoolExecutor(PARTY_THREADS, thread_name_prefix="woodlot-answer")

    @property
    def version(self) -> int:
        """The version of the protocol that was agreed on with the coordinator."""
        return self._dialer.version

    @property
    def connected(self) -> bool:
        """Whether the coordinator has let this party in."""
        return self._connected.is_set()

    @property
    def trouble(self) -> str:
        """Why there is no connection, where that is known; empty while there is one."""
        return "" if self.connected else self._last_reason

    def wait_connected(self, timeout: float | None = None) -> bool:
        """Wait until the coordinator has let this party in; False if it has not in time."""
        return self._connected.wait(timeout)

    def start(self) -> None:
        """Connect, and stay connected, in the background."""
        if self._running is not None:
            raise LocalProtocolError("this line has been started before")
        spawn(self._start()).result()

    async def _start(self) -> None:
        self._running = asyncio.get_running_loop().create_task(self._dialer.run())

    def stop(self) -> None:
        """Disconnect for good; return when the requests at work have ended. Their replies go nowhere."""
        spawn(self._stop()).result()
        self._threads.shutdown(cancel_futures=True)

    async def _stop(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
        self._drop_link()

    def on_up(self, writer: Writer) -> None:
        """See `Watcher`."""
        logger.info("connected to the coordinator at %s", self._address)
        self._last_reason = ""
        self._connected.set()

    def on_down(self, down: Down) -> bool:
        """See `Watcher`."""
        self._drop_link()
        if down.refused:
            logger.error("the coordinator at %s and this party refuse each other: %s", self._address, down.reason)
        elif down.was_up or down.reason != self._last_reason:  # once, and not at every attempt
            logger.warning("not connected to the coordinator at %s: %s; trying again", self._address, down.reason)
        self._last_reason = down.reason
        return True

    def _drop_link(self) -> None:
        self._connected.clear()
        self._tasks.cancel()
        self._served = set()

    async def on_parcel(self, parcel: Parcel, writer: Writer) -> None:
        """See `Watcher`."""
        if parcel.label.kind is FrameKind.greeting:
            if self._on_greeting is not None:
                await asyncio.get_running_loop().run_in_executor(self._threads, self._on_greeting, parcel.data)
        elif parcel.label not in self._served:
            self._served.add(parcel.label)
            self._tasks.start(self._serve(parcel, writer, self._served))

    async def _serve(self, request: Parcel, writer: Writer, served: set[Label]) -> None:
        label, since = request.label, time.perf_counter()
        try:
            kind, reply = FrameKind.reply, await asyncio.shield(self._work_on(request))
            if len(reply) > self._message_limit:
                raise LocalProtocolError(f"a reply of {len(reply):,} bytes; the limit is {self._message_limit:,}")
        except Exception as error:  # whatever went wrong, the coordinator must get an answer
            fields = {"job": label.job}
            logger.error("request %d of job %s failed", label.number, label.job, exc_info=wordless(error), extra=fields)
            kind, reply = FrameKind.failure, type(error).__name__.encode()
        finally:
            # before the reply leaves: who has it and asks again at once must be answered again
            served.discard(label)
        try:
            await writer.send(label._replace(kind=kind), reply, worked=time.perf_counter() - since)
        except BROKEN:
            logger.debug("the reply to request %d of job %s was not sent", label.number, label.job)

    def _work_on(self, request: Parcel) -> asyncio.Future[bytes]:
        """The work on a request: begun now, or on a connection that has broken since."""
        label = request.label
        work = self._at_work.get(label)
        if work is None or work.request != request.data:
            loop = asyncio.get_running_loop()
            reply = loop.run_in_executor(self._threads, self._answer, label.job, label.number, request.data)
            work = self._at_work[label] = _Work(request.data, reply)
            reply.add_done_callback(lambda _: self._forget(label, work))
        return work.reply

    def _forget(self, label: Label, work: _Work) -> None:
        if self._at_work.get(label) is work:
            del self._at_work[label]


class _Work(NamedTuple):
    request: bytes
    reply: asyncio.Future[bytes]


class _Question(NamedTuple):
    data: bytes
    answer: Future[bytes]


class UserLine:
    """A user's connection to the coordinator, opened when there is something to ask.

    Parameters
    ----------
    address : str
        ``host:port`` of the coordinator.
    credentials : Credentials
        The user's.
    on_greeting : callable, optional
        Called with what the coordinator sends first on every connection.
    patience : float
        Seconds for which a request waits for a coordinator that cannot be reached.
    message_limit, frame_limit : int
        The longest message and the longest frame, in bytes.
    versions : sequence of int
        The versions of the protocol that this side speaks.

    """

    def __init__(
        self,
        address: str,
        credentials: Credentials,
        *,
        on_greeting: Callable[[bytes], None] | None = None,
        patience: float = USER_PATIENCE,
        message_limit: int = DEFAULT_LIMIT,
        frame_limit: int = FRAME_LIMIT,
        versions: Sequence[int] = VERSIONS,
    ) -> None:
        self._address = address
        self._on_greeting = on_greeting
        self._patience = patience
        self._message_limit = message_limit
        self._dialer = Dialer(
            address,
            credentials,
            USER_METHOD,
            self,
            kinds=(FrameKind.greeting, FrameKind.reply, FrameKind.failure),
            message_limit=message_limit,
            frame_limit=frame_limit,
            slowest_delay=_USER_SLOWEST_DELAY,
            connect_seconds=min(patience, CONNECT_SECONDS),
            versions=versions,
        )
        self._name = secrets.token_hex(16)  # tells this line's numbers from those of the user's other lines
        self._numbers = itertools.count(1)
        self._questions: dict[int, _Question] = {}
        self._running: asyncio.Task[None] | None = None
        self._writer: Writer | None = None
        self._tasks = Tasks()
        self._lost = 0.0
        self._closed = False

    def ask(self, data: bytes, timeout: float | None = None) -> bytes:
        """Ask the coordinator, from any thread.

        A request whose connection breaks is sent again under its number, and the coordinator does not begin it
        twice.

        Parameters
        ----------
        data : bytes
            The request.
        timeout : float, optional
            Seconds to wait for the reply; without it, as long as the coordinator is there.

        Returns
        -------
        bytes
            The reply.

        Raises
        ------
        CoordinatorAwayError
            If the coordinator cannot be reached, or does not answer in time.
        IdentityError
            If the coordinator refuses this user's certificate, or has not the certificate that it should have.
        RemoteProtocolError
            If the coordinator failed.

        """
        if len(data) > self._message_limit:
            raise LocalProtocolError(f"a request of {len(data):,} bytes; the message limit is {self._message_limit:,}")
        loop = event_loop()
        number = next(self._numbers)
        answer: Future[bytes] = Future()
        loop.call_soon_threadsafe(self._post, number, _Question(data, answer))
        until = None if timeout is None else time.monotonic() + timeout
        try:
            while not answer.done():
                left = _WAKE_SECONDS if until is None else min(_WAKE_SECONDS, until - time.monotonic())
                if left <= 0:
                    raise CoordinatorAwayError(
                        f"the coordinator at {self._address} has not answered within {timeout:g} s; it may be busy: "
                        "try again, or allow more time"
                    )
                wait([answer], left)
            return answer.result()
        finally:
            loop.call_soon_threadsafe(self._questions.pop, number, None)

    def _post(self, number: int, question: _Question) -> None:
        if self._closed:
            question.answer.set_exception(LocalProtocolError(_CLOSED))
            return
        self._questions[number] = question
        if self._writer is not None:
            self._tasks.start(self._send(number, question, self._writer))
        elif self._running is None or self._running.done():
            self._lost = time.monotonic()
            self._running = asyncio.get_running_loop().create_task(self._dialer.run())

    async def _send(self, number: int, question: _Question, writer: Writer) -> None:
        try:
            await writer.send_whole(Label(FrameKind.request, self._name, number), question.data)
        except BROKEN:
            logger.debug("request %d was not sent; it will be when there is a connection", number)

    def on_up(self, writer: Writer) -> None:
        """See `Watcher`."""
        self._writer = writer
        for number, question in self._questions.items():
            self._tasks.start(self._send(number, question, writer))

    async def on_parcel(self, parcel: Parcel, writer: Writer) -> None:
        """See `Watcher`."""
        if parcel.label.kind is FrameKind.greeting:
            if self._on_greeting is not None:
                await asyncio.get_running_loop().run_in_executor(None, self._on_greeting, parcel.data)
            return
        question = self._questions.pop(parcel.label.number, None)
        if question is None or parcel.label.job != self._name:
            logger.debug("a reply that nobody waits for")
        elif parcel.label.kind is FrameKind.reply:
            question.answer.set_result(parcel.data)
        else:
            what = parcel.data[:_MAX_FAILURE].decode("ascii", "replace")
            question.answer.set_exception(
                RemoteProtocolError(f"the coordinator failed: {what}; its log has the reason")
            )

    def on_down(self, down: Down) -> bool:
        """See `Watcher`."""
        self._writer = None
        self._tasks.cancel()
        if down.was_up:
            self._lost = time.monotonic()
        if down.refused:
            self._fail_all(
                IdentityError(
                    f"the coordinator at {self._address} and this user refuse each other: {down.reason}; check that "
                    "the address is right and that both certificates are valid and signed by the same authority"
                )
            )
        elif time.monotonic() - self._lost >= self._patience:
            self._fail_all(
                CoordinatorAwayError(
                    f"no connection to the coordinator at {self._address}: {down.reason}; check that the address is "
                    "right, that the coordinator is running, and that no firewall is in between"
                )
            )
        return bool(self._questions)

    def _fail_all(self, error: WoodlotError) -> None:
        for question in self._questions.values():
            question.answer.set_exception(error)
        self._questions.clear()

    def close(self) -> None:
        """Disconnect; whoever still waits gets a `LocalProtocolError`. Closing twice does nothing."""
        spawn(self._close()).result()

    async def _close(self) -> None:
        self._closed = True
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
        self._writer = None
        self._tasks.cancel()
        self._fail_all(LocalProtocolError(_CLOSED))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
