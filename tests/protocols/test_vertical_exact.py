"""Lossless: whoever holds which column, on however many threads and in whatever batches, it is the same forest."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone

from woodlot import FederatedForestClassifier, FederatedForestRegressor, Federation
from woodlot.runtime import codec

Forest = FederatedForestClassifier | FederatedForestRegressor


@dataclass(frozen=True, eq=False)
class Case:
    """A table, labels, weights, and a forest to grow on them."""

    frame: pd.DataFrame
    y: np.ndarray
    weights: np.ndarray | None
    forest: Forest
    rng: np.random.Generator

    def fit(self, frame: pd.DataFrame | None = None, **params: Any) -> Forest:
        model = clone(self.forest).set_params(**params)
        return model.fit(self.frame if frame is None else frame, self.y, sample_weight=self.weights)

    def dealing(self) -> dict[str, list[str]]:
        """Columns over one to six parties, some of which may get none, in any order."""
        n_parties = int(self.rng.integers(1, 7))
        names = self.rng.permutation(self.frame.columns)
        party = self.rng.integers(0, n_parties, len(names))
        return {f"p{k}": [str(c) for c in names[party == k]] for k in self.rng.permutation(n_parties)}


def random_frame(rng: np.random.Generator, n: int, p: int) -> pd.DataFrame:
    """Ties, constants, continuous and missing values, categories, copies of other columns."""
    columns: dict[str, Any] = {}
    for j in range(p):
        kind = rng.integers(7)
        if kind == 0:
            values: Any = np.full(n, 3.0)
        elif kind == 1:
            values = rng.integers(0, 3, n).astype(float)
        elif kind == 2:
            values = rng.normal(size=n)
        elif kind == 3:
            values = np.where(rng.random(n) < 0.3, np.nan, rng.integers(0, 6, n))
        elif kind == 4:
            values = np.where(rng.random(n) < 0.1, np.nan, np.exp(rng.normal(size=n) * 5))
        elif kind == 5:
            names = np.array([*"abcdefgh", None], object)
            values = pd.Series(names[rng.integers(0, rng.integers(2, 10), n)], dtype="str")
        else:
            values = next(iter(columns.values())) if columns else rng.random(n)
        columns[f"column {j}"] = values
    return pd.DataFrame(columns)


def make_case(seed: int, n: int, p: int, classes: bool, **params: Any) -> Case:
    rng = np.random.default_rng(seed)
    frame = random_frame(rng, n, p)
    signal = pd.factorize(frame.iloc[:, 0])[0] + rng.normal(size=n)
    weights = [
        None,
        rng.integers(0, 4, n).astype(float),
        rng.random(n) + 0.1,
        rng.integers(1, 900, n).astype(float),
    ][int(rng.integers(4))]
    if weights is not None and not weights.any():
        weights[0] = 1.0
    common: dict[str, Any] = {
        "n_estimators": int(rng.integers(1, 8)),
        "random_state": int(rng.integers(1000)),
        "parties": 1,
        "n_jobs": 1,
        **params,
    }
    if classes:
        edges = np.quantile(signal, np.linspace(0, 1, int(rng.integers(3, 6)))[1:-1])
        y = np.array(["ash", "birch", "cedar", "elm"])[np.digitize(signal, edges)]
        return Case(frame, y, weights, FederatedForestClassifier(**common), rng)
    y = np.round(signal, int(rng.integers(0, 6)))
    return Case(frame, y, weights, FederatedForestRegressor(**common), rng)


def same_forest(ours: Forest, reference: Forest) -> None:
    """Every array of the complete model, features under the numbers of the reference's columns."""
    a, b = ours.combine(), reference.combine()
    column = np.array([b.feature_names.index(name) for name in a.feature_names], np.int64)
    np.testing.assert_array_equal(a.coordinator.structure.offset, b.coordinator.structure.offset)
    np.testing.assert_array_equal(a.coordinator.structure.right, b.coordinator.structure.right)
    np.testing.assert_array_equal(a.splits.node, b.splits.node)
    np.testing.assert_array_equal(column[a.splits.feature], b.splits.feature)
    for part in ("threshold", "missing_left", "set_start", "sets"):
        same_bits(getattr(a.splits, part), getattr(b.splits, part))
    for part in ("weight", "start", "output", "value"):
        same_bits(getattr(a.coordinator.leaves, part), getattr(b.coordinator.leaves, part))
    same_bits(a.coordinator.gain, b.coordinator.gain)
    order = np.argsort(column)
    same_bits(ours.feature_importances_[order], reference.feature_importances_)


