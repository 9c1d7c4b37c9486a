"""Every split search against the naive twin: the same score to the bit, the same split, and no better one exists."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_splits import (
    Cuts,
    Target,
    cuts_of_categories,
    cuts_of_numbers,
    subsets_of_categories,
    xlogx,
)

from woodlot.data.columns import CategoryColumn, Column, NumericColumn, category_column
from woodlot.data.tables import Table
from woodlot.trees.encoding import encode
from woodlot.trees.forest import Splits
from woodlot.trees.grow import Grower
from woodlot.trees.kernels.hashing import place
from woodlot.trees.rules import GrowthRules, entropy_scale
from woodlot.trees.sampling import Bootstrap, tree_keys

SEED = 11
ROUNDING = Fraction(1, 2**50)
"""What the last operations on floats may cost a score."""
FREE = GrowthRules(entropy=False, max_depth=99, min_samples_split=2, min_samples_leaf=1, min_weight=1, whole_tree=False)


@dataclass(frozen=True, eq=False)
class Case:
    """One node: its columns, labels (classes, or integer targets where ``n_classes`` is 0) and weights."""

    columns: list[Column]
    labels: np.ndarray
    n_classes: int
    weights: np.ndarray | None = None
    rules: GrowthRules = FREE
    max_bins: int | None = None
    n_jobs: int = 1

    @property
    def bootstrap(self) -> Bootstrap:
        n = len(self.labels)
        return Bootstrap(None, n, None if self.weights is None else self.weights.astype(np.int64))

    @property
    def keys(self) -> np.ndarray:
        return np.array([1000 + 7 * f for f in range(len(self.columns))], np.uint64)

    @property
    def rows(self) -> np.ndarray:
        """Rows that take part: those with a weight."""
        n = len(self.labels)
        return np.arange(n) if self.weights is None else np.flatnonzero(self.weights)

    def target(self) -> Target:
        weights = np.ones(len(self.labels), np.int64) if self.weights is None else self.weights
        labels, weights = self.labels[self.rows].astype(np.int64), weights[self.rows].astype(np.int64)
        if self.n_classes == 0:
            return Target.of_values(labels, weights)
        criterion = "entropy" if self.rules.entropy else "gini"
        scale = entropy_scale(self.bootstrap, len(self.labels))
        return Target.of_classes(labels, weights, self.n_classes, criterion, scale)

    def cuts(self, f: int) -> tuple[Cuts, np.ndarray]:
        """All splits of a column, and the values or categories in their order."""
        column, target = self.columns[f], self.target()
        if isinstance(column, CategoryColumn):
            codes = np.where(column.codes < 0, len(column.categories), column.codes)[self.rows]
            cuts, order = cuts_of_categories(codes, target)
        else:
            values = column.values[self.rows]
            cuts, order = cuts_of_numbers(values, target), np.unique(values[~np.isnan(values)])
        return cuts.allowed(self.rules.min_samples_leaf, self.rules.min_weight), order

    def in_order(self) -> list[int]:
        """The columns in the root's order of candidates."""
        key = tree_keys(SEED, range(1))[0]
        return sorted(range(len(self.columns)), key=lambda f: int(place(key, self.keys[f])))


@dataclass(frozen=True, eq=False)
class Found:
    score: float
    feature: int
    goes_left: np.ndarray
    splits: Splits


def numbers(values: Any) -> NumericColumn:
    return NumericColumn(np.asarray(values, np.float32))


def categories(codes: Any) -> CategoryColumn:
    codes = np.asarray(codes, np.int32)
    return category_column(codes, [f"v{c:03}" for c in range(int(codes.max(initial=0)) + 1)])


