"""Evaluations over rows between organisations: every party rates its own rows, and the user reads sums."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hospitals import HOSPITALS, LABEL, RATED_POLICY, TABLE, hospitals, patients, rows_of
from sklearn import metrics
from world import World, running

import woodlot as wl
from wire_search import captured, disguised, floats, integers, opened, search, texts
from woodlot.connected.connected_rows import ConnectedRowFederation
from woodlot.data.ids import canonical_ids
from woodlot.data.row_rules import row_points
from woodlot.exceptions import DataError, JobFailed
from woodlot.jobs.lasting_secret import LastingSecret
from woodlot.metrics.resampling import Resampling

N = 200


def held(names: tuple[str, ...] = HOSPITALS) -> dict[str, pa.Table]:
    return {name: patients(k + 1, N) for k, name in enumerate(names)}


def made(root: Path, own: dict[str, dict[str, Any]] | None = None, **settings: Any) -> World:
    world = hospitals(root, held(), policy=RATED_POLICY, **settings)
    for party, lines in (own or {}).items():
        world.settings[party] = world.settings[party] | {"policy": RATED_POLICY | lines}
    return world


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    own = {"anna": {"own_evaluations": True}, "bern": {"own_evaluations": True}}
    with running(made(tmp_path_factory.mktemp("evaluate"), own)) as world:
        yield world


@pytest.fixture
def fed(world: World) -> Iterator[ConnectedRowFederation]:
    with rows_of(world) as user:
        yield user


def forest(**options: Any) -> wl.HorizontalForestClassifier:
    return wl.HorizontalForestClassifier(**({"n_estimators": 6, "max_depth": 4, "random_state": 0} | options))


def rows_at(world: World, part: ConnectedRowFederation) -> dict[str, pd.DataFrame]:
    """The rows of a part by party, as nobody but a test can have them."""
    found = {}
    for party in part.parties:
        table = pq.read_table(world.root / party / f"{TABLE}.parquet").to_pandas()
        key = LastingSecret(world.root / party / "state", "party", "").of("rows", "points")
        ids = canonical_ids(pa.array(table["id"].to_numpy())).values
        chosen = np.ones(len(table), bool)
        for rule in part._rules:
            chosen &= rule.chosen(row_points(ids, rule.seed, key))
        found[party] = table[chosen]
    return found


def test_a_report_has_scikit_learns_numbers_on_the_pooled_rows(world: World, fed: ConnectedRowFederation) -> None:
    train, test = fed.split(0.4, seed=2)
    model = forest().fit(train, y=LABEL)
    report = model.evaluate(test)
    own = rows_at(world, test)
    pooled = pd.concat(own.values())
    fitted = rows_at(world, train)
    for party in HOSPITALS:
        assert not set(own[party]["id"]) & set(fitted[party]["id"])
        assert len(own[party]) + len(fitted[party]) == N
    assert model.forest_.coordinator.n_rows == sum(map(len, fitted.values()))
    y, p = pooled[LABEL].to_numpy(), model.predict_proba(pooled[["age", "dose", "ward"]])
    said = model.classes_[p.argmax(axis=1)]
    expected = {
        "accuracy": metrics.accuracy_score(y, said),
        "balanced_accuracy": metrics.balanced_accuracy_score(y, said),
        "log_loss": metrics.log_loss(y, p),
        "brier": metrics.brier_score_loss(y == "yes", p[:, 1]),
        "f1": metrics.f1_score(y, said, pos_label="yes"),
    }
    for name, value in expected.items():
        assert report[name] == pytest.approx(value, abs=1e-12), name
    ranked = {
        "roc_auc": metrics.roc_auc_score(y == "yes", p[:, 1]),
        "average_precision": metrics.average_precision_score(y == "yes", p[:, 1]),
    }
    for name, value in ranked.items():
        assert abs(report[name] - value) <= report.errors[name] + 1e-12, name
    assert 0 < report.errors["roc_auc"] < 0.25
    assert "bins, error at most" in repr(report)
    np.testing.assert_array_equal(report.confusion, metrics.confusion_matrix(y, said, labels=model.classes_))
    assert report.n_rows == len(pooled)
    assert report.training_rows == ""
    assert set(report.intervals) == set(report.metrics)
    # figures of one party where its policy opens them, exact and sealed to the user
    assert report.by_client.withheld == ("chur",)
    for party in ("anna", "bern"):
        table = own[party]
        alone = model.evaluate(table[["age", "dose", "ward"]], table[LABEL], n_bootstrap=0)
        assert report.by_client[party] == pytest.approx(alone.metrics, abs=1e-12, nan_ok=True)
    with pytest.raises(DataError, match="chur tells no figures of its own; its operator can set own_evaluations"):
        report.by_client["chur"]
    assert "tells no figures of its own" in repr(report)
    assert json.loads(json.dumps(report.to_dict()))["withheld"] == ["chur"]


def test_rows_of_the_training_are_counted_by_the_parties(fed: ConnectedRowFederation) -> None:
    train, _ = fed.split(0.4, seed=2)
    model = forest(n_estimators=2).fit(train, y=LABEL)
    with pytest.warns(wl.TrainingRowsWarning, match="all rows were in the training"):
        first = model.evaluate(train, n_bootstrap=0)
    assert "all rows were in the training" in repr(first)
    with pytest.warns(wl.TrainingRowsWarning, match=rf"{first.n_rows} of 600 rows were in the training"):
        model.evaluate(fed, n_bootstrap=0)


def test_the_out_of_bag_score_is_that_of_one_process(world: World, fed: ConnectedRowFederation) -> None:
    tables = {p: pq.read_table(world.root / p / f"{TABLE}.parquet").to_pandas() for p in HOSPITALS}
    here = wl.Federation.local(tables, id="id", layout="rows")
    there = forest(oob_score=True).fit(fed, y=LABEL)
    assert there.oob_score_ == forest(oob_score=True).fit(here, y=LABEL).oob_score_
    assert fed.client.model(there.forest_.model).facts.oob_score == there.oob_score_


@pytest.mark.slow
def test_regression(tmp_path: Path) -> None:
    tables = {
        name: table.append_column("cost", pa.array(table["age"].to_numpy() * 20.5)) for name, table in held().items()
    }
    with running(hospitals(tmp_path, tables, "cost", policy=RATED_POLICY)) as world, rows_of(world) as fed:
        train, test = fed.split(0.3)
        model = wl.HorizontalForestRegressor(4, max_depth=4, random_state=0).fit(train, y="cost")
        report = model.evaluate(test)
        pooled = pd.concat(rows_at(world, test).values())
    pair = pooled["cost"].to_numpy(), model.predict(pooled[["age", "dose", "ward", LABEL]])
    assert report["r2"] == pytest.approx(metrics.r2_score(*pair), abs=1e-12)
    assert report["rmse"] == pytest.approx(metrics.root_mean_squared_error(*pair), rel=1e-12)
    assert report["mae"] == pytest.approx(metrics.mean_absolute_error(*pair), rel=1e-12)
    assert set(report.intervals) == {"r2", "rmse", "mae", "mean_error"}
    assert "needs the rows of all clients" in repr(report)


@pytest.mark.slow
def test_cross_validation_and_search(world: World, fed: ConnectedRowFederation) -> None:
    found = wl.cross_validate(
        forest(), fed, y=LABEL, cv=2, scoring=("accuracy", "neg_log_loss", "roc_auc"), return_estimator=True
    )
    total = 0
    for k, fitted in enumerate(found["estimator"]):
        rows = pd.concat(rows_at(world, fed.folds(2)[k][1]).values())
        p = fitted.predict_proba(rows[["age", "dose", "ward"]])
        assert found["test_neg_log_loss"][k] == pytest.approx(-metrics.log_loss(rows[LABEL], p), abs=1e-12)
        assert fitted.forest_.coordinator.n_rows == 3 * N - len(rows)
        total += len(rows)
    assert total == 3 * N
    best = wl.search(forest(n_estimators=3), {"max_depth": [1, 3]}, fed, y=LABEL, cv=2, scoring="accuracy")
    assert best.best_estimator_.forest_.coordinator.n_rows == 3 * N


def test_each_party_divides_the_rows_of_each_class(world: World, fed: ConnectedRowFederation) -> None:
    train, test = fed.split(0.25, seed=3, stratify=LABEL)
    model = forest(n_estimators=2).fit(train, y=LABEL)
    report = model.evaluate(test, n_bootstrap=0)
    rows = [pq.read_table(world.root / party / f"{TABLE}.parquet")[LABEL].to_pandas() for party in HOSPITALS]
    for k, label in enumerate(("no", "yes")):
        expected = sum((own == label).sum() / 4 for own in rows)
        assert abs(report.confusion[k].sum() - expected) < 2 * len(HOSPITALS)  # whatever the parties' keys are
    assert model.forest_.coordinator.n_rows + report.n_rows == 3 * N
    assert report.training_rows == ""
    with pytest.raises(DataError, match=f"divided by the classes of '{LABEL}'; use it as y"):
        forest(n_estimators=2).fit(train, y="ward")
    with pytest.raises(DataError, match="stratify names the labels' column"):
        fed.split(0.25, stratify=np.zeros(3 * N))


@pytest.mark.slow
def test_stratified_folds_are_a_partition(fed: ConnectedRowFederation) -> None:
    found = wl.cross_validate(
        forest(n_estimators=2), fed, y=LABEL, cv=2, stratify=True, scoring="accuracy", return_estimator=True
    )
    grown = [fitted.forest_.coordinator.n_rows for fitted in found["estimator"]]
    assert sum(grown) == 3 * N
    assert max(grown) - min(grown) <= 4 * len(HOSPITALS)


def test_what_cannot_be_evaluated_is_named(world: World, fed: ConnectedRowFederation) -> None:
    train, test = fed.split(0.4)
    model = forest(n_estimators=2).fit(train, y=LABEL)
    with pytest.raises(JobFailed, match="the setting labels of that table"):
        model.evaluate(test, "dose")
    with pytest.raises(DataError, match="y names the labels"):
        model.evaluate(test, np.zeros(3))
    with pytest.raises(DataError, match="sealed=True is for forests over columns"):
        model.evaluate(test, sealed=True)
    few = fed.split(1e-6 + 1e-9)[1].split(1e-6, seed=1)[1]
    with pytest.raises(JobFailed, match="none of its rows is in the part that the order is for; take another seed"):
        model.evaluate(few)
    with rows_of(world, parties=("anna", "bern")) as two, pytest.raises(DataError, match="three parties or more"):
        model.evaluate(two)
    with rows_of(world, parties=("anna", "bern")) as two, pytest.raises(JobFailed, match="allow_two = true"):
        two.run(two.evaluate_rows_order(model.forest_.model, LABEL, Resampling(0), allow_two=True)[0])
    with pytest.raises(DataError, match="on a federation y names the labels' column"):
        forest().fit(fed, y=np.zeros(3))
    with pytest.raises(DataError, match="tables must name one table"):
        rows_of(world, tables={"anna": TABLE, "nobody": TABLE}, parties=("anna", "bern"))


def test_a_revocation_is_of_the_rows_of_the_training(world: World, fed: ConnectedRowFederation) -> None:
    train, _ = fed.split(0.4, seed=2)
    grown = wl.LocalForestsClassifier(3, random_state=0).fit(train, y=LABEL)
    facts = fed.client.model(grown.forest_.model).facts
    with pytest.raises(DataError, match="trained on a part of the rows"):
        fed.run(fed.revoke_rows_order(facts, grown.make_plan(), LABEL, "chur", 3))
    grown.revoke("chur", level=3)
    own = rows_at(world, train)
    assert grown.forest_.coordinator.n_rows == len(own["anna"]) + len(own["bern"])


# --- what parties' policies say ---


@pytest.mark.slow
def test_policies_of_all_parties_hold_and_refusals_spend_nothing(tmp_path: Path) -> None:
    strict = {"min_evaluation_rows": 40, "evaluations_per_day": 1, "round_counts": 10}
    with running(made(tmp_path, {"bern": strict})) as world, rows_of(world) as fed:
        train, test = fed.split(0.5)
        model = forest(n_estimators=2).fit(train, y=LABEL)
        small = fed.split(0.05, seed=1)[1]
        with pytest.raises(JobFailed, match=r"'bern'.* must be of 40 rows or more"):
            model.evaluate(small, n_bootstrap=0)
        report = model.evaluate(test)  # the refusal was not counted
        assert report.round_counts == 10
        assert "rounded to multiples of 10" in repr(report)
        assert report.by_client.withheld == HOSPITALS
        with pytest.raises(JobFailed, match="evaluated with 1 times per day"):
            model.evaluate(test)
        with rows_of(world, parties=HOSPITALS) as again, pytest.raises(JobFailed, match="1 times per day"):
            model.evaluate(again.split(0.5, seed=9)[1])


@pytest.mark.slow
def test_reports_do_not_differ_in_a_few_rows(tmp_path: Path) -> None:
    """Each party knows its own rows again: the difference of two sums would be a sum over the few."""
    with running(made(tmp_path, {"chur": {"min_evaluation_rows": 60}})) as world, rows_of(world) as fed:
        train, _ = fed.split(0.4, seed=2)
        model = forest(n_estimators=2).fit(train, y=LABEL)
        with pytest.warns(wl.TrainingRowsWarning):
            whole = model.evaluate(fed, n_bootstrap=0)
        # all but some 20 of the 200 rows of chur: none or 60 are left out less than once in 10**9 draws of its key
        nearly, _ = fed.split(0.1, seed=0)
        with pytest.warns(wl.TrainingRowsWarning):
            report = model.evaluate(nearly, n_bootstrap=0)
        assert whole.n_rows - report.n_rows >= 60
        with pytest.warns(wl.TrainingRowsWarning):
            again = model.evaluate(fed, n_bootstrap=0)
        assert again.metrics == whole.metrics, "the same rows tell nothing more"


def test_a_party_that_requires_privacy_or_does_not_list_it_refuses(tmp_path: Path) -> None:
    world = made(tmp_path, {"chur": {"protocols": ["train-rows", "predict-rows"]}})
    with running(world), rows_of(world) as fed:
        model = forest(n_estimators=2).fit(fed, y=LABEL)
        with pytest.raises(JobFailed, match="does not evaluate: the setting protocols"):
            model.evaluate(fed)
    world.settings["chur"] = world.settings["anna"] | {"privacy": {"required": "labels"}}
    with running(world), rows_of(world) as fed, pytest.raises(JobFailed, match="differentially private jobs only"):
        model.evaluate(fed)


# --- the wire ---


@pytest.mark.slow
def test_no_label_answer_or_value_travels(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    names = ["id", "age", "dose", "ward", "final diagnosis"]
    tables = {
        p: table.set_column(0, "id", pa.array(rng.integers(10**8, 10**9, N))).rename_columns(names)
        for p, table in held().items()
    }
    world = hospitals(tmp_path, tables, names[-1], policy=RATED_POLICY | {"own_evaluations": True})
    with captured() as messages, running(world), rows_of(world) as fed:
        train, test = fed.split(0.5)
        model = forest().fit(train, y=names[-1])
        before = len(messages)
        report = model.evaluate(test)
        facts = fed.client.jobs()
    answers = [model.predict_proba(t.select(names[1:4]).to_pandas())[:, 1] for t in tables.values()]
    leaves = set(model.forest_.coordinator.leaves.value.tolist())  # which the model tells
    rates = {name: value for name, value in report.metrics.items() if name != "f1"}
    secrets = {
        "values": list(floats(np.concatenate([t[c].to_numpy() for t in tables.values() for c in ("age", "dose")]))),
        "answers": list(floats(np.array(sorted(set(np.concatenate(answers).tolist()) - leaves)))),
        "metrics": list(floats(np.array(sorted({v for v in rates.values() if 0 < v < 1} - leaves)))),
        "ids": list(disguised(integers(np.concatenate([t["id"].to_numpy() for t in tables.values()]).tolist()))),
        "names of tables": list(disguised(texts([TABLE]))),
        "names of labels": list(disguised(texts(names[-1:]))),
    }
    items = [item for data in messages[before:] for item in opened(data)]
    kinds = {name for name, _ in items}
    assert {"AnswerOwnRows", "OwnRowsAnswered", "CountScores", "RateOwnRows", "MaskedVector"} <= kinds
    assert "RowsPredicted" not in kinds
    assert search(secrets, items, short_hits=3) == {}
    # the coordinator keeps sums under pads: none of them is a count of rows
    (told,) = [json.loads(one.told) for one in facts if one.kind == "evaluate-rows"]
    counts = np.array(told["sums"])
    assert np.median(counts) > 2**32
    assert report.n_rows not in counts
