"""`grow_enough`: trees until the out-of-bag score stands still."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import woodlot as wl
from companies import classifier, federation, whole
from woodlot.estimators.complete import same_forest
from woodlot.exceptions import DataError


def test_the_forest_is_that_of_a_plain_fit() -> None:
    fed = federation()
    found = wl.grow_enough(classifier(n_estimators=64), fed, y="bank.default", start=4, tolerance=0.5)
    assert found.n_estimators == 8
    assert same_forest(whole(found), whole(classifier(n_estimators=8).fit(fed, y="bank.default")))


def test_a_smaller_forest_is_the_beginning_of_a_larger_one() -> None:
    fed = federation()
    small, large = (classifier(n_estimators=n).fit(fed, y="bank.default").forest_.coordinator for n in (5, 9))
    n = int(small.structure.offset[-1])
    np.testing.assert_array_equal(small.structure.right, large.structure.right[:n])
    np.testing.assert_array_equal(small.feature, large.feature[:n])


def test_it_stops_where_more_trees_gain_nothing() -> None:
    fed = federation()
    scores: dict[int, float] = {}
    fit = wl.FederatedForestClassifier.fit

    def recorded(self: Any, *args: Any, **kwargs: Any) -> Any:
        fitted = fit(self, *args, **kwargs)
        scores[self.n_estimators] = self.oob_score_
        return fitted

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wl.FederatedForestClassifier, "fit", recorded)
        found = wl.grow_enough(classifier(n_estimators=60, random_state=None), fed, y="bank.default", start=8)
    sizes = sorted(scores)
    assert sizes == [8, 16, 32, 60][: len(sizes)]
    assert found.n_estimators == sizes[-1]
    gains = [scores[b] - scores[a] for a, b in pairwise(sizes)]
    assert all(gain > 0.002 for gain in gains[:-1])
    assert gains[-1] <= 0.002 or sizes[-1] == 60


def test_bad_input() -> None:
    fed = federation()
    with pytest.raises(DataError, match="has no out-of-bag score"):
        wl.grow_enough(wl.FederatedLogisticRegression(), fed, y="bank.default")
    with pytest.raises(ValueError, match="start must be"):
        wl.grow_enough(classifier(), fed, y="bank.default", start=0)
    with pytest.raises(ValueError, match="tolerance must be"):
        wl.grow_enough(classifier(), fed, y="bank.default", tolerance=float("nan"))
    one = wl.grow_enough(classifier(n_estimators=3), fed, y="bank.default")
    assert one.n_estimators == 3
