"""`sample_weight` of forests over rows: weights stay with their clients, and the forest is that of the pooled rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.tree import DecisionTreeClassifier

import woodlot as wl
from wire_search import captured, floats, found
from woodlot.exceptions import DataError, WoodlotError
from woodlot.trees.drawing import draw_weighted

N = 150
RNG = np.random.default_rng(11)
X = pd.DataFrame(RNG.normal(size=(N, 3)).round(1), columns=["age", "income", "visits"])
SIGNAL = (X["age"] + X["visits"] + 0.5 * RNG.normal(size=N)).to_numpy()
Y = np.where(SIGNAL > 0.7, "yes", "no")
WEIGHTS = RNG.gamma(2.0, 0.5, N)


def forest(**options: Any) -> wl.HorizontalForestClassifier:
    return wl.HorizontalForestClassifier(**{"n_estimators": 6, "random_state": 0, "min_samples_leaf": 2} | options)


def regressor(**options: Any) -> wl.HorizontalForestRegressor:
    return wl.HorizontalForestRegressor(**{"n_estimators": 6, "random_state": 0, "min_samples_leaf": 2} | options)


def tables() -> dict[str, pd.DataFrame]:
    rows = X.assign(late=Y, amount=SIGNAL, care=WEIGHTS)
    return {"north": rows[:60], "south": rows[60:100], "west": rows[100:]}


@pytest.mark.parametrize("options", [{}, {"class_weight": "balanced"}, {"max_samples": 0.4}, {"max_samples": 50}])
def test_it_does_not_depend_on_the_clients(options: dict[str, Any]) -> None:
    grown = [
        forest(oob_score=True, **options, **clients).fit(X, Y, WEIGHTS)
        for clients in ({"parties": 3}, {"parties": 5, "n_jobs": 2}, {"parties": 1, "sums": "plain"})
    ]
    for other in grown[1:]:
        np.testing.assert_array_equal(grown[0].predict_proba(X), other.predict_proba(X))
    assert len({repr(one.oob_score_) for one in grown}) == 1
    assert {"CountWeights", "DrawByWeight"} <= {row.kind for row in grown[0].disclosure_.rows}
    assert not {"DrawRows", "DrawByClass", "CountClasses"} & {row.kind for row in grown[0].disclosure_.rows}
    assert (forest(**options).fit(X, Y).predict_proba(X) != grown[0].predict_proba(X)).any()


def test_targets_are_weighted_too() -> None:
    grown = [regressor(oob_score=True, parties=parties).fit(X, SIGNAL, WEIGHTS) for parties in (3, 4)]
    np.testing.assert_array_equal(grown[0].predict(X), grown[1].predict(X))
    assert grown[0].oob_score_ == grown[1].oob_score_
    heavy = np.where(SIGNAL > 1, 8.0, 1.0)
    assert regressor().fit(X, SIGNAL, heavy).predict(X).mean() > regressor().fit(X, SIGNAL).predict(X).mean()


@pytest.mark.parametrize("make", [forest, regressor])
def test_weights_of_one_and_scaled_weights(make: Any) -> None:
    labels = Y if make is forest else SIGNAL
    answers = [make().fit(X, labels, weights).predict(X) for weights in (None, np.ones(N), np.full(N, 4.0))]
    np.testing.assert_array_equal(answers[1], answers[2])  # as many rows as without weights are drawn
    if make is forest:  # of targets one bit fewer is kept
        np.testing.assert_array_equal(answers[0], answers[1])


def test_weights_by_class_are_class_weights() -> None:
    rows = forest().fit(X, Y, np.where(Y == "yes", 4.0, 1.0))
    classes = forest(class_weight={"yes": 4.0}).fit(X, Y)
    np.testing.assert_array_equal(rows.predict_proba(X), classes.predict_proba(X))


@settings(deadline=None, max_examples=8)
@given(st.lists(st.integers(0, 3), min_size=40, max_size=40), st.integers(1, 4))
def test_without_bootstrap_a_weight_is_the_row_so_many_times(weights: list[int], leaf: int) -> None:
    """Bit for bit; of rows that all have a value of every bin, so that rows of weight 0 make no bins of their own."""
    grid = pd.DataFrame({"a": np.arange(40) % 4, "b": np.arange(40) // 4 % 5}).astype(float)
    labels = np.where((grid["a"] > 1) ^ (grid["b"] > 2), "yes", "no")
    copies = np.array(weights) + (np.arange(40) < 20)  # the first rows have every value, and weigh something
    rows = np.repeat(np.arange(40), copies)
    options: dict[str, Any] = {"bootstrap": False, "n_estimators": 2, "max_features": None, "max_depth": 3}
    weighted = forest(**options, min_samples_leaf=1).fit(grid, labels, copies)
    repeated = forest(**options, min_samples_leaf=1).fit(grid.iloc[rows], labels[rows])
    np.testing.assert_array_equal(weighted.predict_proba(grid), repeated.predict_proba(grid))
    stopped = forest(**options, min_samples_leaf=leaf).fit(grid, labels, copies)
    seen = stopped.apply(grid)[copies > 0]  # a leaf has rows, not weight
    assert all(np.bincount(leaves)[np.unique(leaves)].min() >= leaf for leaves in seen.T)


def test_how_often_rows_are_drawn() -> None:
    rates = np.array([0.0, 0.5, 2.0, 8.0])
    keys = RNG.integers(0, 2**63, 400).astype(np.uint64)
    rows, weights, bounds = draw_weighted(keys, np.tile(rates, 100), 3, 60, 2)
    assert len(bounds) == 61
    drawn = np.bincount(rows % 4, weights, 4) / 60 / 100
    np.testing.assert_allclose(drawn, rates, rtol=0.1)
    assert (rows % 4 > 0).all()


def test_a_federation_names_the_column_or_gives_an_array() -> None:
    fed = wl.Federation.local(tables(), layout="rows")
    kept = {"exclude": ["amount"]}
    named = forest().fit(fed, "late", sample_weight="care", **kept)
    assert named.n_features_in_ == 3  # the weights are not learnt from
    pooled = forest().fit(X, Y, WEIGHTS)
    np.testing.assert_array_equal(named.predict_proba(X), pooled.predict_proba(X))
    array = forest().fit(fed, "late", sample_weight=fed["care"], **kept)
    np.testing.assert_array_equal(array.predict_proba(X), pooled.predict_proba(X))
    turned = fed[np.arange(N)[::-1]]
    again = forest().fit(turned, turned["late"], sample_weight=WEIGHTS[::-1], exclude=["amount", "care"])
    np.testing.assert_array_equal(again.predict_proba(X), pooled.predict_proba(X))
    plain = forest().fit(fed, "late", exclude=["amount", "care"])
    assert (plain.predict_proba(X) != pooled.predict_proba(X)).any()


def test_who_leaves_takes_its_weights_along() -> None:
    fed = wl.Federation.local({**tables(), "east": tables()["west"]}, layout="rows")
    model = forest().fit(fed, "late", sample_weight="care", exclude=["amount"])
    model.revoke("east", level=3)
    fresh = forest().fit(wl.Federation.local(tables(), layout="rows"), "late", sample_weight="care", exclude=["amount"])
    np.testing.assert_array_equal(model.predict_proba(X), fresh.predict_proba(X))


def test_clients_alone_weigh_their_rows() -> None:
    """As scikit-learn does with the rows of one client; two levels deep, where no two splits are as good."""
    fed = wl.Federation.local(tables(), layout="rows")
    small: dict[str, Any] = {"criterion": "gini", "max_depth": 2, "min_samples_leaf": 5}
    model = wl.LocalForestsClassifier(n_estimators=6, random_state=0, bootstrap=False, max_features=None, **small)
    model.fit(fed, "late", sample_weight="care", exclude=["amount"])
    for k, rows in enumerate(tables().values()):
        theirs = DecisionTreeClassifier(random_state=0, **small).fit(rows[list(X)], rows["late"], rows["care"])
        ours = model.estimators_[2 * k].predict_proba(X.to_numpy(np.float32))
        np.testing.assert_allclose(ours, theirs.predict_proba(X), rtol=0, atol=1e-6)
    drawn = wl.LocalForestsClassifier(n_estimators=6, random_state=0)
    weighted = drawn.fit(fed, "late", sample_weight="care", exclude=["amount"]).predict_proba(X)
    assert (drawn.fit(fed, "late", exclude=["amount", "care"]).predict_proba(X) != weighted).any()
    wl.LocalForestsRegressor(n_estimators=3, random_state=0).fit(fed, "amount", sample_weight="care", exclude=["late"])


def test_no_weight_travels() -> None:
    fed = wl.Federation.local(tables(), layout="rows")
    with captured() as messages:
        forest(oob_score=True).fit(fed, "late", sample_weight="care", exclude=["amount"])
    # masked vectors are 860 kB of random bytes, in which one needle of four bytes is found in one of some twenty runs
    assert found({"weights": list(floats(WEIGHTS))}, messages, short_hits=3) == {}


BAD: list[tuple[dict[str, Any], Any, str]] = [
    ({}, "weight", "sample_weight names the weights' column, which every client has; 'weight' is not at"),
    ({}, "late", "sample_weight must be numbers"),
    ({}, np.zeros(N), "every row the weight 0"),
    ({}, np.where(np.arange(N) == 3, np.nan, 1.0), "sample_weight contains NaN"),
    ({}, -WEIGHTS, "north: Negative values"),
    ({}, np.ones(3), "sample_weight"),
    ({}, np.where(np.arange(N) == 3, 5000.0, 1.0), "draws a row more than 32 times"),
    ({}, np.full(N, 1e5), "weights above 65,536; scale them"),
    ({"bootstrap": False}, WEIGHTS, "must be whole numbers"),
    ({"bootstrap": False}, np.full(N, 300), "weights above 255"),
]


@pytest.mark.parametrize(("options", "weights", "words"), BAD, ids=lambda value: str(value)[:30])
def test_what_is_wrong_is_named(options: dict[str, Any], weights: Any, words: str) -> None:
    fed = wl.Federation.local(tables(), layout="rows")
    with pytest.raises((ValueError, WoodlotError), match=words):
        forest(**options).fit(fed, "late", sample_weight=weights, exclude=["amount"])


def test_methods_that_take_no_weights_say_so() -> None:
    with pytest.raises(TypeError, match="sample_weight"):
        wl.CollaborativeForestClassifier().fit(X, Y, sample_weight=WEIGHTS)
    with pytest.raises(DataError, match="'collaborative' take no sample_weight; use HorizontalForest"):
        wl.CollaborativeForestClassifier().make_plan(weighted=True)
