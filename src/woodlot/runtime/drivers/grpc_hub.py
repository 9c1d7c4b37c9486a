"""The coordinator's end of every gRPC connection: the only one that listens.

Parties and users dial in with mutual TLS, each at a method of its own, and keep one stream open. The coordinator
sends requests to parties, and users send requests to it. Whose certificate is refused is refused at once, and one
that is refused later loses the connection that it has.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from weakref import WeakValueDictionary

from woodlot.exceptions import ConfigError, IdentityError, LocalProtocolError, RemoteProtocolError
from woodlot.protocols.core.message import Role
from woodlot.runtime.codec import DEFAULT_LIMIT
from woodlot.runtime.drivers.carried import Carrier
from woodlot.runtime.drivers.grpc_carrier import Cancelled, HubCarrier, Outbox, PartyLink, Second
from woodlot.runtime.drivers.grpc_users import Arrival, HeldBytes, LargeReply, UserReplies
from woodlot.runtime.drivers.grpc_wire import (
    BROKEN,
    INSTANCE,
    PARTY_METHOD,
    SERVICE,
    USER_METHOD,
    Tasks,
    Writer,
    check_tls,
    event_loop,
    grpc,
    options,
    spawn,
)
from woodlot.runtime.frames import FRAME_LIMIT, NO_JOB, Assembler, FrameKind, Label, Parcel
from woodlot.runtime.peers import Credentials, Peer
from woodlot.runtime.protocol_versions import PROTOCOL, VERSIONS, agreed, told

__all__ = ["Cancelled", "Hub", "Second"]

HANDSHAKE_MS = 10_000
"""Who has not shown a certificate by then is disconnected: connections of strangers take up room until then."""

IDLE_MS = 10_000
"""Who has shown a certificate and has no stream by then is disconnected: a certificate is only judged on a stream, so
that the revoked could hold connections otherwise."""

CHECK_SECONDS = 1.0
"""How often the certificate of an open connection is checked again."""

USER_THREADS = 64
"""How many users' requests are served at the same time; the others wait."""

THREADS_OF_ONE_USER = 16
"""How many of them work for the same user."""

MAX_USER_REQUESTS = 64
"""How many requests of one user's connection are taken before the first is answered."""

MAX_USER_BYTES = 8 << 20
"""The longest request of a user: none has arrays, and all else has at most 4 MiB (`codec.MAX_HEADER`)."""

UNFINISHED_SECONDS = 120.0
"""How long a request of a user may take to arrive, once its beginning is there: the longest on 70 kB/s."""

BYTES_OF_ONE_USER = 128 << 20
"""Bytes of requests of one user that are held at the same time, from the first frame of each on; more are read when
some of these are answered. Beside them, each of the user's connections may have one frame."""

BYTES_OF_ONE_PARTY = 256 << 20
"""Bytes of large replies of one party that are held at the same time, over all jobs, from the first frame of each until
its job begins its next round. One always fits, whatever its length; the next is read when there is room again."""

CONNECTIONS_OF_ONE_USER = 32
"""How many connections one user has at the same time."""

_USER, _PARTY = "user", "party"
_MAX_USER_UNFINISHED = 1  # users send one message after the other
_MAX_REASON = 300  # characters of a reason that goes to a peer: gRPC sends it in a header

logger = logging.getLogger(__name__)


