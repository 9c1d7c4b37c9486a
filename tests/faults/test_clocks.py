"""Clocks that jump, everything restarted in any order, and processes that stand still until they are missed."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import clock_shift
import pytest
import row_jobs
import vertical_jobs
from processes import wait_until
from row_jobs import Rows, clinics
from small_jobs import COORDINATOR
from sweep import PROVED, FaultStage, named, play, stand_still, tried
from tally import Tally
from vertical_jobs import Columns, companies

from woodlot.exceptions import IdentityError

pytestmark = pytest.mark.faults

HOUR, DAY = 3600, 86400


@pytest.fixture(scope="module")
def columns(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Columns]:
    with companies(tmp_path_factory.mktemp("clocks"), with_keys=False) as made, jumping(made):
        yield made


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rows]:
    with clinics(tmp_path_factory.mktemp("clocks")) as made, jumping(made):
        yield made


@contextmanager
def jumping(stage: FaultStage[Any]) -> Iterator[None]:
    """Everybody is started again with a clock that can jump."""
    for name in stage.everybody:
        set_clock(stage, name, 0)
        file = str(stage.running.world.root / name / "clock")
        stage.running.scripts[name] = (clock_shift.__file__, {clock_shift.SETTING: file})
        stage.running.kill(name)
    for name in stage.everybody:
        stage.running.restart(name)
    yield


def set_clock(stage: FaultStage[Any], name: str, seconds: int) -> None:
    (stage.running.world.root / name / "clock").write_text(str(seconds))


def told(stage: FaultStage[Any], name: str) -> list[float]:
    """By how much its clock was off when a service asked for the time, each time that this had changed."""
    file = stage.running.world.root / name / "clock.told"
    return [float(word) for word in file.read_text().split()] if file.exists() else []


JUMPS = [
    ("columns", "train", "bank"),
    ("columns", "predict", "shop"),
    ("columns", "revoke, level 3", COORDINATOR),
    ("rows", "horizontal rounds, noisy sums", "bern"),
    ("rows", "horizontal rounds, noisy sums", COORDINATOR),
    ("rows", "predict over rows", "bern"),
]


@pytest.mark.parametrize(("kind", "name", "victim"), JUMPS)
def test_clocks_that_jump(kind: str, name: str, victim: str, tally: Tally, request: pytest.FixtureRequest) -> None:
    """By minutes and by days, forth and back; and a restart while the clock is off as far as certificates allow."""
    stage: Any = request.getfixturevalue(kind)
    protocol = named((vertical_jobs if kind == "columns" else row_jobs).PROTOCOLS, name)
    steps, expected = tried(stage, protocol)
    for off in (-240, 3 * DAY):  # certificates are valid from five minutes before they were made, for ten days
        with tally.checking(protocol.proved, name) as noted:
            order, turn = protocol.order(stage), threading.Lock()  # messages to several parties come at once

            def restart(job: str = order.job, off: int = off, turn: Any = turn) -> None:
                with turn:
                    stage.kill((victim,), job)
                    before = len(told(stage, victim))
                    set_clock(stage, victim, off)  # nor do they have an order: it may be back already
                    stage.running.restart(victim)
                    wait_until(lambda: off in told(stage, victim)[before:], "it to look at its clock")

            def jump(off: int = off, turn: Any = turn) -> None:
                with turn:
                    set_clock(stage, victim, off)

            def back(turn: Any = turn) -> None:
                with turn:
                    set_clock(stage, victim, 0)

            quarter = len(steps) // 4
            noted["clock jump"] += 2
            try:
                play(stage, order, {steps[quarter]: jump, steps[2 * quarter]: restart, steps[3 * quarter]: back})
            finally:
                back()
            assert protocol.outcome(stage, order.job) == expected


@pytest.mark.parametrize("off", [-HOUR, 30 * DAY], ids=["before certificates are valid", "after they have expired"])
def test_a_coordinator_whose_clock_makes_everybody_a_stranger(columns: Columns, off: int, tally: Tally) -> None:
    """It sends everybody away, and the job waits until the clock is right again."""
    stage = columns
    steps, expected = tried(stage, named(vertical_jobs.PROTOCOLS, "train"))
    log, begin = stage.running.log, len(stage.running.log(COORDINATOR))

    def wrong() -> None:
        set_clock(stage, COORDINATOR, off)
        wait_until(lambda: "is disconnected" in log(COORDINATOR)[begin:], "somebody to be sent away")
        set_clock(stage, COORDINATOR, 0)

    due, client = [wrong], stage.user.client
    place = steps[len(steps) // 2]

    def on_message(seen: Any) -> None:
        if due and place == (seen.member, seen.kind, seen.number):
            due.pop()()

    def is_done() -> bool:
        try:
            return client.job(order.job).state == "done"
        except IdentityError:  # the user is a stranger as well
            return False

    with tally.checking(PROVED, "train") as noted:
        order = stage.train_order()
        noted["clock jump"] += 2
        try:
            with stage.watched(order.job, on_message):
                client.submit(order)
                wait_until(is_done, "the job", pause=0.2)
        finally:
            set_clock(stage, COORDINATOR, 0)
        assert not due
        assert (stage.outcome_of(order.job), stage.user.client.job(order.job).score) == expected
        stage.check_kept(order.job)


# --- restarts in any order ---


def test_everything_restarted_in_any_order(columns: Columns, tally: Tally) -> None:
    """All orders of four services; ended cleanly or not, in another order than they are started in."""
    stage, rng = columns, random.Random(2)
    steps, expected = tried(stage, named(vertical_jobs.PROTOCOLS, "train"))
    orders = list(itertools.permutations(stage.everybody))
    for number in range(0, len(orders), 3):
        with tally.checking(PROVED, "train") as noted:
            actions = {}
            order = stage.train_order()
            for turn, starting in enumerate(orders[number : number + 3]):

                def restart(
                    starting: tuple[str, ...] = starting, clean: bool = turn == 1, job: str = order.job
                ) -> None:
                    stage.kill(rng.sample(starting, len(starting)), job, cleanly=clean)
                    for name in starting:
                        stage.running.restart(name)

                actions[steps[len(steps) * (turn + 1) // 4]] = restart
                noted["restart of everything in some order"] += 1
            play(stage, order, actions)
            assert (stage.outcome_of(order.job), stage.user.client.job(order.job).score) == expected


# --- standstills until they are missed ---


@pytest.mark.parametrize(
    ("kind", "name", "victim"),
    [
        ("columns", "train", "shop"),
        ("columns", "train", COORDINATOR),
        ("columns", "predict sealed", "club"),
        ("rows", "horizontal rounds, collaborative", "chur"),
        ("rows", "horizontal rounds, noisy sums", "bern"),
    ],
)
def test_a_process_stands_still_until_it_is_missed(
    kind: str, name: str, victim: str, tally: Tally, request: pytest.FixtureRequest
) -> None:
    """When it wakes it has lost its place: its connection is gone, and perhaps another request of its job waits."""
    stage: Any = request.getfixturevalue(kind)
    stand_still(stage, named((vertical_jobs if kind == "columns" else row_jobs).PROTOCOLS, name), victim, tally)
