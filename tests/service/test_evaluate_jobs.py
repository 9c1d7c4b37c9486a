"""Evaluations between organisations: hold-outs and folds on one alignment, rated where the labels are."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from processes import FIRST_ID
from sklearn import metrics
from small_jobs import user_of
from world import POLICY, World, running

import woodlot as wl
from woodlot.connected import ConnectedFederation
from woodlot.dashboard.views import CoordinatorView
from woodlot.data.ids import canonical_ids
from woodlot.data.row_rules import RowRule, row_points
from woodlot.exceptions import DataError, JobFailed
from woodlot.jobs.party_store import read_alignment
from woodlot.privacy.budget import BudgetRecord, Charge, Use
from woodlot.runtime.journal import Journal

N = 160
LIMITS = {"min_evaluation_rows": 1, "evaluations_per_day": "unlimited", "round_counts": 1}
KINDS = ["align", "train", "predict", "train-linear", "predict-linear", "revoke", "evaluate"]


def company_tables() -> dict[str, dict[str, pa.Table]]:
    rng = np.random.default_rng(11)
    ids, x = np.arange(N) + FIRST_ID, rng.normal(size=(N, 5)).round(3)
    late = np.where(x[:, 0] + x[:, 3] + 0.5 * rng.normal(size=N) > 0, "yes", "no")
    amount = x[:, 1] - 2 * x[:, 4] + 0.1 * rng.normal(size=N)
    mine, theirs = rng.permutation(N), rng.permutation(N)[: N - 5]
    bank = {"id": ids[mine], "age": x[mine, 0], "income": x[mine, 1], "late": late[mine], "amount": amount[mine]}
    shop = {"id": ids[theirs], "visits": x[theirs, 3], "basket": x[theirs, 4]}
    return {"bank": {"customers": pa.table(bank)}, "shop": {"customers": pa.table(shop)}}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("evaluate"), company_tables(), labels=("late", "amount"))
    for own in made.settings.values():
        own["policy"] = POLICY | LIMITS | {"protocols": KINDS}
    with running(made):
        yield made


@pytest.fixture(params=["holder", pytest.param("coordinator", marks=pytest.mark.slow)])
def fed(world: World, request: pytest.FixtureRequest) -> Iterator[ConnectedFederation]:
    with user_of(world, lead=request.param) as user:
        yield user


def joined(world: World, fed: ConnectedFederation) -> pd.DataFrame:
    """The parties' rows in the order of the alignment, as nobody but a test can have them."""
    tables = {party: held["customers"].to_pandas() for party, held in company_tables().items()}
    assert fed._alignment is not None
    found = {}
    for party, table in tables.items():
        facts, rows = read_alignment(world.root / party / "state", fed._alignment.job)
        found[party] = table.iloc[rows].set_index("id")
        key = bytes.fromhex(facts.row_key)
    whole = found["bank"].join(found["shop"])
    whole["point"] = row_points(canonical_ids(pa.array(whole.index.to_numpy())).values, 0, key)
    return whole


def of_part(table: pd.DataFrame, part: ConnectedFederation) -> pd.DataFrame:
    for rule in part._rules:
        assert isinstance(rule, RowRule)
        assert rule.seed == 0
        table = table[rule.chosen(table.point.to_numpy())]
    return table


def test_a_report_has_scikit_learns_numbers_for_the_rows_that_were_held_out(
    world: World, fed: ConnectedFederation
) -> None:
    train, test = fed.split(0.3)
    model = wl.FederatedForestClassifier(8, random_state=0, max_depth=4).fit(train, y="bank.late")
    report = model.evaluate(test)
    table = of_part(joined(world, fed), test)
    probabilities = model.predict_proba(test)
    y, p = (table.late == "yes").to_numpy(), probabilities[:, 1]
    assert 10 < report.n_rows == len(table) == len(p) < 95  # by a key that is drawn: 46 on average
    expected = {
        "accuracy": metrics.accuracy_score(y, p > 0.5),
        "balanced_accuracy": metrics.balanced_accuracy_score(y, p > 0.5),
        "roc_auc": metrics.roc_auc_score(y, p),
        "average_precision": metrics.average_precision_score(y, p),
        "log_loss": metrics.log_loss(y, p),
        "brier": metrics.brier_score_loss(y, p),
        "f1": metrics.f1_score(y, p > 0.5),
    }
    for name, value in expected.items():
        assert report[name] == pytest.approx(value, abs=1e-12), name
    assert report.training_rows == ""
    low, high = report.intervals["roc_auc"]
    assert low <= report["roc_auc"] <= high
    np.testing.assert_array_equal(report.confusion, metrics.confusion_matrix(y, p > 0.5))
    assert model.forest_.coordinator.n_rows == len(of_part(joined(world, fed), train)) == 155 - report.n_rows
    json.dumps(report.to_dict())


