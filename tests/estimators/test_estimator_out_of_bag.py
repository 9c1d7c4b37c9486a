"""Out-of-bag estimates, prediction intervals and importances, against direct computations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.datasets import make_classification, make_regression
from sklearn.metrics import accuracy_score, r2_score

import woodlot as wl
from woodlot.protocols.core.target import Target
from woodlot.protocols.vertical.out_of_bag import curve_sizes


def left_out(model: Any, n_rows: int) -> NDArray[np.bool_]:
    """Which tree has not drawn which row, shape (n_trees, n_rows)."""
    sampling = model.forest_.coordinator.sampling
    return np.stack([sampling.counts(tree, n_rows) == 0 for tree in range(model.n_estimators)])


def direct(model: Any, X: NDArray[Any], answers: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean of the answers (n_trees, n_rows, n_outputs) of the trees that have not seen a row."""
    out = left_out(model, len(X))[:, :, None]
    with np.errstate(invalid="ignore"):
        return (answers * out).sum(axis=0) / out.sum(axis=0)


def by_class(y: NDArray[Any], counted: NDArray[np.bool_], right: NDArray[np.bool_]) -> float:
    """Accuracy of the counted rows, where each class counts by its share of all rows."""
    return sum(float((y == label).mean() * right[y[counted] == label].mean()) for label in np.unique(y))


@pytest.mark.parametrize("weighted", [False, True])
def test_oob_of_a_classifier(weighted: bool) -> None:
    X, y = make_classification(200, 6, n_informative=4, n_classes=3, flip_y=0.2, random_state=0)
    weights = np.random.default_rng(0).integers(1, 4, 200) if weighted else None
    model = wl.FederatedForestClassifier(40, oob_score=True, random_state=0).fit(X, y, sample_weight=weights)
    expected = direct(model, X, np.stack([tree.predict_proba(X) for tree in model.estimators_]))
    np.testing.assert_allclose(model.oob_decision_function_, expected, rtol=1e-12)
    assert model.oob_score_ == accuracy_score(y, expected.argmax(axis=1))
    assert 0.4 < model.oob_score_ < model.score(X, y)
    assert {row.kind for row in model.disclosure_} >= {"OutOfBagAnswers", "OutOfBagScores"}
    assert "out-of-bag" in model.cost_.seconds


def test_oob_of_a_regressor() -> None:
    X, y = make_regression(200, 6, noise=20.0, random_state=0)
    model = wl.FederatedForestRegressor(40, oob_score=True, random_state=0).fit(X, y)
    expected = direct(model, X, np.stack([tree.predict(X) for tree in model.estimators_])[:, :, None])[:, 0]
    np.testing.assert_allclose(model.oob_prediction_, expected, rtol=1e-9)
    assert model.oob_score_ == pytest.approx(r2_score(y, expected), rel=1e-9)
    assert model.oob_score_ < model.score(X, y)


@pytest.mark.parametrize("kind", ["classes", "targets"])
def test_the_curve_has_the_score_of_the_first_trees(kind: str) -> None:
    X, y = make_classification(60, 4, n_informative=4, n_redundant=0, flip_y=0.2, random_state=0)
    make = wl.FederatedForestClassifier if kind == "classes" else wl.FederatedForestRegressor
    model = make(14, max_depth=3, oob_score=True, random_state=0).fit(X, y)
    sizes, scores = model.oob_curve_
    assert sizes.tolist() == [1, 2, 3, 4, 6, 8, 12, 14]
    out = left_out(model, 60)[:, :, None]
    answers = np.stack([t.predict_proba(X) if kind == "classes" else t.predict(X)[:, None] for t in model.estimators_])
    for n, score in zip(sizes, scores, strict=True):
        counted = out[:n].any(axis=0)[:, 0]
        mean = (answers[:n] * out[:n]).sum(axis=0)[counted] / out[:n].sum(axis=0)[counted]
        if kind == "classes":
            assert score == pytest.approx(by_class(y, counted, mean.argmax(axis=1) == y[counted]), rel=1e-12)
        else:
            assert score == pytest.approx(r2_score(y[counted], mean[:, 0]), rel=1e-9)
    assert scores[-1] == model.oob_score_


def test_the_curve_has_few_points_and_ends_with_the_forest() -> None:
    assert [curve_sizes(n) for n in (1, 2, 3)] == [(1,), (1, 2), (1, 2, 3)]
    for n in (7, 64, 100, 10_000):
        sizes = curve_sizes(n)
        assert sizes[-1] == n
        assert sizes == tuple(sorted(set(sizes)))
        assert len(sizes) <= 2 * np.log2(n) + 2


