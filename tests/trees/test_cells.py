"""Histograms in packed words: what holders count, and what is found in the sum, against the naive twin."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_splits import Cuts, Target, cuts_of_categories, cuts_of_numbers

from woodlot.trees.cells import ENTROPY, GINI, TARGETS, Cells
from woodlot.trees.kernels.cells import narrow_pairs
from woodlot.trees.kernels.wide import fill_xlogx

KINDS = {"gini": GINI, "entropy": ENTROPY, "squared_error": TARGETS}
TARGET_BITS = 12
SCALE = 1 << 20


class Node:
    """Rows of one node over some features, and the cells that are asked of them."""

    def __init__(self, seed: int, criterion: str, with_rows: bool) -> None:
        rng = np.random.default_rng(seed)
        n, p = int(rng.integers(2, 30)), 3
        self.criterion, self.with_rows = criterion, with_rows
        self.n_codes = rng.integers(1, 6, p)
        self.categorical = np.array([0, 0, 1], np.uint8)
        self.has_missing = rng.integers(0, 2, p).astype(np.uint8)
        self.codes = np.array([rng.integers(0, m + k, n) for m, k in zip(self.n_codes, self.has_missing, strict=True)])
        self.codes = self.codes.astype(np.uint8)
        self.n_classes = 1 if criterion == "squared_error" else 4
        present = rng.permutation(self.n_classes)[: rng.integers(1, self.n_classes + 1)]
        self.labels = rng.choice(present, n).astype(np.uint8)
        self.targets = rng.integers(0, 2**TARGET_BITS + 1, n)
        self.weights = rng.integers(1, 4, n).astype(np.uint8)
        self.holder = rng.integers(0, 3, n)

    def cells(self, word_bits: int = 61) -> Cells:
        classes = np.unique(self.labels)
        one = np.array
        return Cells(
            one([int(self.weights.sum()).bit_length()], np.uint8), one([len(classes)]), classes, one([3]), np.arange(3),
            np.zeros(3, int), self.n_codes, self.has_missing, self.with_rows,
            TARGET_BITS if self.criterion == "squared_error" else 0, word_bits,
        )  # fmt: skip

    def sums(self, cells: Cells) -> np.ndarray:
        total = np.zeros(cells.length, np.int64)
        for k in range(3):
            rows = np.flatnonzero(self.holder == k).astype(np.uint32)
            targets = self.targets if self.criterion == "squared_error" else None
            total += cells.count(
                self.codes, self.n_codes, self.labels, targets, self.n_classes, rows, self.weights[rows],
                np.zeros(1, int), np.array([len(rows)]), 1,
            )  # fmt: skip
        return total

    def search(self, cells: Cells, sums: np.ndarray, **options: Any) -> Any:
        table = np.zeros(int(self.weights.sum()) + 1, np.int64)
        fill_xlogx(table, float(SCALE))
        known: dict[str, Any] = {"min_leaf": 1, "first_wins": False, "xlogx": table, "scale": SCALE, "n_jobs": 1}
        return cells.search(
            sums, categorical=self.categorical, n_codes=self.n_codes, kind=KINDS[self.criterion], **(known | options)
        )

    def target(self) -> Target:
        weights = self.weights.astype(np.int64)
        if self.criterion == "squared_error":
            return Target.of_values(self.targets, weights)
        return Target.of_classes(self.labels, weights, self.n_classes, self.criterion, SCALE)

    def naive(self, f: int, min_leaf: int) -> tuple[Cuts, np.ndarray | None]:
        target = self.target()
        if not self.categorical[f]:
            values = np.where(self.codes[f] == self.n_codes[f], np.nan, self.codes[f].astype(np.float64))
            return cuts_of_numbers(values, target).allowed(min_leaf, 1), None
        largest = target.parts.sum(axis=0).argmax()
        # the twin prefers the first class among the rows; sums know no first row
        first = np.flatnonzero(self.labels == largest)
        order = np.concatenate([first, np.delete(np.arange(len(self.labels)), first)])
        if self.criterion == "squared_error":
            order = np.arange(len(self.labels))
        present = np.unique(self.labels)
        parts = target.parts if self.criterion == "squared_error" else target.parts[:, present]
        cuts, ranked = cuts_of_categories(self.codes[f][order], Target(parts[order], target.criterion, target.scale))
        return cuts.allowed(min_leaf, 1), ranked


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(sorted(KINDS)), st.booleans(), st.integers(1, 4))
def test_the_split_found_in_the_sums_is_the_best_of_all(seed: int, criterion: str, rows: bool, min_leaf: int) -> None:
    min_leaf = min_leaf if rows else 1
    node = Node(seed, criterion, rows)
    cells = node.cells()
    cells.check(node.n_classes, node.n_codes)
    found = node.search(cells, node.sums(cells), min_leaf=min_leaf)
    best = [(-np.inf, -1, -1)]
    for f in range(3):
        cuts, _ = node.naive(f, min_leaf)
        at = cuts.best()
        if at >= 0 and cuts.scores[at] > best[-1][0]:
            best.append((cuts.scores[at], f, at))
    score, feature, at = best[-1]
    assert found.feature[0] == feature
    assert found.rows[0] == (len(node.labels) if rows else node.weights.sum())
    if feature < 0:
        return
    assert found.score[0] == score
    cuts, order = node.naive(feature, min_leaf)
    if order is not None:
        went = found.goes_left[0, node.codes[feature]]
        assert set(np.unique(node.codes[feature][went == 1])) == set(order[: cuts.cut[at] + 1])
    else:
        values = np.unique(node.codes[feature][node.codes[feature] < node.n_codes[feature]])
        assert found.low[0] == values[cuts.cut[at]]
        assert found.high[0] == (values[cuts.cut[at] + 1] if cuts.cut[at] + 1 < len(values) else -1)
        if (node.codes[feature] == node.n_codes[feature]).any():
            assert found.missing_left[0] == cuts.missing_left[at]
    if rows:
        assert found.left_rows[0] == cuts.rows_left[at]
    assert found.left.sum() == node.target().weight(cuts.left[at])


@pytest.mark.parametrize("word_bits", [20, 33, 63])
def test_words_of_any_size_hold_the_same_numbers(word_bits: int) -> None:
    for criterion in KINDS:
        node = Node(5, criterion, True)
        cells, other = node.cells(), node.cells(word_bits)
        one, two = node.search(cells, node.sums(cells)), node.search(other, node.sums(other))
        for name in one._fields:
            np.testing.assert_array_equal(getattr(one, name), getattr(two, name))
    assert other.length >= cells.length or word_bits == 63


def test_the_first_that_can_wins_where_it_must() -> None:
    node = Node(11, "gini", False)
    cells = node.cells()
    able = [f for f in range(3) if len(node.naive(f, 1)[0].cut)]
    assert len(able) == 3
    assert node.search(cells, node.sums(cells), first_wins=True).feature[0] == 0
    assert node.search(cells, node.sums(cells)).feature[0] != 0


def test_histograms_of_different_rows_are_noticed() -> None:
    node = Node(3, "gini", True)
    cells = node.cells()
    sums = node.sums(cells)
    sums[0] += 1
    with pytest.raises(ValueError, match="not of the same rows"):
        node.search(cells, sums)


def test_a_node_without_rows_is_not_split() -> None:
    node = Node(3, "gini", True)
    cells = node.cells()
    found = node.search(cells, np.zeros(cells.length, np.int64))
    assert found.feature[0] == -1
    assert found.rows[0] == 0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("width", [0]), ("width", [64]), ("n_pairs", [2]), ("n_classes", [9]), ("feature", [0, 1, 3]),
        ("codes", [9, 1, 1]), ("first", [0, 9, 0]), ("missing", [0, 2, 0]), ("classes", [7]), ("word_bits", 64),
        ("target_bits", 62),
    ],
)  # fmt: skip
def test_cells_that_do_not_go_together_are_found_before_counting(field: str, value: Any) -> None:
    node = Node(3, "gini", True)
    fields = {name: getattr(node.cells(), name) for name in Cells.__dataclass_fields__}
    if field == "classes":
        fields["n_classes"] = np.array([1])
    wrong = Cells(**(fields | {field: np.array(value) if isinstance(value, list) else value}))
    with pytest.raises(ValueError):  # noqa: PT011
        wrong.check(node.n_classes, node.n_codes)


def test_rows_without_a_place_among_the_cells_are_not_counted_and_missed_in_the_sum() -> None:
    """A holder that refused would tell by it which codes and classes it has."""
    node = Node(3, "gini", True)
    fields = {name: getattr(node.cells(), name) for name in Cells.__dataclass_fields__}
    without = np.array([0, 0, 1])
    assert (node.codes[2] == 0).any()
    codes = {"first": without, "codes": node.n_codes - without}
    classes = {"classes": fields["classes"][:1], "n_classes": np.array([1])}
    for change in (codes, classes):
        some = Cells(**(fields | change))
        sums = node.sums(some)
        assert 0 < sums.sum() != node.sums(node.cells()).sum()
        if change is codes:
            with pytest.raises(ValueError, match="not of the same rows"):
                node.search(some, sums)


def test_batches_hold_all_nodes_in_order() -> None:
    one = Node(5, "gini", True).cells()
    many = Cells(*(
        np.concatenate([value] * 7) if isinstance(value, np.ndarray) else value
        for value in (getattr(one, name) for name in Cells.__dataclass_fields__)
    ))  # fmt: skip
    assert many.length == 7 * one.length
    for limit in (1, one.length, 3 * one.length, 10**9):
        batches = many.batches(limit)
        assert [k for batch in batches for k in range(batch.start, batch.stop)] == list(range(7))
        assert all(many.take(batch).length <= max(limit, one.length) for batch in batches)
    assert len(many.batches(3 * one.length)) == 3


def test_splits_above_narrow_the_codes() -> None:
    """Nodes: root 0 split by feature 2 after code 3 (missing left), its right child 2 after code 6, missing right."""
    parent, is_right = np.array([-1, 0, 0, 2, 2]), np.array([0, 0, 1, 0, 1], np.uint8)
    feature, low, high = np.array([2, -1, 2, -1, -1]), np.array([3, -1, 6, -1, -1]), np.array([5, -1, 8, -1, -1])
    missing_left = np.array([1, 0, 0, 0, 0], np.uint8)
    at, asked = np.array([1, 3, 4, 4]), np.array([2, 2, 2, 0])
    first, last, missing = np.zeros(4, np.int64), np.full(4, 9), np.ones(4, np.uint8)
    narrow_pairs(at, asked, parent, is_right, feature, low, high, missing_left, first, last, missing)
    assert first.tolist() == [0, 5, 8, 0]
    assert last.tolist() == [3, 6, 9, 9]
    assert missing.tolist() == [1, 0, 0, 1]
