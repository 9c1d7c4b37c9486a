"""scikit-learn's splitters, searches, curves and calibration run on a federation in one process."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.inspection import permutation_importance
from sklearn.metrics import get_scorer
from sklearn.model_selection import (
    GridSearchCV,
    KFold,
    ShuffleSplit,
    StratifiedKFold,
    cross_val_predict,
    cross_val_score,
    learning_curve,
    train_test_split,
)

import woodlot as wl
from companies import ALL, BANK, FEATURES, SHOP, classifier, federation
from woodlot.exceptions import DataError
from woodlot.federation.label_columns import LabelColumn

GRID = {"max_depth": [1, 4, None]}


def joined(fed: wl.Federation, rows: pd.DataFrame = ALL) -> pd.DataFrame:
    """The rows of all parties in one table, in the federation's order."""
    return rows.set_index("id").loc[fed.ids]


def horizontal(n_clients: int = 3) -> wl.Federation:
    rows = ALL.drop(columns=["amount", "weight"])
    names = ["north", "south", "west"][:n_clients]
    return wl.Federation.local({name: rows[k::n_clients] for k, name in enumerate(names)}, id="id", layout="rows")


# --- rows and columns ---


def test_rows_are_selected_as_of_an_array() -> None:
    fed = federation()
    assert (len(fed), fed.shape) == (120, (120, 5))
    mask = np.arange(120) % 3 == 0
    for key in ([5, 2, 5], np.array([5, 2, 9]), slice(10, 50, 7), mask, np.array([-1, 0])):
        some = fed[key]
        assert some.ids.tolist() == fed.ids[key].tolist()
        assert some["bank.default"].tolist() == fed["bank.default"][key].tolist()
        assert some["shop.colour"].tolist() == joined(fed).colour.to_numpy()[key].tolist()
    assert fed[mask][[1, 0]].ids.tolist() == fed.ids[[3, 0]].tolist()


def test_a_selection_is_the_federation_of_these_rows() -> None:
    rows = ALL.iloc[::2]
    fed = federation()
    some = fed[np.flatnonzero(np.isin(fed.ids, rows.id))]
    expected = classifier().fit(federation(rows), y="bank.default")
    model = classifier().fit(some, y="bank.default")
    assert some.ids.tolist() == federation(rows).ids.tolist()
    np.testing.assert_array_equal(model.predict_proba(fed), expected.predict_proba(fed))


def test_clients_rows_keep_the_order_of_a_selection() -> None:
    fed = horizontal()
    order = np.concatenate([ALL.default[k::3] for k in range(3)])
    assert (len(fed), fed.shape) == (120, (120, 5))
    assert fed["default"].tolist() == order.tolist()
    rows = np.random.default_rng(0).permutation(120)[:50]
    some = fed[rows]
    assert some["default"].tolist() == order[rows].tolist()
    again = np.array([40, 3, 12])
    assert some[again]["default"].tolist() == order[rows][again].tolist()
    model = wl.HorizontalForestClassifier(5, random_state=0).fit(fed, y="default")
    np.testing.assert_array_equal(model.predict_proba(some[again]), model.predict_proba(fed)[rows][again])
    table = ALL.drop(columns=["amount", "weight", "default", "id"])
    expected = model.predict_proba(pd.concat([table[k::3] for k in range(3)]))
    np.testing.assert_array_equal(model.predict_proba(fed), expected)


BAD_KEYS: list[tuple[Any, type[Exception], str]] = [
    (3, TypeError, r"fed\[\[3\]\]"),
    ([], DataError, "at least one row"),
    ([120], DataError, "rows 0 to 119"),
    (np.ones(7, bool), DataError, "a mask of 7 rows does not fit a federation of 120 rows"),
    ([1.5], TypeError, "array of row numbers"),
    (([1], [2]), TypeError, "array of row numbers"),
    ("bank.defaults", DataError, "bank has no column 'defaults'"),
    ("default", DataError, "must be written party.column"),
    ("shop.visits", DataError, "rows of shop.visits are empty"),
]


