"""The loop over rows in one process: splits, reports with a table by client, folds and searches."""

from __future__ import annotations

import json
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics
from sklearn.model_selection import KFold

import woodlot as wl
from woodlot.data.row_content import content_ids
from woodlot.data.tables import read_table
from woodlot.exceptions import DataError

RNG = np.random.default_rng(3)
N = 240
ROWS = pd.DataFrame(
    {
        "age": RNG.integers(18, 80, N),
        "income": RNG.normal(50, 12, N).round(2),
        "town": RNG.choice(["Ely", "Rye", "Ware"], N),
    }
)
ROWS["amount"] = (0.5 * ROWS.age + RNG.normal(0, 6, N)).round(3)
ROWS["late"] = np.where(ROWS.amount + RNG.normal(0, 6, N) > 25, "yes", "no")
ROWS.loc[::17, "income"] = np.nan
ROWS.loc[::29, "town"] = None
CLIENTS = {"north": slice(0, 90), "south": slice(90, 190), "west": slice(190, N)}


def clients(*drop: str, **options: Any) -> wl.Federation:
    rows = ROWS.drop(columns=list(drop))
    return wl.Federation.local({name: rows[own] for name, own in CLIENTS.items()}, layout="rows", **options)


METHODS = [
    wl.HorizontalForestClassifier(6, random_state=0),
    wl.LocalForestsClassifier(6, random_state=0),
    pytest.param(wl.CollaborativeForestClassifier(6, random_state=0), marks=pytest.mark.slow),
    pytest.param(
        wl.FederatedExtraTreesClassifier(6, declared={"age": (18, 80), "income": (0, 100)}, random_state=0),
        marks=pytest.mark.slow,
    ),
]


@pytest.mark.parametrize("model", METHODS, ids=lambda model: type(model).__name__)
def test_reports_have_scikit_learns_numbers_on_the_pooled_rows(model: Any) -> None:
    train, test = clients("amount").split(0.4, seed=0)
    model.fit(train, y="late")
    report = model.evaluate(test, n_bootstrap=20)
    pooled = pd.concat([test.members[name].source.iloc[test.members[name].rows] for name in test.parties])
    y, p = pooled.late.to_numpy(), model.predict_proba(pooled.drop(columns=["late"]))
    said = model.classes_[p.argmax(axis=1)]
    expected = {
        "accuracy": metrics.accuracy_score(y, said),
        "balanced_accuracy": metrics.balanced_accuracy_score(y, said),
        "roc_auc": metrics.roc_auc_score(y == "yes", p[:, 1]),
        "average_precision": metrics.average_precision_score(y == "yes", p[:, 1]),
        "log_loss": metrics.log_loss(y, p),
        "brier": metrics.brier_score_loss(y == "yes", p[:, 1]),
        "f1": metrics.f1_score(y, said, pos_label="yes"),
    }
    for name, value in expected.items():
        assert report[name] == pytest.approx(value, abs=1e-12), name
        assert report.intervals[name][0] <= report.intervals[name][1]
    assert report.training_rows == ""


def test_the_table_by_client_is_each_clients_own_report() -> None:
    train, test = clients("amount").split(0.4, seed=1)
    model = wl.HorizontalForestClassifier(6, random_state=0).fit(train, y="late")
    found = model.evaluate(test, n_bootstrap=0).by_client
    assert found is not None
    assert tuple(found.rows) == test.parties
    assert sum(found.rows.values()) == len(test)
    for name in test.parties:
        own = test.members[name]
        table = own.source.iloc[own.rows]
        alone = model.evaluate(table.drop(columns=["late"]), table.late, n_bootstrap=0)
        assert found[name] == pytest.approx(alone.metrics, abs=1e-12, nan_ok=True)
    losses = found.by("log_loss")
    assert found.worst() == max(losses, key=lambda name: losses[name])
    aucs = found.by("roc_auc")
    assert found.worst("roc_auc") == min(aucs, key=lambda name: aucs[name])
    local = wl.LocalForestsClassifier(6, random_state=0).fit(train, y="late").evaluate(test, n_bootstrap=0).by_client
    assert local is not None
    gains = found.gains(local)
    assert gains["north"] == pytest.approx(local["north"]["log_loss"] - found["north"]["log_loss"])
    assert found.gains(local, "accuracy")["west"] == pytest.approx(
        found["west"]["accuracy"] - local["west"]["accuracy"]
    )


