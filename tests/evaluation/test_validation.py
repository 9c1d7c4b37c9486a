"""Cross-validation and search on a federation give the numbers of the joined table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import randint
from sklearn.model_selection import GridSearchCV, PredefinedSplit, StratifiedKFold
from sklearn.model_selection import cross_validate as scikit_learns

import woodlot as wl
import woodlot.federation.members as members
from companies import ALL, BANK, FEATURES, classifier, federation
from woodlot.exceptions import DataError


def joined(fed: wl.Federation) -> pd.DataFrame:
    return ALL.set_index("id").loc[fed.ids]


def test_the_same_folds_on_the_joined_table_give_the_same_numbers() -> None:
    # parties' names order the columns that are tried; without them the forests are the same
    fed = wl.Federation(federation().members, federation().ids, key_by_party=False)
    table = joined(fed)
    model = classifier(min_samples_leaf=5)
    names = ("roc_auc", "log_loss", "brier", "neg_log_loss")
    here = wl.cross_validate(model, fed, y="bank.default", cv=3, scoring=names)
    folds = PredefinedSplit(fed.fold_numbers(3))
    scoring = ("roc_auc", "neg_log_loss", "neg_brier_score")
    there = scikit_learns(model, table[FEATURES], table.default == "yes", cv=folds, scoring=scoring)
    for ours, theirs in (
        (here["test_roc_auc"], there["test_roc_auc"]),
        (here["test_neg_log_loss"], there["test_neg_log_loss"]),
        (here["test_log_loss"], -there["test_neg_log_loss"]),
        (here["test_brier"], -there["test_neg_brier_score"]),
    ):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12)
    assert len(here["fit_time"]) == 3


def test_folds_are_aligned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    align = members.align_rows
    monkeypatch.setattr(members, "align_rows", lambda *a: calls.append(1) or align(*a))
    fits: list[int] = []
    grow = wl.Federation.fit_forest
    monkeypatch.setattr(wl.Federation, "fit_forest", lambda self, *a, **k: fits.append(1) or grow(self, *a, **k))
    fed = federation()
    wl.cross_validate(classifier(n_estimators=2), fed, y="bank.default", cv=5)
    assert (len(calls), len(fits)) == (1, 5)


def test_folds_stay_when_rows_are_added() -> None:
    few = federation(ALL[:80])
    folds, more = few.fold_numbers(3, seed=5), federation().fold_numbers(3, seed=5)
    by_id = dict(zip(federation().ids.tolist(), more.tolist(), strict=True))
    assert [by_id[i] for i in few.ids.tolist()] == folds.tolist()


def test_a_search_is_a_grid_search_on_these_folds() -> None:
    fed = federation()
    grid = {"max_depth": [1, None]}
    found = wl.search(classifier(n_estimators=6), grid, fed, y="bank.default", cv=3, scoring="roc_auc")
    expected = GridSearchCV(
        classifier(n_estimators=6), grid, cv=PredefinedSplit(fed.fold_numbers(3)), scoring="roc_auc"
    ).fit(fed, fed["bank.default"])
    assert found.best_params_ == expected.best_params_
    np.testing.assert_allclose(
        found.cv_results_["mean_test_score"], expected.cv_results_["mean_test_score"], rtol=0, atol=1e-12
    )
    assert found.best_estimator_.forest_.parts["bank"].names == ("age", "income")
    drawn = wl.search(
        classifier(n_estimators=3), {"max_depth": randint(1, 9)}, fed, y="bank.default", cv=2, n_iter=3, refit=False
    )
    assert len(drawn.cv_results_["params"]) == 3


def test_other_models_and_splitters() -> None:
    fed = federation(bank=[*BANK, "amount"])
    regressor = wl.FederatedForestRegressor(5, random_state=0)
    found = wl.cross_validate(regressor, fed, y="bank.amount", cv=2, scoring=["rmse", "r2"], return_indices=True)
    assert set(found) >= {"test_rmse", "test_r2", "indices"}
    one = wl.cross_validate(classifier(n_estimators=3), fed, y="bank.default", cv=StratifiedKFold(2), scoring="f1")
    assert one["test_score"].shape == (2,)
    rows = ALL.drop(columns=["amount", "weight"])
    clients = wl.Federation.local({"north": rows[:60], "south": rows[60:]}, id="id", layout="rows")
    whole = wl.LocalForestsClassifier(4, random_state=0)
    assert wl.cross_validate(whole, clients, y="default", cv=2)["test_score"].shape == (2,)
    given = wl.cross_validate(whole, clients, clients["default"], cv=2, return_train_score=True, scoring="accuracy")
    assert set(given) == {"fit_time", "score_time", "test_score", "train_score"}


RARE = ALL.assign(default=np.where(np.arange(len(ALL)) == 3, "yes", "no"))
BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"cv": 1}, ValueError, "at least 2 folds"),
    ({"cv": 400}, DataError, "has no rows; take fewer folds"),
    ({"y": None}, DataError, "say where the labels are"),
    ({"y": "bank.nothing"}, DataError, "bank has no column 'nothing'"),
    ({"scoring": "auc"}, ValueError, r"A report's own metrics are \['accuracy'"),
    ({"scoring": 3}, ValueError, "scoring must be the name of a metric"),
    ({"federation": ALL}, DataError, "for one table use scikit-learn's"),
    ({"federation": federation(RARE)}, DataError, "have none of class 'yes'; take fewer folds"),
    (
        {"federation": federation(ALL), "cv": 30, "scoring": "roc_auc"},
        DataError,
        "roc_auc of a fold is not defined: no row",
    ),
]


@pytest.mark.parametrize(("options", "kind", "words"), BAD)
def test_bad_input(options: dict[str, Any], kind: type[Exception], words: str) -> None:
    given = {"federation": federation(), "y": "bank.default", **options}
    with pytest.raises(kind, match=words):
        wl.cross_validate(classifier(n_estimators=2), **given)


def test_a_search_refuses_a_loss() -> None:
    with pytest.raises(ValueError, match=r"of 'log_loss' less is better; use .* 'neg_log_loss'"):
        wl.search(classifier(), {"max_depth": [1]}, federation(), y="bank.default", scoring="log_loss")
    with pytest.raises(ValueError, match="one metric"):
        wl.search(classifier(), {"max_depth": [1]}, federation(), y="bank.default", scoring=["roc_auc"])
