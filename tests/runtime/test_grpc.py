from __future__ import annotations

import os
import secrets
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tcp_proxy import TcpProxy
from woodlot.exceptions import ConfigError, LocalProtocolError, RemoteProtocolError
from woodlot.runtime.drivers import Driver, Handler
from woodlot.runtime.drivers.carried import CarriedDriver, Numbered
from woodlot.runtime.drivers.grpc_hub import THREADS_OF_ONE_USER, Hub
from woodlot.runtime.drivers.grpc_line import CoordinatorAwayError
from woodlot.runtime.frames import HEADER_SIZE
from woodlot.runtime.peers import Peer
from woodlot.runtime.sessions import Sessions

from .driver_contract import PATIENCE, DriverContract, MakeDriver
from .grpc_world import Asking, World, ask, eventually, new_job


@pytest.fixture
def make_driver(world: World) -> Iterator[MakeDriver]:
    drivers: list[Driver] = []

    def make(handlers: Mapping[str, Handler]) -> Driver:
        hub = world.hub()
        for name, handler in handlers.items():
            sessions = Sessions(name, lambda job, handler=handler: handler)  # type: ignore[misc]
            world.party(name, sessions.answer, wait=False)
        drivers.append(CarriedDriver(hub.carrier(new_job(), wait_seconds=PATIENCE), tuple(handlers)))
        return drivers[-1]

    yield make
    for driver in drivers:
        driver.close()


class TestGrpcDriver(DriverContract):
    pass


def test_who_is_connected_and_since_when(world: World) -> None:
    hub = world.hub()
    assert hub.connected() == {}
    before = time.time()
    lines = [world.party("a"), world.party("b")]
    eventually(lambda: set(hub.connected()) == {"a", "b"})
    assert all(before <= since <= time.time() for since in hub.connected().values())
    lines[0].stop()
    assert not lines[0].connected
    eventually(lambda: set(hub.connected()) == {"b"})


def test_everyone_is_greeted_before_anything_else(world: World) -> None:
    events: list[str] = []

    def greet(peer: Peer) -> bytes:
        return f"hello {peer.role} {peer.name}".encode() * 10

    def answer(job: str, number: int, request: bytes) -> bytes:
        events.append("asked")
        return b""

    def greeted(greeting: bytes) -> None:
        time.sleep(0.05)
        events.append(greeting.decode())

    hub = world.hub(greet=greet, frame_limit=HEADER_SIZE + 7)
    asking = Asking(hub.carrier(new_job(), wait_seconds=PATIENCE), 1, {"a": b"?"})
    world.party("a", answer, on_greeting=greeted)
    asking.result()
    assert events == ["hello party a" * 10, "asked"]
    events.clear()
    world.user("alice", on_greeting=greeted).ask(b"?", PATIENCE)
    assert events == ["hello user alice" * 10]


def test_replies_come_in_the_callers_thread_as_they_arrive(world: World) -> None:
    heard: list[tuple[str, bytes, threading.Thread]] = []
    hub, release = world.hub(), threading.Event()
    world.party("slow", lambda job, number, request: (release.wait(PATIENCE), request)[1])
    world.party("quick")

    def on_reply(party: str, data: bytes) -> None:
        heard.append((party, data, threading.current_thread()))
        release.set()

    carrier = hub.carrier(new_job(), wait_seconds=PATIENCE)
    carrier.carry({"slow": Numbered(1, b"s"), "quick": Numbered(1, b"q")}, on_reply)
    here = threading.current_thread()
    assert heard == [("quick", b"q", here), ("slow", b"s", here)]


def test_the_partys_work_is_told_from_the_networks_time(world: World) -> None:
    """The party works for at least 0.3 s behind a line of 0.1 s, so that both are bounded whatever the machine does."""
    hub = world.hub()
    line = TcpProxy(lambda: world.port)
    line.delay = 0.05
    line.start()
    world.closing(line)
    address = f"127.0.0.1:{line.port}"
    world.party("far", lambda job, number, request: (time.sleep(0.3), request)[1], address=address)
    request, since = bytes(100_000), time.perf_counter()
    travel = hub.carrier(new_job(), wait_seconds=PATIENCE).carry(
        {"far": Numbered(1, request)}, lambda party, data: None
    )
    assert 0.1 <= travel.network_seconds <= time.perf_counter() - since - 0.3
    assert 2 * HEADER_SIZE < travel.wire_bytes < 2_000  # zeros, there and back


