"""Pooled quantiles from counts: exact, and the same whoever holds which value."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from woodlot.trees.quantiles import (
    DIGIT_BITS,
    PooledColumn,
    count_digits,
    declared_bins,
    ordered_form,
    ordered_values,
)

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
COLUMNS = st.one_of(
    arrays(np.float32, st.integers(0, 60), elements=FLOATS),
    arrays(np.float32, st.integers(0, 60), elements=st.sampled_from([-2.5, -0.0, 0.0, 1.0, 1.0000001, 7.0, 3e38])),
)


def pooled(parts: list[np.ndarray], max_bins: int) -> PooledColumn:
    column = PooledColumn(max_bins)
    for known_bits in DIGIT_BITS:
        due = column.due()
        assert len(due) <= 2 * max_bins
        column.refine(np.sum([count_digits(np.sort(ordered_form(p)), due, known_bits) for p in parts], axis=0))
    return column


@settings(deadline=None)
@given(COLUMNS)
def test_the_ordered_form_keeps_order_and_value(values: np.ndarray) -> None:
    form = ordered_form(values)
    np.testing.assert_array_equal(ordered_values(form), values)
    np.testing.assert_array_equal(np.argsort(form, kind="stable"), np.argsort(values, kind="stable"))


@settings(deadline=None)
@given(COLUMNS, st.integers(2, 9), st.integers(0, 2**32 - 1))
def test_bins_are_the_quantiles_of_all_values(values: np.ndarray, max_bins: int, seed: int) -> None:
    holder = np.random.default_rng(seed).integers(0, 3, len(values))
    bins = pooled([values[holder == k] for k in range(3)], max_bins).bins()
    distinct = np.unique(values)
    edges = distinct[:-1]
    if len(distinct) > max_bins:
        ranks = [-(-k * len(values) // max_bins) for k in range(1, max_bins)]
        edges = np.unique(np.sort(values)[np.array(ranks) - 1])
        edges = edges[edges < distinct[-1]]
    np.testing.assert_array_equal(bins.below, edges)
    np.testing.assert_array_equal(bins.above, distinct[np.searchsorted(distinct, edges) + 1])
    assert bins.n_codes <= max_bins
    codes = bins.encode(values)
    for k, edge in enumerate(bins.below):
        np.testing.assert_array_equal(codes <= k, values <= edge)


def test_declared_edges_and_missing_values() -> None:
    bins = declared_bins(np.array([0.1, 2.0]))
    values = np.array([0.1, -9, 2.0, 2.0000002, 5, np.nan], np.float32)  # 0.1 as float32 is above 0.1
    np.testing.assert_array_equal(bins.encode(values), [1, 0, 1, 2, 2, 3])
    assert declared_bins(np.empty(0)).n_codes == 1
