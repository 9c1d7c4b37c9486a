"""Private quantiles: near the true ones, on the public grid, within their epsilon."""

from __future__ import annotations

import math

import numpy as np
import pytest
from audits import audited_epsilon

from woodlot.privacy.accounting import plain_epsilon
from woodlot.privacy.noise import Neighbours
from woodlot.privacy.quantiles import private_quantiles

QUARTERS = (0.25, 0.5, 0.75)


def test_quantiles_of_many_rows_are_near_the_true_ones() -> None:
    column = np.random.default_rng(0).normal(5, 1, 20_000)
    found = private_quantiles(column, QUARTERS, lower=0, upper=10, epsilon=1.0)
    assert found.values == pytest.approx(np.quantile(column, QUARTERS), abs=0.05)
    assert (np.diff(found.values) >= 0).all()


@pytest.mark.parametrize("neighbours", ["add-remove", "replace"])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_epsilon_is_not_exceeded_and_nearly_used(epsilon: float, neighbours: str) -> None:
    found = private_quantiles(
        np.arange(10.0),
        (0.1, 0.5, 1 / 3),
        lower=0,
        upper=10,
        epsilon=epsilon,
        neighbours=neighbours,
        grid=8,  # type: ignore[arg-type]
    )
    assert epsilon * 0.999 < plain_epsilon([found.spend]) <= epsilon * (1 + 1e-12)


def test_only_edges_of_the_grid_are_told() -> None:
    column = np.array([0.123456789] * 500 + [np.nan] * 20 + [0.3] * 500 + [-1e9, 1e9])
    for _ in range(5):
        found = private_quantiles(column, QUARTERS, lower=0, upper=1, epsilon=50, grid=64).values * 64
        assert (found == np.round(found)).all()
        assert 8 <= found[1] <= 19  # between the two values


def test_epsilon_matters() -> None:
    column = np.random.default_rng(0).normal(0.9, 0.02, 50)
    strict = [private_quantiles(column, [0.5], lower=0, upper=1, epsilon=0.001).values[0] for _ in range(40)]
    loose = [private_quantiles(column, [0.5], lower=0, upper=1, epsilon=10).values[0] for _ in range(40)]
    assert np.std(strict) > 0.15
    assert np.abs(np.array(loose) - 0.9).max() < 0.05


@pytest.mark.slow
@pytest.mark.parametrize(
    ("neighbours", "other", "least"), [("add-remove", (4, 1, 5), 0.35), ("replace", (3, 1, 5), 0.05)]
)
def test_an_attack_proves_much_of_epsilon_and_no_more(
    neighbours: Neighbours, other: tuple[int, ...], least: float
) -> None:
    """Two edges are as good as each other, until one row tips the scales: which of them is told?"""
    epsilon, trials = 2.0, 3_000
    told = []
    for counts in ((4, 1, 4), other):
        column = np.repeat([0.1, 0.5, 0.9], counts)
        drawn = [
            private_quantiles(column, [0.5], lower=0, upper=1, epsilon=epsilon, neighbours=neighbours, grid=3).values
            for _ in range(trials)
        ]
        told.append(np.rint(np.concatenate(drawn) * -3).astype(np.int64))
    assert least * epsilon <= audited_epsilon(*told, alpha=1e-6) <= epsilon


def test_empty_columns_say_nothing() -> None:
    for column in (np.empty(0), np.full(5, np.nan)):
        found = private_quantiles(column, QUARTERS, lower=-1, upper=1, epsilon=1.0)
        assert ((found.values > -1) & (found.values < 1)).all()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"lower": 1.0, "upper": 1.0}, "range"),
        ({"upper": math.inf}, "range"),
        ({"lower": -1.7e308, "upper": 1.7e308}, "range"),
        ({"epsilon": 0.0}, "epsilon"),
        ({"probabilities": []}, "probabilities"),
        ({"probabilities": [0.0]}, "probabilities"),
        ({"grid": 1}, "grid"),
        ({"neighbours": "x"}, "neighbours"),
    ],
)
def test_bad_input_is_refused(change: dict[str, object], named: str) -> None:
    arguments = {"probabilities": [0.5], "lower": 0.0, "upper": 1.0, "epsilon": 1.0, **change}
    with pytest.raises(ValueError, match=named):
        private_quantiles(np.zeros(3), **arguments)  # type: ignore[arg-type]