@pytest.mark.parametrize(
    ("model", "label"),
    [
        (wl.FederatedForestRegressor(6, random_state=0), "bank.amount"),
        (wl.FederatedLinearRegression(tol=1e-3), "bank.amount"),
        (wl.FederatedLogisticRegression(tol=1e-3), "bank.late"),
    ],
    ids=["forest of numbers", "linear", "logistic"],
)
def test_other_models_are_evaluated_too(world: World, fed: ConnectedFederation, model: Any, label: str) -> None:
    train, test = fed.split(0.3)
    model.fit(train, y=label)
    report = model.evaluate(test, n_bootstrap=0)
    table = of_part(joined(world, fed), test)
    if label == "bank.late":
        y, p = (table.late == "yes").to_numpy(), model.predict_proba(test)[:, 1]
        expected = {"roc_auc": metrics.roc_auc_score(y, p), "log_loss": metrics.log_loss(y, p)}
    else:
        pair = table.amount.to_numpy(), model.predict(test)
        expected = {
            "r2": metrics.r2_score(*pair),
            "mae": metrics.mean_absolute_error(*pair),
            "rmse": metrics.root_mean_squared_error(*pair),
        }
        near = np.abs(pair[0] - pair[1])  # of drawn rows: the mean of the 20 in the middle is among all
        assert near.min() <= report["median_absolute_error"] <= near.max()
    for name, value in expected.items():
        assert report[name] == pytest.approx(value, abs=1e-12), name


def test_a_report_on_rows_of_the_training_says_so(fed: ConnectedFederation) -> None:
    train, test = fed.split(0.3)
    model = wl.FederatedForestClassifier(3, random_state=0).fit(train, y="bank.late")
    with pytest.warns(wl.TrainingRowsWarning, match="all rows were in the training"):
        report = model.evaluate(train, n_bootstrap=0)
    assert "all rows were in the training" in repr(report)
    with pytest.warns(wl.TrainingRowsWarning, match=r"\d+ of 155 rows were in the training"):
        some = model.evaluate(fed, n_bootstrap=0)
    assert some.training_rows == f"{report.n_rows} of 155 rows"
    with pytest.warns(wl.TrainingRowsWarning, match="some of the rows"):
        model.score(fed)
    assert model.score(test) > 0.25  # of some 46 rows that a drawn key selects


def test_the_dashboard_knows_which_scores_are_of_rows_that_were_held_out(world: World) -> None:
    with user_of(world, lead="coordinator") as user:
        train, test = user.split(0.3)
        model = wl.FederatedForestClassifier(2, random_state=0).fit(train, y="bank.late").forest_.model
        jobs = [
            part.run(part.predict_order(model, "bank.late", give_answers=False)).job for part in (test, train, user)
        ]
    view = CoordinatorView(world.coordinator_config())
    with closing(view.store):
        assert [job.job for job in view.scored(model)] == jobs[::-1]
        assert [view.held_out(model, job) for job in jobs] == [True, False, False]


def test_a_sealed_prediction_gives_the_same_report(fed: ConnectedFederation) -> None:
    train, test = fed.split(0.3)
    model = wl.FederatedForestClassifier(3, random_state=0).fit(train, y="bank.late")
    reports = [model.evaluate(test, n_bootstrap=0, sealed=sealed).to_dict() for sealed in (False, True)]
    assert reports[0] == reports[1]


def test_rows_stay_on_their_sides_in_another_alignment(world: World) -> None:
    found = []
    for _ in range(2):
        with user_of(world, lead="holder") as user:
            found.append(of_part(joined(world, user.split(0.3, seed=0)[1]), user.split(0.3)[1]).index.tolist())
    assert sorted(found[0]) == sorted(found[1])


def test_what_cannot_be_evaluated_is_named(fed: ConnectedFederation) -> None:
    train, test = fed.split(0.3)
    model = wl.FederatedForestClassifier(2, random_state=0).fit(train, y="bank.late")
    with pytest.raises(DataError, match=r"must be written party\.column"):
        model.evaluate(test, "club.late")
    with pytest.raises(JobFailed, match="the setting labels of that table"):
        model.evaluate(test, "shop.visits")
    with pytest.raises(DataError, match="y names the labels"):
        model.evaluate(test, np.zeros(3))
    with pytest.raises(ValueError, match="test_size must be a share"):
        fed.split(1.5)
    few, _ = fed.split(1e-6 + 1e-9)[1].split(0.5, seed=1)
    with pytest.raises(JobFailed, match="none of the common rows is in the part that the order is for"):
        model.evaluate(few)


