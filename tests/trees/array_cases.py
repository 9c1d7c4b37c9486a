"""Random tables, labels, weights and rules, and two growers that must agree on all of them to the bit."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from woodlot.data.columns import Column, NumericColumn, category_column
from woodlot.data.tables import Table
from woodlot.trees.arrays.array_grow import ArrayGrower
from woodlot.trees.arrays.array_module import HOST, ArrayModule, card
from woodlot.trees.arrays.array_table import encode_here
from woodlot.trees.encoding import EncodedTable, encode
from woodlot.trees.grow import Grower
from woodlot.trees.rules import GrowthRules
from woodlot.trees.sampling import Bootstrap

FREE = GrowthRules(entropy=False, max_depth=99, min_samples_split=2, min_samples_leaf=1, min_weight=1, whole_tree=False)
SEED = 5


def arrays_here() -> ArrayModule:
    """NumPy; with WOODLOT_TEST_DEVICE=cuda the graphics card (``make test-gpu``)."""
    return card() if os.environ.get("WOODLOT_TEST_DEVICE") == "cuda" else HOST


@dataclass(frozen=True, eq=False)
class GrowCase:
    """What two growers are given; `others` is the share of nodes that another party splits, at random."""

    columns: list[Column]
    labels: np.ndarray
    n_classes: int
    rules: GrowthRules = FREE
    bootstrap: Bootstrap | None = None
    n_trees: int = 3
    max_features: int | None = None
    max_bins: int | None = None
    others: float = 0.3
    seed: int = 0

    @property
    def table(self) -> Table:
        return Table(tuple(f"c{f}" for f in range(len(self.columns))), tuple(self.columns), len(self.labels))

    @property
    def keys(self) -> np.ndarray:
        return np.array([1000 + 7 * f for f in range(len(self.columns))], np.uint64)

    def encoded(self) -> EncodedTable:
        return encode(self.table, max_bins=self.max_bins, n_jobs=1)

    def arguments(self) -> tuple[Any, ...]:
        n = len(self.labels)
        draws = self.bootstrap or Bootstrap(7, n, None)
        labels = self.labels.astype(np.int64)
        if self.n_classes:
            labels = labels.astype(np.uint8 if self.n_classes <= 256 else np.uint16)
        return self.keys, labels, self.n_classes, self.rules, draws, SEED, range(self.n_trees), 1

    def growers(self, arrays: ArrayModule) -> tuple[Grower, ArrayGrower]:
        table = encode_here(arrays, self.table, self.max_bins, 1)
        return Grower(self.encoded(), *self.arguments()), ArrayGrower(table, *self.arguments())


def same(one: Any, other: Any) -> None:
    """Equal to the bit: types, and floats with their signs."""
    one, other = np.asarray(one), np.asarray(other)
    assert one.dtype == other.dtype
    np.testing.assert_array_equal(one, other)


def check_level(one: Grower, other: Grower) -> None:
    same(one.is_open, other.is_open)
    same(one.start, other.start)
    same(one.end, other.end)
    same(one.skeleton.frontier, other.skeleton.frontier)


def grow_both(case: GrowCase, one: Grower, other: Grower, most_levels: int = 60) -> int:
    """Grow both, level by level, with some nodes split by another party; returns the number of splits."""
    rng = np.random.default_rng(case.seed)
    p, n_splits = len(case.columns), 0
    check_level(one, other)
    for _ in range(most_levels):
        if len(one.start) == 0:
            break
        counts = np.minimum(rng.integers(0, (case.max_features or p) + 1, len(one.start)), p)
        found, again = one.find(counts), other.find(counts)
        same(found.score, again.score)
        same(found.feature, again.feature)
        same(found.whole, again.whole)
        theirs = rng.random(len(one.start)) < case.others
        won = (found.feature >= 0) & ~theirs
        assert other.can_apply(won)
        same(one.apply_packed(won), other.apply_packed(won))
        if won.any():
            for name in ("number", "feature", "threshold", "missing_left", "set_length", "sets"):
                same(getattr(one.last_won(), name), getattr(other.last_won(), name))
        theirs &= one.end - one.start >= 2 * max(2, case.rules.min_samples_leaf)
        flags = rng.integers(0, 2, one.rows_of_others(theirs)).astype(np.uint8)
        for start in np.cumsum(np.append(0, (one.end - one.start)[theirs])[:-1]):
            flags[start : start + 2] = (1, 0)
        is_split = won | theirs
        bits = np.packbits(flags, bitorder="little")
        sides, told = one.sides(is_split, bits), other.sides(is_split, bits)
        same(sides.rows, told.rows)
        if sides.weight is not None:
            same(sides.weight, told.weight)
        n_splits += int(is_split.sum())
        one.split_packed(is_split, bits, len(flags))
        other.split_packed(is_split, bits, len(flags))
        check_level(one, other)
    check_finished(case, one, other)
    return n_splits


def check_finished(case: GrowCase, one: Grower, other: Grower) -> None:
    """The same trees, splits and leaves."""
    none = np.empty(0, np.int64)
    (structure, splits, position), (structure_2, splits_2, position_2) = one.finish(none), other.finish(none)
    same(structure.offset, structure_2.offset)
    same(structure.right, structure_2.right)
    same(position, position_2)
    for name in ("node", "feature", "threshold", "missing_left", "set_start", "sets"):
        same(getattr(splits, name), getattr(splits_2, name))
    leaves, leaves_2 = one.leaves(), other.leaves()
    for a, b in zip(leaves, leaves_2, strict=True):
        same(a, b)
    if case.n_classes:
        told = zip(
            one.class_entries(case.labels, *leaves[1:]), other.class_entries(case.labels, *leaves[1:]), strict=True
        )
    else:
        values = np.random.default_rng(1).normal(size=len(case.labels))
        told = zip(one.target_sums(values, *leaves[1:]), other.target_sums(values, *leaves[1:]), strict=True)
    for a, b in told:
        same(a, b)


def random_column(kind: str, n: int, rng: np.random.Generator) -> Column:
    """A column of one kind."""
    if kind == "categories":
        codes = rng.integers(-1, rng.integers(1, 30), n).astype(np.int32)
        codes[0] = 0
        return category_column(codes, [f"v{c:03}" for c in range(int(codes.max()) + 1)])
    values = {
        "ties": lambda: rng.integers(0, 9, n),
        "continuous": lambda: rng.normal(size=n),
        "constant": lambda: np.zeros(n),
        "zeros": lambda: rng.choice([-0.0, 0.0, 1.0, -2.5], n),
        "missing": lambda: np.where(rng.random(n) < 0.3, np.nan, rng.normal(size=n)),
        "missing ties": lambda: np.where(rng.random(n) < 0.3, np.nan, rng.integers(0, 4, n)),
        "all missing": lambda: np.full(n, np.nan),
        "heavy": lambda: np.where(rng.random(n) < 0.6, rng.integers(0, 3, n), rng.normal(size=n)),
    }[kind]()
    return NumericColumn(np.asarray(values, np.float32))


KINDS = ("ties", "continuous", "constant", "zeros", "missing", "missing ties", "all missing", "categories")


def random_case(seed: int) -> GrowCase:
    """A case in which anything may come together: `seed` says all of it."""
    rng = np.random.default_rng(seed)
    n, p = int(rng.integers(2, 200)), int(rng.integers(1, 7))
    columns = [random_column(str(kind), n, rng) for kind in rng.choice(KINDS, p)]
    n_classes = int(rng.choice([0, 0, 2, 2, 2, 3, 5, 26, 100, 300]))
    labels = rng.integers(0, n_classes, n) if n_classes else rng.integers(-1000, 1000, n) // int(rng.integers(1, 400))
    weights = None
    if rng.random() < 0.4:
        weights = rng.integers(0, int(rng.choice([3, 400, 5000])), n)
        weights[rng.integers(n)] += 1
    how = rng.random()
    draws = n if weights is None else max(1, int(weights.sum()) // 2)
    bootstrap = Bootstrap(None if how < 0.3 else int(rng.integers(99)), draws, weights, balance=how > 0.9)
    max_bins = None if rng.random() < 0.6 else int(rng.choice([2, 7, 255]))
    min_cell = 0 if max_bins is None or rng.random() < 0.5 else int(rng.integers(1, 6))
    rules = replace(
        FREE,
        entropy=bool(n_classes and rng.random() < 0.5),
        max_depth=int(rng.choice([1, 3, 99])),
        min_samples_split=int(rng.choice([2, 9])) if min_cell == 0 else 2 * min_cell,
        min_samples_leaf=int(rng.choice([1, 1, 4])) if min_cell == 0 else min_cell,
        min_weight=int(rng.choice([1, 1, 5, 60])),
        whole_tree=bool(rng.random() < 0.25),
        min_cell=min_cell,
    )
    return GrowCase(
        columns, labels, n_classes, rules, bootstrap, int(rng.integers(1, 5)), int(rng.integers(1, p + 1)), max_bins,
        float(rng.choice([0.0, 0.3, 0.9])), seed,
    )  # fmt: skip
