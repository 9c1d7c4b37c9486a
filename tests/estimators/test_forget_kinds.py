"""Which other forests forget rows, and what the others say."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.datasets import load_iris

import woodlot as wl
from woodlot.estimators.revoking import digests
from woodlot.exceptions import DataError

X, y = (part[:100:2] for part in load_iris(return_X_y=True))


@pytest.mark.slow
def test_a_hidden_forest_in_one_process_is_grown_again() -> None:
    def fit(rows: NDArray[np.bool_]) -> wl.FederatedForestClassifier:
        model = wl.FederatedForestClassifier(3, protection="hidden", min_cell=5, max_depth=2, random_state=0)
        return model.fit(X[rows], y[rows])

    model, rest = fit(np.ones(len(y), bool)), np.arange(len(y)) != 3
    receipt = model.forget([3], prove=True)
    assert (receipt.statement.rows, receipt.statement.proved) == (1, True)
    assert receipt.statement.again
    assert digests(model.forest_) == digests(fit(rest).forest_)


def test_a_revocable_forest_says_why_it_forgets_none() -> None:
    model = wl.RevocableForestClassifier(2, max_depth=2, random_state=0).fit(X, y)
    with pytest.raises(DataError, match=r"encrypted splits.*train it again without the rows"):
        model.forget([3])


def test_a_private_forest_says_why_it_forgets_none() -> None:
    declared = dict.fromkeys("0123", (0, 9))
    model = wl.PrivateForestClassifier(2.0, declared=declared, classes=[0, 1], parties=3, random_state=0).fit(X, y)
    with pytest.raises(DataError, match=r"new noise.*Train it again without the rows"):
        model.forget([3])