def search(case: Case) -> Found | None:
    """What the kernels find at the root, through the one door that parties use."""
    names = tuple(f"c{f}" for f in range(len(case.columns)))
    table = encode(Table(names, tuple(case.columns), len(case.labels)), max_bins=case.max_bins, n_jobs=1)
    labels = case.labels.astype(np.int64) if case.n_classes == 0 else smallest(case.labels, case.n_classes)
    grower = Grower(
        table,
        case.keys,
        labels,
        case.n_classes,
        case.rules,
        case.bootstrap,
        SEED,
        range(1),
        case.n_jobs,
    )
    if not grower.is_open[0]:
        return None
    offers = grower.find(np.array([len(case.columns)]))
    if offers.feature[0] < 0:
        return None
    flags = grower.apply(np.array([True]))
    grower.split(np.array([True]), np.empty(0, np.uint8))
    splits = grower.finish(np.empty(0, np.int64))[1]
    assert splits.feature.tolist() == [int(offers.feature[0])]
    return Found(float(offers.score[0]), int(offers.feature[0]), flags.astype(bool), splits)


def smallest(labels: np.ndarray, n_classes: int) -> np.ndarray:
    return labels.astype(np.uint8 if n_classes <= 256 else np.uint16)


def check(case: Case) -> Found | None:
    """The kernels' split of a node is the twin's: best score, first feature of equals, lowest cut of equals."""
    found = search(case)
    labels = case.labels[case.rows]
    if len(np.unique(labels)) < 2:
        assert found is None
        return None
    candidates = [(f, *case.cuts(f)) for f in case.in_order()]
    able = [(f, cuts, order) for f, cuts, order in candidates if len(cuts.cut)]
    if not able:
        assert found is None
        return None
    assert found is not None
    best = max(cuts.scores.max() for _, cuts, _ in able)
    feature, cuts, order = next((f, c, o) for f, c, o in able if c.scores.max() == best)
    assert found.score == best
    assert found.feature == feature
    i = cuts.best()
    np.testing.assert_array_equal(found.goes_left, side(case, feature, cuts, order, i))
    check_question(case, found, cuts, order, i)
    exact = max(c.exact_best() for _, c, _ in able)
    whole = int(cuts.target.weight(cuts.total))
    if whole <= 1000 and abs(cuts.left).max(initial=0) < 2**20:
        # different fractions this small differ by more than the rounding of a score
        assert cuts.exact(i) == exact
    else:
        assert cuts.exact(i) >= exact - abs(exact) * ROUNDING
    return found


def side(case: Case, feature: int, cuts: Cuts, order: np.ndarray, i: int) -> np.ndarray:
    """Which rows go left by the twin's split."""
    column = case.columns[feature]
    if isinstance(column, CategoryColumn):
        codes = np.where(column.codes < 0, len(column.categories), column.codes)[case.rows]
        return np.isin(codes, order[: cuts.cut[i] + 1])
    values = column.values[case.rows]
    return np.where(np.isnan(values), cuts.missing_left[i], values <= order[cuts.cut[i]])


def check_question(case: Case, found: Found, cuts: Cuts, order: np.ndarray, i: int) -> None:
    """What the party stores asks for the same: midpoint and side of missing values, or the set of categories."""
    column, splits = case.columns[found.feature], found.splits
    more_left = 2 * np.count_nonzero(found.goes_left) > len(found.goes_left)
    if isinstance(column, CategoryColumn):
        assert np.isnan(splits.threshold[0])
        left = np.unpackbits(splits.sets, bitorder="little").astype(bool)
        expected = np.full(len(column.categories) + 1, more_left)
        expected[order] = False
        expected[order[: cuts.cut[i] + 1]] = True
        np.testing.assert_array_equal(left[: len(expected)], expected)
        return
    assert len(splits.sets) == 0
    missing = np.isnan(column.values[case.rows]).any()
    assert splits.missing_left[0] == (cuts.missing_left[i] if missing else more_left)
    below = np.float64(order[cuts.cut[i]])
    above = np.float64(order[cuts.cut[i] + 1]) if cuts.cut[i] + 1 < len(order) else np.inf
    assert splits.threshold[0] == below / 2 + above / 2


# --- small nodes, everything that can be combined ---

KINDS = ["two", "many", "targets", "wide weights", "wide classes"]


