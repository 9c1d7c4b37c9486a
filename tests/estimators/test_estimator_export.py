"""Export to scikit-learn: the exported forest predicts exactly the same."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

import woodlot as wl
from woodlot.estimators.complete import CompleteForest
from woodlot.exceptions import DataError, ModelFileError
from woodlot.federation import GrownForest
from woodlot.protocols.core.forest_parts import CoordinatorForest, PartyForest, codings_of
from woodlot.trees.forest import Leaves, Splits, Structure


def table(rng: np.random.Generator, n_rows: int) -> Any:
    X = np.column_stack(
        [
            rng.normal(size=n_rows),
            rng.integers(0, 4, n_rows),
            rng.normal(size=n_rows).round(1),
            np.where(rng.random(n_rows) < 0.3, np.nan, rng.normal(size=n_rows)),
            np.full(n_rows, np.nan),
        ]
    )
    return X.astype(np.float32)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    classes=st.sampled_from([0, 1, 2, 5]),
    depth=st.sampled_from([1, 3, None]),
    bootstrap=st.booleans(),
    weighted=st.booleans(),
    majority=st.booleans(),
    parties=st.sampled_from([1, 2, 7]),
)
def test_exported_forests_predict_exactly_the_same(
    seed: int, classes: int, depth: int | None, bootstrap: bool, weighted: bool, majority: bool, parties: int
) -> None:
    rng = np.random.default_rng(seed)
    n_rows = int(rng.integers(1, 60))
    X = table(rng, n_rows)
    weights = rng.random(n_rows) + 0.1 if weighted else None
    common = {"n_estimators": 4, "max_depth": depth, "bootstrap": bootstrap, "parties": parties, "random_state": 0}
    model: Any
    if classes:
        y: Any = np.array(["a", "b", "c", "d", "e"])[rng.integers(0, classes, n_rows)]
        model = wl.FederatedForestClassifier(**common, voting="majority" if majority else "soft")
    else:
        y = rng.normal(size=n_rows) * 1e3
        model = wl.FederatedForestRegressor(**common)
    model.fit(X, y, sample_weight=weights)
    exported = model.combine().to_sklearn()
    fresh = table(rng, 50)
    fresh[:5] = np.nan
    np.testing.assert_array_equal(exported.predict(fresh), model.predict(fresh))
    if classes:
        np.testing.assert_array_equal(exported.predict_proba(fresh), model.predict_proba(fresh))
        np.testing.assert_array_equal(exported.classes_, model.classes_)
    np.testing.assert_array_equal(exported.apply(fresh), model.apply(fresh))
    for tree in exported.estimators_:
        depths = np.zeros(tree.tree_.node_count, int)
        for node in np.flatnonzero(tree.tree_.children_left >= 0):
            depths[[tree.tree_.children_left[node], tree.tree_.children_right[node]]] = depths[node] + 1
        assert tree.tree_.max_depth == depths.max()
        assert tree.get_depth() == depths.max()


def test_exported_forests_are_whole() -> None:
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.normal(size=(80, 3)), columns=["a", "b", "c"])
    for make, kind, y in (
        (wl.FederatedForestClassifier, RandomForestClassifier, X["a"] > 0),
        (wl.FederatedForestRegressor, RandomForestRegressor, X["a"] * 3),
    ):
        model = make(5, bootstrap=False, random_state=0).fit(X, y)
        exported = model.combine().to_sklearn()
        assert isinstance(exported, kind)
        assert exported.n_estimators == len(exported.estimators_) == 5
        assert exported.n_features_in_ == 3
        assert exported.feature_names_in_.tolist() == ["a", "b", "c"]
        again = pickle.loads(pickle.dumps(exported))  # noqa: S301
        np.testing.assert_array_equal(again.predict(X), model.predict(X))
        assert exported.score(X, y) == model.score(X, y)
        np.testing.assert_allclose(exported.feature_importances_, model.feature_importances_, rtol=1e-6)
        # inner nodes have the answers of their rows too: the root those of all
        for tree in exported.estimators_:
            assert tree.tree_.value[0, 0, -1] == pytest.approx(y.mean())
            assert tree.tree_.weighted_n_node_samples[0] == 80
            left, right = tree.tree_.children_left[0], tree.tree_.children_right[0]
            assert tree.tree_.n_node_samples[left] + tree.tree_.n_node_samples[right] == 80


def test_impurities_of_a_classifier_are_scikit_learns() -> None:
    X = np.random.default_rng(0).normal(size=(60, 1)).astype(np.float32)
    y = (X[:, 0] > 0).astype(int) + (X[:, 0] > 1)
    for criterion in ("gini", "entropy"):
        settings_ = {"n_estimators": 1, "criterion": criterion, "bootstrap": False, "max_depth": 2}
        mine = wl.FederatedForestClassifier(**settings_).fit(X, y).estimators_[0].tree_
        theirs = RandomForestClassifier(**settings_).fit(X, y).estimators_[0].tree_
        np.testing.assert_allclose(mine.impurity, theirs.impurity, atol=1e-9)
        np.testing.assert_array_equal(mine.threshold, theirs.threshold)
        np.testing.assert_allclose(mine.value, theirs.value, atol=1e-12)
        np.testing.assert_array_equal(mine.n_node_samples, theirs.n_node_samples)


def test_categories_cannot_be_exported() -> None:
    X = pd.DataFrame({"a": [1.0, 2, 3, 4] * 5, "colour": ["red", "blue"] * 10})
    model = wl.FederatedForestClassifier(3, random_state=0).fit(X, X["colour"] == "red")
    with pytest.raises(DataError, match=r"cannot split categories as sets: \['colour'\]; train on numeric columns"):
        model.combine().to_sklearn()
    assert not hasattr(model, "estimators_")
    assert model.combine().categorical_features == ("colour",)


def full_forest(n_trees: int, depth: int) -> GrownForest:
    """Trees with all nodes down to a depth, built without growing them."""
    n = 2 ** (depth + 1) - 1
    right = np.full(n, -1, np.int32)

    def place(first: int, height: int) -> None:
        if height == 0:
            return
        right[first] = first + 2**height
        place(first + 1, height - 1)
        place(int(right[first]), height - 1)

    place(0, depth)
    offset = np.arange(n_trees + 1, dtype=np.int64) * n
    all_right = np.concatenate([np.where(right >= 0, right + first, -1) for first in offset[:-1]]).astype(np.int32)
    structure = Structure(offset, all_right)
    inner = np.flatnonzero(all_right >= 0)
    rng = np.random.default_rng(0)
    splits = Splits(
        inner.astype(np.int32), rng.integers(0, 9, len(inner)).astype(np.int32), rng.normal(size=len(inner)),
        rng.random(len(inner)) < 0.5, np.zeros(len(inner) + 1, np.int64), np.empty(0, np.uint8),
    )  # fmt: skip
    feature = np.full(len(all_right), -1, np.int32)
    feature[inner] = splits.feature
    n_leaves = structure.n_leaves
    leaves = Leaves(
        np.ones(n_leaves), np.arange(n_leaves + 1), rng.integers(0, 3, n_leaves).astype(np.int32), np.ones(n_leaves), 3
    )
    coordinator = CoordinatorForest(
        structure, np.where(feature >= 0, 0, -1).astype(np.int16), feature, np.zeros(len(feature)), leaves,
        ("p",), np.arange(9, dtype=np.uint64), np.zeros(9, np.int64), ("x", "y", "z"), 100, None,
    )  # fmt: skip
    part = PartyForest(structure, splits, tuple("abcdefghi"), codings_of([None] * 9))
    return GrownForest(coordinator, {"p": part}, {"p": part})


def test_a_large_forest_is_exported() -> None:
    forest = full_forest(50, 13)  # 50 trees of 16,383 nodes
    complete = CompleteForest(forest.coordinator, forest.parts)
    exported = complete.to_sklearn()
    X = np.random.default_rng(1).normal(size=(200, 9)).astype(np.float32)
    frame = pd.DataFrame(X, columns=list("abcdefghi"))
    np.testing.assert_array_equal(exported.predict_proba(frame), complete.predict_proba(X))


def test_a_complete_forest_reads_tables_by_name_and_arrays_by_position() -> None:
    forest = full_forest(3, 4)
    complete = CompleteForest(forest.coordinator, forest.parts)
    X = np.random.default_rng(1).normal(size=(20, 9)).astype(np.float32)
    frame = pd.DataFrame(X, columns=list("abcdefghi"))
    np.testing.assert_array_equal(complete.predict(frame[list("ihgfedcba")]), complete.predict(X))
    assert complete.predict(X).dtype.kind == "U"
    with pytest.raises(DataError, match="X has 8 features, but this forest is expecting 9 as input"):
        complete.predict(X[:, :8])
    with pytest.raises(DataError, match=r"columns of the training are missing: \['c'\]"):
        complete.predict(frame.drop(columns="c"))


def test_parts_of_other_forests_are_refused() -> None:
    one, other = full_forest(2, 3), full_forest(2, 2)
    with pytest.raises(ModelFileError, match="the part of p belongs to another forest"):
        CompleteForest(one.coordinator, other.parts)
    with pytest.raises(ModelFileError, match=r"the parts of \['p'\] are missing"):
        CompleteForest(one.coordinator, {})
