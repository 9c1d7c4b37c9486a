"""Lines that are cut, go dead without a word, or are slow; and frames that come twice or in another order."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import row_jobs
import vertical_jobs
from frame_proxy import Courier, Frame, Send
from kill_stage import Stage
from processes import processes, small_tables, wait_until
from row_jobs import Rows, clinics
from small_jobs import COORDINATOR, PARTIES, model_of, train_order, user_of
from sweep import named
from tally import Tally
from vertical_jobs import Columns, companies
from world import World

from tcp_proxy import TcpProxy
from woodlot.connected import ConnectedFederation

pytestmark = pytest.mark.faults

MOST_TWICE = 3
"""Frames of a run that come twice: each costs its connection, and some seconds until the next."""
PROVED = "same result bit for bit, without help"


class Lines(Stage[ConnectedFederation]):
    """Two companies as processes, each with a line of its own to the coordinator."""

    lines: dict[str, TcpProxy]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lines]:
    world = World(tmp_path_factory.mktemp("lines"), small_tables())
    lines = {party: TcpProxy(lambda: world.port) for party in PARTIES}
    try:
        for party, line in lines.items():
            line.start()
            world.settings[party]["coordinator"] = f"localhost:{line.port}"
        with ThreadPoolExecutor(1) as pool, processes(world) as running:
            running.wait_connected()
            with user_of(world) as user:
                made = Lines(running, user, pool, train_order, lambda job: model_of(world.root, job))
                made.lines = lines
                yield made
    finally:
        for line in lines.values():
            line.close()


def check(stage: Lines, job: str) -> None:
    assert stage.outcome_of(job) == stage.expected
    stage.check_journals(job)


def when(stage: Lines, party: str, job: str, replies: int) -> None:
    wait_until(lambda: stage.replies(party, job) >= replies, f"reply {replies} of {party}", pause=0.001)


@pytest.mark.parametrize("party", PARTIES)
def test_a_line_that_is_cut_again_and_again(stage: Lines, party: str, tally: Tally) -> None:
    total = stage.replies(party, stage.undisturbed)
    for start in range(3):
        with tally.checking(PROVED, "train") as noted:
            job, end = stage.begin(stage.train_order())
            for place in range(1 + start, total, 6):
                when(stage, party, job, place)
                noted["line cut, below TLS"] += stage.lines[party].cut() > 0
            assert noted.total()
            assert end.result().state == "done"
            check(stage, job)
        stage.running.kill(party)  # a new process does not wait longer and longer between attempts to connect
        stage.running.restart(party)


@pytest.mark.parametrize("party", PARTIES)
@pytest.mark.parametrize("late", [False, True], ids=["nothing arrives", "everything arrives late"])
def test_a_line_that_goes_dead_without_a_word(stage: Lines, party: str, late: bool, tally: Tally) -> None:
    """Neither side is told. Both miss the other, and a new connection takes the place of the dead one."""
    line = stage.lines[party]
    with tally.checking(PROVED, "train") as noted:
        job, end = stage.begin(stage.train_order())
        when(stage, party, job, 6 + 5 * late)
        begin = len(stage.running.log(COORDINATOR))
        line.go_dead()
        noted["half-open connection"] += 1
        wait_until(lambda: f"{party!r} is disconnected" in stage.running.log(COORDINATOR)[begin:], "it to be missed")
        if not late:
            line.cut()  # what was on its way is lost
        line.revive()
        assert end.result().state == "done"
        check(stage, job)


@pytest.mark.parametrize(("delay", "rate"), [(0.15, None), (0.0, 2_000)], ids=["delay", "throttle"])
def test_slow_lines(stage: Lines, delay: float, rate: int | None, tally: Tally) -> None:
    line = stage.lines["shop"]
    with tally.checking(PROVED, "train") as noted:
        before, passed, began = line.n_connections, line.n_bytes, time.monotonic()
        line.delay, line.rate = delay, rate
        try:
            job, _ = stage.run(stage.train_order())
        finally:
            line.delay, line.rate = 0.0, None
        least = delay * 2 * stage.replies("shop", job) if rate is None else (line.n_bytes - passed) / (2 * rate)
        assert time.monotonic() - began > least > 1.0  # it was slow
        noted["line with a delay of 150 ms" if delay else "line of 2 kB/s"] += 1
        # Slow is not dead: a line that is taken for dead at every message is opened again for each. Now and then a
        # process of a busy machine does not run for so long that its line is rightly opened again.
        assert line.n_connections - before < stage.replies("shop", job) / 4
        check(stage, job)


def test_the_users_line_is_cut(stage: Lines, tally: Tally) -> None:
    """The job goes on, and the user hears of its end."""
    world = stage.running.world
    line = TcpProxy(lambda: world.port)
    line.start()
    try:
        port, world.port = world.port, line.port
        with user_of(world) as user:
            world.port = port
            with tally.checking(PROVED, "train") as noted, ThreadPoolExecutor(1) as pool:
                order = train_order(user)
                user.client.submit(order)
                end = pool.submit(user.client.finish, order.job)
                for replies in (2, 5, 8):
                    when(stage, "bank", order.job, replies)
                    noted["line of the user cut, below TLS"] += line.cut() > 0
                assert noted.total()
                assert end.result().state == "done"
                assert user.client.submit(order).state == "done"  # the same order is the same job
                check(stage, order.job)
    finally:
        line.close()


# --- frames ---


class Unruly(Courier):
    """Passes frames on twice, or later than the frames that come after; each connection in its own way."""

    def __init__(self, send: Send, rng: random.Random, how: str, noted: Counter[str]) -> None:
        super().__init__(send)
        self._rng, self._how, self._noted = rng, how, noted
        self._held: list[bytes] = []
        self._turn = asyncio.Lock()

    async def take(self, frame: Frame) -> None:
        async with self._turn:
            if self._how == "frame sent twice":
                await self.send(frame.data)
                if self._noted[self._how] < MOST_TWICE and self._rng.random() < 0.1:
                    self._noted[self._how] += 1
                    await self.send(frame.data)
            elif self._rng.random() < 0.3:
                self._held.append(frame.data)
                asyncio.get_running_loop().call_later(0.05, self._hurry)  # there may be no other frame to wait for
            else:
                await self.send(frame.data)
                self._noted[self._how] += len(self._held)  # this frame has overtaken them
                await self._release()

    async def _release(self) -> None:
        held, self._held = self._held, []
        self._rng.shuffle(held)
        for data in held:
            await self.send(data)

    def _hurry(self) -> None:
        self._task = asyncio.ensure_future(self._release_in_turn())

    async def _release_in_turn(self) -> None:
        async with self._turn:
            try:
                await self._release()
            except Exception:  # noqa: BLE001 - the connection has ended, and its other end says so
                self._held.clear()


@pytest.fixture(scope="module")
def columns(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Columns]:
    with companies(tmp_path_factory.mktemp("frames"), with_keys=False) as made:
        yield made


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rows]:
    with clinics(tmp_path_factory.mktemp("frames")) as made:
        yield made


@pytest.mark.parametrize("how", ["frame sent twice", "frames in another order"])
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("columns", "align (private intersection)"),
        ("columns", "train"),
        ("columns", "predict"),
        ("columns", "predict sealed"),
        ("columns", "revoke, level 3"),
        ("rows", "horizontal rounds, collaborative"),
        ("rows", "horizontal rounds, extra-trees"),
        ("rows", "horizontal rounds, lossless"),
    ],
)
def test_unruly_frames(kind: str, name: str, how: str, tally: Tally, request: pytest.FixtureRequest) -> None:
    stage: Any = request.getfixturevalue(kind)
    protocol = named((vertical_jobs if kind == "columns" else row_jobs).PROTOCOLS, name)
    first = protocol.order(stage)
    stage.run(first)
    expected, rng = protocol.outcome(stage, first.job), random.Random(7)
    with tally.checking(PROVED, name) as noted:
        orders = [protocol.order(stage) for _ in range(2)]  # side by side, so that there are frames to overtake
        stage.proxy.courier = lambda send: Unruly(send, rng, how, noted)
        for party in stage.parties:  # new connections
            stage.running.kill(party)
            stage.running.restart(party)
        try:
            for order in orders:
                stage.user.client.submit(order)
            for order in orders:
                assert stage.user.client.finish(order.job).state == "done"
        finally:
            stage.proxy.courier = Courier
            for party in stage.parties:
                stage.running.kill(party)
                stage.running.restart(party)
        assert noted[how] > 0
        for order in orders:
            assert protocol.outcome(stage, order.job) == expected
            stage.check_journals(order.job)