def test_what_needs_the_rows_here_says_what_to_use_instead(fed: ConnectedFederation) -> None:
    before = len(fed.client.jobs())
    asked: dict[str, Callable[[], Any]] = {
        r"fed\.n_rows asks them": lambda: len(fed),
        r"train, test = fed\.split\(0\.25\)": lambda: fed[np.arange(3)],
        r"fit\(fed, y='bank\.late'\)": lambda: fed["bank.late"],
        r"hold some out: fed\.split": lambda: list(fed),
        r"use wl\.cross_validate and wl\.search": lambda: np.asarray(fed),
    }
    for words, ask in asked.items():
        with pytest.raises(TypeError, match=words):
            ask()
    with pytest.raises(DataError, match="not divided by class between organisations"):
        fed.split(0.25, stratify="bank.late")
    assert fed  # a federation is there, however many rows it has
    assert len(fed.client.jobs()) == before


def test_columns_are_chosen_by_party(world: World, fed: ConnectedFederation) -> None:
    model = wl.FederatedForestClassifier(3, random_state=0)
    model.fit(fed, y="bank.late", features={"bank": ["age"], "shop": None}, exclude={"shop": ["basket"]})
    assert dict(zip(*np.unique(model.importance_owners_, return_counts=True), strict=True)) == {"bank": 1, "shop": 1}
    part = json.loads((world.root / "bank" / "state" / "models" / model.forest_.model / "part.json").read_text())
    assert part["names"] == ["age"]
    model.predict(fed)
    with pytest.raises(JobFailed, match="party 'shop': features names columns that it does not offer"):
        model.fit(fed, y="bank.late", features={"bank": None, "shop": ["shoe size"]})
    with pytest.raises(DataError, match="features does not name 'shop'"):
        model.fit(fed, y="bank.late", features={"bank": None})
    with pytest.raises(DataError, match="which has the labels"):
        model.fit(fed, y="bank.late", features={"bank": ["late"], "shop": None})
    with pytest.raises(DataError, match="leaves no column"):
        model.fit(fed, y="bank.late", features={"bank": [], "shop": []})


# --- what the label holder's policy says ---


@pytest.fixture
def strict(tmp_path: Path) -> Iterator[ConnectedFederation]:
    made = World(tmp_path, company_tables(), labels=("late",))
    for own in made.settings.values():
        own["policy"] = POLICY | LIMITS | {"protocols": KINDS}
    made.settings["bank"]["policy"] |= {"min_evaluation_rows": 30, "evaluations_per_day": 1, "round_counts": 10}
    with running(made), user_of(made, lead=None) as user:
        yield user


def test_the_policy_of_the_label_holder_holds(strict: ConnectedFederation) -> None:
    train, test = strict.split(0.4)
    model = wl.FederatedForestClassifier(2, random_state=0).fit(train, y="bank.late")
    with pytest.raises(JobFailed, match="must be of 30 rows or more"):
        model.evaluate(strict.split(0.1)[1])
    report = model.evaluate(test)
    assert report.round_counts == 10
    assert report.n_rows % 10 == 0
    assert (report.confusion % 10 == 0).all()
    assert round(report["accuracy"] * report.n_rows, 6) % 10 == 0
    assert "rounded to multiples of 10" in repr(report)
    with pytest.raises(JobFailed, match="evaluated with 1 times per day"):
        model.evaluate(test)


def recorded(world: World, party: str) -> tuple[list[Charge], list[Use]]:
    """What a party has paid for its table, and which jobs have learnt from it without paying."""
    with closing(Journal.read(world.root / party / "state" / "journal.sqlite")) as journal:
        return journal.consult(
            lambda db: (BudgetRecord(db).charges(party, "customers"), BudgetRecord(db).uses(party, "customers"))
        )