def same_bits(a: np.ndarray, b: np.ndarray) -> None:
    assert a.dtype == b.dtype
    np.testing.assert_array_equal(
        a.view(np.uint64) if a.dtype == np.float64 else a, b.view(np.uint64) if b.dtype == np.float64 else b
    )


def outputs(model: Forest, X: Any, **how: Any) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "column .* unseen in training", UserWarning)
        if isinstance(model, FederatedForestClassifier):
            return model.predict_proba(X, **how)
        return model.predict(X, **how)


def check_everything(case: Case) -> None:
    """One party and one thread against everybody else."""
    reference = case.fit()
    dealing = case.dealing()
    dealt = case.fit(parties=dealing)
    same_forest(dealt, reference)
    same_forest(case.fit(parties=case.dealing(), n_jobs=2, memory_limit=1), reference)
    shuffled = case.frame[case.rng.permutation(case.frame.columns)]
    same_forest(case.fit(shuffled, parties=int(case.rng.integers(1, 7))), reference)

    rows = case.rng.integers(0, len(case.frame), 70)
    new = case.frame.iloc[rows].reset_index(drop=True)
    for name in new.columns:  # rows that training has not seen: columns torn apart
        new[name] = new[name].to_numpy()[case.rng.permutation(len(rows))]
    expected = outputs(reference, new)
    ways: list[dict[str, Any]] = [
        {},
        {"method": "one-round"},
        {"method": "one-round", "wire": "leaves"},
        {"method": "one-round", "wire": "ranks"},
        {"method": "classical"},
    ]
    for how in ways:
        same_bits(outputs(dealt, new, **how), expected)


RULES = st.fixed_dictionaries(
    {
        "max_features": st.sampled_from([None, "sqrt", 1, 0.5]),
        "bootstrap": st.booleans(),
        "max_depth": st.sampled_from([None, None, 1, 3]),
        "min_samples_split": st.sampled_from([2, 2, 7, 0.2]),
        "min_samples_leaf": st.sampled_from([1, 1, 3, 0.05]),
        "min_weight_fraction_leaf": st.sampled_from([0.0, 0.0, 0.1]),
        "max_leaf_nodes": st.sampled_from([None, None, 2, 5, 12]),
        "ccp_alpha": st.sampled_from([0.0, 0.0, 0.01, 0.05]),
        "min_impurity_decrease": st.sampled_from([0.0, 0.0, 0.02]),
        "feature_sampling": st.sampled_from(["node", "node", "tree"]),
        "max_bins": st.sampled_from([None, None, 4]),
    }
)
SIZES = {"seed": st.integers(0, 2**32), "n": st.integers(1, 90), "p": st.integers(1, 8), "rules": RULES}


@given(
    **SIZES,
    criterion=st.sampled_from(["gini", "entropy"]),
    class_weight=st.sampled_from([None, None, "balanced", "balanced_subsample", {"ash": 3.0, "birch": 0.25}]),
    voting=st.sampled_from(["soft", "majority"]),
)
@settings(max_examples=25, deadline=None, derandomize=True)
def test_classifiers(
    seed: int, n: int, p: int, rules: dict[str, Any], criterion: str, class_weight: Any, voting: str
) -> None:
    case = make_case(seed, n, p, True, criterion=criterion, voting=voting, **rules)
    if isinstance(class_weight, dict):
        class_weight = {name: w for name, w in class_weight.items() if name in case.y}
    if class_weight == "balanced_subsample" and not rules["bootstrap"]:
        class_weight = None
    case.forest.set_params(class_weight=class_weight)
    check_everything(case)


@pytest.mark.slow
@given(**SIZES)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_regressors(seed: int, n: int, p: int, rules: dict[str, Any]) -> None:
    check_everything(make_case(seed, n, p, False, **rules))


@pytest.mark.slow
@pytest.mark.parametrize("classes", [True, False])
def test_large_enough_for_threads_and_groups(classes: bool) -> None:
    """More than 20,000 open rows, so that threads are used, and nodes that are searched by groups first."""
    case = make_case(5, 4000, 9, classes, n_estimators=8, max_features=0.5, max_leaf_nodes=None)
    reference = case.fit()
    assert np.diff(reference.forest_.coordinator.structure.offset).sum() > 1000
    for n_parties in (2, 3, 6):
        same_forest(case.fit(parties=n_parties, n_jobs=2, memory_limit=4000 * 8 * 3), reference)
    # a batch per tree costs rounds, not results
    assert case.fit(memory_limit=1).cost_.rounds > reference.cost_.rounds