def test_a_caller_that_fails_leaves_the_carrier_as_it_was(world: World) -> None:
    hub = world.hub()
    world.party("a")
    carrier = hub.carrier(new_job(), wait_seconds=PATIENCE)

    def on_reply(party: str, data: bytes) -> None:
        raise KeyError("disk full")

    for number in range(1, 300):  # often: the request comes again while either side is still at the end of the first
        with pytest.raises(KeyError):
            carrier.carry({"a": Numbered(number, b"x")}, on_reply)
        assert ask(carrier, number, {"a": b"x"}) == {"a": b"x"}


def test_a_large_message_does_not_hold_up_a_small_one(world: World) -> None:
    ends: list[int] = []
    hub = world.hub(frame_limit=1 << 10)
    world.party("a", frame_limit=1 << 10)

    def go(size: int) -> None:
        data = secrets.token_bytes(size)
        assert ask(hub.carrier(new_job(), wait_seconds=PATIENCE), 1, {"a": data}) == {"a": data}
        ends.append(size)

    large = threading.Thread(target=go, args=(1 << 21,))
    large.start()
    while large.is_alive():
        go(1)
    assert ends.index(1 << 21) > 0


def test_jobs_do_not_mix(world: World) -> None:
    hub = world.hub(frame_limit=1 << 12)
    jobs = [new_job() for _ in range(6)]
    for name in "ab":

        def answer(job: str, number: int, request: bytes, name: str = name) -> bytes:
            return f"{name} {job} {number} ".encode() + request

        world.party(name, answer, frame_limit=1 << 12)

    def work(job: str) -> None:
        carrier = hub.carrier(job, wait_seconds=PATIENCE)
        for number in range(1, 30):
            data = secrets.token_bytes(secrets.randbelow(20_000))
            assert ask(carrier, number, dict.fromkeys("ab", data)) == {
                name: f"{name} {job} {number} ".encode() + data for name in "ab"
            }

    with ThreadPoolExecutor(len(jobs)) as pool:
        list(pool.map(work, jobs))


def test_a_party_that_fails_names_the_error_and_not_its_words(world: World, caplog: pytest.LogCaptureFixture) -> None:
    def fail(job: str, number: int, request: bytes) -> bytes:
        if number == 1:
            raise KeyError("salary 93517")
        return request

    hub = world.hub()
    world.party("a", fail)
    carrier = hub.carrier(new_job(), wait_seconds=PATIENCE)
    with pytest.raises(RemoteProtocolError, match="party 'a' failed: KeyError") as caught:
        ask(carrier, 1, {"a": b""})
    assert "93517" not in str(caught.value)
    assert "request 1 of job" in caplog.text
    assert ask(carrier, 2, {"a": b"on"}) == {"a": b"on"}


def test_what_is_too_long_is_met_before_anything_is_sent(world: World) -> None:
    asked: list[bytes] = []
    hub = world.hub(message_limit=1000)
    world.party("a", lambda job, number, request: asked.append(request) or request)  # type: ignore[func-returns-value]
    carrier = hub.carrier(new_job(), wait_seconds=PATIENCE)
    with pytest.raises(LocalProtocolError, match=r"party 'a' has 1,001 bytes; the message limit is 1,000"):
        ask(carrier, 1, {"a": bytes(1001)})
    with pytest.raises(LocalProtocolError, match="message limit is 1,000"):
        world.user(message_limit=1000).ask(bytes(1001))
    assert ask(carrier, 1, {"a": bytes(1000)}) == {"a": bytes(1000)}
    assert asked == [bytes(1000)]


def test_a_reply_that_is_too_long_fails_where_it_is_made(world: World, caplog: pytest.LogCaptureFixture) -> None:
    hub = world.hub(message_limit=1000, serve_user=lambda peer, data: bytes(2000))
    line = world.party("a", lambda job, number, request: bytes(2000), message_limit=1000)
    with pytest.raises(RemoteProtocolError, match="party 'a' failed: LocalProtocolError"):
        ask(hub.carrier(new_job(), wait_seconds=PATIENCE), 1, {"a": b""})
    with pytest.raises(RemoteProtocolError, match="the coordinator failed: LocalProtocolError"):
        world.user().ask(b"", PATIENCE)
    assert line.connected
    assert caplog.text.count("2,000 bytes; the limit is 1,000") == 2


def test_a_request_is_on_its_way_once(world: World) -> None:
    at_work, release = threading.Event(), threading.Event()

    def answer(job: str, number: int, request: bytes) -> bytes:
        at_work.set()
        release.wait(PATIENCE)
        return request

    hub = world.hub()
    world.party("a", answer)
    carrier = hub.carrier(new_job(), wait_seconds=PATIENCE)
    first = Asking(carrier, 1, {"a": b"x"})
    assert at_work.wait(PATIENCE)
    with pytest.raises(LocalProtocolError, match=r"request 1 of job .* is already on its way"):
        ask(carrier, 1, {"a": b"x"})
    release.set()
    assert first.result() == {"a": b"x"}


