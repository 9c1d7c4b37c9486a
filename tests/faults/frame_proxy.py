"""A proxy between parties and coordinator that sees frames: it has everybody's certificate, as only a test can.

To the parties it is the coordinator, to the coordinator it is each of the parties. So what happens can happen at an
exact step of a protocol: when a certain message has left its sender and has not arrived.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

from cryptography import x509
from cryptography.x509.oid import NameOID
from processes import wait_until

from woodlot.identity.identity import Identity
from woodlot.runtime.codec import DEFAULT_LIMIT
from woodlot.runtime.drivers.grpc_wire import (
    PARTY_METHOD,
    SERVICE,
    USER_METHOD,
    client_channel,
    grpc,
    options,
    spawn,
)
from woodlot.runtime.frames import HEADER_SIZE, Assembler, FrameKind

CONNECT_SECONDS = 10.0
_READER = Assembler(DEFAULT_LIMIT)
_BEFORE_WORKED = HEADER_SIZE - 8
"""The end of a header is how long a reply took, which differs."""

Send = Callable[[bytes], Awaitable[None]]


class Seen(NamedTuple):
    """The beginning of a message: whose connection it is on, and which message."""

    member: str
    kind: FrameKind
    job: str
    number: int


class Frame(NamedTuple):
    """A frame on its way, with its bytes as they are."""

    seen: Seen
    part: int
    data: bytes


def read_frame(member: str, data: bytes) -> Frame:
    """What the header of a frame says."""
    label, part, *_ = _READER._read_header(data)
    return Frame(Seen(member, label.kind, label.job, label.number), part, data)


class Courier:
    """Takes frames of one direction of a connection to the other side: here at once and in order."""

    def __init__(self, send: Send) -> None:
        self.send = send

    async def take(self, frame: Frame) -> None:
        await self.send(frame.data)


class FrameProxy:
    """Stands between all members and the coordinator.

    Parameters
    ----------
    root : Path
        The folder of a `World`: all identities are there.
    target : callable
        Returns the address of the coordinator.

    Attributes
    ----------
    on_message : callable or None
        Called in a thread with the beginning of every message, before it is passed on. What it does happens at that
        step: it may take its time, kill, and start again.
    courier : callable
        Makes what passes frames on, for each direction of each new connection.
    ended : Counter
        How many connections of each member have ended.
    said : dict
        Digests of what parties were asked and have answered: whose message, which, and which frame of it.
    wrong : list of str
        Messages that were sent again with other bytes under the same number.

    """

    def __init__(self, root: Path, target: Callable[[], str]) -> None:
        self._root = root
        self._target = target
        self._server: Any = None
        self.port = 0
        self.ended: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.said: dict[tuple[Seen, int], bytes] = {}
        self._calls: dict[str, Any] = {}
        self.on_message: Callable[[Seen], None] | None = None
        self.courier: Callable[[Send], Courier] = Courier

    @property
    def address(self) -> str:
        return f"localhost:{self.port}"

    def start(self) -> None:
        spawn(self._start()).result()

    async def _start(self) -> None:
        server = grpc.aio.server(options=[*options(), ("grpc.so_reuseport", 0)])
        handlers = {
            method: grpc.stream_stream_rpc_method_handler(self._passing(method))
            for method in (PARTY_METHOD, USER_METHOD)
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        mine = self._credentials("coordinator")
        secure = grpc.ssl_server_credentials([(mine.key, mine.certificate)], mine.authority, require_client_auth=True)
        self.port = server.add_secure_port("127.0.0.1:0", secure)
        await server.start()
        self._server = server

    def close(self) -> None:
        if self._server is not None:
            spawn(self._server.stop(0)).result()

    def _credentials(self, name: str) -> Any:
        return Identity.load(self._root / name / "identity").credentials

    def _passing(self, method: str) -> Callable[[Any, Any], Awaitable[None]]:
        async def take(_: Any, context: Any) -> None:
            await self._pass(method, context)

        return take

    async def _pass(self, method: str, context: Any) -> None:
        """One connection from its beginning to its end, which is the same on both sides."""
        certificate = x509.load_pem_x509_certificate(context.auth_context()["x509_pem_cert"][0])
        (name,) = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        member = str(name.value)
        try:
            code, words = await self._connect(method, member, context)
        finally:  # also where gRPC cancels this, since the member has gone
            self.ended[member] += 1
        await context.abort(code, words)

    async def _connect(self, method: str, member: str, context: Any) -> tuple[grpc.StatusCode, str]:
        """Pass on what both sides send, until one of them ends; returns what the member is to be told."""
        code, words = grpc.StatusCode.UNAVAILABLE, "the other side has gone"
        async with client_channel(self._target(), self._credentials(member)) as channel:
            call = channel.stream_stream(f"/{SERVICE}/{method}")()
            if method == PARTY_METHOD:
                self._calls[member] = call
            try:
                await asyncio.wait_for(call.wait_for_connection(), CONNECT_SECONDS)
                await context.send_initial_metadata(())
                ways = [
                    asyncio.ensure_future(self._carry(method, member, context.read, self.courier(call.write))),
                    asyncio.ensure_future(self._carry(method, member, call.read, self.courier(context.write))),
                ]
                try:
                    await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for way in ways:
                        way.cancel()
                    ends = await asyncio.gather(*ways, return_exceptions=True)
                for end in ends:
                    if isinstance(end, Exception):
                        raise end
            except grpc.RpcError as error:
                code, words = error.code(), error.details() or words
            except (TimeoutError, asyncio.InvalidStateError, grpc.aio.BaseError):
                pass
            finally:
                call.cancel()
        return code, words

    def cut(self, member: str) -> None:
        """End a member's connection, on both sides, once it has one: another fault may just have ended it."""
        wait_until(lambda: spawn(self._cut(member)).result(), f"{member} to have a connection that can be cut")

    def lose(self, member: str) -> None:
        """End the connection of a member that has died, if that has not been noticed: what is here does not arrive."""
        spawn(self._cut(member)).result()

    async def _cut(self, member: str) -> bool:
        return bool(self._calls[member].cancel())

    def _check_repeated(self, frame: Frame) -> None:
        """What is asked or answered again is the same, to the byte: nothing is drawn or decided a second time."""
        said = hashlib.sha256(frame.data[:_BEFORE_WORKED] + frame.data[HEADER_SIZE:]).digest()
        if self.said.setdefault((frame.seen, frame.part), said) != said:
            self.wrong.append(f"{frame.seen} has other bytes than before")

    async def _carry(self, method: str, member: str, read: Callable[[], Awaitable[Any]], courier: Courier) -> None:
        while (data := await read()) is not grpc.aio.EOF:
            frame = read_frame(member, data)
            if method == PARTY_METHOD and frame.seen.kind in (FrameKind.request, FrameKind.reply):
                self._check_repeated(frame)
            if self.on_message is not None and frame.part == 0:
                await asyncio.get_running_loop().run_in_executor(None, self.on_message, frame.seen)
            await courier.take(frame)