def test_a_shuffled_selection_has_the_same_table_by_client() -> None:
    train, test = clients("amount").split(0.4, seed=1)
    model = wl.LocalForestsClassifier(6, random_state=0).fit(train, y="late")
    mixed = test[np.random.default_rng(0).permutation(len(test))]
    one, other = (model.evaluate(part, n_bootstrap=0).by_client for part in (test, mixed))
    assert one is not None
    assert other is not None
    for name in test.parties:
        assert one[name] == pytest.approx(other[name])


def test_how_reports_look() -> None:
    train, test = clients("late").split(0.4, seed=1)
    model = wl.HorizontalForestRegressor(4, random_state=0).fit(train, y="amount")
    report = model.evaluate(test, n_bootstrap=20)
    assert "By client" in repr(report)
    assert repr(report).count("worst") == 1
    assert "north" in report._repr_html_()
    assert json.loads(json.dumps(report.to_dict()))["by_client"]["south"]["rows"] == report.by_client.rows["south"]
    with pytest.raises(DataError, match="no client 'east' in this report; it has 'north', 'south', 'west'"):
        report.by_client["east"]
    with pytest.raises(DataError, match="there is no metric 'auc'"):
        report.by_client.worst("auc")
    with pytest.raises(DataError, match="neither more nor less is better"):
        report.by_client.worst("mean_error")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", wl.TrainingRowsWarning)
        other = model.evaluate(train, n_bootstrap=0).by_client
    with pytest.raises(DataError, match="evaluated on different rows"):
        report.by_client.gains(other)


def test_a_client_of_one_class_and_one_without_rows() -> None:
    train, test = clients("amount").split(0.4, seed=1)
    model = wl.LocalForestsClassifier(6, random_state=0).fit(train, y="late")
    y, owner = np.asarray(test["late"]), test.row_owners()
    some = test[((owner == 0) & (y == "no")) | (owner == 1)]
    found = model.evaluate(some, n_bootstrap=0).by_client
    assert found is not None
    assert set(found.metrics) == {"north", "south"}
    assert "no row is of class 'yes'" in found.undefined["north"]["roc_auc"]
    assert found.worst("roc_auc") == "south"
    assert found["north"]["accuracy"] >= 0


def test_training_rows_are_marked() -> None:
    train, _ = clients("amount").split(0.4, seed=1)
    model = wl.LocalForestsClassifier(3, random_state=0).fit(train, y="late")
    with pytest.warns(wl.TrainingRowsWarning, match="all rows"):
        assert model.evaluate(train, n_bootstrap=0).training_rows == "all rows"


def contents(part: wl.Federation) -> list[tuple[str, bytes]]:
    return [(name, one) for name in part.parties for one in part._split_ids[name]()]  # type: ignore[attr-defined]


def tables(*rows: list[int]) -> wl.Federation:
    """Clients whose rows are numbers, of which many are equal."""
    return wl.Federation.local(
        {f"c{k}": pd.DataFrame({"x": own, "y": [f"t{v % 3}" for v in own]}) for k, own in enumerate(rows)},
        layout="rows",
    )


ROW_LISTS = st.lists(st.integers(0, 12), min_size=30, max_size=60)


@given(ROW_LISTS, ROW_LISTS, ROW_LISTS, st.integers(0, 3), st.randoms(use_true_random=False))
@settings(max_examples=25)
def test_parts_are_disjoint_cover_and_stay_when_rows_are_added(
    first: list[int], second: list[int], added: list[int], seed: int, random: Any
) -> None:
    fed = tables(first, second)
    train, test = fed.split(0.5, seed=seed)
    before = set(contents(train)), set(contents(test))
    assert not before[0] & before[1]
    assert before[0] | before[1] == set(contents(fed))
    assert len(train) + len(test) == len(fed)
    mixed = [*first, *added]
    random.shuffle(mixed)
    after = [set(contents(part)) for part in tables(mixed, second).split(0.5, seed=seed)]
    for old, new in zip(before, after, strict=True):
        assert old <= new