class Hub:
    """Listens for parties and users.

    Parameters
    ----------
    address : str
        ``host:port`` to listen on; port 0 lets the system choose.
    credentials : Credentials
        The coordinator's. Its certificate is for the name ``coordinator.woodlot``.
    admit : callable
        Takes a certificate (PEM) that the authority has signed and returns its owner, or raises `IdentityError`
        with the reason. Called when a connection opens and every second as long as it is open, in any thread.
    serve_user : callable
        Takes a user and a request and returns the reply, or a future of it. Called in one of many threads; who waits
        for something returns a future, and waits in no thread.
    greet : callable, optional
        Returns what each peer is sent first when it connects, and again when it changes.
    on_second : callable, optional
        Called with a `Second` when another process connects as a party that is connected; in any thread.
    message_limit : int
        The longest message, in bytes, in either direction.
    frame_limit : int
        The longest frame, in bytes.
    versions : sequence of int
        The versions of the protocol that this side speaks.

    """

    def __init__(
        self,
        address: str,
        credentials: Credentials,
        *,
        admit: Callable[[bytes], Peer],
        serve_user: Callable[[Peer, bytes], bytes | Future[bytes]],
        greet: Callable[[Peer], bytes] | None = None,
        on_second: Callable[[Second], None] | None = None,
        message_limit: int = DEFAULT_LIMIT,
        frame_limit: int = FRAME_LIMIT,
        versions: Sequence[int] = VERSIONS,
    ) -> None:
        self._address = address
        self._credentials = credentials
        self._versions = versions
        self._admit = admit
        self._serve_user = serve_user
        self._greet = greet
        self._message_limit = message_limit
        self._frame_limit = frame_limit
        self._on_second = on_second
        self._outbox = Outbox(self._tell_second)
        self._answers = UserReplies()
        self._visits: set[_Visit] = set()
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._rooms: WeakValueDictionary[str, HeldBytes] = WeakValueDictionary()
        self._party_rooms: dict[str, HeldBytes] = {}
        self._closed = threading.Event()
        self._server: Any = None
        # Certificates are checked in threads of their own: users' long requests must not hold that up.
        self._guards = ThreadPoolExecutor(4, thread_name_prefix="woodlot-guard")
        self._clerks = ThreadPoolExecutor(USER_THREADS, thread_name_prefix="woodlot-clerk")

    def start(self) -> int:
        """Listen.

        Returns
        -------
        int
            The port.

        Raises
        ------
        ConfigError
            If the address cannot be listened on.

        """
        check_tls()
        return spawn(self._start()).result()

    async def _start(self) -> int:
        # Without so_reuseport=0 a second coordinator would share the port, and get every other connection.
        settings = [
            ("grpc.so_reuseport", 0),
            ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS),
            ("grpc.max_connection_idle_ms", IDLE_MS),
        ]
        server = grpc.aio.server(options=[*options(self._frame_limit), *settings])
        handlers = {
            PARTY_METHOD: grpc.stream_stream_rpc_method_handler(self._take_party),
            USER_METHOD: grpc.stream_stream_rpc_method_handler(self._take_user),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        mine = self._credentials
        secure = grpc.ssl_server_credentials([(mine.key, mine.certificate)], mine.authority, require_client_auth=True)
        try:
            port: int = server.add_secure_port(self._address, secure)
        except RuntimeError as error:
            raise ConfigError(
                f"cannot listen on {self._address}: the address is not this machine's, the port is taken, or key and "
                "certificate do not belong together; stop the program that has the port, or choose another"
            ) from error
        await server.start()
        self._server = server
        return port

    def close(self) -> None:
        """End every connection and every wait; return when the users' requests at work have ended."""
        if not self._closed.is_set():
            self._closed.set()
            if self._server is not None:
                spawn(self._stop()).result()
            self._clerks.shutdown(cancel_futures=True)
            self._guards.shutdown(cancel_futures=True)

    async def _stop(self) -> None:
        for visit in tuple(self._visits):
            visit.end(grpc.StatusCode.UNAVAILABLE, "the coordinator is stopping")
        await self._server.stop(0.2)

    def _tell_second(self, second: Second) -> None:
        logger.error(
            "another process (%s) has connected as party %r, which was connected (%s): the newer connection is used "
            "and the former closed. If the party was not just moved or restarted, its key was copied: revoke its "
            "certificate",
            second.newer, second.party, second.former, extra={"party": second.party},
        )  # fmt: skip
        if self._on_second is not None:
            asyncio.get_running_loop().run_in_executor(self._guards, self._on_second, second)

    def connected(self) -> dict[str, float]:
        """The parties that are connected, and since when (seconds since 1970)."""
        return {name: link.since for name, link in self._outbox.links.copy().items()}

    def carrier(
        self,
        job: str,
        *,
        wait_seconds: float,
        on_waiting: Callable[[tuple[str, ...]], None] | None = None,
        cancelled: threading.Event | None = None,
    ) -> Carrier:
        """A carrier for one job.

        Parameters
        ----------
        job : str
            The job's name, 32 hexadecimal digits.
        wait_seconds : float
            For how long, all in all, one round waits for a party that is not connected. The time that a connected
            party takes to answer does not count.
        on_waiting : callable, optional
            Called with the names of the parties that are missing whenever they change; with none when all are
            there again. In the thread of the one who waits.
        cancelled : threading.Event, optional
            Ends every wait with `Cancelled` when set.

        Returns
        -------
        Carrier
            For a `CarriedDriver`.

        """
        return HubCarrier(
            job,
            self._outbox,
            event_loop(),
            self._closed,
            message_limit=self._message_limit,
            wait_seconds=wait_seconds,
            on_waiting=on_waiting,
            cancelled=cancelled,
        )

    async def _take_party(self, _: Any, context: Any) -> None:
        await self._host(context, Role.party.value, self._hear_party)

    async def _take_user(self, _: Any, context: Any) -> None:
        await self._host(context, _USER, self._hear_user)

    async def _host(self, context: Any, role: str, hear: Callable[[_Visit], Awaitable[None]]) -> None:
        """One connection from its beginning to its end."""
        try:
            certificate = (context.auth_context().get("x509_pem_cert") or (b"",))[0]
            peer = await self._agree(await self._check(certificate, role), context)
            if role == _USER and self._n_visits(peer) >= CONNECTIONS_OF_ONE_USER:
                reason = f"user {peer.name!r} has {CONNECTIONS_OF_ONE_USER} connections already"
                raise _EndError(grpc.StatusCode.RESOURCE_EXHAUSTED, reason)
            visit = _Visit(peer, context, Writer(context.write, frame_limit=self._frame_limit))
            self._visits.add(visit)  # nothing is awaited since they were counted, or several would be the last
            try:
                await context.send_initial_metadata(((PROTOCOL, told(self._versions)),))
                await _first_to_end(self._hear(visit, hear), self._watch(visit, certificate, role), visit.ended)
            finally:
                self._visits.discard(visit)
        except _EndError as end:
            logger.warning("closed the connection of %s: %s", context.peer(), end.reason)
            await context.abort(end.code, end.reason[:_MAX_REASON])
        except RemoteProtocolError as error:
            logger.warning(
                "closed the connection of %s %r, which sent %s", role, peer.name, error, extra={peer.role: peer.name}
            )
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error)[:_MAX_REASON])

    async def _agree(self, peer: Peer, context: Any) -> Peer:
        """Settle which version of the protocol is spoken with somebody."""
        try:
            said, who = _metadata(context).get(PROTOCOL), f"{peer.role} {peer.name!r}"
            version = agreed(said, self._versions, other=who, own="the coordinator")
        except RemoteProtocolError as error:
            await context.send_initial_metadata(((PROTOCOL, told(self._versions)),))  # so that both can name both
            raise _EndError(grpc.StatusCode.FAILED_PRECONDITION, str(error)) from error
        if version != max(self._versions):
            logger.info("%s %r speaks version %d of the protocol", peer.role, peer.name, version)
        return replace(peer, version=version)

    def _n_visits(self, peer: Peer) -> int:
        """How many connections somebody has."""
        return sum((visit.peer.role, visit.peer.name) == (peer.role, peer.name) for visit in self._visits)

    async def _check(self, certificate: bytes, role: str) -> Peer:
        try:
            peer = await asyncio.get_running_loop().run_in_executor(self._guards, self._admit, certificate)
        except IdentityError as error:
            raise _EndError(grpc.StatusCode.PERMISSION_DENIED, str(error)) from error
        except Exception as error:  # a check that fails refuses
            logger.exception("a certificate could not be checked")
            raise _EndError(grpc.StatusCode.UNAVAILABLE, "the coordinator cannot check certificates now") from error
        if peer.role != role and (role, peer.role) != (_USER, _PARTY):  # a party orders its own leaving as users do
            reason = f"the certificate of {peer.name!r} is for the role {peer.role!r}, and {role!r} is needed here"
            raise _EndError(grpc.StatusCode.PERMISSION_DENIED, reason)
        return peer

    async def _watch(self, visit: _Visit, certificate: bytes, role: str) -> None:
        """End when the certificate is good no more; pass on what is to be said when it changes."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            await self._check(certificate, role)
            if visit.greeting is not None:
                with contextlib.suppress(*BROKEN):  # whoever hears the visit notices
                    await self._say(visit)

    async def _say(self, visit: _Visit) -> None:
        """Send the greeting, unless the other side has it."""
        if self._greet is None:
            return
        greeting = await asyncio.get_running_loop().run_in_executor(self._guards, self._greet, visit.peer)
        if greeting != visit.greeting:
            await visit.writer.send(Label(FrameKind.greeting, NO_JOB, 0), greeting)
            visit.greeting = greeting

    async def _hear(self, visit: _Visit, hear: Callable[[_Visit], Awaitable[None]]) -> None:
        try:
            await self._say(visit)
            await hear(visit)
        except BROKEN:
            logger.debug("the connection of %s %r broke", visit.peer.role, visit.peer.name)

    async def _hear_party(self, visit: _Visit) -> None:
        name = visit.peer.name
        instance = _metadata(visit.context).get(INSTANCE, "")
        link = PartyLink(visit.peer, visit.writer, visit.replace, instance=instance, address=visit.context.peer())
        assembler = Assembler(self._message_limit, accept=link.check_reply, frame_limit=self._frame_limit)
        logger.info("party %r is connected", name, extra={"party": name})
        self._outbox.connect(link)
        large = LargeReply(self._party_rooms.setdefault(name, HeldBytes(BYTES_OF_ONE_PARTY)))
        try:
            while (frame := await visit.context.read()) is not grpc.aio.EOF:
                begun = assembler.begins(frame)
                if begun is not None:
                    try:
                        link.check_length(*begun)
                    except RemoteProtocolError as error:
                        self._outbox.refuse(link, begun[0], error)
                        raise
                    await large.begin(*begun)
                parcel = assembler.feed(frame)
                if parcel is not None:
                    self._outbox.arrive(link, parcel, large.complete(parcel.label))
                    del frame, parcel  # while the next is waited for, nothing of this one is held here
        finally:
            large.give_up()
            self._outbox.disconnect(link)
            link.tasks.cancel()
            logger.info("party %r is disconnected", name, extra={"party": name})

    async def _hear_user(self, visit: _Visit) -> None:
        assembler = Assembler(
            min(self._message_limit, MAX_USER_BYTES),
            accept=_only_requests,
            frame_limit=self._frame_limit,
            max_unfinished=_MAX_USER_UNFINISHED,
        )
        tasks = Tasks()
        turns = asyncio.Semaphore(MAX_USER_REQUESTS)
        room = self._rooms.get(visit.peer.name)
        if room is None:
            room = self._rooms[visit.peer.name] = HeldBytes(BYTES_OF_ONE_USER)
        reason = f"a request was not complete after {UNFINISHED_SECONDS:g} s"
        arrival = Arrival(room, UNFINISHED_SECONDS, lambda: visit.end(grpc.StatusCode.ABORTED, reason))
        try:
            while (frame := await visit.context.read()) is not grpc.aio.EOF:
                begun = assembler.begins(frame)
                if begun is not None:
                    await turns.acquire()
                    await arrival.begin(begun[1])
                parcel = assembler.feed(frame)
                if parcel is not None:
                    arrival.complete()
                    work = self._begin(visit.peer, parcel, room)
                    tasks.start(self._answer(visit, parcel.label, work)).add_done_callback(lambda _: turns.release())
                    del frame, parcel  # while the next is waited for, nothing of this one is held here
        finally:
            arrival.give_up()
            tasks.cancel()

    def _begin(self, user: Peer, request: Parcel, room: HeldBytes) -> asyncio.Future[bytes]:
        """What will be a user's answer: it goes on when the connection breaks, and a repeat of the request finds it."""
        key, size = (user.name, request.label.job, request.label.number), len(request.data)
        work = self._answers.get(key)
        if work is not None:
            room.give_back(size)
            return work
        work = asyncio.ensure_future(self._work_for(user, request.data))
        work.add_done_callback(lambda _: room.give_back(size))
        self._answers.add(key, work)
        return work

    async def _answer(self, visit: _Visit, label: Label, work: asyncio.Future[bytes]) -> None:
        """Send a user its answer when it is there."""
        name = visit.peer.name
        try:
            kind, reply = FrameKind.reply, await asyncio.shield(work)
            if len(reply) > self._message_limit:
                raise LocalProtocolError(f"a reply of {len(reply):,} bytes; the limit is {self._message_limit:,}")
        except Exception as error:  # whatever went wrong, the user must get an answer
            logger.exception("a request of user %r failed", name, extra={"user": name})
            kind, reply = FrameKind.failure, type(error).__name__.encode()
        try:
            await visit.writer.send(label._replace(kind=kind), reply)
        except BROKEN:
            logger.info("user %r was gone before the reply was sent", name, extra={"user": name})

    async def _work_for(self, peer: Peer, request: bytes) -> bytes:
        """The reply to a user. One user's requests take some of the threads at most: the others' find one free."""
        turns = self._turns.get(peer.name)
        if turns is None:
            turns = self._turns[peer.name] = asyncio.Semaphore(THREADS_OF_ONE_USER)
        async with turns:
            loop = asyncio.get_running_loop()
            reply = await loop.run_in_executor(self._clerks, self._serve_user, peer, request)
        return await asyncio.wrap_future(reply) if isinstance(reply, Future) else reply


