from __future__ import annotations

import itertools
import logging
import math
import random
import secrets
import signal
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from woodlot.exceptions import IdentityError, LocalProtocolError, PartyAwayError
from woodlot.runtime.drivers import grpc_hub, grpc_wire
from woodlot.runtime.drivers.grpc_hub import MAX_USER_BYTES, Cancelled
from woodlot.runtime.drivers.grpc_line import CoordinatorAwayError, UserLine
from woodlot.runtime.drivers.grpc_wire import grpc, limit_wait
from woodlot.runtime.frames import FRAME_LIMIT, HEADER_SIZE, Assembler, Kind, Label, Parcel, split
from woodlot.runtime.peers import Credentials, Peer

from .certificates import Authority
from .driver_contract import PATIENCE
from .grpc_world import Asking, World, ask, eventually, new_job

LOST = 20.0  # seconds that a real process may take to be missed, to start and to connect on a busy machine


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.close()


class Waits:
    """Remembers for whom a carrier says that it waits."""

    def __init__(self) -> None:
        self.told: list[tuple[str, ...]] = []

    def __call__(self, missing: tuple[str, ...]) -> None:
        self.told.append(missing)


def test_a_party_that_is_killed_at_work_is_asked_again_when_it_is_back(world: World) -> None:
    hub, waits = world.hub(), Waits()
    world.party("b")
    first = world.process("party", "a")
    eventually(lambda: "a" in hub.connected(), LOST)
    carrier = hub.carrier(new_job(), wait_seconds=LOST, on_waiting=waits)
    asking = Asking(carrier, 1, {"a": b"sleep 1", "b": b"x"})
    time.sleep(0.3)
    first.kill()
    assert eventually(lambda: "a" not in hub.connected()) < 3
    eventually(lambda: waits.told == [("a",)])
    world.process("party", "a")
    assert asking.result(LOST) == {"a": b"sleep 1", "b": b"x"}
    assert waits.told == [("a",), ()]


def test_frozen_processes_are_missed_on_both_sides_and_go_on_when_they_wake(world: World) -> None:
    hub = world.hub()
    party = world.process("party", "a")
    eventually(lambda: "a" in hub.connected(), LOST)
    elsewhere = World(world.folder)
    elsewhere.authority = world.authority
    try:
        coordinator = elsewhere.process("coordinator", "c")
        assert coordinator.stdout is not None
        elsewhere.port = int(coordinator.stdout.readline())
        line = elsewhere.party("a")
        for process in (party, coordinator):
            process.send_signal(signal.SIGSTOP)
        asking = Asking(hub.carrier(new_job(), wait_seconds=LOST), 1, {"a": b"pid"})
        assert 1 < eventually(lambda: "a" not in hub.connected() or not line.connected) < 9
        assert eventually(lambda: "a" not in hub.connected() and not line.connected) < 4
        for process in (party, coordinator):
            process.send_signal(signal.SIGCONT)
        assert asking.result(LOST) == {"a": str(party.pid).encode()}
        assert line.wait_connected(LOST)
    finally:
        elsewhere.close()


