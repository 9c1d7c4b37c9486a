"""Classes of every type, and weights of rows and classes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import clone
from sklearn.ensemble import RandomForestClassifier

import woodlot as wl
from woodlot.exceptions import DataError

RNG = np.random.default_rng(3)
X = RNG.normal(size=(90, 3)).astype(np.float32)
NUMBER = (X[:, 0] > 0).astype(int) + (X[:, 1] > 0.5)


def classifier(**params: Any) -> wl.FederatedForestClassifier:
    return wl.FederatedForestClassifier(**{"n_estimators": 6, "max_depth": 3, "random_state": 0, **params})


PLAIN = classifier().fit(X, NUMBER)
LABELS: dict[str, Any] = {
    "int": NUMBER,
    "int8": NUMBER.astype(np.int8),
    "uint16": NUMBER.astype(np.uint16),
    "float": NUMBER.astype(float),
    "float32": NUMBER.astype(np.float32),
    "negative": NUMBER - 1,
    "text": np.array(["aa", "b", "ccc"])[NUMBER],
    "text objects": np.array(["aa", "b", "ccc"], object)[NUMBER],
    "unicode": np.array(["å", "ü", "漢"])[NUMBER],
    "int objects": NUMBER.astype(object),
    "numpy scalars": [np.int64(n) for n in NUMBER],
    "list of text": np.array(["aa", "b", "ccc"])[NUMBER].tolist(),
    "pandas": pd.Series(NUMBER, index=range(100, 190)),
    "pandas text": pd.Series(np.array(["aa", "b", "ccc"])[NUMBER]),
    "pandas categories": pd.Series(np.array(["aa", "b", "ccc"])[NUMBER]).astype("category"),
    "pandas nullable": pd.Series(NUMBER, dtype="Int64"),
    "polars": pl.Series(NUMBER),
    "polars text": pl.Series(np.array(["aa", "b", "ccc"])[NUMBER]),
}


@pytest.mark.parametrize("kind", LABELS)
def test_classes_of_every_type(kind: str) -> None:
    y = LABELS[kind]
    model = classifier().fit(X, y)
    values = np.asarray(y)
    if values.dtype != object:
        assert model.classes_.dtype == RandomForestClassifier(1).fit(X, y).classes_.dtype
    assert model.classes_.tolist() == np.unique(values).tolist()
    assert model.n_classes_ == 3
    np.testing.assert_array_equal(model.predict_proba(X), PLAIN.predict_proba(X))
    predicted = model.predict(X)
    assert predicted.dtype == model.classes_.dtype
    assert predicted.tolist() == np.unique(values)[PLAIN.predict(X)].tolist()
    assert model.score(X, values if kind != "int objects" else NUMBER) == PLAIN.score(X, NUMBER)


@pytest.mark.parametrize("y", [NUMBER > 0, (NUMBER > 0).astype(object), [bool(n) for n in NUMBER > 0]])
def test_truth_values_as_classes(y: Any) -> None:
    model = classifier().fit(X, y)
    assert model.classes_.tolist() == [False, True]
    assert model.predict(X).dtype == bool
    np.testing.assert_array_equal(model.predict_proba(X), classifier().fit(X, NUMBER > 0).predict_proba(X))


# --- weights of classes ---


@pytest.mark.parametrize(
    ("y", "weights"),
    [
        (NUMBER, {0: 1.0, 1: 4.0, 2: 0.5}),
        (NUMBER, {1: 4.0, 2: 0.5}),
        (NUMBER, {0: 1, 1: 4, 2: 0.5, 3: 9.0}),  # as in scikit-learn, one too many is no harm
        (NUMBER, {0.0: 1.0, 1.0: 4.0, 2.0: 0.5}),
        (NUMBER, {np.int64(1): np.float32(4), np.int8(2): np.float64(0.5)}),
        (NUMBER.astype(float), {0: 1.0, 1: 4.0, 2: 0.5}),
        (np.array(["aa", "b", "A1"])[NUMBER], {"aa": 1.0, "b": 4.0, "A1": 0.5}),
        (np.array(["aa", "b", "A1"], object)[NUMBER], {"b": 4.0, "A1": 0.5}),
    ],
)
def test_class_weights_are_row_weights(y: Any, weights: Any) -> None:
    model = classifier(class_weight=weights, bootstrap=False).fit(X, y)
    by_row = np.array([1.0, 4.0, 0.5])[NUMBER]
    expected = classifier(bootstrap=False).fit(X, NUMBER, sample_weight=by_row)
    classes = np.array([0, 1, 2])
    if isinstance(y[0], str):
        classes = np.argsort(["aa", "b", "A1"])  # classes are sorted by name
    np.testing.assert_allclose(model.predict_proba(X), expected.predict_proba(X)[:, classes], rtol=1e-12)
    RandomForestClassifier(1, class_weight=weights).fit(X, y)  # which takes the same


def test_truth_values_have_weights() -> None:
    y = NUMBER > 0
    model = classifier(class_weight={False: 1.0, True: 5.0}, bootstrap=False).fit(X, y)
    expected = classifier(bootstrap=False).fit(X, y, sample_weight=np.where(y, 5.0, 1.0))
    np.testing.assert_array_equal(model.predict_proba(X), expected.predict_proba(X))
    same = classifier(class_weight={0: 1.0, 1: 5.0}, bootstrap=False).fit(X, y)
    np.testing.assert_array_equal(same.predict_proba(X), expected.predict_proba(X))


@pytest.mark.parametrize(
    ("y", "weights"), [(NUMBER, {"0": 1.0, "1": 2.0}), (np.array(["0", "1", "2"])[NUMBER], {0: 1.0, 1: 2.0})]
)
def test_a_class_of_another_type_is_another_class(y: Any, weights: Any) -> None:
    with pytest.raises(ValueError, match=r"are not in class_weight, which names .* name the classes as they are in y"):
        classifier(class_weight=weights).fit(X, y)


def test_balanced_is_scikit_learns() -> None:
    counts = np.bincount(NUMBER)
    explicit = {c: 90 / (3 * n) for c, n in enumerate(counts)}
    model = classifier(class_weight="balanced", bootstrap=False).fit(X, NUMBER)
    named = classifier(class_weight=explicit, bootstrap=False).fit(X, NUMBER)
    np.testing.assert_array_equal(model.predict_proba(X), named.predict_proba(X))
    root = np.mean([tree.tree_.value[0, 0] for tree in model.estimators_], axis=0)
    np.testing.assert_allclose(root, 1 / 3, rtol=1e-6)


def test_balanced_subsample_balances_every_tree() -> None:
    model = classifier(class_weight="balanced_subsample").fit(X, NUMBER)
    for tree in model.estimators_:
        np.testing.assert_allclose(tree.tree_.value[0, 0], 1 / 3, rtol=1e-3)


# --- weights of rows ---


def test_a_weight_of_two_is_the_row_twice() -> None:
    weights = RNG.integers(0, 3, 90)
    twice = np.repeat(np.arange(90), weights)
    for make in (wl.FederatedForestClassifier, wl.FederatedForestRegressor):
        model = make(5, bootstrap=False, random_state=0).fit(X, NUMBER, sample_weight=weights)
        expected = make(5, bootstrap=False, random_state=0).fit(X[twice], NUMBER[twice])
        np.testing.assert_array_equal(model.predict(X), expected.predict(X))


def test_one_weight_for_all_changes_nothing() -> None:
    np.testing.assert_array_equal(classifier().fit(X, NUMBER, sample_weight=3).predict_proba(X), PLAIN.predict_proba(X))


@pytest.mark.parametrize("exponent", [-900, -500, 500, 900])
@pytest.mark.parametrize(
    "model",
    [
        wl.FederatedForestRegressor(3, random_state=0),
        wl.RevocableForestRegressor(3, random_state=0, encryption="simulated"),
        wl.FederatedLinearRegression(),
    ],
)
def test_targets_of_any_size(model: Any, exponent: int) -> None:
    y = X[:, 0].astype(float) + X[:, 1] * 0.1
    expected = clone(model).fit(X, y).predict(X)
    found = clone(model).fit(X, np.ldexp(y, exponent)).predict(X)
    np.testing.assert_allclose(np.ldexp(found, -exponent), expected, rtol=1e-9)


def test_an_improvement_that_targets_of_any_size_must_make() -> None:
    y = X[:, 0].astype(float)
    forest = wl.FederatedForestRegressor(3, random_state=0, min_impurity_decrease=1.0)
    nodes = {e: clone(forest).fit(X, np.ldexp(y, e)).forest_.coordinator.structure.n_nodes for e in (-900, 900)}
    assert nodes == {
        -900: 3,
        900: wl.FederatedForestRegressor(3, random_state=0).fit(X, y).forest_.coordinator.structure.n_nodes,
    }


def test_targets_whose_sums_are_no_numbers() -> None:
    with pytest.raises(DataError, match=r"y contains a value beyond 1e\+280; scale the targets"):
        wl.FederatedForestRegressor(3).fit(X, np.where(X[:, 0] > 0, 1e290, 0.0))
