"""Scores and counts of a party that requires differential privacy, between real processes: refused, or noise."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hospitals import HOSPITALS, LABEL, TABLE, charges_of, extra_trees, hospitals, rows_of, uses_of
from party_bench import ROWS, clinics, named, play, rows_order
from processes import Processes, processes
from world import World

import woodlot as wl
from woodlot.connected.connected_rows import ConnectedRowFederation
from woodlot.exceptions import PolicyError
from woodlot.jobs.job_messages import JobOpened
from woodlot.jobs.orders import Part
from woodlot.jobs.party_job import PartyJob
from woodlot.jobs.row_job_messages import PredictRows, RowsPredicted
from woodlot.jobs.rows.rows_orders import PredictRowsOrder
from woodlot.privacy.accounting import total_epsilon
from woodlot.privacy.budget import BudgetRecord
from woodlot.protocols.rows.local_forests import LocalPlan
from woodlot.runtime import codec
from woodlot.runtime.journal import Journal
from woodlot.runtime.sessions import Sessions
from woodlot.service.client import JobFailed

BUDGET = 2.0


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """Bern requires differential privacy and has a budget; the others do not."""
    world = hospitals(tmp_path_factory.mktemp("scores"))
    world.settings["bern"]["privacy"] = {"epsilon": BUDGET, "required": True}
    for own in world.settings.values():
        own["policy"] = own["policy"] | {"protocols": ["train-rows", "predict-rows", "align"]}
    with processes(world) as running:
        running.wait_connected()
        yield running


@pytest.fixture(scope="module")
def user(services: Processes) -> Iterator[ConnectedRowFederation]:
    with rows_of(services.world) as federation:
        yield federation


@pytest.fixture(scope="module")
def model(user: ConnectedRowFederation) -> str:
    """A private forest; its training costs Bern half of its budget."""
    return str(extra_trees(wl.GlobalDP(epsilon=BUDGET / 2)).fit(user, y=LABEL).forest_.model)


def flip(world: World, row: int) -> None:
    """Change one label of Bern's."""
    path = world.root / "bern" / f"{TABLE}.parquet"
    table = pq.read_table(path)
    labels = table[LABEL].to_pylist()
    labels[row] = "no" if labels[row] == "yes" else "yes"
    pq.write_table(table.set_column(table.column_names.index(LABEL), LABEL, pa.array(labels)), path)


def spent(world: World) -> float:
    charges = charges_of(world, "bern")
    assert {charge.unit for charge in charges} == {"rows"}
    return total_epsilon(charge.spend for charge in charges)


def refusal(user: ConnectedRowFederation, order: Any) -> str:
    with pytest.raises((JobFailed, PolicyError)) as caught:
        user.client.finish(user.client.submit(order).job)
    return str(caught.value).partition("has failed: ")[2]  # without the job's name


@pytest.mark.slow
def test_a_score_with_noise_is_charged_and_an_exact_one_is_refused(
    services: Processes, user: ConnectedRowFederation, model: str
) -> None:
    before = spent(services.world)
    done = user.predict_rows(model, LABEL, score_epsilon=0.5)
    assert done.score_epsilon == 0.5
    assert set(done.scores) == set(done.rows) == set(HOSPITALS)
    assert all(0 <= score <= 1 for score in done.scores.values())
    assert spent(services.world) == pytest.approx(before + 0.5)
    (charge,) = [charge for charge in charges_of(services.world, "bern") if charge.job == done.job]
    assert charge.mechanism == "integer Laplace noise on the numbers of right and wrong answers"
    told = refusal(user, user.predict_rows_order(model, LABEL))
    assert "bern" in told
    assert "this party tells no exact score" in told
    assert "required = true in the section [privacy]" in told
    assert "score_epsilon=1.0" in told