@given(ROW_LISTS, st.integers(2, 4))
@settings(max_examples=25)
def test_folds_and_parts_of_parts_are_partitions(rows: list[int], n_folds: int) -> None:
    fed = tables(rows, rows[::-1])
    numbers = fed.fold_numbers(n_folds, 0)
    assert len(numbers) == len(fed)
    assert set(numbers.tolist()) <= set(range(n_folds))
    train, _ = fed.split(0.4, seed=1)
    inner = train.split(0.5, seed=1)
    assert sorted(c for part in inner for c in contents(part)) == sorted(contents(train))


def test_contents_do_not_depend_on_other_rows_or_the_order_of_columns() -> None:
    table = pd.DataFrame({"x": [0.0, -0.0, np.nan, 1.5], "town": ["b", "b", None, "a"]})
    found = content_ids(read_table(table))
    assert len(set(found)) == 4
    assert content_ids(read_table(table[["town", "x"]])) == found
    assert content_ids(read_table(table[2:])) == found[2:]
    assert content_ids(read_table(table.rename(columns={"x": "z"}))) != found


def test_rows_with_ids_are_split_by_them() -> None:
    rows = ROWS.drop(columns=["amount"]).assign(id=np.arange(N))
    fed = wl.Federation.local({name: rows[own] for name, own in CLIENTS.items()}, id="id", layout="rows")
    changed = wl.Federation.local(
        {name: rows.assign(age=1)[own] for name, own in CLIENTS.items()}, id="id", layout="rows"
    )
    assert contents(fed.split(seed=3)[1]) == contents(changed.split(seed=3)[1])


def test_cross_validation_and_search() -> None:
    fed = clients("amount")
    model = wl.HorizontalForestClassifier(4, random_state=0)
    found = wl.cross_validate(model, fed, y="late", cv=3, scoring=("roc_auc", "log_loss", "neg_log_loss"))
    np.testing.assert_allclose(found["test_neg_log_loss"], -found["test_log_loss"], atol=1e-12)
    folds = fed.fold_numbers(3, 0)
    fitted = wl.HorizontalForestClassifier(4, random_state=0).fit(fed[folds != 1], y="late")
    by_hand = metrics.roc_auc_score(fed[folds == 1]["late"] == "yes", fitted.predict_proba(fed[folds == 1])[:, 1])
    assert found["test_roc_auc"][1] == pytest.approx(by_hand, abs=1e-12)
    best = wl.search(model, {"max_depth": [1, 4]}, fed, y="late", cv=2, scoring="roc_auc")
    assert best.best_params_["max_depth"] in (1, 4)
    assert best.best_estimator_.forest_.coordinator.n_rows == N
    assert wl.cross_validate(model, fed, y="late", cv=KFold(2))["test_score"].shape == (2,)


RARE = ROWS.assign(late=np.where(np.arange(N) % 60 == 3, "yes", "no")).drop(columns=["amount"])


def rare() -> wl.Federation:
    return wl.Federation.local({name: RARE[own] for name, own in CLIENTS.items()}, layout="rows")


BAD: list[tuple[dict[str, Any], str]] = [
    ({"y": "lat"}, "'lat' is not at"),
    ({"cv": 300}, "has no rows; take fewer folds"),
    (
        {"federation": rare(), "cv": 8, "scoring": "roc_auc"},
        r"roc_auc of a fold is not defined: no row of fold \d of 8",
    ),
]


@pytest.mark.parametrize(("options", "words"), BAD)
def test_bad_folds_are_refused_before_the_first_fit(options: dict[str, Any], words: str) -> None:
    class Untouched(wl.LocalForestsClassifier):
        def fit(self, *args: Any, **options: Any) -> Any:
            raise AssertionError("fitted")

    with pytest.raises(DataError, match=words):
        wl.cross_validate(Untouched(2), **{"federation": clients("amount"), "y": "late", **options})


def test_a_part_without_rows() -> None:
    fed = clients("amount")
    with pytest.raises(DataError, match="leaves none to test on; take another seed or another share"):
        fed.split(1e-9)
    with pytest.raises(DataError, match="none of the federation's rows is selected"):
        fed[np.zeros(N, bool)]