def test_another_seed_is_another_forest() -> None:
    case = make_case(1, 90, 6, True, n_estimators=5)
    first, second = case.fit(random_state=1), case.fit(random_state=2)
    with pytest.raises(AssertionError):
        same_forest(first, second)


def test_messages_pass_through_the_codec() -> None:
    seen: list[bytes] = []
    codec.listeners.append(seen.append)
    try:
        model = make_case(2, 50, 4, True).fit(parties=2)
    finally:
        codec.listeners.remove(seen.append)
    assert sum(map(len, seen)) == model.cost_.bytes_sent + model.cost_.bytes_received


# --- a federation's forest ---


def test_a_federation_grows_the_same_forest_in_any_order_of_its_parties_and_columns() -> None:
    case = make_case(3, 80, 6, True, n_estimators=6)
    names = list(case.frame.columns)
    label = pd.DataFrame({"label": case.y})
    tables = {"a": case.frame[names[:2]].join(label), "b": case.frame[names[2:3]], "c": case.frame[names[3:]]}
    model = FederatedForestClassifier(6, random_state=0, max_features=2)
    first = clone(model).fit(Federation.local(tables, shares_model=True), "a.label")
    turned = {p: tables[p][tables[p].columns[::-1]] for p in ("c", "a", "b")}
    second = clone(model).fit(Federation.local(turned, shares_model=True), "a.label")
    ours, theirs = second.combine(), first.combine()
    column = np.array([theirs.feature_names.index(name) for name in ours.feature_names])
    np.testing.assert_array_equal(ours.coordinator.structure.right, theirs.coordinator.structure.right)
    np.testing.assert_array_equal(column[ours.splits.feature], theirs.splits.feature)
    same_bits(ours.splits.threshold, theirs.splits.threshold)
    same_bits(first.predict_proba(Federation.local(tables)), second.predict_proba(Federation.local(turned)))


def test_a_federation_grows_the_forest_of_the_joined_table() -> None:
    """Columns named party.column in one table, dealt to anybody, are the federation's columns."""
    case = make_case(4, 120, 6, False, n_estimators=6)
    names = list(case.frame.columns)
    label = pd.DataFrame({"label": case.y})
    tables = {"a": case.frame[names[:2]].join(label), "b": case.frame[names[2:]]}
    model = FederatedForestRegressor(6, random_state=0, max_features=2)
    apart = clone(model).fit(Federation.local(tables, shares_model=True), "a.label")
    joined = case.frame.rename(columns={c: f"{'a' if c in names[:2] else 'b'}.{c}" for c in names})
    together = clone(model).set_params(parties=1).fit(joined, case.y)
    a, b = apart.combine(), together.combine()
    np.testing.assert_array_equal(a.coordinator.structure.right, b.coordinator.structure.right)
    np.testing.assert_array_equal(a.splits.feature, b.splits.feature)
    same_bits(a.splits.threshold, b.splits.threshold)
    same_bits(a.coordinator.leaves.value, b.coordinator.leaves.value)
    same_bits(apart.predict(Federation.local(tables)), together.predict(joined))


# --- columns that leave ---


@pytest.mark.parametrize("classes", [True, False])
def test_a_column_that_splits_nothing_can_leave(classes: bool) -> None:
    """All features are candidates: without one that no tree uses, the forest is the same."""
    case = make_case(8, 150, 8, classes, n_estimators=3, max_features=None, max_depth=3)
    full = case.fit(parties=3)
    used = set(full.combine().splits.feature.tolist())
    idle = [name for f, name in enumerate(case.frame.columns) if f not in used]
    assert idle
    for name in idle:
        rest = case.frame.drop(columns=name)
        same_forest_but_for(case.fit(rest, parties=2), full)


@pytest.mark.parametrize("classes", [True, False])
def test_a_column_that_can_split_nothing_can_leave(classes: bool) -> None:
    """One candidate per node, and the search goes on past a constant: its place in the order never counted."""
    case = make_case(9, 150, 5, classes, n_estimators=5, max_features=1)
    frame = case.frame.assign(constant=1.0)
    same_forest_but_for(case.fit(case.frame, parties=2), case.fit(frame, parties=3))


def same_forest_but_for(ours: Forest, full: Forest) -> None:
    a, b = ours.combine(), full.combine()
    column = np.array([b.feature_names.index(name) for name in a.feature_names], np.int64)
    np.testing.assert_array_equal(a.coordinator.structure.right, b.coordinator.structure.right)
    np.testing.assert_array_equal(column[a.splits.feature], b.splits.feature)
    same_bits(a.splits.threshold, b.splits.threshold)
    same_bits(a.coordinator.leaves.value, b.coordinator.leaves.value)