class SlowRelay:
    """Passes bytes on, so many in a second."""

    def __init__(self, port: int, rate: int) -> None:
        self._rate = rate
        self._target = port
        self._sockets = [socket.create_server(("127.0.0.1", 0))]
        self.port = self._sockets[0].getsockname()[1]
        self.n_connections = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                ends = self._sockets[0].accept()[0], socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                return
            self.n_connections += 1
            self._sockets += ends
            for source, target in (ends, ends[::-1]):
                threading.Thread(target=self._pass_on, args=(source, target), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(4096):
                target.sendall(data)
                time.sleep(len(data) / self._rate)
        except OSError:
            return

    def close(self) -> None:
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


def test_a_slow_line_is_not_taken_for_a_dead_one(world: World) -> None:
    """A message takes longer than silence may last, in which no ping gets through beside it."""
    hub = world.hub()
    relay = SlowRelay(world.port, rate=250_000)
    world.port = relay.port
    party = world.party("a", lambda job, number, request: request[:1])
    try:
        long = random.Random(0).randbytes(1_800_000)  # which no compression shortens
        asking = Asking(hub.carrier(new_job(), wait_seconds=1), 1, {"a": long})
        started = time.monotonic()
        assert asking.result(LOST) == {"a": long[:1]}
        assert time.monotonic() - started > 6
        assert relay.n_connections == 1
    finally:
        party.stop()
        relay.close()


def test_a_coordinator_that_returns_finds_everyone(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    first = world.hub()
    party, user = world.party("a"), world.user()
    assert user.ask(b"x", PATIENCE) == b"x"
    first.close()
    eventually(lambda: not party.connected)
    assert first.connected() == {}
    time.sleep(0.5)
    second = world.hub()
    assert party.wait_connected(PATIENCE)
    assert ask(second.carrier(new_job(), wait_seconds=PATIENCE), 1, {"a": b"x"}) == {"a": b"x"}
    assert user.ask(b"x", PATIENCE) == b"x"
    lines = [record.message for record in caplog.records if record.name.endswith("grpc_line")]
    assert lines[0] == lines[-1] == f"connected to the coordinator at {world.address}"
    assert lines[1].startswith(f"not connected to the coordinator at {world.address}: the coordinator is stopping")
    assert len(lines) <= 5


def test_a_coordinator_that_stops_ends_every_wait(world: World) -> None:
    hub = world.hub()
    asking = Asking(hub.carrier(new_job(), wait_seconds=LOST), 1, {"a": b""})
    time.sleep(0.1)
    hub.close()
    with pytest.raises(LocalProtocolError, match="closed"):
        asking.result(1.0)


def test_a_carrier_that_is_closed_ends_its_wait_and_no_other(world: World) -> None:
    hub = world.hub()
    carriers = [hub.carrier(new_job(), wait_seconds=LOST) for _ in "xy"]
    asking = [Asking(carrier, 1, {"a": b"x"}) for carrier in carriers]
    carriers[0].close()
    with pytest.raises(LocalProtocolError, match="closed"):
        asking[0].result(1.0)
    with pytest.raises(LocalProtocolError, match="closed"):
        ask(carriers[0], 2, {"a": b"x"})
    world.party("a")
    assert asking[1].result() == {"a": b"x"}


def test_the_wait_for_a_party_has_a_limit(world: World) -> None:
    hub, waits = world.hub(), Waits()
    world.party("b")
    carrier = hub.carrier(new_job(), wait_seconds=0.6, on_waiting=waits)
    started = time.monotonic()
    with pytest.raises(PartyAwayError, match=r"party 'a' was not connected for [\d.]+ s, and the limit is 0\.6 s"):
        ask(carrier, 1, {"b": b"", "a": b"", "c": b""})
    assert time.monotonic() - started >= 0.6
    assert waits.told[-1] == ("a", "c")
    for name in "ac":
        world.party(name)
    assert ask(carrier, 1, dict.fromkeys("abc", b"x")) == dict.fromkeys("abc", b"x")


def slowly(job: str, number: int, request: bytes) -> bytes:
    time.sleep(1)
    return request


def test_the_time_in_which_a_party_works_does_not_count(world: World) -> None:
    hub = world.hub()
    world.party("a", slowly)
    eventually(lambda: hub.connected())
    assert ask(hub.carrier(new_job(), wait_seconds=0.2), 1, {"a": b"x"}) == {"a": b"x"}


def test_cancelling_ends_the_wait_at_once(world: World) -> None:
    cancelled = threading.Event()
    carrier = world.hub().carrier(new_job(), wait_seconds=LOST, cancelled=cancelled)
    asking = Asking(carrier, 1, {"a": b""})
    time.sleep(0.1)
    cancelled.set()
    with pytest.raises(Cancelled, match="was cancelled"):
        asking.result(1.0)
    asked: list[bytes] = []
    world.party("a", lambda job, number, request: asked.append(request) or request)  # type: ignore[func-returns-value]
    time.sleep(0.2)
    assert asked == []


def test_a_request_at_work_is_not_begun_twice(world: World) -> None:
    begun, release = [], threading.Event()

    def answer(job: str, number: int, request: bytes) -> bytes:
        begun.append(number)
        release.wait(PATIENCE)
        return request

    first = world.hub()
    job = new_job()
    party = world.party("a", answer)
    asking = Asking(first.carrier(job, wait_seconds=PATIENCE), 1, {"a": b"x"})
    eventually(lambda: begun)
    first.close()
    with pytest.raises(LocalProtocolError):
        asking.result()
    second = world.hub()
    assert party.wait_connected(PATIENCE)
    asking = Asking(second.carrier(job, wait_seconds=PATIENCE), 1, {"a": b"x"})
    time.sleep(0.3)
    release.set()
    assert asking.result() == {"a": b"x"}
    assert begun == [1]


def test_a_round_that_was_given_up_can_be_repeated_while_the_party_works_on_it(world: World) -> None:
    release, cancelled = threading.Event(), threading.Event()
    hub, job, begun = world.hub(), new_job(), []

    def answer(job: str, number: int, request: bytes) -> bytes:
        begun.append(number)
        release.wait(PATIENCE)
        return request

    party = world.party("a", answer)
    asking = Asking(hub.carrier(job, wait_seconds=PATIENCE, cancelled=cancelled), 1, {"a": b"x"})
    eventually(lambda: begun)
    cancelled.set()
    with pytest.raises(Cancelled):
        asking.result()
    carrier = hub.carrier(job, wait_seconds=PATIENCE)
    asking = Asking(carrier, 1, {"a": b"x"})
    time.sleep(0.2)
    release.set()
    assert asking.result() == {"a": b"x"}
    assert ask(carrier, 2, {"a": b"y"}) == {"a": b"y"}
    assert begun == [1, 2]
    assert party.connected


def test_a_second_connection_of_a_party_replaces_the_first(world: World, caplog: pytest.LogCaptureFixture) -> None:
    hub, at_work, release = world.hub(), threading.Event(), threading.Event()

    def never(job: str, number: int, request: bytes) -> bytes:
        at_work.set()
        release.wait(PATIENCE)
        return b"ghost"

    ghost = world.party("a", never)
    asking = Asking(hub.carrier(new_job(), wait_seconds=PATIENCE), 1, {"a": b"x"})
    assert at_work.wait(PATIENCE)
    world.party("a", lambda job, number, request: b"second")
    assert asking.result() == {"a": b"second"}
    eventually(lambda: not ghost.connected)
    assert set(hub.connected()) == {"a"}
    assert "party 'a' has opened another connection" in caplog.text
    release.set()


@pytest.mark.parametrize("role", ["party", "user"])
def test_a_certificate_that_is_revoked_loses_its_connection(
    world: World, role: str, caplog: pytest.LogCaptureFixture
) -> None:
    release = threading.Event()

    def serve(peer: Peer, data: bytes) -> bytes:
        if data == b"slow":
            release.wait(PATIENCE)
        return data

    hub = world.hub(serve_user=serve)
    other = world.party("b")
    party, user = world.party("a"), world.user("a")
    assert user.ask(b"x", PATIENCE) == b"x"
    started = time.monotonic()
    world.authority.revoked.add("a")
    if role == "party":
        eventually(lambda: not party.connected and "a" not in hub.connected())
        assert "refuse each other: the certificate of 'a' is revoked" in caplog.text
        with pytest.raises(PartyAwayError):
            ask(hub.carrier(new_job(), wait_seconds=0.5), 1, {"a": b""})
    else:
        with pytest.raises(IdentityError, match=rf"{world.address} .* the certificate of 'a' is revoked"):
            user.ask(b"slow", PATIENCE)
        assert time.monotonic() - started < PATIENCE  # after which it would have been answered
        with pytest.raises(IdentityError, match="revoked"):
            user.ask(b"x", PATIENCE)
    release.set()
    assert other.connected
    assert ask(hub.carrier(new_job(), wait_seconds=1), 1, {"b": b"x"}) == {"b": b"x"}


class Clock:
    """Stands for the event loop and remembers for how long it was asked to wait."""

    def __init__(self) -> None:
        self.delays: list[float] = []

    def call_soon_threadsafe(self, what: Callable[[], object]) -> None:
        what()

    def call_later(self, delay: float, what: Callable[[], object]) -> None:
        self.delays.append(delay)


def test_no_wait_upsets_the_timers_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A NaN, which is neither before nor after any other timer, breaks the order in which the loop keeps them."""
    clock = Clock()
    monkeypatch.setattr(grpc_wire, "event_loop", lambda: clock)
    for seconds in (math.nan, -math.inf, math.inf, -1.0, 0.0, 2.5):
        limit_wait(Future(), seconds, lambda: None)
    assert clock.delays == [0.0, 0.0, 0.0, 0.0, 0.0, 2.5]


def test_a_refused_party_returns_when_it_is_accepted(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.authority.revoked.add("a")
    world.hub()
    party = world.party("a", wait=False, slowest_delay=0.3)
    eventually(lambda: "revoked" in caplog.text)
    assert not party.connected
    world.authority.revoked.clear()
    assert party.wait_connected(PATIENCE)


def test_a_check_that_fails_lets_nobody_in(world: World, caplog: pytest.LogCaptureFixture) -> None:
    broken = threading.Event()

    def admit(certificate: bytes) -> Peer:
        if broken.is_set():
            raise OSError("the list of revoked certificates cannot be read")
        return world.authority.admit(certificate)

    begun: list[bytes] = []

    def serve(peer: Peer, data: bytes) -> bytes:
        begun.append(data)
        time.sleep(2.5)
        return data

    hub = world.hub(admit=admit, serve_user=serve)
    world.party("a")
    user, answers = world.user(), list[bytes]()
    asking = threading.Thread(target=lambda: answers.append(user.ask(b"x", PATIENCE)))
    asking.start()
    eventually(lambda: begun)
    broken.set()
    eventually(lambda: not hub.connected())
    assert "a certificate could not be checked" in caplog.text
    broken.clear()
    eventually(lambda: hub.connected())
    # The user's request outlives the connection on which it came, and its repeat does not begin it again.
    asking.join()
    assert answers == begun == [b"x"]


@pytest.mark.parametrize(
    ("method", "role", "words"),
    [
        ("Party", "user", "is for the role 'user', and 'party' is needed"),
        ("User", "party", "is for the role 'party', and 'user' is needed"),
        ("Party", "coordinator", "is for the role 'coordinator', and 'party' is needed"),
    ],
)
def test_the_wrong_role_is_refused(
    world: World, method: str, role: str, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    hub = world.hub()
    code, details = call(world, [], method, credentials=world.authority.issue(role, "mallory"))
    assert code is grpc.StatusCode.PERMISSION_DENIED
    assert words in details
    assert words in caplog.text
    assert hub.connected() == {}


def call(
    world: World,
    frames: list[bytes],
    method: str = "Party",
    *,
    credentials: Credentials,
    secure: bool = True,
    stay: threading.Event | None = None,
) -> tuple[grpc.StatusCode, str]:
    """Send frames as a stranger's program might, and tell how the coordinator ended it."""
    if secure:
        shown = (credentials.authority, credentials.key or None, credentials.certificate or None)
        name = [("grpc.ssl_target_name_override", "coordinator.woodlot")]
        channel: Any = grpc.secure_channel(world.address, grpc.ssl_channel_credentials(*shown), name)
    else:
        channel = grpc.insecure_channel(world.address)
    with channel:
        stay = stay or threading.Event()

        def send() -> Iterator[bytes]:
            yield from frames
            stay.wait(PATIENCE)

        try:
            list(channel.stream_stream(f"/woodlot.Coordinator/{method}")(send(), timeout=PATIENCE))
        except grpc.RpcError as error:
            return error.code(), error.details()
        finally:
            stay.set()
    return grpc.StatusCode.OK, ""


@pytest.mark.parametrize("stranger", ["other authority", "no certificate", "plaintext"])
@pytest.mark.parametrize("method", ["Party", "User"])
def test_strangers_are_refused(world: World, stranger: str, method: str) -> None:
    admitted: list[bytes] = []

    def admit(certificate: bytes) -> Peer:
        admitted.append(certificate)
        return world.authority.admit(certificate)

    world.hub(admit=admit)
    theirs = Authority().issue("party" if method == "Party" else "user", "a")
    if stranger == "no certificate":
        theirs = replace(theirs, key=b"", certificate=b"")
    credentials = replace(theirs, authority=world.authority.certificate)
    code, _ = call(world, [], method, credentials=credentials, secure=stranger != "plaintext")
    assert code is grpc.StatusCode.UNAVAILABLE
    assert admitted == []


def test_only_the_coordinators_certificate_makes_a_coordinator(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.hub(credentials=world.authority.issue("party", "mallory"))
    with pytest.raises(IdentityError, match=rf"coordinator at {world.address} and this user refuse each other"):
        world.user().ask(b"secret", PATIENCE)
    party = world.party("a", wait=False)
    eventually(lambda: "refuse each other" in caplog.text)
    assert not party.connected


def test_a_coordinator_of_another_authority(world: World) -> None:
    world.hub()
    with pytest.raises(IdentityError, match="refuse each other"):
        world.user(credentials=Authority().issue("user", "alice")).ask(b"secret", PATIENCE)


def test_a_user_whom_the_coordinator_does_not_know(world: World) -> None:
    world.hub()
    stranger = replace(Authority().issue("user", "alice"), authority=world.authority.certificate)
    with pytest.raises(CoordinatorAwayError, match=rf"{world.address}.* certificate may have expired or be of another"):
        world.user(credentials=stranger, patience=1.0).ask(b"secret", PATIENCE)


def test_no_coordinator_but_something_else(world: World) -> None:
    def hang_up() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection:
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=hang_up, daemon=True).start()
        world.port = server.getsockname()[1]
        with pytest.raises(CoordinatorAwayError, match="does not speak TLS"):
            world.user(patience=0.2).ask(b"secret", PATIENCE)
        server.shutdown(socket.SHUT_RDWR)


def test_nobody_at_the_address(world: World) -> None:
    world.hub().close()
    user = world.user(patience=0.5)
    started = time.monotonic()
    with pytest.raises(CoordinatorAwayError, match=rf"{world.address}.*check that the address is right"):
        user.ask(b"x")
    assert time.monotonic() - started < PATIENCE
    world.hub()
    assert user.ask(b"x", PATIENCE) == b"x"


JOB = "ab" * 16
REQUEST = next(split(Label(Kind.request, JOB, 1), b"x"))
REPLY = next(split(Label(Kind.reply, JOB, 1), b"x"))
LARGE = REQUEST[:33] + struct.pack("<QQ", MAX_USER_BYTES + 1, 0) + b"x"
HUGE = REPLY[:33] + struct.pack("<QQ", 1 << 60, 0) + b"x"


@pytest.mark.parametrize(
    ("method", "frame", "words"),
    [
        ("Party", b"", "shorter than its header"),
        ("Party", REPLY[:20], "shorter than its header"),
        ("Party", b"GET / HTTP/1.1\r\n" * 4, "not a frame of this version"),
        ("Party", REPLY, "that nobody has asked for"),
        ("Party", REQUEST, "that nobody has asked for"),
        ("Party", HUGE, "the limit is"),
        ("Party", bytes(FRAME_LIMIT + 1), f"a frame of {FRAME_LIMIT + 1:,} bytes"),
        ("Party", bytes(2 * FRAME_LIMIT), "larger than max"),
        ("User", LARGE, f"the limit is {MAX_USER_BYTES:,}"),
        ("User", REPLY, "users only send requests"),
        ("User", REQUEST[:-1], "does not fit"),
        ("User", b"x" * 100, "not a frame of this version"),
    ],
)
def test_a_malformed_frame_ends_that_connection_and_no_other(
    world: World, method: str, frame: bytes, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    hub = world.hub()
    world.party("b")
    role = method.lower()
    code, details = call(world, [frame], method, credentials=world.authority.issue(role, "mallory"))
    if "larger than max" in words:
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    else:
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert f"closed the connection of {role} 'mallory'" in caplog.text
    assert words in details
    eventually(lambda: set(hub.connected()) == {"b"})
    assert ask(hub.carrier(new_job(), wait_seconds=1), 1, {"b": b"x"}) == {"b": b"x"}
    assert world.user().ask(b"x", PATIENCE) == b"x"


def test_who_says_nothing_is_hung_up_on(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_hub, "HANDSHAKE_MS", 300)
    world.hub()
    with socket.create_connection(("127.0.0.1", world.port), PATIENCE) as stranger:
        assert stranger.recv(1) == b""
    assert world.user().ask(b"x", PATIENCE) == b"x"


def idle(world: World, credentials: Credentials) -> ssl.SSLSocket:
    """A connection with a certificate that the authority has signed, on which nothing is asked for."""
    folder = world.folder / secrets.token_hex(4)
    folder.mkdir()
    for part in ("key", "certificate", "authority"):
        (folder / part).write_bytes(getattr(credentials, part))
    context = ssl.create_default_context(cafile=str(folder / "authority"))
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.set_alpn_protocols(["h2"])
    context.load_cert_chain(folder / "certificate", folder / "key")
    connection = socket.create_connection(("127.0.0.1", world.port), PATIENCE)
    return context.wrap_socket(connection, server_hostname=grpc_wire.SERVER_NAME)


def hear_out(connection: ssl.SSLSocket) -> None:
    """Answer settings and pings, as one does who wants to stay, until the other side hangs up."""
    settings, ping, acknowledged, heard, until = 4, 6, 1, b"", time.monotonic() + PATIENCE
    connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + struct.pack(">BHBBI", 0, 0, settings, 0, 0))
    with suppress(ConnectionError):
        while data := connection.recv(1 << 16):
            heard += data
            assert time.monotonic() < until, "nobody has hung up"
            while len(heard) >= 9 and len(heard) >= 9 + (length := int.from_bytes(heard[:3])):
                kind, flags, body = heard[3], heard[4], heard[9 : 9 + length]
                heard = heard[9 + length :]
                if kind in (settings, ping) and not flags & acknowledged:
                    body = body if kind == ping else b""
                    connection.sendall(struct.pack(">BHBBI", 0, len(body), kind, acknowledged, 0) + body)


def test_who_is_revoked_and_asks_for_nothing_is_hung_up_on(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The certificate is good for TLS, and is judged only when there is a stream."""
    monkeypatch.setattr(grpc_hub, "IDLE_MS", 500)
    hub, begun = world.hub(), time.monotonic()
    party, user = world.party("a"), world.user()
    assert user.ask(b"x", PATIENCE) == b"x"
    world.authority.revoked.add("mallory")
    with idle(world, world.authority.issue("user", "mallory")) as connection:
        hear_out(connection)
    eventually(lambda: time.monotonic() - begun > 3)
    # Connections with a stream are not idle, however little is said on them.
    assert party.connected
    assert hub.connected()["a"] < time.time() - 2
    assert user.ask(b"x", PATIENCE) == b"x"


def test_a_channel_that_was_hung_up_on_while_idle_connects_again(
    world: World, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(grpc_hub, "IDLE_MS", 300)
    world.hub()
    mine = world.authority.issue("user", "alice")
    shown = grpc.ssl_channel_credentials(mine.authority, mine.key, mine.certificate)
    with grpc.secure_channel(
        world.address, shown, [("grpc.ssl_target_name_override", grpc_wire.SERVER_NAME)]
    ) as channel:
        seen: list[grpc.ChannelConnectivity] = []
        channel.subscribe(seen.append)
        for _ in range(2):
            seen.clear()
            stay = threading.Event()
            frames = (frame for frame in (REQUEST, b"") if frame or stay.wait(PATIENCE))
            replies = channel.stream_stream(f"/woodlot.Coordinator/{grpc_wire.USER_METHOD}")(frames)
            assert Assembler(100).feed(next(replies)) == Parcel(Label(Kind.reply, JOB, 1), b"x", n_wire=len(REPLY))
            replies.cancel()
            stay.set()
            eventually(lambda: grpc.ChannelConnectivity.IDLE in seen)
    assert "goaway" not in capfd.readouterr().err  # it is nothing to tell users of


def test_a_user_has_some_connections_and_no_more(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_hub, "CONNECTIONS_OF_ONE_USER", 2)
    world.hub()
    lines = [world.user("mallory"), world.user("mallory")]
    for line in lines:
        assert line.ask(b"x", PATIENCE) == b"x"
    code, details = call(world, [REQUEST], "User", credentials=world.authority.issue("user", "mallory"))
    assert (code, details) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "user 'mallory' has 2 connections already")
    assert world.user("bob").ask(b"x", PATIENCE) == b"x"
    assert world.party("mallory").connected
    lines[0].close()
    assert world.user("mallory").ask(b"x", PATIENCE) == b"x"


def test_a_users_requests_are_held_up_to_some_bytes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_hub, "BYTES_OF_ONE_USER", 1000)
    begun, release = threading.Semaphore(0), threading.Event()

    def serve(peer: Peer, data: bytes) -> bytes:
        if peer.name == "mallory":
            begun.release()
            release.wait(PATIENCE)
        return data

    world.hub(serve_user=serve)
    lines = [world.user("mallory"), world.user("mallory")]
    with ThreadPoolExecutor(6) as pool:
        asked = [pool.submit(lines[k % 2].ask, bytes([k]) * 400, PATIENCE) for k in range(6)]
        for _ in range(2):
            assert begun.acquire(timeout=PATIENCE)
        assert world.user("bob").ask(bytes(5000), PATIENCE) == bytes(5000)  # one always fits
        assert not begun.acquire(timeout=0.3)
        release.set()
        assert [future.result(PATIENCE) for future in asked] == [bytes([k]) * 400 for k in range(6)]
        assert lines[0].ask(bytes(900), PATIENCE) == bytes(900)  # all room was given back


@contextmanager
def unfinished(world: World, name: str, n_bytes: int, n_frames: int = 1) -> Iterator[Any]:
    """A connection on which a request of so many bytes has begun, and does not go on."""
    mine, stay = world.authority.issue("user", name), threading.Event()
    shown = grpc.ssl_channel_credentials(mine.authority, mine.key, mine.certificate)
    frames = split(Label(Kind.request, new_job(), 1), bytes(n_bytes), frame_limit=HEADER_SIZE + 100)

    def send() -> Iterator[bytes]:
        yield from itertools.islice(frames, n_frames)
        stay.wait(3 * PATIENCE)

    with grpc.secure_channel(
        world.address, shown, [("grpc.ssl_target_name_override", grpc_wire.SERVER_NAME)]
    ) as channel:
        replies = channel.stream_stream(f"/woodlot.Coordinator/{grpc_wire.USER_METHOD}")(send())
        try:
            replies.initial_metadata()  # the coordinator has let it in
            yield replies
        finally:
            stay.set()
            replies.cancel()


def is_answered(line: UserLine, n_bytes: int) -> bool:
    """Whether there is room for a request of so many bytes."""
    try:
        return line.ask(bytes(n_bytes), 1.0) == bytes(n_bytes)
    except CoordinatorAwayError:
        return False


def test_a_request_takes_its_room_when_it_begins(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_hub, "BYTES_OF_ONE_USER", 1000)
    world.hub()
    line = world.user("mallory")
    with unfinished(world, "mallory", 700):
        eventually(lambda: not is_answered(line, 400))
        assert is_answered(world.user("bob"), 400)
    assert line.ask(bytes(400), PATIENCE) == bytes(400)  # the connection has ended, and its room is given back
    assert line.ask(bytes(1000), PATIENCE) == bytes(1000)  # all of it


def test_a_request_that_does_not_go_on_is_not_waited_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_hub, "UNFINISHED_SECONDS", 0.5)
    world.hub()
    with unfinished(world, "mallory", 700) as replies, pytest.raises(grpc.RpcError) as ended:
        next(replies)
    assert ended.value.details() == "a request was not complete after 0.5 s"
    line = world.user("mallory")
    assert line.ask(b"x", PATIENCE) == b"x"
    time.sleep(1)
    assert line.ask(b"x", PATIENCE) == b"x"  # a connection may be silent between requests


def test_users_send_one_request_after_the_other(world: World) -> None:
    world.hub()
    first = next(split(Label(Kind.request, JOB, 2), bytes(300), frame_limit=HEADER_SIZE + 100))
    code, details = call(world, [first, REQUEST], "User", credentials=world.authority.issue("user", "mallory"))
    assert (code, details) == (grpc.StatusCode.INVALID_ARGUMENT, "more than 1 messages at the same time")


def test_connections_that_come_at_once_are_counted_one_by_one(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_hub, "CONNECTIONS_OF_ONE_USER", 2)
    together, n_admitted = threading.Barrier(4), itertools.count(1)

    def admit(certificate: bytes) -> Peer:
        if next(n_admitted) <= 4:
            together.wait(PATIENCE)
        return world.authority.admit(certificate)

    world.hub(admit=admit)
    mine, stay = world.authority.issue("user", "mallory"), threading.Event()

    def refused() -> str:
        with suppress(grpc.RpcError):
            return call(world, [], "User", credentials=mine, stay=stay)[1]
        return ""

    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(refused) for _ in range(4)]
        eventually(lambda: sum(future.done() for future in asked) >= 2)
        stay.set()
        told = sorted(future.result(PATIENCE) for future in asked)
    assert told == ["", "", *2 * ["user 'mallory' has 2 connections already"]]


def test_a_reply_to_another_request_is_refused(world: World) -> None:
    """What one party was asked, another cannot answer, and no party can answer what is not its turn."""
    hub = world.hub()
    asking = Asking(hub.carrier(JOB, wait_seconds=2), 1, {"a": b"x"})
    for name, frame in (("b", REPLY), ("a", next(split(Label(Kind.reply, JOB, 2), b"x")))):
        code, _ = call(world, [frame], credentials=world.authority.issue("party", name))
        assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert not asking.replies
    world.party("a")
    assert asking.result() == {"a": b"x"}
