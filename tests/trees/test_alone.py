"""Trees grown by one holder: alone, and on from the leaves of others'."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_forests import random_structure

from woodlot.data.tables import read_table
from woodlot.trees.alone import Field, Growth, WholeTrees, grow_alone, grow_on, join_trees
from woodlot.trees.fill import EMPTY_WEIGHT, Levels, fill_leaves
from woodlot.trees.forest import Structure
from woodlot.trees.rules import GrowthRules
from woodlot.trees.sampling import Bootstrap

DEEP = 2**31 - 1
N_TREES = 6


def make_field(seed: int, n_rows: int = 300, *, n_classes: int = 3) -> Field:
    """Numbers with missing values and ties, and a column of categories."""
    rng = np.random.default_rng(seed)
    table = pd.DataFrame(
        {
            "a": rng.normal(size=n_rows),
            "b": rng.integers(0, 12, n_rows).astype(float),
            "c": np.where(rng.random(n_rows) < 0.2, np.nan, rng.normal(size=n_rows)),
            "town": rng.choice(["Aarau", "Brugg", "Chur", "Davos", "Egg"], n_rows),
        }
    )
    signal = table["a"] + (table["b"] > 5) + (table["town"] == "Chur") + rng.normal(size=n_rows) * 0.5
    if n_classes:
        labels = np.digitize(signal, np.linspace(0, 1.5, n_classes - 1)).astype(np.uint8)
    else:
        labels = np.rint(signal.to_numpy() * 1e6).astype(np.int64)
    return Field.of(read_table(table), labels, n_classes)


def make_growth(field: Field, *, seed: int = 1, n_jobs: int = 1, **rules: int) -> Growth:
    known = {"max_depth": DEEP, "min_samples_split": 2, "min_samples_leaf": 1, "min_weight": 1}
    return Growth(
        GrowthRules(entropy=field.n_classes > 0, whole_tree=False, **(known | rules)),  # type: ignore[arg-type]
        n_candidates=2,
        bootstrap=Bootstrap(seed=seed, n_draws=field.n_rows, weights=None),
        seed=7,
        n_jobs=n_jobs,
    )


def assert_same(one: WholeTrees, other: WholeTrees) -> None:
    for part in ("offset", "right"):
        np.testing.assert_array_equal(getattr(one.structure, part), getattr(other.structure, part))
    for part in ("node", "feature", "threshold", "missing_left", "set_start", "sets"):
        np.testing.assert_array_equal(getattr(one.splits, part), getattr(other.splits, part))


def depths(structure: Structure) -> np.ndarray:
    depth = np.zeros(structure.n_nodes, np.int64)
    for node in range(structure.n_nodes):  # parents stand before their children
        if structure.right[node] >= 0:
            depth[[node + 1, structure.right[node]]] = depth[node] + 1
    return depth


@pytest.mark.parametrize("n_classes", [0, 2, 3])
def test_growing_on_single_leaves_is_growing(n_classes: int) -> None:
    field = make_field(0, n_classes=n_classes)
    growth = make_growth(field)
    grown, _ = grow_alone(field, growth, range(N_TREES), None if n_classes else field.labels.astype(float))
    assert grown.structure.n_nodes > 20 * N_TREES
    assert_same(grow_on(field, growth, range(N_TREES), WholeTrees.single_leaves(N_TREES)), grown)


@pytest.mark.parametrize("n_classes", [0, 3])
@pytest.mark.parametrize("depth", [1, 3, 6])
def test_growing_in_two_steps_is_growing_in_one(n_classes: int, depth: int) -> None:
    """Leaves of a depth-limited tree differ in depth: some were pure before."""
    field = make_field(1, n_classes=n_classes)
    growth = make_growth(field, min_samples_leaf=3)
    whole = grow_on(field, growth, range(N_TREES), WholeTrees.single_leaves(N_TREES))
    shallow = replace(growth, rules=replace(growth.rules, max_depth=depth))
    begun = grow_on(field, shallow, range(N_TREES), WholeTrees.single_leaves(N_TREES))
    assert begun.structure.n_nodes < whole.structure.n_nodes
    assert_same(grow_on(field, growth, range(N_TREES), begun), whole)
    assert_same(grow_on(field, growth, range(N_TREES), whole), whole)


@pytest.mark.parametrize("depth", [1, 2, 5, 9])
def test_depth_counts_from_the_roots(depth: int) -> None:
    one, other = make_field(2), make_field(3)
    begun = grow_on(one, make_growth(one, max_depth=4), range(N_TREES), WholeTrees.single_leaves(N_TREES))
    grown = grow_on(other, make_growth(other, seed=5, max_depth=depth), range(N_TREES), begun)
    assert depths(grown.structure).max() == max(4, depth)


def test_what_was_given_stays() -> None:
    """Every given question is still there, on the way to where it was: rows meet it as before."""
    one, other = make_field(4), make_field(5)
    begun = grow_on(one, make_growth(one, max_depth=5), range(N_TREES), WholeTrees.single_leaves(N_TREES))
    growth = make_growth(other, seed=5)
    grown = grow_on(other, growth, range(N_TREES), begun)
    assert grown.structure.n_nodes > begun.structure.n_nodes
    before = begun.leaves_of(one.columns, one.n_rows, 1)
    after = grown.leaves_of(one.columns, one.n_rows, 1)
    for tree in range(N_TREES):  # the new leaves cut the old ones up, and never join two
        pairs = np.unique(np.column_stack([before[:, tree], after[:, tree]]), axis=0)
        assert len(np.unique(pairs[:, 1])) == len(pairs)
    counts = [growth.bootstrap.counts(tree, other.n_rows) for tree in range(N_TREES)]
    ends = grown.leaves_of(other.columns, other.n_rows, 1)
    for tree in range(N_TREES):  # and the drawn rows of the second holder end in pure leaves
        drawn = counts[tree] > 0
        pairs = np.unique(np.column_stack([ends[drawn, tree], other.labels[drawn]]), axis=0)
        assert len(np.unique(pairs[:, 0])) == len(pairs)


def test_the_leaves_rule_holds_for_what_grows_on() -> None:
    one, other = make_field(6), make_field(7)
    begun = grow_on(one, make_growth(one, max_depth=3), range(N_TREES), WholeTrees.single_leaves(N_TREES))
    growth = make_growth(other, seed=5, min_samples_leaf=8)
    grown = grow_on(other, growth, range(N_TREES), begun)
    ends = grown.leaves_of(other.columns, other.n_rows, 1)
    old = begun.leaves_of(other.columns, other.n_rows, 1)
    for tree in range(N_TREES):
        drawn = growth.bootstrap.counts(tree, other.n_rows) > 0
        was = np.bincount(old[drawn, tree], minlength=begun.structure.n_nodes)
        for leaf, n in zip(*np.unique(ends[drawn, tree], return_counts=True), strict=True):
            before = old[drawn, tree][ends[drawn, tree] == leaf][0]
            assert n >= 8 or was[before] == n  # a leaf that was given may be as small as it likes


@pytest.mark.parametrize("change", [{"n_jobs": 3}, {"memory_limit": 8 * 300 * 2}, {"memory_limit": 1}])
@pytest.mark.parametrize("n_classes", [0, 3])
def test_threads_and_memory_change_nothing(change: dict[str, int], n_classes: int) -> None:
    field = make_field(8, n_classes=n_classes)
    growth = make_growth(field)
    values = None if n_classes else field.labels.astype(float)
    grown, totals = grow_alone(field, growth, range(3, 3 + N_TREES), values)
    again, again_totals = grow_alone(field, replace(growth, **change), range(3, 3 + N_TREES), values)  # type: ignore[arg-type]
    assert_same(again, grown)
    order, again_order = (np.lexsort((t.output, t.node)) for t in (totals, again_totals))
    for part in ("node", "output", "weight"):
        np.testing.assert_array_equal(getattr(totals, part)[order], getattr(again_totals, part)[again_order])
    shallow = grow_on(field, make_growth(field, max_depth=2), range(N_TREES), WholeTrees.single_leaves(N_TREES))
    assert_same(
        grow_on(field, replace(growth, **change), range(N_TREES), shallow),  # type: ignore[arg-type]
        grow_on(field, growth, range(N_TREES), shallow),
    )


def test_leaf_totals_are_of_the_drawn_rows() -> None:
    field = make_field(9)
    growth = make_growth(field, min_samples_leaf=5)
    grown, totals = grow_alone(field, growth, range(N_TREES))
    expected = np.zeros((grown.structure.n_nodes, field.n_classes), np.int64)
    ends = grown.leaves_of(field.columns, field.n_rows, 1)
    for tree in range(N_TREES):
        np.add.at(expected, (ends[:, tree], field.labels), growth.bootstrap.counts(tree, field.n_rows))
    found = np.zeros_like(expected)
    found[totals.node, totals.output] = totals.weight
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("n_rows", [0, 1])
def test_too_few_rows_leave_trees_as_they_are(n_rows: int) -> None:
    full = make_field(10)
    begun = grow_on(full, make_growth(full), range(N_TREES), WholeTrees.single_leaves(N_TREES))
    few = make_field(11, n_rows)
    assert_same(grow_on(few, make_growth(few), range(N_TREES), begun), begun)


def test_trees_taken_apart_and_joined() -> None:
    field = make_field(12)
    trees = grow_on(field, make_growth(field), range(N_TREES), WholeTrees.single_leaves(N_TREES))
    assert_same(join_trees([trees.take(0, 1), trees.take(1, 4), trees.take(4, N_TREES)]), trees)


# --- leaves ---


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), min_rows=st.integers(1, 8))
def test_merging_keeps_every_row_once_and_nothing_small(seed: int, min_rows: int) -> None:
    rng = np.random.default_rng(seed)
    structure = random_structure(rng, 4)
    leaf = structure.right < 0
    rows = np.where(leaf, rng.integers(0, 6, structure.n_nodes), 0)
    amounts = np.column_stack([rows, 10 * rows])
    levels = Levels(structure)
    before = levels.add_up(rows.astype(float))[structure.offset[:-1]]
    levels.merge_small(rows, amounts, min_rows)
    assert ((rows == 0) | (rows >= min_rows)).all()
    np.testing.assert_array_equal(amounts, np.column_stack([rows, 10 * rows]))
    after = levels.add_up(rows.astype(float))[structure.offset[:-1]]
    assert (before[after == 0] < min_rows).all()
    assert (before - after < min_rows).all()  # at most what is too little for the root is left out


def test_an_empty_leaf_answers_as_its_deepest_filled_ancestor() -> None:
    #        0
    #      /   \
    #     1     4        leaf 4: 2 rows of class 1
    #    / \
    #   2   3            leaf 2: 6 rows of class 0; leaf 3 empty
    structure = Structure(np.array([0, 5]), np.array([4, 3, -1, -1, -1], np.int32))
    sums = np.array([[0, 0], [0, 0], [6, 0], [0, 0], [0, 2]], float)
    rows = sums.sum(axis=1)
    leaves, gain = fill_leaves(structure, rows, rows, sums, "gini")
    np.testing.assert_array_equal(leaves.start, [0, 1, 2, 3])
    np.testing.assert_array_equal(leaves.output, [0, 0, 1])
    np.testing.assert_array_equal(leaves.value, [1, 1, 1])
    np.testing.assert_array_equal(leaves.weight, [6, EMPTY_WEIGHT, 2])
    np.testing.assert_allclose(gain, [2 * 6 / 8 * 2 / 8, 0, 0, 0, 0])


def test_gains_are_those_of_scikit_learn() -> None:
    from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

    rng = np.random.default_rng(3)
    X, y = rng.normal(size=(200, 3)), rng.integers(0, 3, 200)
    for criterion, tree in (
        ("gini", DecisionTreeClassifier(max_depth=4, random_state=0)),
        ("entropy", DecisionTreeClassifier(criterion="entropy", max_depth=4, random_state=0)),
        ("squared_error", DecisionTreeRegressor(max_depth=4, random_state=0)),
    ):
        tree.fit(X, y)
        t = tree.tree_
        right = np.where(t.children_right > 0, t.children_right, -1).astype(np.int32)
        structure = Structure(np.array([0, t.node_count]), right)
        ends = tree.apply(X)
        n_outputs = 1 if criterion == "squared_error" else 3
        sums = np.zeros((t.node_count, n_outputs))
        np.add.at(sums, (ends, 0 if n_outputs == 1 else y), y if n_outputs == 1 else 1)
        rows = np.bincount(ends, minlength=t.node_count).astype(float)
        leaves, gain = fill_leaves(structure, rows, rows, sums, criterion)
        inner = right >= 0
        by_feature = np.bincount(t.feature[inner], weights=gain[inner], minlength=3)
        np.testing.assert_allclose(by_feature / by_feature.sum(), tree.feature_importances_)
        assert (leaves.weight == rows[~inner]).all()
