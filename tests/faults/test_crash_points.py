"""Kill -9 between operations on files: folders are replaced, keys and models erased, and nothing is left half done."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import crash_points
import pytest
import row_jobs
import vertical_jobs
from kill_stage import ONE_OF
from processes import wait_until
from row_jobs import Rows, clinics
from small_jobs import COORDINATOR
from sweep import FaultStage, Protocol, named
from tally import Tally
from vertical_jobs import Columns, companies

pytestmark = pytest.mark.faults

MOST_POINTS = 6 // ONE_OF
"""Of one victim in one protocol, spread over all."""


@pytest.fixture(scope="module")
def columns(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Columns]:
    with companies(tmp_path_factory.mktemp("points")) as made:
        yield made


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rows]:
    with clinics(tmp_path_factory.mktemp("points")) as made:
        yield made


def restarted(stage: FaultStage[Any], victim: str, number: int) -> Path:
    """A new process of the victim, that counts its operations and dies at one; returns where the count is."""
    state = stage.running.world.root / victim / "state"
    setting = {crash_points.SETTING: f"{number} {state}"}
    stage.running.scripts[victim] = (crash_points.__file__, setting)
    # With the coordinator all others: new processes do not wait longer and longer between attempts to connect.
    victims = stage.everybody if victim == COORDINATOR else (victim,)
    for name in victims:
        stage.running.kill(name)
    for name in victims:
        stage.running.restart(name)
    del stage.running.scripts[victim]
    wait_until(lambda: all(stage.user.client.parties().values()), "everybody to connect")
    return state.with_name("state.count")


def die_at_operations(
    stage: FaultStage[Any],
    protocol: Protocol,
    victim: str,
    tally: Tally,
    *,
    most: int = MOST_POINTS,
    is_over: Callable[[str], bool] = lambda job: True,
) -> None:
    """Run a job again and again; each time its victim dies before another of its operations on files.

    What is done when the job has ended counts as well, until ``is_over``.
    """
    order = protocol.order(stage)
    counted = restarted(stage, victim, 0)
    at_start = len(operations(counted))
    stage.run(order)
    wait_until(lambda: is_over(order.job), "what comes after the job")
    done = operations(counted)
    expected = protocol.outcome(stage, order.job)
    # Files that are only opened are in folders that do not count yet; what comes after decides.
    points = [n for n, line in enumerate(done, 1) if n > at_start and not line.startswith("open ")]
    assert points
    deaths = 0
    for number in points[:: -(-len(points) // most)]:
        with tally.checking(protocol.proved, protocol.name) as noted:
            again = protocol.order(stage)
            restarted(stage, victim, number)
            job, end = stage.begin(again)
            dead, before = False, []
            while not dead and not (end.done() and is_over(job)):  # there may be fewer operations than before
                dead = stage.running.has_died(victim)
                time.sleep(0.002)
            if dead:
                noted["kill -9 between operations on files"] += 1
                deaths += 1
                before = stage.recorded(victim, job)
                stage.running.restart(victim)
            else:  # its turn may still come, in the middle of the next order
                restarted(stage, victim, 0)
            assert end.result().state == "done"
            wait_until(partial(is_over, job), "what comes after the job")
            assert protocol.outcome(stage, job) == expected, done[number - 1]
            stage.check_journals(job)
            assert stage.recorded(victim, job)[: len(before)] == before
            # What is told after the job's end, to erase a former model, may be under way.
            wait_until(lambda: not left_over(stage, victim), f"nothing half done after {done[number - 1]!r}")
    assert deaths


def operations(counted: Path) -> list[str]:
    return counted.read_text().splitlines()


def left_over(stage: FaultStage[Any], name: str) -> list[Path]:
    """What was begun and never became a file or folder of its own name: it would outlive what it is a copy of."""
    walk = os.walk(stage.running.world.root / name / "state")  # bears that folders go meanwhile
    return [Path(folder, path) for folder, names, files in walk for path in names + files if path.startswith(".")]


OVER_COLUMNS = {
    "align (private intersection)": ["bank"],
    "train": [COORDINATOR, "bank"],
    "train linear": [COORDINATOR, "bank"],
    "predict": [COORDINATOR, "bank"],
    "revoke, level 1": [COORDINATOR, "bank"],
    "train revocable": [COORDINATOR, "bank", "helper", "keys"],
    "revoke revocable, level 1": [COORDINATOR, "bank", "helper", "keys"],
    "revoke revocable, level 2": [COORDINATOR, "bank", "helper", "keys"],
    "train with shares": ["bank", "helper", "keys"],
    "revoke with shares, level 1": ["helper", "keys"],
    "revoke with shares, level 2": ["helper", "keys"],
}
"""Who writes or erases files, beside its journal."""

OVER_ROWS = {
    "horizontal rounds, collaborative": [COORDINATOR],
    "predict over rows": ["anna"],
    "revoke over rows, level 3": [COORDINATOR],
}


def cases(victims: dict[str, list[str]]) -> list[tuple[str, str]]:
    return [(name, victim) for name, some in victims.items() for victim in some]


@pytest.mark.parametrize(("name", "victim"), cases(OVER_COLUMNS))
def test_over_columns(columns: Columns, name: str, victim: str, tally: Tally) -> None:
    die_at_operations(columns, named(vertical_jobs.PROTOCOLS, name), victim, tally)


@pytest.mark.parametrize("victim", ["bank", "shop"])
def test_deaths_while_a_former_model_is_erased(columns: Columns, victim: str, tally: Tally) -> None:
    """One that stays and the leaver: both are told when the job has ended, and told again when they have died of it."""

    def is_erased(job: str) -> bool:
        former = columns.user.client.receipt(job).statement.model
        state = columns.running.world.root / victim / "state"
        return not any((state / kind / former).exists() for kind in ("models", "alignments"))

    protocol = named(vertical_jobs.PROTOCOLS, "revoke, level 1")
    die_at_operations(columns, protocol, victim, tally, most=min(4, MOST_POINTS), is_over=is_erased)


@pytest.mark.parametrize(("name", "victim"), cases(OVER_ROWS))
def test_over_rows(rows: Rows, name: str, victim: str, tally: Tally) -> None:
    die_at_operations(rows, named(row_jobs.PROTOCOLS, name), victim, tally)
