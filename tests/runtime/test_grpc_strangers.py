"""Who is let in over real TLS: strangers, the revoked, the wrong role, and frames that are none."""

from __future__ import annotations

import secrets
import socket
import ssl
import struct
import threading
import time
from contextlib import suppress
from dataclasses import replace

import pytest

from woodlot.exceptions import IdentityError, PartyAwayError
from woodlot.runtime.drivers import grpc_hub, grpc_wire
from woodlot.runtime.drivers.grpc_hub import MAX_USER_BYTES
from woodlot.runtime.drivers.grpc_line import CoordinatorAwayError
from woodlot.runtime.drivers.grpc_wire import grpc
from woodlot.runtime.frames import FRAME_LIMIT, Assembler, FrameKind, Label, Parcel, split
from woodlot.runtime.peers import Credentials, Peer

from .certificates import Authority
from .driver_contract import PATIENCE
from .grpc_world import JOB, REPLY, REQUEST, Asking, World, ask, call, eventually, new_job


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
        eventually(lambda: "refuse each other: the certificate of 'a' is revoked" in caplog.text)  # a thread writes it
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


def test_a_refused_party_returns_when_it_is_accepted(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.authority.revoked.add("a")
    world.hub()
    party = world.party("a", wait=False, slowest_delay=0.3)
    eventually(lambda: "revoked" in caplog.text)
    eventually(lambda: not party.connected)
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
        ("User", "coordinator", "is for the role 'coordinator', and 'user' is needed"),
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


LARGE = REQUEST[:33] + struct.pack("<QQ", MAX_USER_BYTES + 1, 0) + b"x"
HUGE = REPLY[:33] + struct.pack("<QQ", 1 << 60, 0) + b"x"


@pytest.mark.parametrize(
    ("method", "frame", "words"),
    [
        ("Party", b"", "shorter than its header"),
        ("Party", REPLY[:20], "shorter than its header"),
        ("Party", b"GET / HTTP/1.1\r\n" * 4, "not a frame of this version"),
        ("Party", REPLY, "nothing was asked for it"),
        ("Party", REQUEST, "nothing was asked for it"),
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
            assert Assembler(100).feed(next(replies)) == Parcel(Label(FrameKind.reply, JOB, 1), b"x", n_wire=len(REPLY))
            replies.cancel()
            stay.set()
            eventually(lambda: grpc.ChannelConnectivity.IDLE in seen)
    assert "goaway" not in capfd.readouterr().err  # it is nothing to tell users of


def test_a_reply_to_another_request_is_refused(world: World) -> None:
    """What one party was asked, another cannot answer, and no party can answer what is not its turn."""
    hub = world.hub()
    asking = Asking(hub.carrier(JOB, wait_seconds=2), 1, {"a": b"x"})
    for name, frame in (("b", REPLY), ("a", next(split(Label(FrameKind.reply, JOB, 2), b"x")))):
        code, _ = call(world, [frame], credentials=world.authority.issue("party", name))
        assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert not asking.replies
    world.party("a")
    assert asking.result() == {"a": b"x"}
