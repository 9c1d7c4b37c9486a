"""Kill -9 of the coordinator or of a party in the middle of a job: it is done without help, and the model is the same.

See `kill_stage` for how. Most of these are for ``make test-faults``.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from kill_stage import Stage, kill_at_random, kill_everywhere, kill_through
from processes import processes, small_tables
from shared import Shared
from small_jobs import EVERYBODY, PARTIES, model_of, train_order, user_of
from world import World

from woodlot.connected import ConnectedFederation
from woodlot.jobs.orders import Order

Columns = Stage[ConnectedFederation]


@contextmanager
def stage_in(root: Path) -> Iterator[Columns]:
    world = World(root, small_tables())
    for own in world.settings.values():
        own["policy"]["protocols"] = ["align", "train", "predict", "train-linear"]
    with ThreadPoolExecutor(1) as pool, processes(world) as running:
        running.wait_connected()
        with user_of(world) as user:
            yield Stage(running, user, pool, train_order, lambda job: model_of(world.root, job))


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared[Columns]]:
    with Shared(lambda: stage_in(tmp_path_factory.mktemp("kill"))) as shared:
        yield shared


@pytest.fixture
def stage(stages: Shared[Columns], request: pytest.FixtureRequest) -> Iterator[Columns]:
    yield from stages.lend(request)


@pytest.mark.faults
@pytest.mark.parametrize("victim", EVERYBODY)
def test_a_death_at_any_round_of_a_training_changes_nothing(stage: Columns, victim: str) -> None:
    total = stage.replies(victim, stage.undisturbed)
    assert total > 12
    for job in kill_everywhere(stage, stage.train_order, victim, total):
        assert model_of(stage.running.world.root, job) == stage.expected


@pytest.mark.slow
def test_deaths_at_any_instant_change_nothing(stage: Columns) -> None:
    """At no particular moment, so also in the middle of a round's work; sometimes two or all at the same time."""
    for job in kill_at_random(stage, 3, seed=5):
        assert model_of(stage.running.world.root, job) == stage.expected


@pytest.mark.faults
def test_a_death_at_any_round_of_a_private_intersection_changes_nothing(stage: Columns) -> None:
    with user_of(stage.running.world, align="psi") as user:
        job, facts = stage.run(user.align_order())
        kept = rows_kept(stage, job)
        for victim in PARTIES:
            for again in kill_everywhere(stage, user.align_order, victim, stage.replies(victim, job)):
                assert rows_kept(stage, again) == kept
                assert user.client.job(again).common == facts.common


def rows_kept(stage: Columns, job: str) -> dict[str, bytes]:
    root = stage.running.world.root
    return {p: (root / p / "state" / "alignments" / job / "rows.npy").read_bytes() for p in PARTIES}


@pytest.mark.faults
@pytest.mark.parametrize("victim", EVERYBODY)
def test_a_death_at_any_round_of_a_prediction_changes_nothing(stage: Columns, victim: str) -> None:
    def order() -> Order:
        return stage.user.predict_order(stage.undisturbed, "bank.late", deliver_to="bank")

    root = stage.running.world.root
    job, facts = stage.run(order())
    expected = pq.read_table(root / "bank" / "state" / "answers" / f"{job}.parquet")
    answers = stage.user.client.predictions(job).outputs
    for again in kill_everywhere(stage, order, victim, stage.replies(victim, job)):
        assert pq.read_table(root / "bank" / "state" / "answers" / f"{again}.parquet").equals(expected)
        assert (stage.user.client.predictions(again).outputs == answers).all()
        assert stage.user.client.job(again).score == facts.score
        for party in PARTIES:  # however often it was asked, a row counts once
            assert rows_spent(stage, party, again) == rows_spent(stage, party, job) == len(answers)


@pytest.mark.faults
def test_a_death_in_the_middle_of_a_sealed_prediction_changes_nothing(stage: Columns) -> None:
    """Masks and random numbers come back with the party: else the sums would not be 0 at the true leaves."""

    def order() -> Order:
        return stage.user.predict_order(stage.undisturbed, how="sealed")

    job, _ = stage.run(order())
    total = stage.replies("shop", job)
    again = order()
    assert kill_through(stage, again, "shop", set(range(total - 4, total)))
    answers, expected = stage.user.client.predictions(again.job), stage.user.client.predictions(job)
    assert (answers.outputs == expected.outputs).all()
    plain, _ = stage.run(stage.user.predict_order(stage.undisturbed))
    assert (answers.outputs == stage.user.client.predictions(plain).outputs).all()


def rows_spent(stage: Columns, party: str, job: str) -> int:
    path = stage.running.world.root / party / "state" / "predictions.sqlite"
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        (rows,) = db.execute("SELECT sum(rows) FROM spent WHERE job = ?", (job,)).fetchone()
    return int(rows)
