"""Draws that follow from a row's content."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import poisson

from woodlot.trees.drawing import MAX_RATE, draw_trees, poisson_thresholds, row_keys

LETTERS = np.array([0, 1, -1, 2, 0, 0], np.int32)
NUMBERS = np.array([0.5, -0.0, np.nan, 3, 0.5, 0.0], np.float32)
CLASSES = np.array([0, 1, 2, 1, 0, 1], np.uint8)


@pytest.mark.parametrize("rate", [0.01, 0.5, 1.0, 7.3, MAX_RATE])
def test_thresholds_are_those_of_the_poisson_distribution(rate: float) -> None:
    found = poisson_thresholds(rate).astype(np.float64) / 2.0**64
    np.testing.assert_allclose(found, poisson.cdf(np.arange(len(found)), rate), rtol=1e-12, atol=1e-18)
    assert 1 - found[-1] < 1e-18 or len(found) == 255


def test_equal_rows_have_equal_keys_and_others_have_not() -> None:
    keys = row_keys([NUMBERS, LETTERS], [11, 12], CLASSES)
    assert keys[0] == keys[4]
    assert len(np.unique(keys)) == 5
    # zero has one form; the other column tells these apart
    assert row_keys([NUMBERS], [11], CLASSES)[1] == row_keys([NUMBERS], [11], CLASSES)[5]


def test_neither_order_of_columns_nor_type_of_codes_counts_but_names_do() -> None:
    keys = row_keys([NUMBERS, LETTERS], [11, 12], CLASSES)
    np.testing.assert_array_equal(row_keys([LETTERS, NUMBERS], [12, 11], CLASSES.astype(np.int64)), keys)
    assert (row_keys([NUMBERS, LETTERS], [12, 11], CLASSES) != keys).any()
    assert (row_keys([NUMBERS, LETTERS], [11, 12], CLASSES[::-1]) != keys).any()
    other_nan = NUMBERS.copy()
    other_nan.view(np.uint32)[2] = 0xFFC12345
    np.testing.assert_array_equal(row_keys([other_nan, LETTERS], [11, 12], CLASSES), keys)


def test_draws_look_poisson_and_independent_between_trees_and_rows() -> None:
    keys = row_keys([np.arange(20_000, dtype=np.float32)], [5], np.zeros(20_000, np.uint8))
    rows, weights, bounds = draw_trees(keys, [poisson_thresholds(1.0)], 7, 3, 2)
    counts = np.zeros((3, 20_000))
    for tree in range(3):
        some = slice(bounds[tree], bounds[tree + 1])
        assert (np.diff(rows[some].astype(int)) > 0).all()
        counts[tree, rows[some]] = weights[some]
    np.testing.assert_allclose(counts.mean(axis=1), 1, atol=0.04)
    np.testing.assert_allclose(counts.var(axis=1), 1, atol=0.06)
    assert np.abs(np.corrcoef(counts) - np.eye(3)).max() < 0.03
    assert abs(np.corrcoef(counts[0, :-1], counts[0, 1:])[0, 1]) < 0.03


def test_without_thresholds_every_tree_has_every_row() -> None:
    rows, weights, bounds = draw_trees(np.arange(4, dtype=np.uint64), [np.empty(0, np.uint64)], 1, 2, 1)
    assert rows.tolist() == [0, 1, 2, 3] * 2
    assert weights.tolist() == [1] * 8
    assert bounds.tolist() == [0, 4, 8]