@pytest.mark.parametrize(("key", "kind", "words"), BAD_KEYS)
def test_bad_keys(key: Any, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        federation()[key]


def test_a_federation_is_no_array_and_no_list() -> None:
    with pytest.raises(TypeError, match=r"model\.permutation_importance\(fed\)"):
        permutation_importance(classifier().fit(federation(), y="bank.default"), federation(), ALL.default)
    with pytest.raises(TypeError, match="no single rows"):
        list(federation())


# --- labels as arrays ---


def test_the_labels_column_is_not_learnt_from() -> None:
    fed = federation()
    named = classifier().fit(fed, y="bank.default")
    y = fed["bank.default"]
    for labels in (y, pickle.loads(pickle.dumps(y)), y[:]):  # noqa: S301 - our own
        model = classifier().fit(fed, labels)
        assert model.forest_.parts["bank"].names == ("age", "income")
        np.testing.assert_array_equal(model.predict_proba(fed), named.predict_proba(fed))
        assert model.score(fed[:50]) == named.score(fed[:50])  # the model knows where its labels are


def test_labels_made_of_the_column_do_not_bring_it_back() -> None:
    fed = federation()
    model = classifier().fit(fed, fed["bank.default"] == "yes")
    assert model.classes_.tolist() == [False, True]
    assert model.forest_.parts["bank"].names == ("age", "income")
    with pytest.raises(DataError, match="say where the labels are"):
        model.score(fed)  # not the column's own values
    assert model.score(fed, fed["bank.default"] == "yes") > 0.5


@pytest.mark.parametrize("recode", [lambda y: y, lambda y: np.where(y == "yes", 3, -1), lambda y: y == "no"])
def test_a_column_that_tells_the_labels_is_taken_for_theirs(recode: Any) -> None:
    with pytest.warns(UserWarning, match=r"same as column 'bank\.default', row by row.*fed\['bank\.default'\]"):
        model = classifier().fit(federation(), recode(ALL.default.to_numpy()))
    assert model.forest_.parts["bank"].names == ("age", "income")
    with pytest.warns(UserWarning, match="same as column 'default'"):
        whole = wl.HorizontalForestClassifier(3).fit(horizontal(), recode(np.asarray(horizontal()["default"])))
    assert "default" not in whole.combine().feature_names
    twice = ALL.assign(income=(ALL.default == "yes").astype(float))
    with pytest.raises(DataError, match=r"columns 'income'|columns 'bank.income', 'bank.default' tell y"):
        classifier().fit(federation(twice), recode(ALL.default.to_numpy()))


@pytest.mark.parametrize("transform", [lambda y: y, np.log1p, lambda y: -(y**3), lambda y: 2 * y + 1e6])
def test_targets_that_a_column_tells(transform: Any) -> None:
    fed = federation(bank=[*BANK, "amount"])
    with pytest.warns(UserWarning, match=r"same as column 'bank\.amount'"):
        model = wl.FederatedForestRegressor(3).fit(fed, transform(ALL.amount.to_numpy()))
    assert model.forest_.parts["bank"].names == ("age", "income", "default")


def test_targets_that_no_column_tells() -> None:
    model = wl.FederatedForestRegressor(3).fit(federation(), ALL.amount.to_numpy())
    assert model.score(federation(), ALL.amount) > 0.5
    assert model.forest_.parts["bank"].names == ("age", "income", "default")
    banded = ALL.assign(income=pd.qcut(ALL.amount, 5, labels=False).astype(float))  # tells a band, not the target
    assert wl.FederatedForestRegressor(3).fit(federation(banded), ALL.amount.to_numpy()).n_features_in_ == 5


def test_a_few_rows_agree_by_chance() -> None:
    fed = federation()[[0, 1, 2, 3]]
    y = np.array(["a", "b", "a", "b"])
    bank = pd.DataFrame({"x": [1.0, 2, 1, 2], "z": [0.5, 0.5, 0.1, 0.1]})
    few = wl.Federation.local({"bank": bank})
    assert classifier().fit(few, y).n_features_in_ == 2
    with pytest.warns(UserWarning, match=r"same as column 'bank\.x'"):
        classifier().fit(few, bank.x.to_numpy())
    assert wl.FederatedForestRegressor(2).fit(fed, np.array([0.5, 1.5, 2.5, 9.5])).n_features_in_ == 5


def test_labels_that_no_party_has() -> None:
    fed = federation(bank=["id", "age", "income"])
    y = ALL.default.to_numpy()
    model = classifier().fit(fed, y)
    np.testing.assert_array_equal(
        model.predict_proba(fed), classifier().fit(federation(), y="bank.default").predict_proba(fed)
    )


def test_weights_as_a_column() -> None:
    fed = federation(bank=[*BANK, "weight"])
    expected = classifier().fit(fed, y="bank.default", sample_weight="bank.weight").predict_proba(fed)
    for weight in ("bank.weight", fed["bank.weight"]):
        model = classifier().fit(fed, fed["bank.default"], sample_weight=weight)
        np.testing.assert_array_equal(model.predict_proba(fed), expected)
    with pytest.raises(DataError, match=r"fed\['party.column'\]"):
        classifier().fit(fed, fed["bank.default"], sample_weight=np.ones(120))
    with pytest.raises(DataError, match="at the label holder bank, not at shop"):
        classifier().fit(fed[ALL.visits.notna().to_numpy()], fed["bank.default"][ALL.visits.notna().to_numpy()],
                         sample_weight="shop.visits")  # fmt: skip


def test_bad_arrays_of_labels() -> None:
    fed = federation()
    for y, words in (
        (fed["bank.default"][:7], r"inconsistent numbers of samples: \[120, 7\]"),
        (np.ones((120, 2)), "should be a 1d array"),
        (np.where(ALL.age > 30, ALL.age, np.nan), "contains NaN"),
    ):
        with pytest.raises(ValueError, match=words):
            classifier().fit(fed, y)


# --- scikit-learn's own loops ---


def test_grid_search_picks_what_it_picks_on_the_joined_table() -> None:
    fed = federation()
    table = joined(fed)
    there = GridSearchCV(classifier(n_estimators=6), GRID, cv=KFold(2)).fit(table[FEATURES], table.default)
    here = GridSearchCV(classifier(n_estimators=6), GRID, cv=KFold(2)).fit(fed, fed["bank.default"])
    assert here.best_params_ == there.best_params_
    assert here.best_estimator_.forest_.parts["bank"].names == ("age", "income")
    assert here.predict(fed[:3]).shape == (3,)
    # parties' names order the columns that are tried; without them every score is the same
    fed = wl.Federation(fed.members, fed.ids, key_by_party=False)
    here = GridSearchCV(classifier(n_estimators=6), GRID, cv=KFold(2)).fit(fed, fed["bank.default"])
    for score in ("mean_test_score", "std_test_score", "rank_test_score"):
        np.testing.assert_allclose(here.cv_results_[score], there.cv_results_[score], rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("cv", "scoring"), [(StratifiedKFold(2), "roc_auc"), (ShuffleSplit(2, random_state=0), "neg_log_loss")]
)
def test_scores_of_folds_are_those_of_the_folds_fitted_by_hand(cv: Any, scoring: str) -> None:
    fed = federation()
    y = fed["bank.default"]
    scores = cross_val_score(classifier(min_samples_leaf=5), fed, y, cv=cv, scoring=scoring)
    expected = [
        get_scorer(scoring)(
            classifier(min_samples_leaf=5).fit(federation(rows_of(fed, train)), y="bank.default"),
            federation(rows_of(fed, test)),
            np.asarray(y)[test],
        )
        for train, test in cv.split(np.zeros((120, 1)), y)
    ]
    np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-12)


