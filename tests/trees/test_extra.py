"""Extremely randomised trees: the kernels against their slow twins, and what is drawn."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from woodlot.trees.extra import ATTEMPTS, LEAF, SPLITS, WAITS, Axes, Frontier, GrowingTrees, NodeRows, make_questions
from woodlot.trees.kernels import extra as kernels

CATEGORIES = (None, None, tuple("abcdefghij"))
SIZES = np.array([0, 0, 2])


def matrix(rng: np.random.Generator, n: int) -> np.ndarray:
    values = rng.integers(0, 5, (3, n)).astype(np.float32)
    values[2] = rng.integers(0, 10, n)
    values[rng.random((3, n)) < 0.2] = np.nan
    return values


def some_questions(rng: np.random.Generator, n: int) -> Any:
    feature = rng.integers(-1, 3, n).astype(np.int32)
    threshold = np.where(feature == 2, np.nan, rng.integers(0, 5, n).astype(float))
    missing = rng.integers(0, 2, n).astype(np.uint8)
    sets = rng.integers(0, 256, 2 * int((feature == 2).sum())).astype(np.uint8)
    return make_questions(feature, threshold, missing, sets, SIZES)


def goes_left(values: np.ndarray, row: int, questions: Any, j: int) -> bool:
    x = values[questions.feature[j], row]
    if np.isnan(x):
        return bool(questions.missing_left[j])
    if questions.feature[j] < 2:
        return bool(x <= questions.threshold[j])
    at = questions.set_start[j] + int(x) // 8
    return bool(questions.sets[at] >> (int(x) % 8) & 1)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 3))
def test_counts_and_splits_as_the_slow_twin(seed: int, n_jobs: int) -> None:
    rng = np.random.default_rng(seed)
    n, n_trees, width = int(rng.integers(0, 30)), int(rng.integers(1, 4)), 3
    values = matrix(rng, n)
    rows = NodeRows(values, n_trees, n_jobs)
    frontier = rows.roots
    fate = rng.integers(0, 3, n_trees).astype(np.uint8)
    chosen = some_questions(rng, 4 * n_trees)
    split = np.flatnonzero(fate == SPLITS)
    first = np.flatnonzero(chosen.feature >= 0)[: len(split)]
    fate[split[len(first) :]] = WAITS
    asked = make_questions(
        chosen.feature[first],
        chosen.threshold[first],
        chosen.missing_left[first],
        np.concatenate([np.empty(0, np.uint8), *(chosen.sets[slice(*chosen.set_start[j : j + 2])] for j in first)]),
        SIZES,
    )
    after = rows.advance(frontier, fate, asked)
    expected: list[tuple[int, list[int]]] = []
    question = 0
    for tree in range(n_trees):
        if fate[tree] == WAITS:
            expected.append((tree, list(range(n))))
        elif fate[tree] == SPLITS:
            left = [row for row in range(n) if goes_left(values, row, asked, question)]
            expected += [(tree, left), (tree, [row for row in range(n) if row not in left])]
            question += 1
        else:
            assert fate[tree] == LEAF
    found = [(int(t), rows.rows[a:b].tolist()) for t, a, b in zip(after.tree, after.start, after.end, strict=True)]
    assert found == expected

    labels, targets = rng.integers(0, 4, n).astype(np.int32), rng.integers(-9, 9, n)
    bits = rng.integers(0, 2, (n, 5))
    start = np.concatenate([[0], np.cumsum(bits.sum(axis=1))]).astype(np.int64)
    tokens = np.nonzero(bits)[1].astype(np.int32)
    questions = some_questions(rng, len(after) * width)
    by_class = rows.count(after, questions, width, 4, kernels.count_classes, labels)
    by_bit = rows.count(after, questions, width, 6, kernels.count_tokens, start, tokens)
    by_target = rows.count(after, questions, width, 2, kernels.count_targets, targets)
    low, high = rows.ranges(after, questions.feature, width)
    for node, (_, members) in enumerate(expected):
        for candidate in range(width):
            j = node * width + candidate
            f = questions.feature[j]
            gone = [] if f < 0 else [row for row in members if goes_left(values, row, questions, j)]
            assert by_class[node, candidate].tolist() == np.bincount(labels[gone], minlength=4).tolist()
            assert by_bit[node, candidate].tolist() == [len(gone), *bits[gone].sum(axis=0)]
            assert by_target[node, candidate].tolist() == [len(gone), targets[gone].sum()]
            known = [x for x in values[f, members] if not np.isnan(x)] if f >= 0 else []
            expected_range = [min(known), max(known)] if known else [np.nan, np.nan]
            np.testing.assert_array_equal([low[j], high[j]], expected_range)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["gini", "squared_error"]))
def test_the_best_candidate_is_the_slow_twins(seed: int, criterion: str) -> None:
    rng = np.random.default_rng(seed)
    nodes, width, cells = 6, 4, 3 if criterion == "gini" else 1
    n_left, n_right = rng.integers(0, 8, (2, nodes, width))
    left, right = rng.integers(0, 5, (2, nodes, width, cells))
    if criterion == "gini":
        n_left, n_right = left.sum(axis=-1), right.sum(axis=-1)
    feature = rng.integers(-1, 2, nodes * width).astype(np.int32)
    best = np.empty(nodes, np.int64)
    kind = kernels.GINI if criterion == "gini" else kernels.SQUARED_ERROR
    parts = [part.astype(np.float64) for part in (left, right, n_left, n_right)]
    kernels.choose_questions(*parts, feature, kind, 2, best)

    def score(node: int, c: int) -> Fraction | None:
        nl, nr = int(n_left[node, c]), int(n_right[node, c])
        if feature[node * width + c] < 0 or min(nl, nr) < 2:
            return None
        if criterion == "gini":
            sides = [(left[node, c], nl), (right[node, c], nr)]
            return sum((Fraction(int((side**2).sum()), n) for side, n in sides), Fraction(0))
        apart = Fraction(int(left[node, c, 0]), nl) - Fraction(int(right[node, c, 0]), nr)
        return Fraction(nl * nr, nl + nr) * apart**2 or None

    for node in range(nodes):
        scores = [score(node, c) for c in range(width)]
        known = [s for s in scores if s is not None]
        if not known:
            assert best[node] == -1
        else:
            chosen = scores[best[node]]
            assert chosen is not None
            assert float(max(known) - chosen) < 1e-9


def test_candidates_follow_from_names_and_paths_alone() -> None:
    knots = (np.array([0.0, 10.0]), np.array([0.0, 1.0, 100.0]), np.empty(0), np.array([5.0]))
    names, categories = ("age", "income", "town", "constant"), (None, None, ("a", "b", "c"), None)
    axes = Axes(names, knots, categories)
    few, many = (GrowingTrees(axes, n, 7).draw(2) for n in (3, 5))
    assert many.questions.feature[:6].tolist() == few.questions.feature.tolist()
    np.testing.assert_array_equal(many.questions.threshold[:6], few.questions.threshold)
    order = [2, 0, 3, 1]
    moved = Axes(tuple(names[i] for i in order), tuple(knots[i] for i in order), tuple(categories[i] for i in order))
    other = GrowingTrees(moved, 3, 7).draw(2).questions
    assert [order[f] for f in other.feature] == few.questions.feature.tolist()
    np.testing.assert_array_equal(other.threshold, few.questions.threshold)


def test_thresholds_keep_within_what_is_known_of_a_node() -> None:
    """Below a split, and beside a side that was empty, nothing is drawn where no rows can be."""
    axes = Axes(("x",), (np.array([0.0, 8.0]),), (None,))
    trees = GrowingTrees(axes, 200, 1)
    drawn = trees.draw(1)
    first = drawn.questions.threshold
    assert first.min() >= 0
    assert first.max() < 8
    assert np.histogram(first, 4, (0, 8))[0].min() > 30
    nothing = np.zeros((200, 1))
    some = nothing + 5
    trees.learn_empty(drawn, nothing, some)  # all lie above
    fate, _ = trees.decide(drawn, np.full(200, -1), True)
    assert (fate == WAITS).all()
    second = trees.draw(1)
    assert (second.questions.threshold > first).all()
    trees.decide(second, np.zeros(200, np.int64), True)
    third = trees.draw(1).questions.threshold.reshape(-1, 2)
    assert ((third[:, 0] > first) & (third[:, 0] < second.questions.threshold)).all()
    assert (third[:, 1] > second.questions.threshold).all()


def test_a_node_is_not_asked_for_ever() -> None:
    trees = GrowingTrees(Axes(("x", "y"), (np.array([0.0, 1.0]),) * 2, (None, None)), 2, 1)
    for _ in range(ATTEMPTS):
        assert len(trees.nodes) == 2
        drawn = trees.draw(1)
        assert drawn.any_at.all()
        fate, _ = trees.decide(drawn, np.full(2, -1), True)
    assert (fate == LEAF).all()
    assert len(trees.nodes) == 0
    structure = trees.finish()[0].structure
    assert structure.n_nodes == 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"feature": np.array([3], np.int32)}, "does not exist"),
        ({"threshold": np.array([np.inf])}, "not a number"),
        ({"sets": np.zeros(1, np.uint8)}, "sets do not fit"),
        ({"missing_left": np.zeros(2, np.uint8)}, "different lengths"),
    ],
)
def test_questions_that_are_not_sound(change: dict[str, Any], words: str) -> None:
    parts: dict[str, Any] = {
        "feature": np.array([0], np.int32),
        "threshold": np.array([1.0]),
        "missing_left": np.zeros(1, np.uint8),
        "sets": np.zeros(0, np.uint8),
    }
    with pytest.raises(ValueError, match=words):
        make_questions(**(parts | change), sizes=SIZES)


def test_an_empty_client_counts_nothing() -> None:
    rows = NodeRows(np.empty((3, 0), np.float32), 2)
    assert len(rows.roots) == 2
    assert isinstance(rows.roots.take([0]), Frontier)
    counts = rows.count(
        rows.roots, some_questions(np.random.default_rng(0), 4), 2, 2, kernels.count_classes, np.empty(0, np.int32)
    )
    assert not counts.any()