@pytest.mark.slow
@pytest.mark.parametrize("lead", ["holder", "coordinator"])
def test_a_party_that_requires_differential_privacy_refuses_and_nothing_is_spent(tmp_path: Path, lead: str) -> None:
    """There is no private form of a report; the label holder's one evaluation of the day is still there afterwards."""
    made = World(tmp_path, company_tables(), labels=("late", "amount"))
    for own in made.settings.values():
        own["policy"] = POLICY | LIMITS | {"protocols": KINDS, "evaluations_per_day": 1}
    with running(made), user_of(made, lead=lead) as user:
        train, test = user.split(0.3)
        forest = wl.FederatedForestClassifier(2, random_state=0).fit(train, y="bank.late")
        linear = wl.FederatedLinearRegression(tol=1e-2).fit(train, y="bank.amount")

        def restart(party: str, **privacy: Any) -> None:
            made.stop_party(party)
            made.settings[party].pop("privacy", None)
            made.settings[party] |= {"privacy": privacy} if privacy else {}
            made.start_party(party)
            made.wait_connected(party)

        for party in ("bank", "shop"):
            restart(party, epsilon=2.0, required=True)
            before = recorded(made, party)
            for model, kind in ((forest, "evaluate"), (linear, "evaluate-linear")):
                with pytest.raises(JobFailed, match=rf"{party}.*differentially private jobs only.*'{kind}'") as caught:
                    model.evaluate(test, n_bootstrap=0)
                assert "required = true in the section [privacy]" in str(caught.value)
            assert recorded(made, party) == before
            assert before[0] == []
            restart(party)
        for model in (forest, linear):
            assert model.evaluate(test, n_bootstrap=0).n_rows > 0
            with pytest.raises(JobFailed, match="evaluated with 1 times per day"):
                model.evaluate(test, n_bootstrap=0)


# --- cross-validation and search ---


def test_cross_validation_has_the_numbers_of_the_same_folds_on_the_joined_table(
    world: World, fed: ConnectedFederation
) -> None:
    model = wl.FederatedForestClassifier(6, random_state=3, max_depth=4)
    names = ("roc_auc", "log_loss", "neg_log_loss", "accuracy")
    found = wl.cross_validate(model, fed, y="bank.late", cv=3, scoring=names, return_estimator=True)
    assert fed._alignment is not None
    aligned = [facts for facts in fed.client.jobs() if facts.kind == "align"]
    table = joined(world, fed)
    total = 0
    for k, fitted in enumerate(found["estimator"]):
        _, held = fed.folds(3)[k]
        rows = of_part(table, held)
        y, p = (rows.late == "yes").to_numpy(), fitted.predict_proba(held)[:, 1]
        assert found["test_roc_auc"][k] == pytest.approx(metrics.roc_auc_score(y, p), abs=1e-12)
        assert found["test_log_loss"][k] == pytest.approx(metrics.log_loss(y, p), abs=1e-12)
        assert found["test_neg_log_loss"][k] == -found["test_log_loss"][k]
        assert found["test_accuracy"][k] == pytest.approx(metrics.accuracy_score(y, p > 0.5), abs=1e-12)
        assert fitted.forest_.coordinator.n_rows == len(table) - len(rows)
        total += len(rows)
    assert total == len(table) == 155
    assert [facts for facts in fed.client.jobs() if facts.kind == "align"] == aligned  # no fold is aligned again


@pytest.mark.slow
def test_a_search_finds_the_parameters_with_the_best_mean(fed: ConnectedFederation) -> None:
    model = wl.FederatedForestClassifier(4, random_state=0)
    grid, features = {"max_depth": [1, 4]}, {"bank": ["age"], "shop": None}
    found = wl.search(model, grid, fed, y="bank.late", cv=2, scoring="roc_auc", features=features)
    means = [
        wl.cross_validate(
            wl.FederatedForestClassifier(4, random_state=0, max_depth=depth),
            fed, y="bank.late", cv=2, scoring="roc_auc", features=features,
        )["test_score"].mean()
        for depth in grid["max_depth"]
    ]  # fmt: skip
    np.testing.assert_array_equal(found.cv_results_["mean_test_score"], means)
    assert found.best_params_ == {"max_depth": grid["max_depth"][int(np.argmax(means))]}
    assert found.best_estimator_.forest_.coordinator.n_rows == 155
    assert len(found.best_estimator_.feature_importances_) == 3


def test_what_cannot_be_cross_validated_is_named_before_the_first_fit(fed: ConnectedFederation) -> None:
    model, before = wl.FederatedForestClassifier(2), len(fed.client.jobs())
    for problem, options in {
        "is not among the metrics that a label holder reports": {"scoring": "jaccard"},
        "'r2' is not among the metrics": {"scoring": "r2"},
        "rows near its edge would tell it their labels": {"stratify": True},
        "cv is a number of folds": {"cv": [(np.arange(3), np.arange(3))]},
        "at least 2 folds": {"cv": 1},
        "y names the labels": {"y": np.zeros(3)},
        "say where the labels are": {"y": None},
        r"must be written party\.column": {"y": "late"},
        "features names 'club'": {"features": {"club": None}},
    }.items():
        with pytest.raises((DataError, ValueError), match=problem):
            wl.cross_validate(model, fed, **({"y": "bank.late", "cv": 2} | options))
        if "scoring" in options or "cv" in options:
            with pytest.raises((DataError, ValueError), match=problem):
                wl.search(model, {"max_depth": [1]}, fed, **({"y": "bank.late", "cv": 2} | options))
    assert len(fed.client.jobs()) == before


