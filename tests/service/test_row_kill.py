"""Kill -9 of services while a forest grows over rows: it is done without help, the same bit for bit, and paid once."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hospitals import (
    HOSPITALS,
    LABEL,
    PLAN,
    RATED_POLICY,
    charges_of,
    extra_trees,
    hospitals,
    patients,
    private_forest,
    rows_of,
)
from kill_stage import Stage, kill_at_random, kill_everywhere, kill_through
from processes import processes
from shared import Shared
from small_jobs import COORDINATOR

import woodlot as wl
from woodlot.connected.connected_rows import ConnectedRowFederation, read_rows_report
from woodlot.dashboard.views import CoordinatorView
from woodlot.jobs.day_budgets import BUDGET_FILE
from woodlot.jobs.job_messages import ModelFacts
from woodlot.jobs.orders import Order
from woodlot.jobs.rows.rows_orders import EvaluateRowsOrder
from woodlot.metrics.resampling import Resampling
from woodlot.metrics.summaries import Summary
from woodlot.privacy.accounting import Spend
from woodlot.runtime.journal import Journal

Rows = Stage[ConnectedRowFederation]


def train_order(user: ConnectedRowFederation) -> Order:
    return user.train_rows_order(PLAN, LABEL, {})


def fingerprint(root: Path, job: str) -> str:
    facts = (root / COORDINATOR / "state" / "models" / job / "facts.json").read_bytes()
    return msgspec.json.decode(facts, type=ModelFacts).forest


@contextmanager
def stage_in(root: Path) -> Iterator[Rows]:
    world = hospitals(root, policy=RATED_POLICY)
    with ThreadPoolExecutor(1) as pool, processes(world) as running:
        running.wait_connected()
        with rows_of(world) as user:
            yield Stage(running, user, pool, train_order, lambda job: fingerprint(world.root, job))


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared[Rows]]:
    with Shared(lambda: stage_in(tmp_path_factory.mktemp("row-kill"))) as shared:
        yield shared


@pytest.fixture
def stage(stages: Shared[Rows], request: pytest.FixtureRequest) -> Iterator[Rows]:
    yield from stages.lend(request)


@pytest.mark.faults
@pytest.mark.parametrize(("victim", "step"), [(COORDINATOR, 6), ("bern", 1)])
def test_deaths_at_all_rounds_of_a_training_over_rows_change_nothing(stage: Rows, victim: str, step: int) -> None:
    total = stage.replies(victim, stage.undisturbed)
    assert total > 8
    for job in kill_everywhere(stage, stage.train_order, victim, total, step):
        assert stage.outcome_of(job) == stage.expected


@pytest.mark.slow
def test_deaths_at_any_instant_change_nothing(stage: Rows) -> None:
    for job in kill_at_random(stage, 2, seed=3):
        assert stage.outcome_of(job) == stage.expected


@pytest.mark.slow
def test_a_report_is_the_same_whoever_dies_and_counted_once(stage: Rows) -> None:
    """Between processes: every party is killed at some round of an evaluation, and the coordinator at another."""
    resampling, classes = Resampling(20), stage.user.client.model(stage.undisturbed).facts.classes

    def report(order: EvaluateRowsOrder, keys: dict[str, bytes]) -> Summary:
        return read_rows_report(stage.user.client.finish(order.job), keys, classes, resampling)

    first, keys = stage.user.evaluate_rows_order(stage.undisturbed, LABEL, resampling)
    stage.run(first)
    expected = report(first, keys)
    assert expected.n_rows == expected.seen == 180
    assert expected.metrics["accuracy"] is not None
    orders = [first.job]
    for victim, places in (("bern", {1, 3, 4, 5}), (COORDINATOR, {7, 12})):
        again, keys = stage.user.evaluate_rows_order(stage.undisturbed, LABEL, resampling)
        assert kill_through(stage, again, victim, places)
        assert report(again, keys) == expected
        orders.append(again.job)
    with closing(sqlite3.connect(stage.running.world.root / "bern" / "state" / BUDGET_FILE)) as db:
        counted = db.execute("SELECT job, count(*) FROM evaluations GROUP BY job").fetchall()
    assert sorted(counted) == sorted((job, 1) for job in orders)


@pytest.mark.faults
@pytest.mark.parametrize(
    "model",
    [wl.HorizontalForestClassifier(3, max_depth=3, random_state=0), extra_trees(wl.LocalDP(epsilon=2.0))],
    ids=["lossless", "randomised labels"],
)
def test_other_methods_survive_deaths_too(stage: Rows, model: Any) -> None:
    plan = model.make_plan()

    def order() -> Order:
        return stage.user.train_rows_order(plan, LABEL, {})

    job, _ = stage.run(order())
    again = order()
    total = stage.replies("bern", job)
    assert len(kill_through(stage, again, "bern", {3, total // 2, total - 2})) > 1
    assert stage.outcome_of(again.job) == stage.outcome_of(job)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "sum_of_growth"),
    [
        (wl.HorizontalForestClassifier(3, max_depth=3, random_state=0, spare_after=0.2, quorum=3), "CountCells"),
        (private_forest(20.0, spare_after=0.2, quorum=3), "SumGradients"),
    ],
    ids=["lossless", "private"],
)
def test_a_hospital_that_is_away_for_good_does_not_stop_the_others(
    tmp_path: Path, model: Any, sum_of_growth: str
) -> None:
    names = (*HOSPITALS, "dora")
    world = hospitals(tmp_path, {name: patients(k + 1) for k, name in enumerate(names)})
    with ThreadPoolExecutor(1) as pool, processes(world) as running:
        running.wait_connected()
        with rows_of(world) as user:
            undisturbed = user.run(user.train_rows_order(model.make_plan(), LABEL, {})).job
            with closing(Journal.read(running.journal("dora"))) as journal:
                asked = [r.kind for r in journal.job(undisturbed).records() if r.receiver == "dora"]
            place = asked.index(sum_of_growth) + 1
            order = user.train_rows_order(model.make_plan(), LABEL, {})
            with running.halt("dora", order.job, {place}) as halt:
                end = pool.submit(lambda: user.client.finish(user.client.submit(order).job))
                assert halt.wait() == place
                running.kill("dora")
            assert end.result().state == "done"
        view = CoordinatorView(world.coordinator_config())
        forest, facts = view.store.forest(order.job).coordinator, view.store.model_facts(order.job)
        view.store.close()
    assert forest.left == ("dora",)
    assert facts.dropped_out == forest.left_at
    assert 0 <= forest.left_at["dora"] < 3
    assert forest.structure.n_nodes > 3


@pytest.mark.slow
def test_noise_is_drawn_and_paid_once_whoever_dies(stage: Rows) -> None:
    """The noise is new in every job, so what stays the same is what each party has paid for one."""
    plan = extra_trees(wl.GlobalDP(epsilon=50.0)).make_plan()

    def order() -> Order:
        return stage.user.train_rows_order(plan, LABEL, {})

    def paid(party: str, job: str) -> list[tuple[str, Spend]]:
        return [(c.mechanism, c.spend) for c in charges_of(stage.running.world, party) if c.job == job]

    job, _ = stage.run(order())
    assert len(paid("bern", job)) > 2
    for again in kill_everywhere(stage, order, "bern", stage.replies("bern", job)):
        for party in stage.parties:
            assert [terms for terms, _ in paid(party, again)] == [terms for terms, _ in paid(party, job)]
            assert sum(s.epsilon * s.count for _, s in paid(party, again)) <= 50.0 * (1 + 1e-9)


@pytest.mark.slow
def test_a_private_forest_is_paid_once_and_its_noise_stays_whoever_dies(stage: Rows) -> None:
    """A hospital that is started again must repeat its noise, or the sums that it has answered would not add up."""
    plan = private_forest(20.0).make_plan()

    def order() -> Order:
        return stage.user.train_rows_order(plan, LABEL, {})

    job, _ = stage.run(order())
    total = stage.replies("bern", job)
    again = order()
    assert len(kill_through(stage, again, "bern", {total // 2, total - 2})) > 1
    for party in stage.parties:
        for one in (job, again.job):
            paid = [charge.spend for charge in charges_of(stage.running.world, party) if charge.job == one]
            assert paid == [Spend(20.0, 1, 1e-6)]