@st.composite
def small_cases(draw: st.DrawFn, kinds: list[str] = KINDS) -> Case:
    kind = draw(st.sampled_from(kinds))
    n = draw(st.integers(2, 40))
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    columns: list[Column] = []
    for _ in range(draw(st.integers(1, 3))):
        if draw(st.booleans()):
            values = rng.integers(0, draw(st.sampled_from([1, 2, 3, 5, 50])), n).astype(np.float32)
            if draw(st.booleans()):
                values = np.exp(values * 1.5).astype(np.float32)
            values[rng.random(n) < draw(st.sampled_from([0.0, 0.0, 0.3, 1.0]))] = np.nan
            columns.append(numbers(values))
        else:
            codes = rng.integers(0, draw(st.sampled_from([1, 2, 4, 8, 20])), n)
            codes[rng.random(n) < draw(st.sampled_from([0.0, 0.3]))] = -1
            columns.append(categories(codes))
    n_classes = {"two": 2, "many": draw(st.integers(3, 5)), "wide classes": 300}.get(kind, 2)
    labels = rng.integers(0, n_classes, n)
    weights = rng.integers(0, 4, n) if draw(st.booleans()) else None
    if kind == "targets":
        n_classes, labels = 0, rng.integers(-draw(st.sampled_from([1, 9, 1000])), 10, n)
    if kind == "wide weights" or (kind == "targets" and draw(st.booleans())):
        weights = rng.integers(0, 400, n)
        weights[0] = 256
    if weights is not None and not weights.any():
        weights[0] = 1
    rules = GrowthRules(
        entropy=n_classes > 0 and draw(st.booleans()),
        max_depth=99,
        min_samples_split=2,
        min_samples_leaf=draw(st.sampled_from([1, 1, 2, 5])),
        min_weight=draw(st.sampled_from([1, 1, 3, 40])),
        whole_tree=False,
    )
    return Case(columns, labels, n_classes, weights, rules)


@given(case=small_cases())
@settings(max_examples=100, deadline=None, derandomize=True)
def test_small_nodes(case: Case) -> None:
    check(case)


@given(case=small_cases(["two", "targets"]))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_no_set_of_categories_is_better(case: Case) -> None:
    """With two classes or targets, the cuts in the order of the means contain the best of all sets."""
    rng = np.random.default_rng(len(case.labels))
    codes = rng.integers(0, rng.integers(2, 7), len(case.labels))
    case = replace(case, columns=[categories(codes)], rules=replace(case.rules, min_samples_leaf=1, min_weight=1))
    found = check(case)
    if found is None:
        return
    cuts = subsets_of_categories(codes[case.rows], case.target())
    i = np.flatnonzero(cuts.rows_left == np.count_nonzero(found.goes_left))
    exact = next(
        cuts.exact(int(k)) for k in i if (cuts.left[k] == case.target().parts[found.goes_left].sum(axis=0)).all()
    )
    if case.rules.entropy:  # rounded to fixed point, so optimal up to that
        assert exact >= cuts.exact_best() - 16
    else:
        assert exact == cuts.exact_best()


def test_the_twin_on_a_node_done_by_hand() -> None:
    """Values 1 2 2 ?, classes 0 1 1 0: alone on the left, 1 leaves (0, 1, 1) at 1 + 5/3; with ? left it is perfect."""
    values = np.array([1, 2, 2, np.nan], np.float32)
    target = Target.of_classes(np.array([0, 1, 1, 0]), np.ones(4, np.int64), 2)
    cuts = cuts_of_numbers(values, target)
    assert cuts.cut.tolist() == [0, 1, 0]
    assert cuts.missing_left.tolist() == [False, False, True]
    assert [str(cuts.exact(i)) for i in range(3)] == ["8/3", "8/3", "4"]
    assert cuts.best() == 2
    assert cuts.allowed(2, 1).cut.tolist() == [0]
    assert cuts.allowed(1, 2).cut.tolist() == [0]


def test_values_on_one_side_and_missing_ones_on_the_other() -> None:
    """No value lies above the cut, so every value goes left, however large."""
    values = np.array([3, np.nan, 1, 2, np.nan, 3], np.float32)
    found = check(Case([numbers(values)], np.isnan(values).astype(np.int64), 2, None, FREE))
    assert found is not None
    assert found.splits.threshold.tolist() == [np.inf]
    assert found.goes_left.tolist() == (~np.isnan(values)).tolist()


# --- sizes chosen to reach each way of searching ---