def test_with_the_budget_spent_a_flipped_label_changes_nothing_that_is_told(
    services: Processes, user: ConnectedRowFederation, model: str
) -> None:
    world = services.world
    left = BUDGET - spent(world)
    if left > 1e-6:
        extra_trees(wl.GlobalDP(epsilon=left, leaves_only=True)).fit(user, y=LABEL)
    assert spent(world) == pytest.approx(BUDGET)
    told = []
    for _ in range(2):
        told.append(
            [
                refusal(user, user.predict_rows_order(model, LABEL)),
                refusal(user, user.predict_rows_order(model, LABEL, 0.1)),
                refusal(user, user.train_rows_order(wl.HorizontalForestClassifier(2).make_plan(), LABEL, {})),
                refusal(user, user.train_rows_order(extra_trees().make_plan(), LABEL, {})),
                refusal(user, user.train_rows_order(extra_trees(wl.LocalDP(epsilon=0.1)).make_plan(), LABEL, {})),
                user.predict_rows(model).rows,
            ]
        )
        flip(world, 7)
    assert told[0] == told[1]
    exact, noisy, lossless, plain, labels_only, counts = told[0]
    assert "this party tells no exact score" in exact
    assert "of epsilon 2 for the rows of this data set 2 is spent" in noisy
    assert "differentially private trainings only" in lossless
    assert "differentially private trainings only" in plain
    assert "LocalDP protects labels only" in labels_only
    assert counts == {"anna": 60, "chur": 60}  # Bern does not tell how many rows it has
    assert spent(world) == pytest.approx(BUDGET)
    assert uses_of(world, "bern") == []
    assert services.log("bern").count("this party tells no exact score") >= 2  # refused at the party itself


def test_what_has_no_private_form_is_refused(services: Processes) -> None:
    world = services.world
    with wl.connect(world.address, world.root / "alice" / "identity", tables=TABLE, parties=("anna", "bern")) as user:
        ordered = user.align_order()
        told = refusal(user, ordered)
    assert "there is no such form of 'align'" in told


def test_the_noise_of_a_score_is_drawn_and_paid_once(tmp_path: Path) -> None:
    """Asked again, by the same request or another one, before and after a restart: the same answer, paid for once."""
    with clinics(tmp_path) as bench, Journal(tmp_path / "bank.sqlite", durable=False) as journal:
        trained = play(bench, rows_order(bench, LocalPlan(**ROWS)))
        fields = bench.fields_of({"bank": Part(table=TABLE, label=LABEL)})
        order = PredictRowsOrder(**fields, **named(bench, trained.job), score_epsilon=1.0)
        files = bench.coordinator.model_files(trained.job)[0]
        brought = {name: np.frombuffer(data, np.uint8) for name, data in files.items()}
        question = codec.encode(PredictRows(model=trained.job, files=brought))

        def start() -> Sessions:
            made = Sessions("bank", lambda job: PartyJob(home, job), journal=journal)
            home = replace(bench.homes["bank"], pending_charges=made.pending_charges, replays=made.replays)
            return made

        party = start()
        assert isinstance(codec.decode(party.answer(order.job, 1, codec.encode(bench.opening(order)))), JobOpened)
        first = party.answer(order.job, 2, question)
        told = codec.decode(first)
        assert isinstance(told, RowsPredicted)
        assert (told.n_rows, told.score) == (None, None)
        assert told.counts is not None
        assert party.answer(order.job, 2, question) == party.answer(order.job, 3, question) == first
        party = start()
        assert party.answer(order.job, 2, question) == party.answer(order.job, 4, question) == first
        charges = journal.job(order.job).consult(lambda db: BudgetRecord(db).charges("bank", TABLE))
        assert [(charge.unit, charge.spend.count) for charge in charges] == [("rows", 2)]
        assert total_epsilon(charge.spend for charge in charges) == pytest.approx(1.0)
        assert journal.job(order.job).consult(lambda db: BudgetRecord(db).uses("bank", TABLE)) == []


def test_a_score_with_noise_takes_any_label(tmp_path: Path) -> None:
    """A missing label makes its answer wrong; to refuse it would tell of its row."""
    with clinics(tmp_path) as bench:
        trained = play(bench, rows_order(bench, LocalPlan(**ROWS)))
        files = bench.coordinator.model_files(trained.job)[0]
        brought = {name: np.frombuffer(data, np.uint8) for name, data in files.items()}
        path = bench.world.root / "bank" / f"{TABLE}.parquet"
        table = pq.read_table(path)
        labels = [None, "unheard of", *table[LABEL].to_pylist()[2:]]
        pq.write_table(table.set_column(4, LABEL, pa.array(labels)), path)
        fields = bench.fields_of({"bank": Part(table=TABLE, label=LABEL)})
        order = PredictRowsOrder(**fields, **named(bench, trained.job), score_epsilon=50.0)
        job = bench.job("bank", order.job)
        job.handle(bench.opening(order))
        told = job.handle(PredictRows(model=trained.job, files=brought))
        assert isinstance(told, RowsPredicted)
        assert told.counts is not None
        assert told.counts.sum() == pytest.approx(table.num_rows, abs=2)
        assert told.counts[1] >= 1