@pytest.mark.parametrize("make", [wl.FederatedForestClassifier, wl.FederatedForestRegressor])
def test_rows_that_every_tree_has_seen_have_no_estimate(make: Any) -> None:
    X, y = make_classification(100, 4, random_state=0)
    model = make(3, oob_score=True, random_state=0)
    with pytest.warns(UserWarning, match="Some inputs do not have OOB scores"):
        model.fit(X, y)
    seen_by_all = ~left_out(model, 100).any(axis=0)
    assert 0 < seen_by_all.sum() < 100
    outputs = model.oob_decision_function_[:, 0] if hasattr(model, "classes_") else model.oob_prediction_
    np.testing.assert_array_equal(np.isnan(outputs), seen_by_all)
    counted = ~seen_by_all
    if hasattr(model, "classes_"):
        expected = by_class(y, counted, model.oob_decision_function_[counted].argmax(axis=1) == y[counted])
    else:
        expected = r2_score(y[counted], outputs[counted])
    assert model.oob_score_ == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("class_weight", ["balanced", {0: 1, 1: 19}])
def test_class_weights_do_not_shift_the_score(class_weight: Any) -> None:
    X, y = make_classification(5000, 10, n_informative=5, weights=[0.95], flip_y=0.1, class_sep=0.7, random_state=0)
    model = wl.FederatedForestClassifier(30, class_weight=class_weight, oob_score=True, random_state=0, n_jobs=2)
    with pytest.warns(UserWarning, match="Some inputs do not have OOB scores"):
        model.fit(X[:2000], y[:2000])
    counted = ~np.isnan(model.oob_decision_function_[:, 0])
    assert counted[y[:2000] == 0].all()
    assert counted[y[:2000] == 1].mean() < 0.4  # trees draw the rare class again and again
    plain = accuracy_score(y[:2000][counted], model.oob_decision_function_[counted].argmax(axis=1))
    fresh = model.score(X[2000:], y[2000:])
    assert plain > fresh + 0.04  # what was shown before
    assert abs(model.oob_score_ - fresh) < 0.02
    assert abs(model.oob_curve_.score[-1] - fresh) < 0.02


def test_the_score_is_withheld_where_a_class_is_never_out_of_bag(tmp_path: Path) -> None:
    X, y = make_classification(300, 5, weights=[0.9], random_state=0)
    model = wl.FederatedForestClassifier(4, class_weight={0: 1, 1: 1e6}, oob_score=True, random_state=0)
    with pytest.warns(UserWarning, match="oob_score_ is NaN: .*balanced_subsample"):
        model.fit(X, y)
    assert np.isnan(model.oob_score_)
    assert len(model.oob_curve_.n_trees) == 0
    assert np.isfinite(model.oob_decision_function_[y == 0]).any()
    model.save(tmp_path / "model")
    assert np.isnan(wl.load(tmp_path / "model").oob_score_)


def test_a_few_rows_of_rare_classes_do_not_withhold_the_score() -> None:
    target = Target.of_classes(np.array(["a"] * 199 + ["b"]))
    counted = np.arange(200) < 150
    answers = np.where(np.arange(200) < 30, 1.0, 0.0)
    assert target.score(answers, counted)[0] == pytest.approx(0.8)  # "b", half a percent of the rows, has no vote
    rarer = Target.of_classes(np.array(["a"] * 195 + ["b"] * 5))
    assert np.isnan(rarer.score(answers, counted)[0])


def test_no_row_is_out_of_bag() -> None:
    X = np.arange(4.0)[:, None]
    with pytest.warns(UserWarning, match="Some inputs do not have OOB scores"):
        model = wl.FederatedForestRegressor(1, oob_score=True, max_samples=200, random_state=0).fit(X, X[:, 0])
    assert np.isnan(model.oob_score_)
    assert len(model.oob_curve_.n_trees) == 0
    assert np.isnan(model.oob_prediction_).all()
    with pytest.raises(ValueError, match="oob_score=True"):
        model.predict_interval(X)


