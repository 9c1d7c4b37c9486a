"""Metrics are scikit-learn's, to the last digits, and under weights those of repeated rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn import metrics

from woodlot.evaluation.class_metrics import HIGHER_IS_BETTER, ClassRows
from woodlot.evaluation.target_metrics import TARGET_METRICS, TargetRows
from woodlot.exceptions import DataError

CLOSE = {"rtol": 0, "atol": 1e-12}


def some_rows(n_classes: int, n: int = 300, grid: int | None = 7, seed: int = 0) -> tuple[Any, Any, Any]:
    """Labels, probabilities (on a coarse grid, with many ties) and classes."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, n_classes, n)
    raw = rng.random((n, n_classes)) + 0.6 * np.eye(n_classes)[codes]
    if grid:
        raw = np.floor(raw * grid) + 1
    return (
        np.array(["a", "b", "c", "d"])[codes],
        raw / raw.sum(axis=1, keepdims=True),
        np.array(list("abcd"[:n_classes])),
    )


@pytest.mark.parametrize("grid", [2, 7, None])
def test_two_classes(grid: int | None) -> None:
    y, p, classes = some_rows(2, grid=grid)
    found, predicted, true = ClassRows(y, p, classes).scores(), classes[p.argmax(axis=1)], y == "b"
    fpr, tpr, _ = metrics.roc_curve(true, p[:, 1])
    expected = {
        "accuracy": metrics.accuracy_score(y, predicted),
        "balanced_accuracy": metrics.balanced_accuracy_score(y, predicted),
        "roc_auc": metrics.roc_auc_score(true, p[:, 1]),
        "average_precision": metrics.average_precision_score(true, p[:, 1]),
        "log_loss": metrics.log_loss(y, p, labels=classes),
        "brier": metrics.brier_score_loss(y, p[:, 1], pos_label="b"),
        "f1": metrics.f1_score(y, predicted, pos_label="b"),
        "ks": np.max(tpr - fpr),
    }
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, err_msg=name, **CLOSE)
    assert list(found) == list(HIGHER_IS_BETTER)


def test_more_classes() -> None:
    y, p, classes = some_rows(4)
    found, predicted = ClassRows(y, p, classes).scores(), classes[p.argmax(axis=1)]
    expected = {
        "roc_auc": metrics.roc_auc_score(y, p, multi_class="ovr", labels=classes),
        "average_precision": metrics.average_precision_score(y[:, None] == classes, p),
        "log_loss": metrics.log_loss(y, p, labels=classes),
        "brier": metrics.brier_score_loss(y, p, labels=classes),
        "f1": metrics.f1_score(y, predicted, average="macro"),
        "balanced_accuracy": metrics.balanced_accuracy_score(y, predicted),
    }
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, err_msg=name, **CLOSE)
    assert np.isnan(found["ks"])


@pytest.mark.parametrize("n_classes", [2, 3])
def test_weighted_rows_are_repeated_rows(n_classes: int) -> None:
    y, p, classes = some_rows(n_classes)
    rows = ClassRows(y, p, classes)
    weights = np.random.default_rng(1).integers(0, 4, len(y))
    expected = ClassRows(np.repeat(y, weights), np.repeat(p, weights, axis=0), classes).scores()
    for ours, theirs in (
        (rows.weighted(weights.astype(float)), expected),
        (rows.weighted(np.ones(300)), rows.scores()),
    ):
        assert list(ours) == list(theirs)
        np.testing.assert_allclose(list(ours.values()), list(theirs.values()), **CLOSE)


def test_lift_is_the_share_of_positives_among_the_highest() -> None:
    y = np.array(["a"] * 80 + ["b"] * 20)
    p = np.linspace(0, 1, 100)
    perfect = ClassRows(y, np.column_stack([1 - p, p]), np.array(["a", "b"])).scores()["lift"]
    same = ClassRows(y, np.full((100, 2), 0.5), np.array(["a", "b"])).scores()["lift"]
    assert (perfect, same) == (pytest.approx(5), pytest.approx(1))  # equal probabilities are not put in an order


def test_probabilities_of_zero_and_one() -> None:
    y, p = np.array(["a", "b", "b", "a"]), np.array([[1, 0], [0, 1], [1, 0], [0, 1.0]])
    rows = ClassRows(y, p, np.array(["a", "b"]))
    expected = metrics.log_loss(y, p)
    np.testing.assert_allclose([rows.scores()["log_loss"], rows.weighted(np.ones(4))["log_loss"]], expected, **CLOSE)


def test_rows_of_one_class_have_no_ranking() -> None:
    y, p, classes = some_rows(2)
    only = ClassRows(y[y == "a"], p[y == "a"], classes)
    assert set(only.undefined()) == {"roc_auc", "average_precision", "ks", "lift"}
    assert "no row is of class 'b'; evaluate rows of every class" in only.undefined()["roc_auc"]
    found = only.scores()
    assert np.isnan(found["roc_auc"])
    assert 0 < found["accuracy"] <= 1
    with pytest.raises(DataError, match=r"classes that the model does not know: \['b'\]; it knows \['a'\]"):
        ClassRows(y, p[:, :1], np.array(["a"]))


def test_details_are_scikit_learns() -> None:
    y, p, classes = some_rows(3)
    rows = ClassRows(y, p, classes)
    predicted = classes[p.argmax(axis=1)]
    np.testing.assert_array_equal(rows.confusion(), metrics.confusion_matrix(y, predicted))
    told = metrics.classification_report(y, predicted, output_dict=True)
    for label, own in rows.by_class().items():
        for ours, theirs in (("precision", "precision"), ("recall", "recall"), ("f1", "f1-score"), ("rows", "support")):
            np.testing.assert_allclose(own[ours], told[label][theirs], **CLOSE)
        np.testing.assert_allclose(own["roc_auc"], metrics.roc_auc_score(y == label, p[:, "abc".index(label)]), **CLOSE)
    for label, curves in rows.curves().items():
        roc = curves["roc"]
        np.testing.assert_allclose(metrics.auc(roc["fpr"], roc["tpr"]), rows.by_class()[label]["roc_auc"], **CLOSE)


def test_numbers() -> None:
    rng = np.random.default_rng(0)
    y, p = rng.normal(size=200) * 1e6, rng.normal(size=200)
    rows, weights = TargetRows(y, p), rng.integers(0, 3, 200)
    found = rows.scores()
    assert list(found) == list(TARGET_METRICS)
    assert found["r2"] == metrics.r2_score(y, p)
    assert found["rmse"] == metrics.root_mean_squared_error(y, p)
    assert found["mae"] == metrics.mean_absolute_error(y, p)
    assert list(rows.error_quantiles().values()) == np.quantile(y - p, [0.05, 0.25, 0.5, 0.75, 0.95]).tolist()
    repeated = TargetRows(np.repeat(y, weights), np.repeat(p, weights)).scores()
    for name, value in rows.weighted(weights.astype(float)).items():
        np.testing.assert_allclose(value, repeated[name], rtol=1e-12)
    assert list(TargetRows(np.ones(3), np.ones(3)).undefined()) == ["r2"]
    assert np.isnan(TargetRows(np.ones(3), np.ones(3)).scores()["r2"])
