"""Processes that die, freeze and come back, slow lines, and rounds that are given up: over real sockets."""

from __future__ import annotations

import logging
import math
import os
import random
import signal
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

import pytest
from grpc.aio._call import StreamStreamCall

from woodlot.exceptions import LocalProtocolError, PartyAwayError
from woodlot.runtime.drivers import grpc_wire
from woodlot.runtime.drivers.grpc_carrier import Outbox, PartyLink
from woodlot.runtime.drivers.grpc_hub import Cancelled, Second
from woodlot.runtime.drivers.grpc_line import CoordinatorAwayError
from woodlot.runtime.drivers.grpc_wire import limit_wait
from woodlot.runtime.peers import Peer

from .driver_contract import PATIENCE
from .grpc_world import Asking, World, ask, eventually, new_job

LOST = PATIENCE  # also for real processes that are missed, started and connected


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
    at_work = world.folder / "at-work"
    os.mkfifo(at_work)
    request = f"stay {at_work}".encode()
    asking = Asking(carrier, 1, {"a": request, "b": b"x"})
    assert at_work.read_bytes() == b"at work"
    at_work.unlink()  # the next process has nobody to tell, and answers
    first.kill()
    eventually(lambda: "a" not in hub.connected())
    eventually(lambda: waits.told == [("a",)])
    world.process("party", "a")
    assert asking.result(LOST) == {"a": request, "b": b"x"}
    assert waits.told == [("a",), ()]


@pytest.mark.faults
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
        assert eventually(lambda: "a" not in hub.connected() and not line.connected) > 1
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


@pytest.mark.faults
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
        asking.result()


def test_a_line_that_is_stopped_just_when_it_connects_stops(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    connect = StreamStreamCall.wait_for_connection

    async def connect_and_stop(call: Any) -> None:
        await connect(call)
        line._running.cancel()  # type: ignore[union-attr]  # as the first step of `stop` does

    monkeypatch.setattr(StreamStreamCall, "wait_for_connection", connect_and_stop)
    hub = world.hub()
    line = world.party("a", wait=False)
    eventually(lambda: line._running is not None and line._running.done())
    eventually(lambda: not hub.connected())


def test_a_carrier_that_is_closed_ends_its_wait_and_no_other(world: World) -> None:
    hub = world.hub()
    carriers = [hub.carrier(new_job(), wait_seconds=LOST) for _ in "xy"]
    asking = [Asking(carrier, 1, {"a": b"x"}) for carrier in carriers]
    carriers[0].close()
    with pytest.raises(LocalProtocolError, match="closed"):
        asking[0].result(LOST / 2)  # before its wait would have ended by itself
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
        asking.result()
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
    seconds: SimpleQueue[Second] = SimpleQueue()
    hub, at_work, release = world.hub(on_second=seconds.put), threading.Event(), threading.Event()

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
    second = seconds.get(timeout=PATIENCE)
    assert second.party == "a"
    assert "127.0.0.1" in second.former
    assert "127.0.0.1" in second.newer
    assert second.former != second.newer
    (said,) = {record.message for record in caplog.records if record.levelname == "ERROR"}
    assert f"another process ({second.newer}) has connected as party 'a'" in said
    assert "its key was copied: revoke its certificate" in said
    release.set()


def test_a_process_that_dials_again_is_no_second_one() -> None:
    """Its former line may be half open: the coordinator has not noticed yet that it broke."""
    seconds: list[Second] = []
    outbox = Outbox(seconds.append)
    peer = Peer(name="a", role="party", serial=1, certificate=b"")
    replaced: list[str] = []
    for number, instance in enumerate(("one", "one", "two", "two", "one")):
        writer: Any = None  # nothing is asked
        outbox.connect(
            PartyLink(peer, writer, lambda: replaced.append(""), instance=instance, address=f"host:{number}")
        )
    assert len(replaced) == 4
    assert seconds == [Second("a", "host:1", "host:2"), Second("a", "host:3", "host:4")]


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


def test_nobody_at_the_address(world: World) -> None:
    world.hub().close()
    user = world.user(patience=0.5)
    started = time.monotonic()
    with pytest.raises(CoordinatorAwayError, match=rf"{world.address}.*check that the address is right"):
        user.ask(b"x")
    assert time.monotonic() - started < PATIENCE
    world.hub()
    assert user.ask(b"x", PATIENCE) == b"x"
