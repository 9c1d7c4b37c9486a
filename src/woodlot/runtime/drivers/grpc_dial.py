"""The side that dials: opens a stream to the coordinator, reads it, and opens it again when it has broken."""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import time
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple, Protocol

from woodlot.exceptions import RemoteProtocolError
from woodlot.runtime.drivers.grpc_wire import INSTANCE, SERVICE, Writer, client_channel, grpc
from woodlot.runtime.frames import FRAME_LIMIT, Assembler, FrameKind, Label, Parcel
from woodlot.runtime.peers import Credentials
from woodlot.runtime.protocol_versions import PROTOCOL, VERSIONS, agreed, told

FIRST_DELAY = 0.1
"""Seconds until the first attempt to reconnect; each further one takes twice as long."""

SLOWEST_DELAY = 10.0
"""Seconds between attempts that have failed for long, or that were refused."""

CONNECT_SECONDS = 10.0
"""How long one attempt may take: a frozen coordinator's machine still accepts connections."""

_REFUSALS = (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED)
_FUTILE = (
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.UNIMPLEMENTED,
)

logger = logging.getLogger(__name__)


class Down(NamedTuple):
    """Why there is no connection."""

    reason: str
    refused: bool = False
    """The coordinator, or this side, does not accept the other's certificate; trying again soon is of no use."""
    slow: bool = False
    """There is no point in trying again at once."""
    was_up: bool = False


class Watcher(Protocol):
    """Who uses a connection. All of it is called in the event loop."""

    def on_up(self, writer: Writer) -> None:
        """A connection is open and the coordinator has admitted this side."""
        ...

    async def on_parcel(self, parcel: Parcel, writer: Writer) -> None:
        """A message has arrived; the next one is read afterwards."""
        ...

    def on_down(self, down: Down) -> bool:
        """The connection has broken, or an attempt has failed. False: do not try again."""
        ...


class Dialer:
    """Keeps a stream to the coordinator open.

    Parameters
    ----------
    address : str
        ``host:port`` of the coordinator.
    credentials : Credentials
        What this side shows and trusts.
    method : str
        The coordinator's method for this side's role.
    watcher : Watcher
        Is told of everything.
    kinds : collection of FrameKind
        The kinds of message that the coordinator may send to this side.
    message_limit, frame_limit : int
        The longest message and the longest frame, in bytes.
    slowest_delay : float
        Seconds between attempts after many have failed.
    connect_seconds : float
        How long one attempt may take.
    versions : sequence of int
        The versions of the protocol that this side speaks.

    Attributes
    ----------
    version : int
        The one that was agreed on at the last connection.

    """

    def __init__(
        self,
        address: str,
        credentials: Credentials,
        method: str,
        watcher: Watcher,
        *,
        kinds: Collection[FrameKind],
        message_limit: int,
        frame_limit: int = FRAME_LIMIT,
        slowest_delay: float = SLOWEST_DELAY,
        connect_seconds: float = CONNECT_SECONDS,
        versions: Sequence[int] = VERSIONS,
    ) -> None:
        self._address = address
        self._credentials = credentials
        self._path = f"/{SERVICE}/{method}"
        self._instance = secrets.token_hex(16)
        self._watcher = watcher
        self._kinds = kinds
        self._message_limit = message_limit
        self._frame_limit = frame_limit
        self._slowest_delay = slowest_delay
        self._connect_seconds = connect_seconds
        self._versions = versions
        self.version = max(versions)

    async def run(self) -> None:
        """Connect, and connect again, until cancelled or told to stop."""
        delay = FIRST_DELAY
        while True:
            started = time.monotonic()
            down = await self._attempt()
            if not self._watcher.on_down(down):
                return
            # Only a connection that has held for a while starts the pace again: one that breaks whenever it opens
            # must not be opened ten times a second.
            if down.was_up and time.monotonic() - started > SLOWEST_DELAY:
                delay = FIRST_DELAY
            if down.refused or down.slow:
                delay = self._slowest_delay
            await asyncio.sleep(delay * random.uniform(0.5, 1.0))
            delay = min(2 * delay, self._slowest_delay)

    async def _attempt(self) -> Down:
        """Hold one connection for as long as it lasts."""
        was_up = False
        try:
            async with client_channel(self._address, self._credentials, frame_limit=self._frame_limit) as channel:
                metadata = ((INSTANCE, self._instance), (PROTOCOL, told(self._versions)))
                call = channel.stream_stream(self._path)(metadata=metadata)
                try:
                    # Not `wait_for`: that of Python 3.11 forgets a cancellation that comes with the connection.
                    async with asyncio.timeout(self._connect_seconds):
                        await call.wait_for_connection()
                        answered = await call.initial_metadata()  # sent once the coordinator has admitted this side
                    self.version = await self._agree(call, answered)
                    was_up = True
                    await self._read(call)
                finally:
                    call.cancel()
        except TimeoutError:
            return Down(f"no answer within {self._connect_seconds:g} s")
        except grpc.RpcError as error:
            return _describe(error, was_up)
        except RemoteProtocolError as error:
            what = "the coordinator sent what it must not send: " if was_up else ""
            return Down(f"{what}{error}", slow=True, was_up=was_up)
        except Exception:
            logger.exception("the connection to the coordinator at %s is given up", self._address)
            return Down("an error on this side", slow=True, was_up=was_up)
        return Down("the coordinator has ended the connection", was_up=was_up)

    async def _agree(self, call: Any, metadata: Any) -> int:
        """Settle which version of the protocol is spoken."""
        said = {str(key): str(value) for key, value in metadata or ()}.get(PROTOCOL)
        if said is None and 1 not in self._versions:
            await call.read()  # a refusal has no metadata either: it is raised here
        return agreed(said, self._versions, other="the coordinator", own="this side")

    async def _read(self, call: Any) -> None:
        assembler = Assembler(self._message_limit, accept=self._accept, frame_limit=self._frame_limit)
        writer = Writer(call.write, frame_limit=self._frame_limit)
        self._watcher.on_up(writer)
        while (frame := await call.read()) is not grpc.aio.EOF:
            parcel = assembler.feed(frame)
            if parcel is not None:
                await self._watcher.on_parcel(parcel, writer)

    def _accept(self, label: Label) -> None:
        if label.kind not in self._kinds:
            raise RemoteProtocolError(f"a message of kind {label.kind.name}")


def _describe(error: grpc.RpcError, was_up: bool) -> Down:
    code, details = error.code(), error.details() or ""
    if code in _REFUSALS:
        return Down(details, refused=True, was_up=was_up)
    if code is grpc.StatusCode.UNAVAILABLE and not was_up:
        return _describe_attempt(details.rpartition("last error: ")[2])
    return Down(f"{details} ({code.name})", slow=code in _FUTILE, was_up=was_up)


def _describe_attempt(details: str) -> Down:
    """What gRPC and BoringSSL say of a connection that did not come about, in words."""
    if "Hostname Verification" in details:
        return Down(f"what answers there has a certificate, but not the coordinator's ({details})", refused=True)
    if "WRONG_VERSION_NUMBER" in details:
        return Down(f"what answers there does not speak TLS ({details})", slow=True)
    if "Tls handshake failed" in details:
        return Down(f"the certificate shown there is not good for this federation ({details})", refused=True)
    if "Socket closed" in details or "Connection reset" in details:
        # In TLS 1.3 the client has done its part when the server checks the client's certificate.
        words = "the connection was closed at once: this side's certificate may have expired or be of another authority"
        return Down(f"{words} ({details})")
    return Down(details)