def test_a_job_has_a_proper_name(world: World) -> None:
    with pytest.raises(LocalProtocolError, match="32 hexadecimal digits"):
        world.hub().carrier("my job", wait_seconds=1)


def test_many_requests_of_users_at_once(world: World) -> None:
    meeting = threading.Barrier(20)

    def serve(peer: Peer, data: bytes) -> bytes:
        meeting.wait(PATIENCE)
        time.sleep(secrets.randbelow(50) / 1000)
        return peer.name.encode() + data

    world.hub(serve_user=serve)
    lines = {name: world.user(name) for name in ("alice", "bob")}
    questions = [(name, f" {i} ".encode() * 10_000) for i in range(10) for name in lines]
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda question: lines[question[0]].ask(question[1], PATIENCE), questions))
    assert answers == [name.encode() + data for name, data in questions]


def test_one_user_who_waits_or_works_a_lot_does_not_hold_up_another(world: World) -> None:
    waits: list[Future[bytes]] = []
    release, begun = threading.Event(), threading.Semaphore(0)

    def serve(peer: Peer, data: bytes) -> bytes | Future[bytes]:
        if data == b"wait":
            waits.append(Future())
            return waits[-1]
        if data == b"work":
            begun.release()
            release.wait(PATIENCE)
        return data

    world.hub(serve_user=serve)
    alice, bob = world.user("alice"), world.user("bob")
    several = [world.user("alice") for _ in range(3)]
    with ThreadPoolExecutor(160) as pool:
        waiting = [pool.submit(line.ask, b"wait") for line in (alice, several[0]) for _ in range(60)]
        eventually(lambda: len(waits) == len(waiting))
        assert bob.ask(b"bob's", PATIENCE) == b"bob's"
        working = [pool.submit(line.ask, b"work") for line in several[1:] for _ in range(20)]
        for _ in range(THREADS_OF_ONE_USER):
            assert begun.acquire(timeout=PATIENCE)
        assert bob.ask(b"bob's", PATIENCE) == b"bob's"
        assert not begun.acquire(blocking=False)
        release.set()
        for wait in waits:
            wait.set_result(b"news")
        assert {future.result(PATIENCE) for future in waiting} == {b"news"}
        assert {future.result(PATIENCE) for future in working} == {b"work"}


def test_large_requests_of_users(world: World) -> None:
    world.hub()
    line, data = world.user(), secrets.token_bytes(7_000_000)
    with ThreadPoolExecutor(6) as pool:
        assert all(answer == data for answer in pool.map(lambda _: line.ask(data, PATIENCE), range(6)))


def test_a_request_of_a_user_that_fails(world: World, caplog: pytest.LogCaptureFixture) -> None:
    def serve(peer: Peer, data: bytes) -> bytes:
        if not data:
            raise KeyError("secret")
        return data

    world.hub(serve_user=serve)
    line = world.user()
    with pytest.raises(RemoteProtocolError, match="the coordinator failed: KeyError") as caught:
        line.ask(b"", PATIENCE)
    assert "secret" not in str(caught.value)
    assert "a request of user 'alice' failed" in caplog.text
    assert line.ask(b"on", PATIENCE) == b"on"


def test_an_answer_that_takes_too_long(world: World) -> None:
    release = threading.Event()
    world.hub(serve_user=lambda peer, data: (release.wait(PATIENCE) if data == b"slow" else 0, data)[1])
    line = world.user()
    started = time.monotonic()
    with pytest.raises(CoordinatorAwayError, match=r"127\.0\.0\.1:\d+ has not answered within 0\.3 s"):
        line.ask(b"slow", 0.3)
    assert 0.3 <= time.monotonic() - started < PATIENCE  # after which it would have been answered
    assert line.ask(b"quick", PATIENCE) == b"quick"
    release.set()


def test_a_closed_line_refuses(world: World) -> None:
    world.hub()
    line = world.user()
    assert line.ask(b"x", PATIENCE) == b"x"
    line.close()
    line.close()
    with pytest.raises(LocalProtocolError, match="closed"):
        line.ask(b"x", PATIENCE)
    party = world.party("a")
    with pytest.raises(LocalProtocolError, match="started before"):
        party.start()


