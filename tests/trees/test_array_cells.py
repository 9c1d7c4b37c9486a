"""Histograms on arrays against the kernel: the same words.

NumPy runs it here; ``make test-gpu`` runs the same tests on a graphics card.
"""

from __future__ import annotations

import numpy as np
from array_cases import arrays_here, same
from hypothesis import given, settings
from hypothesis import strategies as st

from woodlot.trees.arrays.array_cells import CellCounter
from woodlot.trees.cells import Cells


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=60)
def test_any_cells(seed: int) -> None:
    """Nodes of any size, also without a row; pairs that leave codes and missing values out; classes not listed."""
    rng = np.random.default_rng(seed)
    n, p, n_nodes, n_classes = rng.integers([1, 1, 1, 1], [80, 5, 7, 6]).tolist()
    regression = bool(rng.integers(0, 2))
    n_classes = 1 if regression else n_classes
    n_codes = rng.integers(1, int(rng.choice([4, 300])), p)
    codes = np.array([rng.integers(0, m + 1, n) for m in n_codes]).astype(np.min_scalar_type(int(n_codes.max())))
    labels = rng.integers(0, n_classes, n).astype(np.uint8)
    targets = rng.integers(0, 2**9, n) if regression else None
    bounds = np.sort(rng.integers(0, 2 * n + 1, n_nodes + 1))
    rows = rng.integers(0, n, 2 * n).astype(np.uint32)
    weights = rng.integers(1, 4, 2 * n).astype(rng.choice([np.uint8, np.uint32]))
    n_pairs, listed = rng.integers(1, p + 1, n_nodes), rng.integers(1, n_classes + 1, n_nodes)
    feature = np.concatenate([rng.permutation(p)[:k] for k in n_pairs])
    first = rng.integers(0, n_codes[feature])
    cells = Cells(
        width=np.full(n_nodes, int(weights.sum()).bit_length(), np.uint8),
        n_classes=listed,
        classes=np.concatenate([np.sort(rng.permutation(n_classes)[:k]) for k in listed]),
        n_pairs=n_pairs,
        feature=feature,
        first=first,
        codes=rng.integers(1, n_codes[feature] - first + 1),
        missing=rng.integers(0, 2, len(feature)).astype(np.uint8),
        with_rows=bool(rng.integers(0, 2)),
        target_bits=9 if regression else 0,
        word_bits=int(rng.integers(30, 64)),
    )
    cells.check(n_classes, n_codes)
    start, end = bounds[:-1], bounds[1:]
    expected = cells.count(codes, n_codes, labels, targets, n_classes, rows, weights, start, end, 1)
    counter = CellCounter(arrays_here(), codes, n_codes, labels, targets)
    same(counter.count(cells, counter.put_rows(rows, weights), start, end), expected)


def test_a_class_that_is_listed_twice() -> None:
    """The last place counts, as on the CPU."""
    one = np.ones(1, np.int64)
    cells = Cells(
        np.array([5], np.uint8), one * 2, np.zeros(2, np.int64), one, one * 0, one * 0, one, one * 0, False, 0, 61
    )
    codes, labels, rows = np.zeros((1, 3), np.uint8), np.zeros(3, np.uint8), np.arange(3, dtype=np.uint32)
    weights = np.array([1, 2, 3], np.uint8)
    start, end = one * 0, one * 3
    expected = cells.count(codes, one, labels, None, 1, rows, weights, start, end, 1)
    counter = CellCounter(arrays_here(), codes, one, labels, None)
    same(counter.count(cells, counter.put_rows(rows, weights), start, end), expected)
    assert expected.tolist() == [6 << 5]
