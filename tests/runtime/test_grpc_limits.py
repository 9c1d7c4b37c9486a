"""What one user can take up of a coordinator: connections, bytes and requests at a time."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import Any

import pytest

from woodlot.exceptions import RemoteProtocolError
from woodlot.jobs.job_messages import OpenJob
from woodlot.runtime.drivers import grpc_hub, grpc_wire
from woodlot.runtime.drivers.carried import LONGEST_BRIEF, CarriedDriver
from woodlot.runtime.drivers.grpc_carrier import Cancelled
from woodlot.runtime.drivers.grpc_line import CoordinatorAwayError, UserLine
from woodlot.runtime.drivers.grpc_users import HeldBytes, LargeReply
from woodlot.runtime.drivers.grpc_wire import grpc
from woodlot.runtime.frames import HEADER_SIZE, LARGE, FrameKind, Label, split
from woodlot.runtime.peers import Peer

from .driver_contract import PATIENCE
from .grpc_world import JOB, REQUEST, Asking, World, ask, call, eventually, new_job


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
    frames = split(Label(FrameKind.request, new_job(), 1), bytes(n_bytes), frame_limit=HEADER_SIZE + 100)

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
        assert world.user("bob").ask(bytes(400), PATIENCE) == bytes(400)
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
    first = next(split(Label(FrameKind.request, JOB, 2), bytes(300), frame_limit=HEADER_SIZE + 100))
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


# --- replies of parties ---


def zeros_of(n_bytes: int) -> Callable[[str, int, bytes], bytes]:
    """What answers with zeros, which travel as next to nothing."""
    return lambda job, number, request: bytes(n_bytes)


def test_a_partys_large_replies_are_held_up_to_some_bytes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five jobs are answered at once, and each keeps what it got until it goes on: there is one at a time."""
    monkeypatch.setattr(grpc_hub, "BYTES_OF_ONE_PARTY", 1 << 20)  # less than any of them: one always fits
    size = (LARGE >> 20) + 1 << 20
    hub = world.hub()
    world.party("mallory", zeros_of(size))
    world.party("small")
    arrived: SimpleQueue[int] = SimpleQueue()
    carriers = [hub.carrier(new_job(), wait_seconds=PATIENCE) for _ in range(5)]

    def job(number: int) -> int:
        held = ask(carriers[number], 1, {"mallory": b"x"})
        arrived.put(number)
        return len(held["mallory"])

    with ThreadPoolExecutor(5) as pool:
        asked = [pool.submit(job, number) for number in range(5)]
        for left in range(4, -1, -1):
            first = arrived.get(timeout=PATIENCE)
            assert ask(hub.carrier(new_job(), wait_seconds=PATIENCE), 1, {"small": b"x"}) == {"small": b"x"}
            with pytest.raises(Empty):
                arrived.get(timeout=0.05)  # the next one waits for this one's job
            if left % 2:
                carriers[first].close()
            else:
                Asking(carriers[first], 2, {"small": b"goes on"}).result()
        assert [future.result(PATIENCE) for future in asked] == [size] * 5
    room = hub._party_rooms["mallory"]
    eventually(lambda: room._held == 0)


def test_room_of_a_reply_that_nobody_waits_for_is_given_back(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_hub, "BYTES_OF_ONE_PARTY", 1 << 20)
    at_work, release = threading.Event(), threading.Event()

    def slow(job: str, number: int, request: bytes) -> bytes:
        at_work.set()
        release.wait(PATIENCE)
        return bytes(2 * LARGE)

    hub = world.hub()
    world.party("a", slow)
    cancelled = threading.Event()
    asking = Asking(hub.carrier(new_job(), wait_seconds=PATIENCE, cancelled=cancelled), 1, {"a": b"x"})
    assert at_work.wait(PATIENCE)
    cancelled.set()
    with pytest.raises(Cancelled):
        asking.result()
    release.set()
    for _ in range(2):
        carrier = hub.carrier(new_job(), wait_seconds=PATIENCE)
        assert len(ask(carrier, 1, {"a": b"x"})["a"]) == 2 * LARGE
        carrier.close()


def test_a_party_sends_large_replies_one_after_the_other(world: World) -> None:
    """Those that alternate could not be waited with: each would wait for the other."""
    hub = world.hub()
    world.party("a", zeros_of(2 * LARGE))
    carriers = [hub.carrier(new_job(), wait_seconds=PATIENCE) for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        replies = list(pool.map(lambda carrier: len(ask(carrier, 1, {"a": b"x"})["a"]), carriers))
    assert replies == [2 * LARGE] * 3
    reply = LargeReply(HeldBytes(1))
    asyncio.run(two_at_once(reply))


async def two_at_once(reply: LargeReply) -> None:
    await reply.begin(Label(FrameKind.reply, JOB, 1), LARGE + 1)
    with pytest.raises(RemoteProtocolError, match="two replies of more than 8,388,608 bytes at the same time"):
        await reply.begin(Label(FrameKind.reply, JOB, 2), LARGE + 1)


def test_a_reply_that_is_longer_than_any_to_its_request_is_not_received(world: World) -> None:
    """An opened job has no arrays: what says more is refused by its first frame, and the job is told of whom."""
    hub = world.hub()
    world.party("mallory", zeros_of(LONGEST_BRIEF + 1))
    carrier = hub.carrier(new_job(), wait_seconds=PATIENCE)
    opening = OpenJob(order=b"", signature=b"", certificate=b"", coordinator=b"", passed=b"")
    with (
        CarriedDriver(carrier, ("mallory",)) as driver,
        pytest.raises(
            RemoteProtocolError,
            match=r"party 'mallory' sent a reply of 4,195,329 bytes, where at most 4,195,328 are due",
        ),
    ):
        driver.ask({"mallory": opening})
