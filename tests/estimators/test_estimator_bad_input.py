"""Bad input: the message names the thing and the remedy, and nothing changes on failure."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse

import woodlot as wl
from woodlot.exceptions import DataError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 3)).astype(np.float32)
Y = (X[:, 0] > 0).astype(int)
FRAME = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "c": np.where(X[:, 2] > 0, "red", "blue")})
W = np.ones(40)


def classifier(**params: Any) -> wl.FederatedForestClassifier:
    return wl.FederatedForestClassifier(**{"n_estimators": 3, "random_state": 0, **params})


def regressor(**params: Any) -> wl.FederatedForestRegressor:
    return wl.FederatedForestRegressor(**{"n_estimators": 3, "random_state": 0, **params})


def with_value(value: Any, kind: Any = float) -> Any:
    y = Y.astype(kind)
    y[7] = value
    return y


def changed(column: str, value: Any) -> pd.DataFrame:
    frame = FRAME.copy()
    frame.loc[5, column] = value
    return frame


BAD_FIT: dict[str, tuple[Callable[[], Any], Any, Any, Any, str]] = {
    # what: (model, X, y, sample_weight, words of the message)
    "NaN in y": (classifier, X, with_value(np.nan), None, "Input y contains NaN"),
    "None in y": (classifier, X, with_value(None, object), None, "Input y contains NaN.*drop them"),
    "None among texts": (classifier, X, np.where(Y > 0, "a", None), None, "Input y contains NaN.*drop them"),
    "NaN among texts": (classifier, FRAME, pd.Series(np.where(Y > 0, "a", "b")).where(Y > 0), None, "contains NaN"),
    "inf in y": (classifier, X, with_value(np.inf), None, "Input y contains infinity"),
    "NaN in targets": (regressor, X, with_value(np.nan), None, "Input y contains NaN"),
    "None in targets": (regressor, X, with_value(None, object), None, "Input y contains NaN"),
    "inf in targets": (regressor, X, with_value(-np.inf), None, "Input y contains infinity"),
    "inf among objects": (regressor, X, with_value(np.inf, object), None, "Input y contains infinity"),
    "text as targets": (regressor, X, np.where(Y > 0, "a", "b"), None, "must be numbers.*FederatedForestClassifier"),
    "text objects": (regressor, X, np.where(Y > 0, "a", "b").astype(object), None, "could not convert string to float"),
    "number texts": (regressor, X, np.where(Y > 0, "1.5", "2"), None, "must be numbers.*FederatedForestClassifier"),
    "dates as targets": (regressor, X, Y.astype("M8[D]"), None, "Input y contains dates"),
    "complex targets": (regressor, X, Y * 1j, None, "Complex data not supported"),
    "continuous classes": (classifier, X, X[:, 0], None, "Unknown label type: continuous"),
    "texts and numbers": (
        classifier,
        X,
        np.array(["a", 1] * 20, object),
        None,
        "Unknown label type.*int, str.*all text",
    ),
    "truth and numbers": (classifier, X, np.array([True, 2] * 20, object), None, "Unknown label type.*bool, int"),
    "dates as classes": (classifier, X, Y.astype("M8[D]"), None, "Unknown label type.*make them text"),
    "bytes as classes": (classifier, X, np.where(Y > 0, b"a", b"b"), None, "Unknown label type.*make them text"),
    "date objects": (classifier, X, np.array([datetime.date(2020, 1, 1)] * 40), None, "Unknown label type.*date.*text"),
    "two columns of labels": (classifier, X, np.c_[Y, Y], None, "y should be a 1d array"),
    "no y": (classifier, X, None, None, "requires y to be passed"),
    "no y for a frame": (classifier, FRAME[["a", "b"]], None, None, "requires y to be passed"),
    "short y": (classifier, X, Y[:-1], None, r"inconsistent numbers of samples: \[40, 39\]"),
    "short y for a frame": (classifier, FRAME, Y[:-1], None, r"inconsistent numbers of samples: \[40, 39\]"),
    "no rows": (classifier, X[:0], Y[:0], None, r"Found array with 0 sample\(s\)"),
    "no rows in a frame": (classifier, FRAME[:0], Y[:0], None, r"0 sample\(s\).*required by FederatedForestClassifier"),
    "no rows in polars": (classifier, pl.DataFrame({"a": []}), [], None, r"Found array with 0 sample\(s\)"),
    "no columns": (classifier, X[:, :0], Y, None, r"0 feature\(s\)"),
    "no columns in a frame": (classifier, FRAME[[]], Y, None, r"Found array with 0 feature\(s\)"),
    "one dimension": (classifier, X[:, 0], Y, None, "Expected 2D array"),
    "a series": (classifier, FRAME["a"], Y, None, "Expected a 2-dimensional container"),
    "a polars series": (classifier, pl.Series(X[:, 0]), Y, None, "Expected 2D array"),
    "infinite value": (classifier, np.where(X > 2, np.inf, X + 10), Y, None, "contains infinity"),
    "infinite value in a frame": (classifier, changed("b", np.inf), Y, None, "infinity.*column 'b'"),
    "text in an array": (classifier, FRAME.to_numpy(), Y, None, "could not convert string to float"),
    "dates": (classifier, FRAME.assign(d=pd.Timestamp("2020-01-01")), Y, None, "'d' of X holds dates.*Derive numbers"),
    "mixed column": (classifier, FRAME.assign(d=["x", 1] * 20), Y, None, "Column 'd' of X mixes values.*all strings"),
    "same column twice": (
        classifier,
        pd.DataFrame(X, columns=["a", "b", "a"]),
        Y,
        None,
        "names must be unique, but X has 'a' more than once. Rename or drop",
    ),
    "same column twice in Arrow": (
        classifier,
        pa.Table.from_arrays(list(map(pa.array, X.T)), names=["a", "b", "b"]),
        Y,
        None,
        "names must be unique, but X has 'b' more than once",
    ),
    "names of mixed types": (
        classifier,
        pd.DataFrame(X, columns=["a", 1, 2]),
        Y,
        None,
        "all input features have string",
    ),
    "negative weight": (classifier, X, Y, np.where(Y > 0, -1.0, 1.0), "Negative values in data.*sample_weight"),
    "weights of zero": (regressor, X, Y, W * 0, "at least one non-zero number"),
    "weights beyond all numbers": (classifier, X, Y, W * 1e308, "add up to inf, which is out of range; scale them"),
    "weights next to nothing": (classifier, X, Y, W * 5e-324, "out of range; scale them"),
    "too few weights": (classifier, X, Y, W[:-1], r"inconsistent numbers of samples: \[40, 39\]"),
    "NaN weight": (classifier, X, Y, np.where(Y > 0, np.nan, 1.0), "Input sample_weight contains NaN"),
    "weights in two columns": (classifier, X, Y, np.c_[W, W], "Sample weights must be 1D array or scalar"),
    "weights as text": (classifier, X, Y, "bank.w", "only on a federation"),
    "labels by name": (classifier, X, "bank.y", None, "y should be a 1d array.*'bank.y'; names of columns"),
    "labels by name of a column": (regressor, FRAME, "a", None, "names of columns are for federations"),
}


@pytest.mark.parametrize("case", BAD_FIT)
def test_bad_input_is_refused_and_changes_nothing(case: str) -> None:
    make, data, y, weight, words = BAD_FIT[case]
    unfitted = make()
    with pytest.raises(ValueError if words != "all input features have string" else TypeError, match=f"(?s){words}"):
        unfitted.fit(data, y, sample_weight=weight)
    assert vars(unfitted) == vars(make())
    fitted = make().fit(FRAME, Y)
    before, answers = dict(vars(fitted)), fitted.predict(FRAME)
    with pytest.raises((ValueError, TypeError)):
        fitted.fit(data, y, sample_weight=weight)
    assert vars(fitted) == before
    assert fitted.feature_names_in_.tolist() == ["a", "b", "c"]
    np.testing.assert_array_equal(fitted.predict(FRAME), answers)


def test_sparse_data_has_scikit_learns_words() -> None:
    with pytest.raises(TypeError, match="Sparse data was passed"):
        classifier().fit(scipy.sparse.csr_matrix(X), Y)
    with pytest.raises(TypeError, match="Sparse data was passed"):
        classifier().fit(X, Y).predict(scipy.sparse.csr_matrix(X))


BAD_PARAMETERS: dict[str, tuple[dict[str, Any], str]] = {
    "n_estimators": ({"n_estimators": 0}, "'n_estimators' parameter must be a whole number from 1 to 1,000,000. Got 0"),
    "n_estimators float": ({"n_estimators": 2.0}, "'n_estimators'"),
    "criterion": ({"criterion": "squared_error"}, "'criterion' parameter must be one of .*gini"),
    "max_depth": ({"max_depth": 0}, "'max_depth'"),
    "min_samples_split": ({"min_samples_split": 1}, "'min_samples_split'"),
    "min_samples_leaf": ({"min_samples_leaf": 1.0}, "'min_samples_leaf'"),
    "min_weight_fraction_leaf": ({"min_weight_fraction_leaf": 0.6}, "'min_weight_fraction_leaf'"),
    "max_features": ({"max_features": "auto"}, "'max_features' parameter must be None, 'sqrt'"),
    "max_leaf_nodes": ({"max_leaf_nodes": 1}, "'max_leaf_nodes'"),
    "min_impurity_decrease": ({"min_impurity_decrease": -0.1}, "'min_impurity_decrease'"),
    "max_samples": ({"max_samples": 0}, "'max_samples'"),
    "max_samples without bootstrap": (
        {"max_samples": 3, "bootstrap": False},
        "`max_samples` cannot be set if `bootstrap=False`. Either switch",
    ),
    "oob without bootstrap": ({"oob_score": True, "bootstrap": False}, "Out of bag estimation only available"),
    "oob by a function": ({"oob_score": max}, "'oob_score' parameter must be True or False"),
    "bootstrap": ({"bootstrap": "yes"}, "'bootstrap' parameter must be True or False"),
    "max_bins": ({"max_bins": 1}, "'max_bins'"),
    "bootstrap_by": ({"bootstrap_by": "rows"}, "'bootstrap_by' parameter must be 'draw' or 'row'"),
    "feature_sampling": ({"feature_sampling": "forest"}, "'feature_sampling' parameter must be 'node' or 'tree'"),
    "protection": ({"protection": "shared"}, "'protection' parameter must be 'open' or 'hidden'"),
    "voting": ({"voting": "hard"}, "'voting' parameter must be 'soft' or 'majority'"),
    "memory_limit": ({"memory_limit": 0}, "'memory_limit'"),
    "n_jobs": ({"n_jobs": 0}, "'n_jobs'"),
    "verbose": ({"verbose": -1}, "'verbose'"),
    "random_state": ({"random_state": "seed"}, "'random_state' parameter must be None, a whole number"),
    "no parties": ({"parties": 0}, "'parties'"),
    "empty mapping": ({"parties": {}}, "at least one party"),
    "class_weight": ({"class_weight": "heavy"}, "'class_weight' parameter must be None, 'balanced'"),
    "class_weight of unknown class": (
        {"class_weight": {0: 1, 7: 2}},
        r"classes, \[1\], are not in class_weight.*\[7\]",
    ),
    "negative class weight": ({"class_weight": {0: -1}}, r"class_weight\[0\] must be a number of at least 0. Got -1"),
    "class weights of zero": ({"class_weight": {0: 0, 1: 0}}, "weight zero.*positive weight"),
    "unknown column": ({"parties": {"p": ["a", "b", "c", "z"]}}, r"parties\['p'\] names column 'z'.*columns of X are"),
    "column left out": ({"parties": {"p": ["a"], "q": ["c"]}}, r"leaves out columns of X: \['b'\]; deal them"),
    "column dealt twice": (
        {"parties": {"p": ["a", "b"], "q": ["c", "a"]}},
        "'a' is dealt to both 'p' and 'q'; deal each",
    ),
    "column dealt twice to one": ({"parties": {"p": ["a", "b", "c", "a"]}}, "'a' is dealt to both 'p' and 'p'"),
    "columns as text": ({"parties": {"p": "abc"}}, r"parties\['p'\] must be a list of columns, not 'abc'"),
    "columns as number": ({"parties": {"p": 3}}, r"parties\['p'\] must be a list of columns, not 3"),
    "party named coordinator": ({"parties": {"coordinator": ["a", "b", "c"]}}, "'coordinator' cannot name a party"),
    "party with a dot": ({"parties": {"a.b": ["a", "b", "c"]}}, "'a.b' cannot name a party"),
    "party without text": ({"parties": {1: ["a", "b", "c"]}}, "1 cannot name a party"),
}


@pytest.mark.parametrize("case", BAD_PARAMETERS)
def test_bad_parameters_are_refused_at_fit_and_change_nothing(case: str) -> None:
    params, words = BAD_PARAMETERS[case]
    model = classifier().fit(FRAME, Y)
    before = dict(vars(model)) | params
    model.set_params(**params)
    with pytest.raises(ValueError, match=words):
        model.fit(FRAME, Y)
    assert vars(model) == before


@pytest.mark.parametrize("coverage", [0, 1, -1, 2, "most", None, np.nan])
def test_bad_coverage(coverage: Any) -> None:
    model = regressor(n_estimators=20, oob_score=True).fit(X, X[:, 0])
    with pytest.raises(ValueError, match="'coverage' parameter must be a number between 0 and 1"):
        model.predict_interval(X, coverage=coverage)


def test_intervals_need_out_of_bag_rows() -> None:
    with pytest.raises(ValueError, match="fit with oob_score=True"):
        regressor().fit(X, X[:, 0]).predict_interval(X)


def test_regressors_have_no_vote() -> None:
    assert "voting" not in regressor().get_params()


# --- at prediction ---

BAD_PREDICT: dict[str, tuple[Any, type[Exception], str]] = {
    "new column": (FRAME.assign(d=1.0), ValueError, "Feature names unseen at fit time:\n- d"),
    "missing column": (FRAME[["a", "c"]], ValueError, "Feature names seen at fit time, yet now missing:\n- b"),
    "other order": (FRAME[["b", "a", "c"]], ValueError, "must be in the same order as they were in fit"),
    "numbers for categories": (FRAME.assign(c=1.0), DataError, "'c' was categorical in training.*give it as text"),
    "categories for numbers": (FRAME.assign(b="x"), DataError, "'b' was numeric in training.*convert it to numbers"),
    "dates": (FRAME.assign(a=pd.Timestamp("2020-01-01")), DataError, "Column 'a' of X holds dates"),
    "infinity": (changed("a", np.inf), DataError, "infinity.*column 'a'"),
    "no rows": (FRAME[:0], DataError, r"Found array with 0 sample\(s\)"),
    "wrong width": (X[:, :2], ValueError, "X has 2 features, but FederatedForestClassifier is expecting 3 features"),
    "one dimension": (X[0], ValueError, "Expected 2D array"),
    "nothing": (None, ValueError, "Expected 2D array"),
}


@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
@pytest.mark.parametrize("method", ["local", "one-round"])
@pytest.mark.parametrize("case", BAD_PREDICT)
def test_bad_rows_to_predict(case: str, method: Any) -> None:
    data, error, words = BAD_PREDICT[case]
    model = classifier().fit(FRAME, Y)
    with pytest.raises(error, match=f"(?s){words}"):
        model.predict(data, method=method)


def test_bad_ways_to_predict() -> None:
    model = classifier().fit(X, Y)
    with pytest.raises(ValueError, match="'method' parameter must be 'local', 'one-round' or 'classical'"):
        model.predict(X, method="fast")  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="'wire' parameter must be"):
        model.predict(X, wire="paper")  # type: ignore[call-overload]


@pytest.mark.parametrize("method", ["local", "one-round"])
def test_unseen_categories_count_as_missing_with_a_warning(method: Any) -> None:
    model = classifier(n_estimators=20).fit(FRAME, Y)
    unseen, missing = changed("c", "green"), changed("c", None)
    with pytest.warns(UserWarning, match="'c' has 1 categories unseen in training, such as 'green'"):
        proba = model.predict_proba(unseen, method=method)
    np.testing.assert_array_equal(proba, model.predict_proba(missing, method=method))


# --- legal, though it may look odd ---


@pytest.mark.parametrize("make", [classifier, regressor])
def test_constant_columns_give_single_leaves(make: Callable[..., Any]) -> None:
    model = make(n_estimators=4, bootstrap=False).fit(np.full((40, 2), 3.0), Y)
    assert model.forest_.coordinator.structure.right.tolist() == [-1] * 4
    assert model.feature_importances_.tolist() == [0.0, 0.0]
    answer = model.predict_proba(X[:, :2])[:, 1] if make is classifier else model.predict(X[:, :2])
    np.testing.assert_allclose(answer, Y.mean())
    np.testing.assert_array_equal(model.combine().to_sklearn().predict(X[:, :2]), model.predict(X[:, :2]))
    np.testing.assert_array_equal(model.predict(X[:, :2], method="one-round"), model.predict(X[:, :2]))


def test_a_constant_column_beside_others_is_never_used() -> None:
    model = classifier(n_estimators=10, parties={"p": [0, 1, 2], "q": [3]}).fit(np.c_[X, np.ones(40)], Y)
    assert model.feature_importances_[3] == 0
    assert model.importance_owners_.tolist() == ["p", "p", "p", "q"]


@pytest.mark.parametrize("labels", [np.zeros(40, int), np.array(["only"] * 40), np.ones(40, bool)])
def test_one_class_only(labels: Any) -> None:
    model = classifier().fit(X, labels)
    assert model.classes_.tolist() == [labels[0]]
    assert model.predict(X).tolist() == labels.tolist()
    assert model.predict_proba(X).tolist() == [[1.0]] * 40
    np.testing.assert_array_equal(model.combine().to_sklearn().predict(X), labels)


@pytest.mark.parametrize("make", [classifier, regressor])
def test_one_row(make: Callable[..., Any]) -> None:
    model = make().fit(X[:1], [7])
    assert model.predict(X).tolist() == [7] * 40


@pytest.mark.parametrize("parties", [1, 3, 8])
def test_more_parties_than_columns(parties: int) -> None:
    model = classifier(parties=parties).fit(X, Y)
    np.testing.assert_array_equal(model.predict_proba(X), classifier(parties=1).fit(X, Y).predict_proba(X))
    assert len(model.forest_.coordinator.parties) == parties
    np.testing.assert_array_equal(model.predict_proba(X, method="one-round"), model.predict_proba(X))


def test_parties_without_columns_even_the_label_holder() -> None:
    expected = classifier(parties=1).fit(FRAME, Y)
    for parties in (
        {"holder": [], "p": ["a", "b"], "q": ["c"]},
        {"p": ["a"], "none": [], "q": ["b", "c"]},
        {"holder": [], "all": ["c", "b", "a"]},
    ):
        model = classifier(parties=parties, oob_score=False).fit(FRAME, Y)
        np.testing.assert_array_equal(model.predict_proba(FRAME), expected.predict_proba(FRAME))
        np.testing.assert_allclose(model.feature_importances_, expected.feature_importances_, rtol=1e-12)
        np.testing.assert_array_equal(model.predict_proba(FRAME, method="classical"), model.predict_proba(FRAME))


def test_parties_in_another_order_grow_the_same_forest() -> None:
    dealing = {"p": ["a"], "q": ["c"], "r": ["b"]}
    first = classifier(n_estimators=10, parties=dealing).fit(FRAME, Y)
    for order in (["r", "q", "p"], ["q", "p", "r"]):
        other = classifier(n_estimators=10, parties={p: dealing[p] for p in order}).fit(FRAME, Y)
        np.testing.assert_array_equal(other.predict_proba(FRAME), first.predict_proba(FRAME))
        np.testing.assert_allclose(other.feature_importances_, first.feature_importances_, rtol=1e-12)
        assert other.importance_owners_.tolist() == first.importance_owners_.tolist() == ["p", "r", "q"]
        mine, yours = other.combine().splits, first.combine().splits
        for name in ("node", "feature", "threshold", "missing_left", "sets"):
            np.testing.assert_array_equal(getattr(mine, name), getattr(yours, name))


def test_numbers_of_any_library_are_numbers() -> None:
    model = classifier(
        n_estimators=np.int64(4), max_depth=np.int8(3), max_features=np.float32(0.5), max_samples=np.float64(0.5),
        min_samples_leaf=np.int32(2), random_state=np.int64(0), n_jobs=np.int64(1), oob_score=np.bool_(False),
    ).fit(X, Y)  # fmt: skip
    plain = classifier(
        n_estimators=4, max_depth=3, max_features=0.5, max_samples=0.5, min_samples_leaf=2, random_state=0
    ).fit(X, Y)
    np.testing.assert_array_equal(model.predict_proba(X), plain.predict_proba(X))