# --- catalogues ---


def test_each_owner_tells_of_its_columns_what_its_policy_says(tmp_path: Path) -> None:
    tables = company_tables()
    visits = tables["shop"]["customers"]["visits"].to_pylist()
    lacking = pa.array([None if k < 31 else visit for k, visit in enumerate(visits)])
    place = tables["shop"]["customers"].column_names.index("visits")
    tables["shop"]["customers"] = tables["shop"]["customers"].set_column(place, "visits", lacking)
    tables["club"] = {"customers": tables["shop"]["customers"].rename_columns(["id", "a secret", "another"])}
    made = World(tmp_path, tables, labels=("late",))
    told = {"bank": ["names", "rows"], "shop": ["names", "types", "missing"], "club": []}
    for party, own in made.settings.items():
        own["policy"] = POLICY | {"catalog": told[party]}
    with running(made), user_of(made, lead=None, parties=tuple(tables)) as user:
        catalog = user.catalog()
        (job,) = [facts.job for facts in user.client.jobs() if facts.kind == "catalog"]
        heard = json.dumps([facts.told for facts in user.client.jobs()])
    found = {(c.party, c.column): (c.kind, c.missing) for c in catalog.columns}
    assert found == {
        ("bank", "age"): (None, None), ("bank", "income"): (None, None), ("bank", "amount"): (None, None),
        ("shop", "visits"): ("numbers", 31 / 155), ("shop", "basket"): ("numbers", 0.0),
    }  # fmt: skip
    assert (catalog.rows, catalog.labels, catalog.closed) == ({"bank": N}, ("bank.late",), ("club",))
    assert "not told: the columns of club" in repr(catalog)
    assert job
    assert not any(name in heard for name in ("age", "visits", "secret"))


@pytest.mark.slow
def test_hidden_and_revocable_forests_are_evaluated_on_rows_that_were_held_out(tmp_path: Path) -> None:
    made = World(tmp_path, company_tables(), labels=("late",))
    for own in made.settings.values():
        kinds = [*KINDS, "train-revocable"]
        own["policy"] = POLICY | LIMITS | {"protocols": kinds, "labels_to_coordinator": True}
    with running(made):
        with user_of(made, lead=None) as user:
            train, test = user.split(0.3)
            model = wl.FederatedForestClassifier(4, random_state=0, protection="hidden", min_samples_leaf=20)
            hidden = model.fit(train, y="bank.late").evaluate(test, n_bootstrap=0)
            assert (hidden.training_rows, hidden.n_rows + model.forest_.coordinator.n_rows) == ("", 155)
            table = of_part(joined(made, user), test)
            y, p = (table.late == "yes").to_numpy(), model.predict_proba(test)[:, 1]
            assert hidden["roc_auc"] == pytest.approx(metrics.roc_auc_score(y, p), abs=1e-12)
        with user_of(made, lead="coordinator") as user:
            train, test = user.split(0.3)
            grown = wl.RevocableForestClassifier(4, random_state=0, encryption="simulated").fit(train, y="bank.late")
            revocable = grown.evaluate(test, n_bootstrap=0)
            assert (revocable.training_rows, revocable.n_rows) == ("", hidden.n_rows)
            with pytest.warns(wl.TrainingRowsWarning):
                assert grown.evaluate(train, n_bootstrap=0).training_rows == "all rows"


def test_a_party_leaves_a_model_of_some_rows_and_columns(world: World) -> None:
    """The forest without it is grown on the rows and columns of the training, whatever the user has at hand now."""
    with user_of(world, lead="holder") as user:
        train, test = user.split(0.3)
        model = wl.FederatedForestClassifier(3, random_state=0)
        model.fit(train, y="bank.late", features={"bank": ["age"], "shop": None})
        n_rows = model.forest_.coordinator.n_rows
        model.revoke("shop", level=3)
        assert model.forest_.coordinator.n_rows == n_rows
        part = json.loads((world.root / "bank" / "state" / "models" / model.forest_.model / "part.json").read_text())
        assert part["names"] == ["age"]
        assert model.evaluate(test, n_bootstrap=0).training_rows == ""
        with pytest.warns(wl.TrainingRowsWarning):
            assert model.evaluate(train, n_bootstrap=0).training_rows == "all rows"
