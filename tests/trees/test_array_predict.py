"""Prediction on arrays against the kernels: the same leaves, and the same sums to the bit.

NumPy runs it here; ``make test-gpu`` runs the same tests on a graphics card.
"""

from __future__ import annotations

import pytest
from array_cases import arrays_here, same
from hypothesis import given, settings
from hypothesis import strategies as st
from random_forests import RandomForest, random_forest

from woodlot.trees.arrays import array_predict
from woodlot.trees.arrays.array_predict import ArrayPredictor, PackedForest
from woodlot.trees.predict import Predictor, Vote


def check_same(forest: RandomForest) -> None:
    n = forest.n_rows
    whole = Predictor(forest.structure, forest.splits, forest.leaves)
    here = ArrayPredictor(arrays_here(), PackedForest.of(forest.structure, forest.splits, forest.leaves))
    same(here.apply(forest.columns, n), whole.apply(forest.columns, n))
    votes: tuple[Vote, ...] = ("soft", "majority")
    for vote in votes:
        told = here.predict_outputs(forest.columns, n, majority=vote == "majority")
        same(told, whole.predict_outputs(forest.columns, n, vote))


@given(
    seed=st.integers(0, 2**32),
    n_rows=st.sampled_from([0, 1, 65, 150]),
    n_trees=st.integers(1, 9),
    n_outputs=st.sampled_from([1, 2, 4, 9]),
    categories=st.booleans(),
    missing=st.sampled_from([0.0, 0.3]),
)
@settings(max_examples=40)
def test_any_forest(seed: int, n_rows: int, n_trees: int, n_outputs: int, categories: bool, missing: float) -> None:
    check_same(random_forest(seed, n_rows, n_trees, n_outputs=n_outputs, categories=categories, missing=missing))


def test_rows_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that do not fit the memory at once are answered part by part."""
    monkeypatch.setattr(
        ArrayPredictor, "_parts", lambda self, n, width: [slice(a, min(a + 7, n)) for a in range(0, n, 7)]
    )
    check_same(random_forest(0, 40))


def test_parts_fit_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    forest = random_forest(0, 5, 2)
    here = ArrayPredictor(arrays_here(), PackedForest.of(forest.structure, forest.splits, forest.leaves))
    small = here._arrays.__class__(here._arrays.xp, True, 10_000, "small")
    monkeypatch.setattr(here, "_arrays", small)
    parts = here._parts(1000, 16)
    assert [part.start for part in parts[1:]] == [part.stop for part in parts[:-1]]
    assert parts[-1].stop == 1000
    assert max(part.stop - part.start for part in parts) * (16 + array_predict.ROW_BYTES) <= 10_000