@pytest.mark.parametrize("coverage", [0.5, 0.9])
def test_intervals_cover_fresh_rows_as_often_as_they_say(coverage: float) -> None:
    rng = np.random.default_rng(1)
    X = rng.uniform(-2, 2, size=(3000, 4))
    y = np.sin(X[:, 0]) + X[:, 1] ** 2 + rng.standard_t(4, size=3000) * 0.5
    model = wl.FederatedForestRegressor(60, min_samples_leaf=3, oob_score=True, random_state=0, n_jobs=2)
    model.fit(X[:1500], y[:1500])
    intervals = model.predict_interval(X[1500:], coverage=coverage)
    assert intervals.shape == (1500, 2)
    inside = (intervals[:, 0] <= y[1500:]) & (y[1500:] <= intervals[:, 1])
    assert abs(inside.mean() - coverage) < 0.04  # three standard errors of a share of 1500 rows
    # neither side takes all the misses
    assert abs((y[1500:] > intervals[:, 1]).mean() - (1 - coverage) / 2) < 0.04
    middle = model.predict(X[1500:])
    assert ((intervals[:, 0] < middle) & (middle < intervals[:, 1])).all()
    np.testing.assert_array_equal(
        model.predict_interval(X[1500:1510], coverage=coverage, method="one-round"), intervals[:10]
    )


# --- importances ---


def scikit_learns_importances(trees: list[Any], n_features: int) -> NDArray[np.float64]:
    """scikit-learn's formula, on the arrays of the exported trees."""
    by_tree = []
    for tree in (t.tree_ for t in trees):
        found = np.zeros(n_features)
        for node in np.flatnonzero(tree.children_left >= 0):
            left, right = tree.children_left[node], tree.children_right[node]
            found[tree.feature[node]] += (
                tree.weighted_n_node_samples[node] * tree.impurity[node]
                - tree.weighted_n_node_samples[left] * tree.impurity[left]
                - tree.weighted_n_node_samples[right] * tree.impurity[right]
            )
        if tree.node_count > 1:
            by_tree.append(found / found.sum())
    mean = np.mean(by_tree, axis=0)
    return np.asarray(mean / mean.sum())


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"criterion": "entropy", "max_depth": 4},
        {"bootstrap": False, "min_samples_leaf": 5},
        {"class_weight": "balanced", "max_depth": 3},
        {"class_weight": "balanced_subsample", "criterion": "log_loss"},
        {"max_leaf_nodes": 6},
    ],
)
def test_importances_of_a_classifier(params: dict[str, Any]) -> None:
    X, y = make_classification(150, 6, n_informative=3, weights=[0.8], random_state=0)
    model = wl.FederatedForestClassifier(8, parties=3, random_state=0, **params).fit(X, y)
    found = model.feature_importances_
    assert found.shape == (6,)
    assert found.sum() == pytest.approx(1.0)
    np.testing.assert_allclose(found, scikit_learns_importances(model.estimators_, 6), rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(found, model.combine().to_sklearn().feature_importances_, rtol=1e-6, atol=1e-9)
    assert model.importance_owners_.tolist() == ["party-1", "party-2", "party-3"] * 2


@pytest.mark.parametrize("depth", [None, 3])
def test_importances_of_a_regressor(depth: int | None) -> None:
    X, y = make_regression(150, 5, n_informative=2, noise=5.0, random_state=0)
    model = wl.FederatedForestRegressor(8, max_depth=depth, random_state=0).fit(X, y)
    found = model.feature_importances_
    assert found.sum() == pytest.approx(1.0)
    np.testing.assert_allclose(found, scikit_learns_importances(model.estimators_, 5), rtol=1e-6, atol=1e-9)
    # the same from the spread of targets in each node, which only the data can tell
    by_tree = []
    for number, tree in enumerate(t.tree_ for t in model.estimators_):
        counts = model.forest_.coordinator.sampling.counts(number, 150).astype(float)
        path = tree.decision_path(X.astype(np.float32)).toarray().astype(bool)
        spread = np.array([_weighted_spread(y[path[:, i]], counts[path[:, i]]) for i in range(tree.node_count)])
        gains = np.zeros(5)
        for node in np.flatnonzero(tree.children_left >= 0):
            gains[tree.feature[node]] += (
                spread[node] - spread[tree.children_left[node]] - spread[tree.children_right[node]]
            )
        by_tree.append(gains / gains.sum())
    np.testing.assert_allclose(found, np.mean(by_tree, axis=0), rtol=1e-6, atol=1e-9)


def _weighted_spread(y: NDArray[np.float64], weights: NDArray[np.float64]) -> float:
    if weights.sum() == 0:
        return 0.0
    return float((weights * (y - np.average(y, weights=weights)) ** 2).sum())
