"""Kill -9 of the coordinator or of a party in the middle of a job: it is done without help, and the model is the same.

See `kill_stage` for how. Most of these are for ``make test-faults``.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from kill_stage import Stage, kill_at_random, kill_everywhere, kill_through
from processes import processes, small_tables
from shared import Shared
from small_jobs import EVERYBODY, PARTIES, PLAN, model_of, train_order, user_of
from world import World

from woodlot.connected import ConnectedFederation
from woodlot.federation import Labels
from woodlot.jobs.orders import Order
from woodlot.protocols.linear.linear_model import LinearPlan

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


@pytest.mark.faults
@pytest.mark.parametrize("victim", PARTIES)
def test_a_death_while_labels_are_encrypted_changes_nothing(stage: Columns, victim: str) -> None:
    """The label holder or the other party is away in the middle: the key and all noise come back with it."""
    plan = replace(PLAN, labels="encrypted", max_bins=32, key_bits=2048)
    shared, _ = stage.run(train_order(stage.user, replace(PLAN, max_bins=32)))
    order = train_order(stage.user, plan)
    assert kill_through(stage, order, victim, {10, 13, 16})
    assert model_of(stage.running.world.root, order.job) == model_of(stage.running.world.root, shared)


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


@pytest.mark.faults
@pytest.mark.parametrize("victim", PARTIES)
def test_a_death_while_residuals_are_encrypted_changes_nothing(stage: Columns, victim: str) -> None:
    plan = LinearPlan(
        task="classes", strength=1.0, fit_intercept=True, standardize=True, balanced=False, class_weight=(), max_iter=1,
        tol=1e-3, residuals="encrypted", key_bits=2048,
    )  # fmt: skip

    def order() -> Order:
        return stage.user.train_linear_order(plan, Labels("bank", "late", None), {})

    job, _ = stage.run(order())
    total, again = stage.replies(victim, job), order()
    assert kill_through(stage, again, victim, set(range(total - 6, total, 3)))
    root = stage.running.world.root
    assert model_of(root, again.job) == model_of(root, job)


def rows_spent(stage: Columns, party: str, job: str) -> int:
    path = stage.running.world.root / party / "state" / "predictions.sqlite"
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        (rows,) = db.execute("SELECT sum(rows) FROM spent WHERE job = ?", (job,)).fetchone()
    return int(rows)
