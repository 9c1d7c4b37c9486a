"""Federated logistic and linear regression: scikit-learn's optimum, whoever holds which column."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_wine
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import woodlot as wl
from companies import ALL, BANK, SHOP, federation
from woodlot.exceptions import DataError, ModelFileError

TIGHT: dict[str, Any] = {"tol": 1e-9, "max_iter": 1000}


def data_of(load: Callable[..., Any]) -> tuple[NDArray[np.float64], NDArray[Any]]:
    """A data set of scikit-learn's, in the precision of Woodlot's tables."""
    X, y = load(return_X_y=True)
    return X.astype(np.float32).astype(np.float64), y


@pytest.mark.parametrize("load", [load_breast_cancer, load_wine])
@pytest.mark.parametrize("parties", [1, 2, 5])
def test_logistic_regression_is_scikit_learns(load: Any, parties: int) -> None:
    X, y = data_of(load)
    twin = make_pipeline(StandardScaler(), LogisticRegression(tol=1e-10, max_iter=10_000)).fit(X, y)
    model = wl.FederatedLogisticRegression(parties=parties, **TIGHT).fit(X, y)
    np.testing.assert_allclose(model.predict_proba(X), twin.predict_proba(X), atol=2e-6)
    np.testing.assert_array_equal(model.predict(X), twin.predict(X))
    np.testing.assert_allclose(np.exp(model.predict_log_proba(X)), model.predict_proba(X))
    coef = twin[1].coef_ / twin[0].scale_
    np.testing.assert_allclose(model.coef_, coef, atol=1e-4 * np.abs(coef).max())
    by_hand = X @ model.coef_.T + model.intercept_
    np.testing.assert_allclose(by_hand if by_hand.shape[1] > 1 else by_hand[:, 0], model.decision_function(X))


@pytest.mark.parametrize("parties", [1, 2, 4])
@pytest.mark.parametrize("alpha", [0.0, 30.0])
def test_least_squares_are_scikit_learns(parties: int, alpha: float) -> None:
    X, y = data_of(load_diabetes)
    kind = LinearRegression() if alpha == 0 else Ridge(alpha)
    twin = make_pipeline(StandardScaler(), kind).fit(X, y)
    model = wl.FederatedLinearRegression(parties=parties, alpha=alpha).fit(X, y)
    np.testing.assert_allclose(model.predict(X), twin.predict(X), rtol=1e-7)
    np.testing.assert_allclose(model.coef_, twin[1].coef_ / twin[0].scale_, rtol=1e-5)
    np.testing.assert_allclose(X @ model.coef_ + model.intercept_, model.predict(X), rtol=1e-9)
    assert model.n_iter_ <= X.shape[1] + 2  # as conjugate gradients have it


@pytest.mark.parametrize("fit_intercept", [True, False])
def test_without_standardisation_it_is_the_plain_estimator(fit_intercept: bool) -> None:
    X, y = data_of(load_wine)
    X = X[:, :6]
    twin = LogisticRegression(C=0.1, fit_intercept=fit_intercept, tol=1e-10, max_iter=50_000, solver="newton-cg")
    model = wl.FederatedLogisticRegression(C=0.1, fit_intercept=fit_intercept, standardize=False, parties=3, **TIGHT)
    twin.fit(X, y), model.fit(X, y)
    np.testing.assert_allclose(model.predict_proba(X), twin.predict_proba(X), atol=1e-5)
    flat = wl.FederatedLinearRegression(fit_intercept=fit_intercept, standardize=False).fit(X, y)
    line = LinearRegression(fit_intercept=fit_intercept).fit(X, y)
    np.testing.assert_allclose(flat.predict(X), line.predict(X), atol=1e-6)


def test_weights_of_rows_and_classes() -> None:
    X, y = data_of(load_breast_cancer)
    X = X[:, :8]
    weights = np.random.default_rng(0).integers(1, 4, len(y)).astype(float)
    for given, rows in (("balanced", None), ({0: 3.0, 1: 0.5}, weights)):
        twin = LogisticRegression(class_weight=given, tol=1e-10, max_iter=10_000)
        scaled = StandardScaler().fit(X, sample_weight=rows).transform(X)
        twin.fit(scaled, y, sample_weight=rows)
        model = wl.FederatedLogisticRegression(class_weight=given, **TIGHT).fit(X, y, sample_weight=rows)
        np.testing.assert_allclose(model.predict_proba(X), twin.predict_proba(scaled), atol=2e-6)


@pytest.mark.parametrize("parties", [1, 2, 5])
@pytest.mark.parametrize("kind", [wl.FederatedLogisticRegression, wl.FederatedLinearRegression])
def test_a_weight_of_two_is_the_row_twice(kind: Any, parties: int) -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(40, 12)), rng.integers(0, 2, 40)
    X[rng.random(X.shape) < 0.1] = np.nan
    weights = rng.integers(0, 4, 40)
    X[weights == 0] *= 1000.0  # of no weight in the mean and the spread either
    weighted = kind(parties=parties).fit(X, y, sample_weight=weights)
    repeated = kind(parties=parties).fit(X.repeat(weights, axis=0), y.repeat(weights))
    np.testing.assert_allclose(weighted.coef_, repeated.coef_, rtol=1e-9)
    np.testing.assert_allclose(weighted.intercept_, repeated.intercept_, rtol=1e-9)
    assert weighted.n_iter_ == repeated.n_iter_


def test_the_order_of_rows_changes_the_last_digits_only() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(25, 60)), rng.integers(0, 3, 25)  # fewer rows than columns at each party
    order = rng.permutation(25)
    one = wl.FederatedLogisticRegression().fit(X, y)
    other = wl.FederatedLogisticRegression().fit(X[order], y[order])
    np.testing.assert_allclose(one.predict_proba(X), other.predict_proba(X), rtol=1e-9)


@pytest.mark.parametrize("load", [pytest.param(load_digits, marks=pytest.mark.slow), load_wine, load_breast_cancer])
def test_accuracy_by_default_is_scikit_learns(load: Any) -> None:
    """As many rows right as at the optimum, but for one in a hundred; and probabilities are its own."""
    X, y = load(return_X_y=True)
    train, test = X[::2], X[1::2]
    ours = wl.FederatedLogisticRegression(parties=3).fit(train, y[::2])
    theirs = make_pipeline(StandardScaler(), LogisticRegression(tol=1e-8, max_iter=5000)).fit(train, y[::2])
    assert abs(ours.score(test, y[1::2]) - theirs.score(test, y[1::2])) <= 0.01
    np.testing.assert_allclose(ours.predict_proba(test), theirs.predict_proba(test), atol=2e-3)


def test_parameters_can_be_searched() -> None:
    X, y = data_of(load_wine)
    search = GridSearchCV(wl.FederatedLogisticRegression(), {"C": [0.01, 1.0]}, cv=3).fit(X, y)
    assert search.best_score_ > 0.95


def test_the_model_does_not_depend_on_who_holds_what() -> None:
    X, y = data_of(load_wine)
    models = [wl.FederatedLogisticRegression(parties=k, **TIGHT).fit(X, y) for k in (1, 2, 13)]
    for model in models[1:]:
        np.testing.assert_allclose(model.coef_, models[0].coef_, atol=1e-5 * np.abs(models[0].coef_).max())
    again = wl.FederatedLogisticRegression(parties=2, **TIGHT).fit(X, y)
    np.testing.assert_array_equal(again.coef_, models[1].coef_)


def test_many_collinear_and_constant_columns() -> None:
    rng = np.random.default_rng(1)
    X = rng.normal(size=(40, 30)).astype(np.float32)
    X[:, 10] = X[:, 11]
    X[:, 12] = 7.0
    y = X[:, 0] - 2 * X[:, 11] + 0.01 * rng.normal(size=40)
    model = wl.FederatedLinearRegression(parties=4).fit(X, y)
    assert model.score(X, y) > 0.999
    assert np.isfinite(model.coef_).all()


# --- federations ---


def test_on_a_federation_with_categories_and_missing_values() -> None:
    fed = federation()
    model = wl.FederatedLogisticRegression(**TIGHT).fit(fed, y="bank.default")
    by_hand = pd.DataFrame({"age": ALL.age, "income": ALL.income, "visits": ALL.visits.fillna(ALL.visits.mean())})
    by_hand = by_hand.join(pd.get_dummies(ALL.colour).astype(float)).astype(np.float32).astype(float)
    twin = make_pipeline(StandardScaler(), LogisticRegression(tol=1e-10, max_iter=10_000)).fit(by_hand, ALL.default)
    expected = dict(zip(ALL.id, twin.predict_proba(by_hand)[:, 1], strict=True))
    proba = model.predict_proba(fed)[:, 1]
    np.testing.assert_allclose(proba, [expected[i] for i in fed.ids], atol=1e-6)
    assert model.prediction_cost_.rounds == 1
    assert model.score(fed) == np.mean(model.predict(fed) == fed.labels("bank.default"))
    assert model.n_features_in_ == 6
    assert not hasattr(model, "coef_")
    kinds = {row.kind for row in model.disclosure_}
    assert {"PartialScores", "Descend", "Residuals"} <= kinds
    assert not kinds & {"StartForest", "EncodedLabels"}
    with pytest.raises(ValueError, match="fitted on a federation"):
        model.predict(ALL)


def test_a_party_or_a_row_that_is_missing_counts_as_average() -> None:
    model = wl.FederatedLogisticRegression().fit(federation(), y="bank.default")
    wider = wl.Federation.local({"bank": ALL[BANK][20:], "shop": ALL[SHOP]}, id="id", join="outer")
    with pytest.warns(wl.UncertainPredictionWarning, match="20 of 120 rows .* average row stands in"):
        proba = dict(zip(wider.ids, model.predict_proba(wider)[:, 1], strict=True))
    whole = dict(zip(federation().ids, model.predict_proba(federation())[:, 1], strict=True))
    assert all(proba[i] == pytest.approx(whole[i]) for i in ALL.id[20:])
    with pytest.warns(wl.UncertainPredictionWarning, match="120 of 120"):
        model.predict(wl.Federation.local({"bank": ALL[BANK]}, id="id"))
    bare = wl.FederatedLogisticRegression(fit_intercept=False).fit(federation(), y="bank.default")
    with pytest.raises(DataError, match=r"without intercept.*\['shop'\] are absent"):
        bare.predict(wl.Federation.local({"bank": ALL[BANK]}, id="id"))


def test_a_party_without_columns_and_a_table_without_use() -> None:
    fed = wl.Federation.local({"bank": ALL[["id", "default"]], "shop": ALL[SHOP]}, id="id")
    model = wl.FederatedLogisticRegression().fit(fed, y="bank.default")
    assert model.linear_.coordinator.asked == ("shop",)
    assert model.predict(fed).shape == (len(ALL),)
    X = np.ones((30, 1))
    flat = wl.FederatedLinearRegression(parties=1).fit(X, np.arange(30.0))
    np.testing.assert_allclose(flat.predict(X), 14.5)


# --- bad input ---


def test_bad_parameters_and_data() -> None:
    X, y = data_of(load_wine)
    for params, words in (
        ({"C": 0}, "'C' parameter must be a positive number"),
        ({"tol": -1}, "'tol'"),
        ({"max_iter": 0}, "'max_iter'"),
        ({"parties": 0}, "'parties'"),
        ({"fit_intercept": 1}, "'fit_intercept'"),
        ({"class_weight": "balance"}, "'class_weight'"),
    ):
        with pytest.raises(ValueError, match=words):
            wl.FederatedLogisticRegression(**params).fit(X, y)
    with pytest.raises(ValueError, match="'alpha'"):
        wl.FederatedLinearRegression(alpha=-1).fit(X, y)
    with pytest.raises(DataError, match="only one class"):
        wl.FederatedLogisticRegression().fit(X, np.zeros(len(X)))
    for bad in (np.nan, np.inf):
        targets = y.astype(float)
        targets[3] = bad
        with pytest.raises(ValueError, match=r"NaN|infinity"):
            wl.FederatedLinearRegression().fit(X, targets)
    with pytest.raises(DataError, match="the federation has 120 rows and y 9 values"):
        wl.FederatedLogisticRegression().fit(federation(), y=ALL.default[:9])
    outer = wl.Federation.local({"bank": ALL[BANK], "shop": ALL[SHOP][20:]}, id="id", join="outer")
    with pytest.raises(DataError, match="lack some: use join='inner'"):
        wl.FederatedLogisticRegression().fit(outer, y="bank.default")
    rows = wl.Federation.local({"a": ALL[BANK], "b": ALL[BANK]}, layout="rows")
    with pytest.raises(DataError, match=r"different columns of the same rows|has no column|layout"):
        wl.FederatedLogisticRegression().fit(rows, y="a.default")


def test_too_few_steps_are_said() -> None:
    X, y = data_of(load_wine)
    with pytest.warns(ConvergenceWarning, match="not converged after max_iter=2 steps"):
        model = wl.FederatedLogisticRegression(max_iter=2, tol=1e-9).fit(X, y)
    assert model.n_iter_ == 2


def test_columns_of_another_kind_and_unseen_categories() -> None:
    model = wl.FederatedLogisticRegression().fit(federation(), y="bank.default")
    with pytest.warns(UserWarning, match="'colour' has 1 categories unseen"):
        model.predict(federation(ALL.assign(colour="puce")))
    with pytest.raises(DataError, match=r"shop: column 'colour' was categorical"):
        model.predict(federation(ALL.assign(colour=1.0)))
    with pytest.raises(DataError, match=r"bank: column 'age' was numeric"):
        model.predict(federation(ALL.assign(age="old")))
    with pytest.raises(DataError, match=r"columns of the training are missing: \['age'\]"):
        model.predict(federation(bank=["id", "income", "default"]))


# --- files ---


def test_saved_and_loaded(tmp_path: Path) -> None:
    X, y = data_of(load_wine)
    model = wl.FederatedLogisticRegression(parties=2).fit(X, y)
    model.save(tmp_path / "model")
    again = wl.load(tmp_path / "model")
    assert isinstance(again, wl.FederatedLogisticRegression)
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    np.testing.assert_array_equal(again.classes_, model.classes_)
    assert again.get_params() == model.get_params()
    fed = federation()
    shared = wl.FederatedLinearRegression().fit(federation(bank=[*BANK, "amount"]), y="bank.amount")
    shared.save(tmp_path / "linear")
    np.testing.assert_array_equal(wl.load(tmp_path / "linear").predict(fed), shared.predict(fed))
    assert sorted(p.name for p in (tmp_path / "linear").iterdir()) == ["coordinator", "party-bank", "party-shop"]
    mine = (tmp_path / "linear" / "party-bank" / "part.json").read_text()
    assert "age" in mine
    assert "visits" not in mine
    alone = wl.load(tmp_path / "linear" / "coordinator")
    assert alone.linear_.parts == {}
    arrays = tmp_path / "linear" / "party-bank" / "arrays.npz"
    arrays.write_bytes(arrays.read_bytes()[:-1])
    with pytest.raises(ModelFileError, match="has been changed"):
        wl.load(tmp_path / "linear")


def test_rows_are_not_forgotten_and_the_way_is_named() -> None:
    X, y = data_of(load_wine)
    model = wl.FederatedLogisticRegression(**TIGHT).fit(X, y)
    before = model.coef_.copy()
    with pytest.raises(DataError, match="fit the model again without them"):
        model.forget([3], prove=True)
    np.testing.assert_array_equal(model.coef_, before)
