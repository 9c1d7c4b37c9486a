"""The estimators in the hands of scikit-learn's tools: search, pipelines, copies, tables of any make."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import joblib
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.datasets import make_classification, make_regression
from sklearn.exceptions import NotFittedError
from sklearn.inspection import permutation_importance
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import woodlot as wl
from woodlot.protocols.vertical.files import forest_id_of

COLUMNS = ["a", "b", "c", "d", "e"]


@pytest.fixture(scope="module")
def rows() -> tuple[NDArray[Any], NDArray[Any]]:
    X, y = make_classification(150, 5, n_informative=3, random_state=0)
    X = X.astype(np.float32)
    X[::17, 2] = np.nan
    return X, y


@pytest.fixture(scope="module")
def fitted(rows: tuple[NDArray[Any], NDArray[Any]]) -> wl.FederatedForestClassifier:
    X, y = rows
    return wl.FederatedForestClassifier(10, random_state=0).fit(pd.DataFrame(X, columns=COLUMNS), y)


def small(**params: Any) -> wl.FederatedForestClassifier:
    return wl.FederatedForestClassifier(**{"n_estimators": 8, "random_state": 0, **params})


@pytest.mark.slow
def test_grid_search_and_cross_validation_in_two_processes(rows: tuple[NDArray[Any], NDArray[Any]]) -> None:
    X, y = rows
    search = GridSearchCV(small(), {"max_depth": [1, 6], "parties": [1, 3]}, cv=3, n_jobs=2).fit(X, y)
    assert search.best_params_["max_depth"] == 6
    by_parties = search.cv_results_["mean_test_score"].reshape(2, 2)
    np.testing.assert_array_equal(by_parties[:, 0], by_parties[:, 1])  # parties do not change a forest
    assert by_parties[1, 0] > by_parties[0, 0] > 0.6
    X, y = make_regression(90, 4, random_state=1)
    scores = cross_val_score(wl.FederatedForestRegressor(10, random_state=0), X, y, cv=3)
    assert (scores > 0.3).all()


@pytest.mark.parametrize("kind", ["default", "pandas", "polars"])
def test_pipeline_with_any_output(rows: tuple[NDArray[Any], NDArray[Any]], kind: str) -> None:
    X, y = rows
    frame = pd.DataFrame(X, columns=COLUMNS)
    pipe = make_pipeline(StandardScaler().set_output(transform=kind), small()).fit(frame, y)
    scaled = StandardScaler().fit_transform(X)
    alone = small().fit(scaled if kind == "default" else pd.DataFrame(scaled, columns=COLUMNS), y)
    np.testing.assert_array_equal(
        pipe.predict_proba(frame), alone.predict_proba(scaled if kind == "default" else pipe[0].transform(frame))
    )
    assert hasattr(pipe[-1], "feature_names_in_") == (kind != "default")


MAKERS = {
    "numpy": lambda X: X,
    "fortran": np.asfortranarray,
    "list": lambda X: X.tolist(),
    "pandas": lambda X: pd.DataFrame(X, columns=COLUMNS),
    "polars": lambda X: pl.DataFrame(X, schema=COLUMNS),
    "arrow": lambda X: pa.table(dict(zip(COLUMNS, X.T, strict=True))),
    "record batch": lambda X: pa.record_batch(dict(zip(COLUMNS, X.T, strict=True))),
}


def test_every_kind_of_table_gives_the_same_forest(rows: tuple[NDArray[Any], NDArray[Any]]) -> None:
    X, y = rows
    expected = {}
    for kind, make in MAKERS.items():
        model = small(parties=2).fit(make(X), y)
        named = kind not in ("numpy", "fortran", "list")
        assert model.n_features_in_ == 5
        assert hasattr(model, "feature_names_in_") == named
        if named:
            assert model.feature_names_in_.tolist() == COLUMNS
            assert model.feature_names_in_.dtype == object
        # the name of a column takes part in drawing the candidates, so arrays have a forest of their own
        proba = expected.setdefault(named, model.predict_proba(make(X)))
        np.testing.assert_array_equal(model.predict_proba(make(X)), proba)
        np.testing.assert_array_equal(
            model.predict_proba(make(X), method="one-round"), model.predict_proba(make(X), method="local")
        )


@pytest.mark.parametrize("parties", [1, 2])
def test_a_party_may_have_more_columns_than_a_byte_counts(parties: int) -> None:
    X = np.zeros((40, 600), np.float32)
    X[:, 599] = np.arange(40)
    model = wl.FederatedForestClassifier(3, parties=parties, random_state=0).fit(X, np.arange(40) >= 20)
    assert model.feature_importances_.argmax() == 599


def test_position_counts_where_names_are_not_known(rows: tuple[NDArray[Any], NDArray[Any]]) -> None:
    X, y = rows
    frame = pd.DataFrame(X, columns=COLUMNS)
    named, plain = small().fit(frame, y), small().fit(X, y)
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        from_array = named.predict_proba(X)
    np.testing.assert_array_equal(from_array, named.predict_proba(frame))
    with pytest.warns(UserWarning, match="has feature names, but FederatedForestClassifier was fitted without"):
        from_frame = plain.predict_proba(frame)
    np.testing.assert_array_equal(from_frame, plain.predict_proba(X))
    numbered = small().fit(pd.DataFrame(X), y)  # labels that are no text are no names for scikit-learn
    assert not hasattr(numbered, "feature_names_in_")
    np.testing.assert_array_equal(numbered.predict_proba(X), plain.predict_proba(X))


@pytest.mark.parametrize(
    "copied",
    [
        copy.deepcopy,
        lambda model: pickle.loads(pickle.dumps(model)),  # noqa: S301
        lambda model: _through_joblib(model),
    ],
    ids=["deepcopy", "pickle", "joblib"],
)
def test_copies_predict_the_same(
    fitted: wl.FederatedForestClassifier, rows: tuple[NDArray[Any], NDArray[Any]], copied: Any
) -> None:
    frame = pd.DataFrame(rows[0], columns=COLUMNS)
    expected = fitted.predict_proba(frame)  # also fills what the model remembers
    fitted.predict(frame, method="one-round")
    other = copied(fitted)
    np.testing.assert_array_equal(other.predict_proba(frame), expected)
    np.testing.assert_array_equal(other.predict_proba(frame, method="classical"), expected)
    assert other.cost_ == fitted.cost_
    assert list(other.disclosure_) == list(fitted.disclosure_)
    np.testing.assert_array_equal(other.feature_importances_, fitted.feature_importances_)


def _through_joblib(model: Any) -> Any:
    file = io.BytesIO()
    joblib.dump(model, file)
    file.seek(0)
    return joblib.load(file)


def test_a_model_does_not_carry_the_values_of_the_training() -> None:
    X = np.linspace(1.0, 2.0, 5000, dtype=np.float32)[:, None]
    model = small(max_depth=2).fit(X, X[:, 0] > 1.5)
    model.predict(X)
    assert len(pickle.dumps(model)) < 20_000


def test_clone_and_refit_forget_the_fit(rows: tuple[NDArray[Any], NDArray[Any]]) -> None:
    X, y = rows
    model = small(n_estimators=30, oob_score=True).fit(pd.DataFrame(X, columns=COLUMNS), y)
    fresh = clone(model)
    assert fresh.get_params() == model.get_params()
    with pytest.raises(NotFittedError):
        fresh.predict(X)
    for name in ("feature_importances_", "estimators_", "prediction_cost_", "oob_score_"):
        assert not hasattr(fresh, name)
    model.set_params(oob_score=False).fit(X[:, :3], y)
    assert not hasattr(model, "oob_score_")
    assert not hasattr(model, "oob_decision_function_")
    assert not hasattr(model, "oob_curve_")
    assert not hasattr(model, "feature_names_in_")
    assert model.n_features_in_ == 3


def test_scikit_learns_permutation_importance_agrees_with_the_parties_own() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 4)).astype(np.float32)
    y = X[:, 3] + 0.3 * X[:, 1] > 0
    model = wl.FederatedForestClassifier(20, parties={"one": [3, 0], "two": [2, 1]}, random_state=0).fit(X, y)
    central = permutation_importance(model, X, y, n_repeats=5, random_state=0)
    federated = model.permutation_importance(X, y, n_repeats=5, random_state=0)
    assert federated.importances.shape == (4, 5)
    np.testing.assert_allclose(federated.importances_mean, central.importances_mean, atol=0.05)
    assert federated.importances_mean.argmax() == central.importances_mean.argmax() == 3
    np.testing.assert_allclose(federated.importances.std(axis=1), federated.importances_std)
    again = model.permutation_importance(X, y, n_repeats=5, random_state=0)
    np.testing.assert_array_equal(again.importances, federated.importances)


@pytest.mark.parametrize("method", ["local", "one-round", "classical"])
@pytest.mark.parametrize("wire", ["decisions", "leaves", "ranks"])
def test_every_way_to_predict_is_the_same(
    fitted: wl.FederatedForestClassifier, rows: tuple[NDArray[Any], NDArray[Any]], method: Any, wire: Any
) -> None:
    frame = pd.DataFrame(rows[0], columns=COLUMNS)
    expected = fitted.predict_proba(frame)
    proba, uncertain = fitted.predict_proba(frame, method=method, wire=wire, return_uncertain=True)
    np.testing.assert_array_equal(proba, expected)
    assert uncertain.shape == (len(frame),)
    assert not uncertain.any()
    labels, uncertain = fitted.predict(frame, method=method, wire=wire, return_uncertain=True)
    np.testing.assert_array_equal(labels, expected.argmax(axis=1))
    assert uncertain.dtype == bool


def test_predicting_leaves_the_model_as_it_is_and_accounts_for_itself(
    rows: tuple[NDArray[Any], NDArray[Any]],
) -> None:
    X, y = rows
    model = small().fit(X, y)
    with pytest.raises(AttributeError, match="after a prediction on a federation"):
        _ = model.prediction_cost_
    before = dict(vars(model))
    model.predict(X)
    model.predict(X, method="one-round")
    assert vars(model) == before
    assert model.prediction_cost_.rounds == 1
    assert {row.kind for row in model.prediction_disclosure_} == {"AskDecisions", "Decisions"}
    model.predict(X, method="classical")
    assert model.prediction_cost_.rounds == max(tree.tree_.max_depth for tree in model.estimators_)


def test_cost_and_disclosure_tell_the_training(fitted: wl.FederatedForestClassifier) -> None:
    cost = fitted.cost_
    assert cost.rounds > 3
    assert cost.bytes_sent + cost.bytes_received == sum(cost.bytes_by_party.values())
    assert cost.bytes_sent == sum(row.bytes for row in fitted.disclosure_ if row.sender == "coordinator")
    assert set(cost.seconds) == {"prepare", "grow"}
    assert {row.receiver for row in fitted.disclosure_} == {"coordinator", "party-1", "party-2"}
    assert all(row.reveals for row in fitted.disclosure_)
    assert not any(row.kind == "SplitTable" for row in fitted.disclosure_)  # dealt columns are in one hand already
    assert "EncodedLabels" in repr(fitted.disclosure_)
    assert "rounds" in repr(cost)
    assert "Forest of 10 trees" in repr(fitted.forest_)
    assert "party-2" in repr(fitted.forest_)
    assert repr(fitted.combine()).startswith("CompleteForest of 10 trees")


def test_apply_agrees_with_the_exported_trees(
    fitted: wl.FederatedForestClassifier, rows: tuple[NDArray[Any], NDArray[Any]]
) -> None:
    frame = pd.DataFrame(rows[0], columns=COLUMNS)
    np.testing.assert_array_equal(fitted.apply(frame), fitted.combine().to_sklearn().apply(frame))


def test_changed_voting_counts_from_the_next_prediction(rows: tuple[NDArray[Any], NDArray[Any]]) -> None:
    X, y = rows
    model = small(max_depth=3).fit(X, y)
    soft = model.predict_proba(X)
    model.set_params(voting="majority")
    votes = model.predict_proba(X)
    assert not np.array_equal(soft, votes)
    each = np.stack([tree.predict_proba(X) for tree in small(max_depth=3).fit(X, y).estimators_])
    expected = np.eye(2)[each.argmax(axis=2)].mean(axis=0)
    np.testing.assert_allclose(votes, expected, rtol=1e-12)
    np.testing.assert_array_equal(model.predict_proba(X, method="one-round"), votes)
    np.testing.assert_array_equal(model.combine().predict_proba(X), votes)
    np.testing.assert_array_equal(model.predict(X), expected.argmax(axis=1))


def test_fractions_of_rows_are_rounded_up() -> None:
    """As in scikit-learn: 2.1 rows are 3, so that no leaf is smaller than was asked for."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(100, 3)), rng.normal(size=100)

    def forest(**params: Any) -> str:
        model = wl.FederatedForestRegressor(2, bootstrap=False, random_state=0, **params).fit(X, y)
        return forest_id_of(model.forest_.coordinator)

    assert forest(min_samples_leaf=0.021) == forest(min_samples_leaf=3) != forest(min_samples_leaf=2)
    assert forest(min_samples_split=0.101) == forest(min_samples_split=11) != forest(min_samples_split=10)