def column_of(kind: str, n: int, rng: np.random.Generator) -> Column:
    match kind:
        case "ties":
            return numbers(rng.integers(0, 12, n))
        case "continuous":
            return numbers(rng.normal(size=n))
        case "skewed":
            return numbers(np.exp(rng.normal(size=n) * 8))
        case "heavy":  # half of the rows share a value, the others are distinct
            return numbers(np.where(rng.random(n) < 0.5, 0.25, rng.random(n)))
        case "missing":
            return numbers(np.where(rng.random(n) < 0.2, np.nan, rng.normal(size=n)))
        case "missing ties":
            return numbers(np.where(rng.random(n) < 0.2, np.nan, rng.integers(0, 9, n)))
        case "constant":
            return numbers(np.zeros(n))
        case _:
            return categories(rng.integers(-1, 30, n))


COLUMNS = ["ties", "continuous", "skewed", "heavy", "missing", "missing ties", "categories"]
WAYS = {"two": 2, "many": 5, "26": 26, "targets": 0, "outliers": 0, "wide weights": 2, "wide classes": 300}


def seeded_case(way: str, n: int, kinds: list[str], seed: int, signal: float = 1.0, **rules: Any) -> Case:
    rng = np.random.default_rng([seed, n, *map(len, kinds)])
    columns = [column_of(kind, n, rng) for kind in kinds]
    first = columns[0]
    x = first.codes.astype(np.float64) if isinstance(first, CategoryColumn) else np.nan_to_num(first.values, nan=0.3)
    rank = np.argsort(np.argsort(x)) / n
    noisy = rank * signal + rng.normal(size=n)
    n_classes = WAYS[way]
    if n_classes == 0:
        tails = rng.standard_cauchy(n).clip(-1000, 1000) if way == "outliers" else 0.0
        labels = np.rint((noisy + tails) * 2.0**30 / n).astype(np.int64)
    else:
        labels = np.minimum((np.argsort(np.argsort(noisy)) * n_classes) // n, n_classes - 1)
    weights = rng.poisson(1.0, n) if seed % 2 else None
    if way in ("wide weights", "outliers"):
        weights = rng.poisson(1.0, n) * rng.integers(1, 500, n)
    return Case(columns, labels, n_classes, weights, replace(FREE, **rules))


@pytest.mark.parametrize("kind", COLUMNS)
@pytest.mark.parametrize(
    ("way", "entropy"),
    [
        pytest.param(way, entropy, marks=pytest.mark.slow if way == "outliers" or (entropy and way != "many") else ())
        for way in WAYS
        for entropy in (False, True)
        if WAYS[way] or not entropy
    ],
)
def test_medium_and_large_nodes(way: str, kind: str, entropy: bool) -> None:
    for seed, n in enumerate([17, 48, 49, 300, 1024, 1025, 3000]):
        check(seeded_case(way, n, [kind], seed, signal=seed % 3, entropy=entropy))


@pytest.mark.parametrize(
    "way", [pytest.param(way, marks=pytest.mark.slow if way == "outliers" else ()) for way in WAYS]
)
def test_rules_in_large_nodes(way: str) -> None:
    for seed, kind in enumerate(COLUMNS):
        check(seeded_case(way, 2500, [kind], seed, min_samples_leaf=700))
        check(seeded_case(way, 2500, [kind], seed, min_weight=800, min_samples_leaf=3))
        check(seeded_case(way, 200, [kind], seed, min_samples_leaf=40))
        assert check(seeded_case(way, 2500, [kind], seed, min_samples_leaf=1251)) is None


@pytest.mark.slow
@pytest.mark.parametrize("way", ["many", "two", "targets", "wide weights"])
def test_more_than_65536_codes(way: str) -> None:
    case = seeded_case(way, 150_000, ["continuous"], 2, signal=0.2)
    assert len(np.unique(case.columns[0].values)) > 65_536  # type: ignore[union-attr]
    check(case)
    check(seeded_case(way, 80_000, ["missing"], 3, signal=0.2))


@pytest.mark.parametrize("way", ["two", "targets"])
def test_the_best_cut_hides_inside_a_group(way: str) -> None:
    """Labels change once, in the middle of a group of codes: the histogram alone must miss the cut."""
    n = 5000
    values = np.random.default_rng(0).permutation(n).astype(np.float32)
    for at in (1, 2, 1234, 2507, 4998):
        labels = (values >= at).astype(np.int64)
        case = Case([numbers(values)], labels, WAYS[way])
        found = check(case)
        assert found is not None
        assert found.splits.threshold[0] == at - 0.5


@pytest.mark.parametrize("entropy", [False, True])
@pytest.mark.parametrize("way", ["two", "targets"])
def test_the_lowest_of_equal_cuts_hides_inside_a_group(way: str, entropy: bool) -> None:
    """Labels are mirrored, so two cuts are equally good: the lower inside a group, the upper on an edge of groups."""
    n = 2000
    values = np.random.default_rng(0).permutation(n).astype(np.float32)
    table = encode(Table(("c0",), (numbers(values),), n), max_bins=None, n_jobs=1)
    edges = set(table.last_fine[0, : table.n_coarse[0]].tolist())
    ends = [m for m in range(100, 400) if m - 1 not in edges and n - m - 1 in edges]
    assert len(ends) > 10
    for m in ends[:10]:
        labels = ((values < m) | (values >= n - m)).astype(np.int64)
        rules = replace(FREE, entropy=entropy and way == "two")
        found = check(Case([numbers(values)], labels, WAYS[way], rules=rules))
        assert found is not None
        assert found.splits.threshold[0] == m - 0.5


def test_one_outlier_outweighs_a_step() -> None:
    """The best cut of all has one row on its left, deep inside a group; the histogram shows a good cut elsewhere."""
    n = 5000
    values = np.random.default_rng(0).permutation(n).astype(np.float32)
    for outlier in (0, n - 1):
        labels = np.where(values < 2500, 0, 20) - np.where(values == outlier, 1000, 0) * (1 if outlier == 0 else -1)
        found = check(Case([numbers(values)], labels, 0))
        assert found is not None
        assert found.splits.threshold[0] == (0.5 if outlier == 0 else n - 1.5)


@pytest.mark.parametrize("way", ["two", "many", pytest.param("targets", marks=pytest.mark.slow)])
def test_many_columns_compete(way: str) -> None:
    """The best of all columns wins, and of equals the first in the node's order: never the lowest index."""
    winners = set()
    for seed in range(12):
        case = seeded_case(way, [12, 60, 400, 2000][seed % 4], COLUMNS, seed)
        found = check(case)
        twins = replace(case, columns=[case.columns[seed % 6]] * 5)
        found = check(twins)
        assert found is not None
        assert found.feature == twins.in_order()[0]
        winners.add(found.feature)
    assert len(winners) == 1  # the same node key in all of them
    assert winners != {0}


def test_bins() -> None:
    """With bins, cuts lie between bins only and are the best of these."""
    rng = np.random.default_rng(3)
    values = rng.normal(size=3000).astype(np.float32)
    case = Case([numbers(values)], (values + rng.normal(size=3000) > 0.3).astype(np.int64), 2, max_bins=32)
    table = encode(Table(("c0",), (case.columns[0],), 3000), max_bins=32, n_jobs=1)
    found = search(case)
    assert found is not None
    binned = replace(case, columns=[numbers(table.fine[0])], max_bins=None)
    cuts, order = binned.cuts(0)
    i = cuts.best()
    assert len(order) == 32
    assert found.score == cuts.scores[i]
    np.testing.assert_array_equal(found.goes_left, side(binned, 0, cuts, order, i))
    assert found.splits.threshold[0] > values[found.goes_left].max()
    assert found.splits.threshold[0] <= values[~found.goes_left].min()
    full = search(replace(case, max_bins=256))
    exact = search(replace(case, max_bins=None))
    assert full is not None
    assert exact is not None
    assert found.score <= full.score <= exact.score


@pytest.mark.parametrize("weights", [None, "small", "large"])
def test_fixed_point_entropy_is_fine_enough(weights: str | None) -> None:
    """The split by fixed-point entropy is the best by true entropy, to 9 digits of the node's entropy."""
    rng = np.random.default_rng(5)
    for n in (10, 100, 2000):
        labels = rng.integers(0, 3, n)
        w = {None: None, "small": rng.integers(1, 9, n), "large": rng.integers(1, 1000, n)}[weights]
        case = Case([numbers(rng.normal(size=n))], labels, 3, w, replace(FREE, entropy=True))
        found = check(case)
        assert found is not None
        cuts, _ = case.cuts(0)
        true = case.target().real_entropy(cuts.left) + case.target().real_entropy(cuts.total - cuts.left)
        loss = true.max() - true[cuts.best()]
        assert loss <= 1e-9 * xlogx(np.array([cuts.total.sum()]))[0]


@pytest.mark.parametrize("way", ["two", "targets"])
def test_threads_find_the_same(way: str) -> None:
    for seed in range(3):
        case = seeded_case(way, 30_000, ["continuous", "ties", "missing", "categories"], seed)
        one, two = search(case), search(replace(case, n_jobs=2))
        assert one is not None
        assert two is not None
        assert (one.score, one.feature) == (two.score, two.feature)
        np.testing.assert_array_equal(one.goes_left, two.goes_left)


# --- the smallest sides that are allowed ---


def edge_case(way: str, n: int, kind: str, smallest_side: int, low: bool, **rules: int) -> Case:
    """A node whose best split by far leaves exactly ``smallest_side`` rows on one side, the low or the high one."""
    rng = np.random.default_rng([n, smallest_side, low])
    rank = rng.permutation(n)
    inside = rank < smallest_side if low else rank >= n - smallest_side
    # of "ties" all rows of a side share a value, and the split falls between two groups of codes
    values = np.where(inside, -1 if low else 10_000, rank % 50) if kind == "ties" else rank
    labels = np.where(inside, 0, 1) if WAYS[way] else np.where(inside, 2**20, rng.integers(-9, 9, n))
    return Case([numbers(values)], labels.astype(np.int64), WAYS[way], None, replace(FREE, **rules))


@pytest.mark.parametrize("rule", ["min_samples_leaf", "min_weight"])
@pytest.mark.parametrize("low", [True, False], ids=["low", "high"])
@pytest.mark.parametrize("kind", ["ties", "continuous"])
@pytest.mark.parametrize("n", [60, 700, 6_000])
@pytest.mark.parametrize("way", ["two", "many", "26", "targets", "wide classes"])
@pytest.mark.slow
def test_a_side_of_exactly_the_least_size_is_allowed_and_no_smaller_one(
    way: str, n: int, kind: str, low: bool, rule: str
) -> None:
    for size in (2, 17):
        allowed = check(edge_case(way, n, kind, size, low, **{rule: size}))
        assert allowed is not None
        assert min(np.count_nonzero(allowed.goes_left), np.count_nonzero(~allowed.goes_left)) == size
        check(edge_case(way, n, kind, size, low, **{rule: size + 1}))


@given(
    codes=st.lists(st.integers(-1, 20), min_size=2, max_size=60),
    seed=st.integers(0, 2**32 - 1),
    n_classes=st.sampled_from([0, 2, 3, 300]),
)
@settings(max_examples=60, deadline=None)
def test_a_set_tells_every_category_where_to_go(codes: list[int], seed: int, n_classes: int) -> None:
    """Bit by bit: categories of the node go where their rows went, all others where most rows went."""
    rng = np.random.default_rng(seed)
    column = category_column(np.array(codes, np.int32), [f"v{c:03}" for c in range(25)])
    labels = rng.integers(0, n_classes or 50, len(codes))
    weights = rng.integers(0, 3, len(codes))
    case = Case([column], labels, n_classes, weights)
    found = search(case) if len(np.unique(labels[case.rows])) > 1 and len(case.rows) > 1 else None
    if found is None:
        return
    n_codes = len(column.categories)
    own = np.where(column.codes < 0, n_codes, column.codes)[case.rows]
    expected = np.full(n_codes + 1, 2 * int(found.goes_left.sum()) > len(own))
    expected[own] = found.goes_left
    assert found.splits.sets.tolist() == np.packbits(expected, bitorder="little").tolist()
