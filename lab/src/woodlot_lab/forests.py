"""What the experiments on forests share: splits, dealings of columns, scikit-learn's forest on fair terms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.metrics import accuracy_score, mean_squared_error
from sklearn.model_selection import train_test_split

import woodlot as wl
from woodlot_lab.data import Dataset

TEST_SHARE = 0.2
"""All papers split 80 to 20."""
FAIR_RANGE = 2.0**-10
"""scikit-learn takes values closer than 1e-7 for equal: a column of a smaller range than this is scaled up for it."""


@dataclass(frozen=True)
class Split:
    """Rows to learn from and rows to test on."""

    train: NDArray[np.float32]
    test: NDArray[np.float32]
    y_train: NDArray[Any]
    y_test: NDArray[Any]
    classes: bool

    def only(self, columns: Sequence[int]) -> Split:
        """The same rows with some columns."""
        return Split(self.train[:, columns], self.test[:, columns], self.y_train, self.y_test, self.classes)


def split(data: Dataset, seed: int, test_share: float = TEST_SHARE, most_rows: int | None = None) -> Split:
    """Rows dealt by a seed; classes keep their shares where each has rows enough."""
    X, y = data.X, data.y
    if most_rows is not None and len(y) > most_rows:
        rows = np.random.default_rng(seed).permutation(len(y))[:most_rows]
        X, y = X[rows], y[rows]
    even = data.task == "classes" and np.unique(y, return_counts=True)[1].min() > 1
    train, test, y_train, y_test = train_test_split(
        X, y, test_size=test_share, random_state=seed, stratify=y if even else None
    )
    return Split(train, test, y_train, y_test, data.task == "classes")


def halves(n_columns: int, seed: int) -> dict[str, list[int]]:
    """Columns dealt at random to two parties, each half of them."""
    order = np.random.default_rng(seed).permutation(n_columns)
    middle = (n_columns + 1) // 2
    return {"one": sorted(order[:middle].tolist()), "two": sorted(order[middle:].tolist())}


def features(rows: Split) -> str | float:
    """Features tried at a node: the square root of their number for classes, a third for targets."""
    return "sqrt" if rows.classes else 1 / 3


def federated(rows: Split, parties: int | Mapping[str, Sequence[int]], seed: int, **params: Any) -> Any:
    """Woodlot's forest, fitted over simulated parties."""
    kind = wl.FederatedForestClassifier if rows.classes else wl.FederatedForestRegressor
    chosen = {"max_features": features(rows), "n_jobs": 1} | params
    return kind(parties=parties, random_state=seed, **chosen).fit(rows.train, rows.y_train)


def central(rows: Split, seed: int, **params: Any) -> tuple[Any, Split]:
    """scikit-learn's forest on all columns, and the rows as it gets them."""
    fair = fair_for_sklearn(rows)
    kind = RandomForestClassifier if rows.classes else RandomForestRegressor
    chosen = {"max_features": features(rows), "n_jobs": 1} | params
    return kind(random_state=seed, **chosen).fit(fair.train, fair.y_train), fair


def fair_for_sklearn(rows: Split) -> Split:
    """Columns of a very small range times a power of two, which changes no order and no float's digits."""
    both = np.vstack([rows.train, rows.test]).astype(np.float64)
    if np.isnan(both).any():
        return rows
    extent = np.ptp(both, axis=0)
    small = (extent > 0) & (extent < FAIR_RANGE)
    if not small.any():
        return rows
    factor = np.ones(len(extent))
    factor[small] = np.exp2(-np.floor(np.log2(extent[small])))
    train, test = ((X * factor).astype(np.float32) for X in (rows.train, rows.test))
    return Split(train, test, rows.y_train, rows.y_test, rows.classes)


def filled(rows: Split) -> Split:
    """Missing values as -1, for what cannot do without a value."""
    train, test = (np.nan_to_num(X, nan=-1.0) for X in (rows.train, rows.test))
    return Split(train, test, rows.y_train, rows.y_test, rows.classes)


def growing(trees: Sequence[Any], rows: Split, steps: Sequence[int]) -> list[float]:
    """Accuracy, or mean squared error, of the first trees of a forest, for each number of them."""
    if rows.classes:  # y has the numbers of the classes
        so_far = np.cumsum([tree.predict_proba(rows.test) for tree in trees], axis=0)
        return [float((so_far[n - 1].argmax(axis=1) == rows.y_test).mean()) for n in steps]
    sums = np.cumsum([tree.predict(rows.test) for tree in trees], axis=0)
    return [float(mean_squared_error(rows.y_test, sums[n - 1] / n)) for n in steps]


def quality(model: Any, rows: Split) -> float:
    """Accuracy, or root of the mean squared error, on the test rows."""
    predicted = model.predict(rows.test)
    if rows.classes:
        return float(accuracy_score(rows.y_test, predicted))
    return float(np.sqrt(mean_squared_error(rows.y_test, predicted)))
