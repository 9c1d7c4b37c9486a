"""A score on rows that a model was fitted on says so."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import woodlot as wl
from companies import ALL, BANK, SHOP, classifier, federation


def logistic() -> wl.FederatedLogisticRegression:
    return wl.FederatedLogisticRegression(tol=1e-3)


def revocable() -> wl.RevocableForestClassifier:
    return wl.RevocableForestClassifier(3, encryption="simulated", random_state=0)


def some(rows: pd.DataFrame) -> wl.Federation:
    return federation(rows.dropna())


MAKERS = [classifier, logistic, revocable]


@pytest.mark.parametrize("make", MAKERS)
def test_a_score_on_the_training_rows_says_so(make: Callable[[], Any]) -> None:
    here = some(ALL)
    model = make().fit(here, y="bank.default")
    remedy = "score held-out rows" if make is logistic else "fit with oob_score=True and read oob_score_"
    with pytest.warns(wl.TrainingRowsWarning, match=f"all rows were in the training.*{remedy}"):
        model.score(here)


@pytest.mark.parametrize("make", MAKERS)
def test_rows_are_known_by_their_ids(make: Callable[[], Any]) -> None:
    train, test = ALL.dropna()[:80], ALL.dropna()[80:]
    model = make().fit(some(train), y="bank.default")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.score(some(test))
    both = pd.concat([train[:10], test])
    with pytest.warns(wl.TrainingRowsWarning, match=rf"10 of {len(both)} rows were in the training"):
        model.score(some(both))


def test_what_is_not_known_is_not_said(tmp_path: Path) -> None:
    here = wl.Federation.local({"bank": ALL[BANK[1:]], "shop": ALL[SHOP[1:]]})
    model = classifier().fit(here, y="bank.default")
    model.save(tmp_path / "model")
    copies = [pickle.loads(pickle.dumps(model)), wl.load(tmp_path / "model")]  # noqa: S301 - our own
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scores = [copy.score(here) for copy in copies]
        model.fit(ALL[["age", "income"]], ALL["default"])
        model.score(ALL[["age", "income"]], ALL["default"])  # as scikit-learn: the caller knows which table it is
    assert scores[0] == scores[1]