def rows_of(fed: wl.Federation, rows: Any) -> pd.DataFrame:
    return ALL.set_index("id").loc[fed.ids[rows]].reset_index()


def test_linear_and_revocable_models_and_regressors() -> None:
    fed = federation(bank=[*BANK, "amount"])[ALL.visits.notna().to_numpy()]
    logistic = wl.FederatedLogisticRegression(tol=1e-3)
    revocable = wl.RevocableForestClassifier(3, encryption="simulated", random_state=0)
    for model in (logistic, revocable):
        assert cross_val_score(model, fed, fed["bank.default"], cv=2).shape == (2,)
    regressor = wl.FederatedForestRegressor(5, random_state=0)
    assert cross_val_score(regressor, fed, fed["bank.amount"], cv=2).mean() > 0


def test_horizontal_models() -> None:
    fed = horizontal()
    y = fed["default"]
    for kind in (wl.HorizontalForestClassifier, wl.CollaborativeForestClassifier, wl.LocalForestsClassifier):
        scores = cross_val_score(kind(5, random_state=0), fed, y, cv=StratifiedKFold(2), error_score="raise")
        assert ((scores > 0) & (scores <= 1)).all()
    train, test, y_train, y_test = train_test_split(fed, y, random_state=0)
    model = wl.HorizontalForestClassifier(20, random_state=0).fit(train, y_train)
    assert "default" not in model.combine().feature_names
    assert model.score(test, y_test) == np.mean(model.predict(test) == y_test)


def test_calibration_curves_and_predictions_of_folds() -> None:
    fed = federation()
    y = fed["bank.default"]
    calibrated = CalibratedClassifierCV(classifier(n_estimators=5), cv=2).fit(fed, y)
    assert calibrated.predict_proba(fed[:4]).shape == (4, 2)
    sizes, train, test = learning_curve(classifier(n_estimators=5), fed, y, train_sizes=[0.5, 1.0], cv=2)
    assert (sizes.tolist(), train.shape, test.shape) == ([30, 60], (2, 2), (2, 2))
    with pytest.warns(UserWarning, match=r"same as column 'bank\.default'"):  # labels are encoded, and forget it
        predicted = cross_val_predict(classifier(n_estimators=5), fed, y, cv=KFold(2), method="predict_proba")
    expected = classifier(n_estimators=5).fit(fed[60:], y[60:]).predict_proba(fed[:60])
    np.testing.assert_array_equal(predicted[:60], expected)


def test_a_score_on_selected_training_rows_says_so() -> None:
    without_ids = wl.Federation.local({"bank": ALL[BANK[1:]], "shop": ALL[SHOP[1:]]})
    for fed in (without_ids, federation()):
        model = classifier().fit(fed[:80], fed["bank.default"][:80])
        with pytest.warns(wl.TrainingRowsWarning, match="10 of 50 rows were in the training"):
            model.score(fed[70:])
        with pytest.warns(wl.TrainingRowsWarning, match="all rows"):
            model.score(fed[:10])


def test_a_label_column_is_an_array() -> None:
    y = federation()["bank.default"]
    assert isinstance(y, LabelColumn)
    assert (y.column, y[3:5].column, (y == "yes").column) == ("bank.default",) * 3
    assert set(np.unique(np.asarray(y))) == {"yes", "no"}
