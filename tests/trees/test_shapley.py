"""Shapley values of forests: against the definition, over all sets of columns."""

from __future__ import annotations

from itertools import combinations
from math import factorial
from typing import Any

import numpy as np
import pytest
from random_forests import RandomForest, naive_goes_left, random_forest

from woodlot.trees.shapley import ForestShapley, ShapleyValues, SideTeller
from woodlot.trees.wire import row_words

N_ROWS = 70


def explained(forest: RandomForest, known: list[Any], vote: Any = "soft") -> tuple[ForestShapley, ShapleyValues]:
    """As a federation does it: every party tells its sides, and which rows it has."""
    structure, owner = forest.structure, forest.owner
    feature = np.full(structure.n_nodes, -1, np.int32)
    feature[forest.splits.node] = forest.splits.feature
    places = np.arange(len(forest.columns))
    shapley = ForestShapley(structure, forest.leaves, feature, owner, places, forest.n_parties, vote)
    sides = np.zeros((-(-forest.n_rows // 64), structure.n_nodes), np.uint64)
    words = np.zeros((forest.n_parties, len(sides)), np.uint64)
    for party in range(forest.n_parties):
        told = SideTeller(forest.party_splits(party)).answer(
            forest.party_columns(party), known[party], forest.n_rows, slice(0, forest.n_rows)
        )
        sides[:, np.flatnonzero(owner == party)] = told
        words[party] = row_words(forest.n_rows, known[party])
    return shapley, shapley.explain(sides, words, forest.n_rows, 2)


class Naive:
    """What a forest answers for one row where some columns are known: both ways everywhere else."""

    def __init__(self, forest: RandomForest, row: int, majority: bool = False) -> None:
        self._forest, self._row, self._majority = forest, row, majority
        self._question = {int(node): k for k, node in enumerate(forest.splits.node)}

    def __call__(self, known: frozenset[int]) -> np.ndarray:
        structure = self._forest.structure
        return np.mean([self._node(int(root), known) for root in structure.offset[:-1]], axis=0)

    def _node(self, node: int, known: frozenset[int]) -> np.ndarray:
        forest, right = self._forest, int(self._forest.structure.right[node])
        if right < 0:
            leaves, leaf, answer = forest.leaves, forest.structure.leaf[node], np.zeros(forest.leaves.n_outputs)
            entries = slice(leaves.start[leaf], leaves.start[leaf + 1])
            answer[leaves.output[entries]] = leaves.value[entries]
            return np.eye(len(answer))[answer.argmax()] if self._majority else answer
        question = self._question[node]
        if int(forest.splits.feature[question]) in known:
            return self._node(
                node + 1 if naive_goes_left(forest.splits, question, forest.columns, self._row) else right, known
            )
        weight = np.array([self._weight(node + 1), self._weight(right)])
        share = weight / weight.sum() if weight.sum() > 0 else np.array([0.5, 0.5])
        return share[0] * self._node(node + 1, known) + share[1] * self._node(right, known)

    def _weight(self, node: int) -> float:
        structure = self._forest.structure
        if structure.right[node] < 0:
            return float(self._forest.leaves.weight[structure.leaf[node]])
        return self._weight(node + 1) + self._weight(int(structure.right[node]))


def by_definition(answer: Naive, players: list[int], n_columns: int) -> np.ndarray:
    value = {frozenset(s): answer(frozenset(s)) for k in range(len(players) + 1) for s in combinations(players, k)}
    found = np.zeros((n_columns, len(value[frozenset()])))
    n = len(players)
    for s, without in value.items():
        for i in set(players) - s:
            weight = factorial(len(s)) * factorial(n - len(s) - 1) / factorial(n)
            found[i] += weight * (value[s | {i}] - without)
    return found


@pytest.mark.parametrize(("seed", "vote"), [*((seed, "soft") for seed in range(6)), (1, "majority"), (5, "majority")])
def test_values_are_those_of_the_definition(seed: int, vote: str) -> None:
    forest = random_forest(seed, n_rows=N_ROWS, n_trees=4, n_outputs=1 + seed % 3)
    shapley, found = explained(forest, [None] * forest.n_parties, vote)
    columns = list(range(len(forest.columns)))
    for row in (63, N_ROWS - 1):
        naive = Naive(forest, row, vote == "majority")
        np.testing.assert_allclose(found.values[row], by_definition(naive, columns, len(columns)), atol=1e-12)
        np.testing.assert_allclose(found.outputs[row], naive(frozenset(columns)), atol=1e-12)
        np.testing.assert_allclose(shapley.base, naive(frozenset()), atol=1e-12)
    np.testing.assert_allclose(shapley.base + found.values.sum(axis=1), found.outputs, atol=1e-12)
    assert not found.uncertain.any()


@pytest.mark.parametrize("seed", range(4))
def test_a_party_that_lacks_a_row_has_no_part(seed: int) -> None:
    forest = random_forest(seed + 20, n_rows=N_ROWS, n_trees=3)
    rng = np.random.default_rng(seed)
    known = [None, *(rng.random(N_ROWS) < 0.6 for _ in range(forest.n_parties - 1))]
    _, found = explained(forest, known)
    for row in range(0, N_ROWS, 9):
        has = [c for c, p in enumerate(forest.column_party) if known[p] is None or known[p][row]]
        expected = by_definition(Naive(forest, row), has, len(forest.columns))
        np.testing.assert_allclose(found.values[row], expected, atol=1e-12)
        np.testing.assert_allclose(found.outputs[row], Naive(forest, row)(frozenset(has)), atol=1e-12)


def test_probabilities_that_add_up_to_one_are_explained_like_others() -> None:
    """The last class is then computed from the others."""
    forest = random_forest(3, n_rows=N_ROWS, n_trees=4)
    leaves = forest.leaves
    total = np.add.reduceat(leaves.value, leaves.start[:-1])
    object.__setattr__(leaves, "value", leaves.value / np.repeat(total, np.diff(leaves.start)))
    _, found = explained(forest, [None] * forest.n_parties)
    columns = list(range(len(forest.columns)))
    np.testing.assert_allclose(found.values[5], by_definition(Naive(forest, 5), columns, len(columns)), atol=1e-12)
    np.testing.assert_allclose(found.values.sum(axis=2), 0, atol=1e-12)


def test_sides_of_other_rows_are_refused() -> None:
    forest = random_forest(3, n_rows=N_ROWS)
    shapley, _ = explained(forest, [None] * forest.n_parties)
    with pytest.raises(ValueError, match="must be of 70 rows"):
        shapley.explain(np.zeros((1, 3), np.uint64), np.zeros((forest.n_parties, 2), np.uint64), N_ROWS)