def test_a_port_that_is_taken(world: World) -> None:
    world.hub()
    with pytest.raises(ConfigError, match=rf"cannot listen on {world.address}"):
        world.hub()


def tls_version(world: World, folder: Path, version: ssl.TLSVersion) -> str | None:
    """What a client that insists on `version` gets: the version once the server has spoken, or an error."""
    credentials = world.authority.issue("party", "a")
    for part in ("key", "certificate", "authority"):
        (folder / part).write_bytes(getattr(credentials, part))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(folder / "authority")
    context.load_cert_chain(folder / "certificate", folder / "key")
    context.set_alpn_protocols(["h2"])
    context.minimum_version = context.maximum_version = version
    with (
        socket.create_connection(("127.0.0.1", world.port), PATIENCE) as raw,
        context.wrap_socket(raw, server_hostname="coordinator.woodlot") as secure,
    ):
        assert secure.recv(9)
        return secure.version()


HYBRID = 0x11EC
"""X25519MLKEM768, as the registry of TLS groups numbers it."""


def group_of(greeting: bytes) -> int:
    """The group of keys that a ServerHello of TLS 1.3 has chosen; RFC 8446, 4.1.3 and 4.2.8.

    ::

        record (5)  handshake type, length (4)  version (2)  random (32)  session id  cipher (2)  compression (1)
        length of extensions (2), then each: type (2), length (2), data; of key_share, 51: group (2), key
    """
    assert greeting[0] == 22
    assert greeting[5] == 2
    at = 5 + 4 + 2 + 32
    at += 1 + greeting[at] + 2 + 1
    end = at + 2 + int.from_bytes(greeting[at : at + 2])
    at += 2
    while at < end:
        kind, length = int.from_bytes(greeting[at : at + 2]), int.from_bytes(greeting[at + 2 : at + 4])
        if kind == 51:
            return int.from_bytes(greeting[at + 4 : at + 6])
        at += 4 + length
    raise AssertionError("no key_share")


def test_keys_of_connections_are_hybrid_post_quantum(world: World) -> None:
    """What is recorded today cannot be read by whoever breaks X25519 alone, or ML-KEM-768 alone, later."""
    world.hub()
    proxy = TcpProxy(lambda: world.port)
    proxy.start()
    try:
        line = world.party("a", address=f"127.0.0.1:{proxy.port}")
        assert group_of(proxy.greeting) == HYBRID
        line.stop()
    finally:
        proxy.close()


def test_tls_1_3_and_nothing_older(world: World, tmp_path: Path) -> None:
    world.hub()
    assert tls_version(world, tmp_path, ssl.TLSVersion.TLSv1_3) == "TLSv1.3"
    with pytest.raises((ssl.SSLError, ConnectionError)):
        tls_version(world, tmp_path, ssl.TLSVersion.TLSv1_2)


def test_a_program_in_which_tls_1_2_is_on_does_not_listen(tmp_path: Path) -> None:
    script = """
import grpc
from woodlot.exceptions import LocalProtocolError
from woodlot.runtime.drivers.grpc_hub import Hub
from woodlot.runtime.peers import Credentials
hub = Hub("127.0.0.1:0", Credentials(b"", b"", b""), admit=None, serve_user=None)
try:
    hub.start()
except LocalProtocolError as error:
    print(error)
"""
    environment = {name: value for name, value in os.environ.items() if name != "GRPC_SSL_CIPHER_SUITES"}
    run = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert "too late to turn TLS 1.2 off" in run.stdout


def test_a_key_is_not_shown(world: World) -> None:
    credentials = world.authority.issue("party", "a")
    assert "PRIVATE" in credentials.key.decode()
    assert "PRIVATE" not in repr(credentials)


def test_closing_an_unused_hub(world: World) -> None:
    hub = Hub(
        "127.0.0.1:0",
        world.authority.issue("coordinator", "c"),
        admit=world.authority.admit,
        serve_user=lambda peer, data: data,
    )
    hub.close()
    hub.close()


def test_a_party_is_connected_when_it_is_admitted_and_not_before(world: World) -> None:
    """That a connection is open says nothing yet: the certificate is judged on it."""
    asked, decided = threading.Event(), threading.Event()

    def admit(certificate: bytes) -> Peer:
        asked.set()
        assert decided.wait(PATIENCE)
        return world.authority.admit(certificate)

    world.hub(admit=admit)
    line = world.party("bank", wait=False)
    try:
        assert asked.wait(PATIENCE)
        assert not line.wait_connected(0.5)
    finally:
        decided.set()
    assert line.wait_connected(PATIENCE)
