"""Every parameter of every estimator against values that make no sense: refused by name, before any work."""

from __future__ import annotations

import inspect
import warnings
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import is_classifier

import woodlot as wl
from woodlot.estimators.parameters import MOST_TREES, TABLE
from woodlot.exceptions import DataError, ModelFileError
from woodlot.protocols.core.forest_plan import n_draws

ESTIMATORS: list[Any] = [
    value
    for value in (getattr(wl, name) for name in wl.__all__)
    if inspect.isclass(value) and hasattr(value, "get_params")
]

WEIRD: list[Any] = [
    float("inf"),
    float("-inf"),
    float("nan"),
    np.float32("nan"),
    1e300,
    -1.0,
    0,
    -1,
    2**33,
    -(2**33),
    10**400,
    True,
    np.True_,
    "text",
    "",
    b"sqrt",
    np.array([1, 2]),
    np.array(["sqrt", "log2"]),
    np.array([np.nan, 1.0]),
    np.zeros((2, 2)),
    np.array(3),
    pd.Series([0.5, 0.5]),
    [],
    ["gini"],
    (0.5,),
    {},
    {"age": "old"},
    {0: float("nan")},
    {1, 2},
    1 + 2j,
    object(),
    len,
    None,
]

RNG = np.random.default_rng(0)
X = pd.DataFrame({"age": RNG.normal(size=24), "income": RNG.normal(size=24)})
SMALL: dict[str, Any] = {
    "n_estimators": 2,
    "max_iter": 2,
    "tol": 10.0,
    "encryption": "simulated",
    "random_state": 0,
    "n_jobs": 1,
}


class TouchedError(Exception):
    """The data were looked at."""


class Untouchable:
    """Data that notice when anybody looks at them."""

    def __getattribute__(self, name: str) -> Any:
        if name == "__class__":
            return Untouchable
        raise TouchedError(name)


def make(kind: Any, **params: Any) -> Any:
    known = inspect.signature(kind).parameters
    return kind(**{name: value for name, value in SMALL.items() if name in known} | params)


def failure(model: Any, X: Any, y: Any) -> Exception | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            model.fit(X, y).predict(X)
        except (TouchedError, ValueError, TypeError) as error:
            return error
    return None


def y_of(kind: Any) -> Any:
    return np.arange(24) % 2 if is_classifier(kind()) else np.linspace(0, 1, 24)


@pytest.mark.parametrize("kind", ESTIMATORS, ids=lambda kind: kind.__name__)
def test_the_table_has_exactly_the_parameters_of_the_constructor(kind: Any) -> None:
    assert set(TABLE[kind.__name__]) == set(inspect.signature(kind).parameters)


def test_the_table_has_exactly_the_estimators() -> None:
    assert set(TABLE) == {kind.__name__ for kind in ESTIMATORS}


@pytest.mark.parametrize("kind", ESTIMATORS, ids=lambda kind: kind.__name__)
def test_defaults_are_allowed(kind: Any) -> None:
    with pytest.raises(TouchedError):
        kind().fit(Untouchable(), y_of(kind))


@pytest.mark.parametrize("kind", ESTIMATORS, ids=lambda kind: kind.__name__)
def test_weird_values_are_refused_by_name_or_work(kind: Any) -> None:
    accepted = []
    for name in inspect.signature(kind).parameters:
        for value in WEIRD:
            error = failure(make(kind, **{name: value}), Untouchable(), y_of(kind))
            if isinstance(error, TouchedError):
                accepted.append((name, value))
            else:
                assert name in str(error), (name, value)
                assert len(str(error)) < 600
    for name, value in accepted:
        error = failure(make(kind, **{name: value}), X, y_of(kind))
        if error is not None:  # it can only be told once the data are known
            assert name in {"parties", "class_weight", "classes", "bins", "declared", "grid"}, (name, value, error)
            assert name in str(error), (name, value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_samples", float("inf")),
        ("max_samples", 2**33),
        ("max_features", np.array([1, 2])),
        ("max_features", np.array(["sqrt"])),
        ("n_estimators", MOST_TREES + 1),
        ("min_impurity_decrease", float("inf")),
        ("max_depth", 2**33),
        ("random_state", -1),
        ("parties", 2**33),
    ],
)
def test_what_was_let_through_before(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"The '{name}' parameter must be .* Got .* instead"):
        wl.FederatedForestClassifier(**{name: value}).fit(X, np.arange(24) % 2)


def test_numbers_of_numpy_are_numbers() -> None:
    model = wl.FederatedForestClassifier(
        np.int64(2), max_features=np.float32(0.5), max_depth=np.int8(3), bootstrap=np.True_, random_state=np.uint8(1)
    )
    assert model.fit(X, np.arange(24) % 2).forest_.coordinator.structure.n_trees == 2


@pytest.mark.parametrize(
    "model",
    [
        wl.FederatedForestClassifier(2, min_impurity_decrease=Fraction(0)),
        wl.HorizontalForestClassifier(2, max_features=Fraction(1, 2)),
        wl.FederatedLogisticRegression(tol=Fraction(1, 10)),
    ],
)
def test_what_cannot_be_saved_can_be_fitted_in_one_process(model: Any, tmp_path: Path) -> None:
    model.fit(X, np.arange(24) % 2)
    with pytest.raises(ModelFileError, match="holds a Fraction, which cannot be saved"):
        model.save(tmp_path / "model")


def test_draws_that_cannot_be_counted_are_refused() -> None:
    with pytest.raises(DataError, match=r"max_samples=1000.0 of 10,000,000 rows would draw 10,000,000,000 rows"):
        n_draws(1000.0, 10_000_000, None, 1.0)
