"""The rows of nodes at which growing begins, on the wire and in order."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from woodlot.exceptions import RemoteProtocolError
from woodlot.protocols.revocable.participant import read_samples, segments, write_samples
from woodlot.trees.kernels.samples import left_rows, sort_rows

nodes = st.integers(1, 300).flatmap(
    lambda n: st.tuples(st.just(n), st.lists(st.sets(st.integers(0, n - 1), min_size=1), max_size=6))
)


@settings(max_examples=60, deadline=None)
@given(nodes, st.randoms(use_true_random=False))
def test_rows_of_nodes_are_sorted_written_and_read(case: tuple[int, list[set[int]]], random: object) -> None:
    n_rows, sets = case
    rng = np.random.default_rng(random.randint(0, 2**32))  # type: ignore[attr-defined]
    rows = np.concatenate([np.empty(0, np.uint32), *(rng.permutation(sorted(s)) for s in sets)]).astype(np.uint32)
    weights = rows + np.uint32(1)
    ends = np.cumsum([len(s) for s in sets]).astype(np.int64)
    starts = ends - np.array([len(s) for s in sets], np.int64)
    sort_rows(rows, weights, starts, ends, n_rows)
    assert rows.tolist() == [row for s in sets for row in sorted(s)]
    np.testing.assert_array_equal(weights, rows + 1)
    told = write_samples(rows, ends, n_rows)
    found, sizes = read_samples(told["vectors"], told["sizes"], told["samples"], n_rows)
    np.testing.assert_array_equal(found, rows)
    assert sizes.tolist() == [len(s) for s in sets]
    np.testing.assert_array_equal(rows[segments(starts[::-1], ends[::-1])],
                                  [row for s in sets[::-1] for row in sorted(s)])  # fmt: skip


def test_samples_that_are_none_are_refused() -> None:
    none = np.empty(0, np.uint8), np.empty(0, np.uint32)
    wrongs = [
        (np.zeros(2, np.uint8), [0], []),  # a node without rows
        (np.array([0, 0b100], np.uint8), [0], []),  # a row that the table has not
        (np.zeros(1, np.uint8), [0], []),  # another length
        (none[0], [2], [3, 3]),
        (none[0], [2], [4, 3]),
        (none[0], [1], [10]),
        (none[0], [2], [3]),
    ]
    for vectors, sizes, rows in wrongs:
        with pytest.raises(RemoteProtocolError):
            read_samples(vectors, np.array(sizes, np.uint32), np.array(rows, np.uint32), 10)


def test_sides_of_rows_follow_from_their_bins() -> None:
    bins = np.array([0, 3, 1, 2, 2, 5], np.uint8)
    flags = np.full(5, 9, np.uint8)
    left_rows(bins, np.array([3, 0]), np.array([2, 3]), np.array([2, 1]), np.array([3, 0]), flags)
    assert flags.tolist() == [1, 0, 1, 1, 1]
