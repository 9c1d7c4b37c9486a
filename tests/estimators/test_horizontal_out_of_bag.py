"""The out-of-bag score of the lossless forest: that of the pooled rows, whoever holds them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn import metrics

import woodlot as wl
from woodlot.data.tables import read_table
from woodlot.trees.drawing import draw_trees, row_keys
from woodlot.trees.sampling import derive_seed, feature_key

RNG = np.random.default_rng(5)
N = 300
X = pd.DataFrame({"a": RNG.normal(size=N), "b": RNG.normal(size=N).round(1), "c": RNG.choice(["x", "y", "z"], N)})
X.loc[::13, "a"] = np.nan
AMOUNT = 50 + 9 * X["b"] + RNG.normal(0, 4, N)
LATE = pd.Series(np.where(AMOUNT + RNG.normal(0, 5, N) > 50, "yes", "no"))


def by_hand(model: Any, y: pd.Series) -> tuple[np.ndarray, np.ndarray]:
    """Answers of the trees that have not drawn each row, from the trees and the rule of drawing, and who has any."""
    complete = model.combine()
    table = read_table(X)
    forest = model.forest_.coordinator
    columns = [c.values if hasattr(c, "values") else c.codes for c in table.columns]
    labels = y.to_numpy(np.float64) if not forest.classes else np.searchsorted(forest.classes, y).astype(np.uint8)
    keys = row_keys(columns, [feature_key(name) for name in table.names], labels)
    plan = model._plan(model._check())
    seed = derive_seed(plan.settings(3).bootstrap_seed, "rows", secret=b"")
    rows, _, bounds = draw_trees(keys, [plan.thresholds(N)], seed, plan.n_estimators, 1)
    leaf = complete.apply(table, 1)
    leaves = forest.leaves
    total, count = np.zeros((N, leaves.n_outputs)), np.zeros(N, int)
    for t in range(plan.n_estimators):
        unseen = np.setdiff1d(np.arange(N), rows[bounds[t] : bounds[t + 1]])
        for row in unseen.tolist():
            entries = slice(leaves.start[leaf[row, t]], leaves.start[leaf[row, t] + 1])
            total[row, leaves.output[entries]] += leaves.value[entries]
        count[unseen] += 1
    return total[count > 0] / count[count > 0, None], count > 0


def test_accuracy_is_that_of_the_trees_that_have_not_drawn_a_row() -> None:
    model = wl.HorizontalForestClassifier(8, oob_score=True, random_state=3).fit(X, LATE)
    answers, known = by_hand(model, LATE)
    said = model.classes_[answers.argmax(axis=1)]
    assert model.oob_score_ == metrics.accuracy_score(LATE[known], said)
    assert 0.5 < model.oob_score_ < model.score(X, LATE)


def test_r2_is_that_of_the_trees_that_have_not_drawn_a_row() -> None:
    model = wl.HorizontalForestRegressor(8, oob_score=True, random_state=3).fit(X, AMOUNT)
    answers, known = by_hand(model, AMOUNT)
    assert model.oob_score_ == pytest.approx(metrics.r2_score(AMOUNT[known], answers[:, 0]), abs=1e-8)
    assert model.oob_score_ < model.score(X, AMOUNT)


@pytest.mark.parametrize(("kind", "y"), [(wl.HorizontalForestClassifier, LATE), (wl.HorizontalForestRegressor, AMOUNT)])
def test_it_depends_neither_on_the_clients_nor_on_the_sums(kind: Any, y: Any) -> None:
    found = [
        kind(5, oob_score=True, random_state=0, **options).fit(X, y).oob_score_
        for options in ({"parties": 3}, {"parties": 5}, {"parties": 1, "sums": "plain"}, {"parties": 4, "n_jobs": 2})
    ]
    assert len(set(found)) == 1
    plain = kind(5, random_state=0).fit(X, y)
    assert not hasattr(plain, "oob_score_")
    answered = (plain.predict(X), kind(5, oob_score=True, random_state=0).fit(X, y).predict(X))
    np.testing.assert_array_equal(*answered)


def test_rows_in_large_tables_are_scored_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = wl.HorizontalForestClassifier(5, oob_score=True, random_state=0).fit(X, LATE).oob_score_
    monkeypatch.setattr("woodlot.protocols.rows.lossless.left_out._ROWS_AT_ONCE", 7)
    assert wl.HorizontalForestClassifier(5, oob_score=True, random_state=0).fit(X, LATE).oob_score_ == expected


def test_it_is_saved_and_told_as_a_disclosure(tmp_path: Path) -> None:
    model = wl.HorizontalForestClassifier(4, oob_score=True, random_state=0).fit(X, LATE)
    model.save(tmp_path / "model")
    assert wl.load(tmp_path / "model").oob_score_ == model.oob_score_
    assert "ScoreLeftOut" in {row.kind for row in model.disclosure_.rows}


def test_trees_are_added_until_there_are_enough() -> None:
    model = wl.HorizontalForestClassifier(64, max_depth=3, random_state=0)
    grown = wl.grow_enough(model, X, LATE, start=4, tolerance=0.02)
    assert 4 < grown.n_estimators <= 64
    assert np.isfinite(grown.oob_score_)


def test_without_rows_that_are_left_out_there_is_none() -> None:
    one = wl.HorizontalForestClassifier(1, oob_score=True, max_samples=20.0, random_state=0).fit(X, LATE)
    assert np.isnan(one.oob_score_)
    with pytest.raises(ValueError, match="bootstrap"):
        wl.HorizontalForestClassifier(4, oob_score=True, bootstrap=False).fit(X, LATE)