def _metadata(context: Any) -> dict[str, str]:
    """What was told with a stream."""
    return {str(key): str(value) for key, value in context.invocation_metadata() or ()}


class _EndError(Exception):
    """Ends a connection; `reason` is for the peer to read."""

    def __init__(self, code: grpc.StatusCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


class _Visit:
    """One open connection."""

    def __init__(self, peer: Peer, context: Any, writer: Writer) -> None:
        self.peer = peer
        self.context = context
        self.writer = writer
        self.greeting: bytes | None = None  # what it was sent last
        self.ended: asyncio.Future[_EndError] = asyncio.get_running_loop().create_future()

    def end(self, code: grpc.StatusCode, reason: str) -> None:
        if not self.ended.done():
            self.ended.set_result(_EndError(code, reason))

    def replace(self) -> None:
        reason = (
            f"{self.peer.role} {self.peer.name!r} has opened another connection; if that was another process and not "
            "yours, the key was copied: have the certificate revoked"
        )
        self.end(grpc.StatusCode.ABORTED, reason)


async def _first_to_end(hear: Awaitable[None], watch: Awaitable[None], ended: asyncio.Future[_EndError]) -> None:
    """Wait for the first of three, end the others, and raise what it has to say."""
    running: list[asyncio.Future[Any]] = [asyncio.ensure_future(hear), asyncio.ensure_future(watch)]
    try:
        await asyncio.wait([*running, ended], return_when=asyncio.FIRST_COMPLETED)
    finally:
        first = next((task for task in running if task.done()), None)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    if first is not None:
        first.result()
    if ended.done():
        raise ended.result()


def _only_requests(label: Label) -> None:
    if label.kind is not FrameKind.request:
        raise RemoteProtocolError(f"a {label.kind.name}, where users only send requests")
