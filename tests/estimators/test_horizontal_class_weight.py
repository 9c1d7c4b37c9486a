"""Class weights of the lossless forest: rows of a class are drawn more often, whoever holds them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pytest

import woodlot as wl
from woodlot.exceptions import WoodlotError
from woodlot.protocols.rows.lossless.lossless_plan import LosslessPlan
from woodlot.trees.drawing import draw_trees, poisson_thresholds

RNG = np.random.default_rng(8)
N = 400
X = pd.DataFrame({"a": RNG.normal(size=N), "b": RNG.normal(size=N)})
RARE = pd.Series(np.where(X["a"] + RNG.normal(0, 0.7, N) > 1.6, "yes", "no"))


def forest(**options: Any) -> wl.HorizontalForestClassifier:
    return wl.HorizontalForestClassifier(**({"n_estimators": 12, "random_state": 1} | options))


def plan(**options: Any) -> LosslessPlan:
    return forest(**options).make_plan()


def test_it_does_not_depend_on_the_clients_nor_on_the_sums() -> None:
    found = [
        forest(class_weight="balanced", oob_score=True, **options).fit(X, RARE)
        for options in ({"parties": 3}, {"parties": 5, "n_jobs": 2}, {"parties": 1, "sums": "plain"})
    ]
    for other in found[1:]:
        np.testing.assert_array_equal(found[0].predict_proba(X), other.predict_proba(X))
    assert len({repr(one.oob_score_) for one in found}) == 1
    assert {"CountClasses", "DrawByClass"} <= {row.kind for row in found[0].disclosure_.rows}
    assert "DrawRows" not in {row.kind for row in found[0].disclosure_.rows}


def test_balanced_trees_have_as_much_of_each_class_and_find_more_of_a_rare_one() -> None:
    plain, balanced = forest().fit(X, RARE), forest(class_weight="balanced").fit(X, RARE)
    weights = {}
    for name, model in {"plain": plain, "balanced": balanced}.items():
        leaves = model.forest_.coordinator.leaves
        owner = np.repeat(np.arange(len(leaves.weight)), np.diff(leaves.start))
        by_class = np.bincount(leaves.output, leaves.value * leaves.weight[owner], 2)
        weights[name] = by_class[1] / by_class.sum()
    share = float((RARE == "yes").mean())
    assert abs(weights["plain"] - share) < 0.05
    assert abs(weights["balanced"] - 0.5) < 0.1
    found = [float((model.predict(X) == "yes")[RARE == "yes"].mean()) for model in (plain, balanced)]
    assert found[1] > found[0]


def test_weights_by_name_are_relative_and_missing_ones_are_one() -> None:
    models = [
        forest(class_weight=weights).fit(X, RARE).predict_proba(X)
        for weights in ({"yes": 4.0, "no": 1.0}, {"yes": 4}, {"yes": 8.0, "no": 2.0})
    ]
    np.testing.assert_array_equal(models[0], models[1])
    np.testing.assert_array_equal(models[0], models[2])  # as many rows as without weights are drawn
    even = forest(class_weight={"yes": 1.0, "no": 1.0}).fit(X, RARE)
    np.testing.assert_array_equal(even.predict_proba(X), forest().fit(X, RARE).predict_proba(X))
    none = forest(class_weight={"yes": 0.0}).fit(X, RARE)
    assert (none.predict_proba(X)[:, 1] == 0).all()


def test_a_score_out_of_bag_counts_classes_by_their_shares_or_is_withheld() -> None:
    many = forest(class_weight="balanced", oob_score=True, n_estimators=60, max_samples=0.3).fit(X, RARE)
    assert 0.5 < many.oob_score_ <= 1
    heavy = forest(class_weight={"yes": 60.0}, oob_score=True, n_estimators=3).fit(X, RARE)
    assert np.isnan(heavy.oob_score_)


def test_how_often_rows_are_drawn() -> None:
    lists = plan(class_weight="balanced").class_thresholds([300, 100], ("no", "yes"))
    np.testing.assert_array_equal(lists[0], poisson_thresholds(400 / 600))
    np.testing.assert_array_equal(lists[1], poisson_thresholds(400 / 200))
    by_share = plan(class_weight={"yes": 3.0}, max_samples=0.5).class_thresholds([300, 100], ("no", "yes"))
    np.testing.assert_array_equal(by_share[1], poisson_thresholds(1.5))
    by_number = plan(class_weight={"yes": 3.0}, max_samples=60).class_thresholds([300, 100], ("no", "yes"))
    np.testing.assert_array_equal(by_number[0], poisson_thresholds(60 / 600))
    keys, level = RNG.integers(0, 2**63, 500).astype(np.uint64), np.arange(500) % 2
    rows, weights, bounds = draw_trees(keys, lists, 5, 40, 2, level)
    drawn = np.bincount(level[rows], weights, 2) / 40 / 250
    np.testing.assert_allclose(drawn, [2 / 3, 2], rtol=0.1)
    assert all((np.diff(rows[a:b].astype(int)) > 0).all() for a, b in pairwise(bounds))


BAD: list[tuple[dict[str, Any], str]] = [
    ({"class_weight": {"maybe": 2.0}}, "names classes that do not occur: .'maybe'."),
    ({"class_weight": {"yes": 0.0, "no": 0.0}}, "every row the weight 0"),
    ({"class_weight": {"yes": 1e6, "no": 1.0}}, "at most 32 are possible"),
    ({"class_weight": "balanced", "bootstrap": False}, "needs bootstrap=True"),
    ({"class_weight": "balanced_subsample"}, "must be None, 'balanced' or a mapping"),
    ({"class_weight": {"yes": -1}}, "must be a number of at least 0"),
    ({"class_weight": "even"}, "class_weight"),
]


@pytest.mark.parametrize(("options", "words"), BAD, ids=lambda value: str(value)[:40])
def test_what_is_wrong_is_named(options: dict[str, Any], words: str) -> None:
    few = pd.Series(np.where(np.arange(N) < 5, "yes", "no"))
    with pytest.raises((ValueError, WoodlotError), match=words):
        forest(**options).fit(X, few)
