"""Rows divided class by class: each part has its share of each class."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import woodlot as wl
from woodlot.data.row_rules import CIRCLE, row_points, stratified, whole_circle
from woodlot.exceptions import DataError

N = 300
IDS = np.arange(N)
LATE = np.where(IDS % 15 == 0, "yes", "no")  # 20 of 300


def people() -> wl.Federation:
    bank = pd.DataFrame({"id": IDS, "age": IDS % 60, "late": LATE})
    return wl.Federation.local({"bank": bank, "shop": pd.DataFrame({"id": IDS[::-1], "visits": IDS % 7})}, id="id")


def clinics() -> wl.Federation:
    rows = pd.DataFrame({"id": IDS, "age": IDS % 60, "late": LATE})
    return wl.Federation.local({"a": rows[:100], "b": rows[100:220], "c": rows[220:]}, id="id", layout="rows")


def count(labels: Any) -> int:
    return int((np.asarray(labels) == "yes").sum())


@settings(deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=200), st.integers(2, 7), st.integers(0, 3))
def test_every_part_has_its_share_of_every_class(labels: list[int], n_folds: int, seed: int) -> None:
    classes = np.array(labels)
    raw = row_points([bytes([k]) for k in range(len(labels))], seed)
    points = stratified(raw, classes)
    for fold in range(n_folds):
        held = whole_circle(seed).part(fold / n_folds, (fold + 1) / n_folds).chosen(points)
        for k in np.unique(classes):
            assert abs(held[classes == k].sum() - (classes == k).sum() / n_folds) < 2
    for k in np.unique(classes):  # rows keep their order within a class
        own = classes == k
        np.testing.assert_array_equal(np.argsort(raw[own]), np.argsort(points[own], kind="stable"))


def test_a_class_of_its_own_row_is_divided_by_the_hash() -> None:
    """As targets of a regression are: nothing is gained, and nothing is lost."""
    raw = np.array([0, 5, CIRCLE // 2, CIRCLE - 1], np.uint64)
    np.testing.assert_array_equal(stratified(raw, np.arange(4)), raw)


@pytest.mark.parametrize(("fed", "y"), [(people(), "bank.late"), (clinics(), "late")], ids=["columns", "rows"])
def test_splits_and_folds_of_a_local_federation(fed: wl.Federation, y: str) -> None:
    train, test = fed.split(0.25, seed=1, stratify=y)
    assert len(train) + len(test) == N
    assert count(test[y]) in {4, 5, 6}
    again = fed.split(0.25, seed=1, stratify=fed[y])[1]
    np.testing.assert_array_equal(np.asarray(again[y]), np.asarray(test[y]))
    inner, held = train.split(0.2, seed=1, stratify=y)  # the same seed divides a part once more
    assert len(inner) + len(held) == len(train)
    assert count(held[y]) in {2, 3, 4}
    folds = fed.fold_numbers(5, seed=0, stratify=y)
    assert all(count(fed[y][folds == k]) in {3, 4, 5} for k in range(5))
    with pytest.raises(DataError, match="leaves none on one side"):
        fed[:1].split(0.5, stratify=y)


def test_folds_that_would_lack_a_class_have_it() -> None:
    """Two rows of a class in two folds: by the hash alone they can be in one."""
    rare = np.where(np.isin(IDS, [3, 77]), "yes", "no")
    bank = pd.DataFrame({"id": IDS, "age": IDS % 60, "late": rare})
    fed = wl.Federation.local({"bank": bank, "shop": pd.DataFrame({"id": IDS, "visits": IDS % 7})}, id="id")
    model = wl.FederatedForestClassifier(n_estimators=2, random_state=0)
    alike = next(seed for seed in range(50) if len(set(fed.fold_numbers(2, seed)[[3, 77]])) == 1)
    with pytest.raises(DataError, match="stratify=True"):
        wl.cross_validate(model, fed, "bank.late", cv=2, seed=alike)
    found = wl.cross_validate(model, fed, "bank.late", cv=2, seed=alike, stratify=True, scoring="roc_auc")
    assert len(found["test_score"]) == 2
    best = wl.search(model, {"max_depth": [1, 2]}, fed, "bank.late", cv=2, seed=alike, stratify=True)
    assert best.best_params_["max_depth"] in {1, 2}
    with pytest.raises(ValueError, match="stratify is for a number of folds"):
        wl.cross_validate(model, fed, "bank.late", cv=[(IDS[:150], IDS[150:])], stratify=True)


def test_one_label_decides_which_other_rows_are_in_a_part_by_class() -> None:
    """Why an epsilon, which is for a change of one row, does not hold for what such a part tells."""
    raw = row_points([bytes([k, k // 100]) for k in range(200)], 0)
    labels, moved = np.arange(200) % 2, []
    for row in range(200):
        changed = np.where(np.arange(200) == row, 1 - labels, labels)
        before, after = (whole_circle(0).part(0, 0.5).chosen(stratified(raw, one)) for one in (labels, changed))
        moved.append(int(np.delete(before != after, row).sum()))
    assert max(moved) >= 2
    assert np.mean(np.array(moved) > 0) > 0.5


@pytest.mark.parametrize(
    "model",
    [
        wl.PrivateForestClassifier(1.0, declared={"age": (0, 60)}, classes=["no", "yes"], n_estimators=2),
        wl.FederatedExtraTreesClassifier(
            2, declared={"age": (0, 60)}, classes=["no", "yes"], privacy=wl.LocalDP(epsilon=2.0)
        ),
        wl.CollaborativeForestClassifier(2, dp_leaf_epsilon=1.0, leaf_average="rows"),
    ],
    ids=["private forest", "labels", "leaves"],
)
def test_parts_by_class_are_not_learnt_from_with_differential_privacy(model: Any) -> None:
    train, _ = clinics().split(0.25, stratify="late")
    with pytest.raises(DataError, match="divided by class are not learnt from with differential privacy"):
        model.fit(train[np.arange(len(train))], y="late")  # a part of the part is no other
    wl.HorizontalForestClassifier(2, max_depth=1).fit(train, y="late")
