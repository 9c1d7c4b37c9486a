"""``device``: the same forest on the CPU and on a card, and what is said when the card is absent or fails.

Where there is no card the array program runs on NumPy in its place; ``make test-gpu`` runs the same tests on one.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_iris

import woodlot as wl
from woodlot.estimators import complete
from woodlot.exceptions import DeviceError, MissingExtraError
from woodlot.protocols.rows.lossless import counting_place
from woodlot.protocols.vertical import growing_place
from woodlot.trees.arrays import array_module
from woodlot.trees.arrays.array_cells import CellCounter
from woodlot.trees.arrays.array_grow import ArrayGrower
from woodlot.trees.arrays.array_module import AUTO_ROWS, HOST, choose
from woodlot.trees.arrays.array_predict import ArrayPredictor

ON_CARD = os.environ.get("WOODLOT_TEST_DEVICE") == "cuda"
REAL = {"cancer": load_breast_cancer, "digits": load_digits, "iris": load_iris, "diabetes": load_diabetes}


@pytest.fixture
def arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every device but "cpu" is the card, or NumPy where there is none."""
    if not ON_CARD:
        for user in (growing_place, complete, counting_place):
            monkeypatch.setattr(user, "choose", lambda device, n, say: None if device == "cpu" else HOST)


def parts_of(model: Any) -> list[np.ndarray]:
    """All of a fitted forest: structure, leaves and every party's splits."""
    forest = model.forest_
    found = [forest.coordinator.structure.right, forest.coordinator.structure.offset]
    for name in sorted(forest.parts):
        splits = forest.parts[name].splits
        found += [splits.node, splits.feature, splits.threshold, splits.missing_left, splits.set_start, splits.sets]
    return found


def check_same(one: Any, other: Any, X: Any) -> None:
    for a, b in zip(parts_of(one), parts_of(other), strict=True):
        np.testing.assert_array_equal(a, b)
    answer = "predict_proba" if hasattr(one, "classes_") else "predict"
    np.testing.assert_array_equal(getattr(one, answer)(X), getattr(other, answer)(X))
    np.testing.assert_array_equal(one.apply(X), other.apply(X))


@pytest.mark.parametrize("name", REAL)
def test_real_tables(name: str, arrays: None) -> None:
    X, y = REAL[name](return_X_y=True)
    X = X.copy()
    X[np.random.default_rng(0).random(X.shape) < 0.05] = np.nan
    kind = wl.FederatedForestRegressor if name == "diabetes" else wl.FederatedForestClassifier
    options: dict[str, Any] = {"n_estimators": 8, "random_state": 0, "parties": 3}
    one = kind(**options).fit(X, y)
    check_same(one, kind(**options, device="cuda").fit(X, y), X)


def test_every_rule_at_once(arrays: None) -> None:
    X, y = load_breast_cancer(return_X_y=True)
    options: dict[str, Any] = {
        "n_estimators": 30, "random_state": 1, "criterion": "entropy", "feature_sampling": "tree", "max_bins": 16,
        "min_cell": 5, "min_samples_leaf": 3, "min_weight_fraction_leaf": 0.02, "max_leaf_nodes": 9, "oob_score": True,
        "class_weight": "balanced_subsample", "min_impurity_decrease": 0.001,
    }  # fmt: skip
    one = wl.FederatedForestClassifier(**options).fit(X, y)
    other = wl.FederatedForestClassifier(**options, device="cuda").fit(X, y)
    check_same(one, other, X)
    assert one.oob_score_ == other.oob_score_


@pytest.mark.parametrize("step", ["find", "apply_packed", "split_packed", "class_entries"])
def test_a_card_that_fails_in_the_middle(
    step: str, arrays: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With "auto" the forest ends the same and the log says so; with "cuda" the error does."""
    monkeypatch.setattr(array_module, "AUTO_ROWS", 1)
    X, y = load_iris(return_X_y=True)
    whole, calls = getattr(ArrayGrower, step), []

    def failing(self: ArrayGrower, *args: Any) -> Any:
        calls.append(step)
        if step == "class_entries" or len(calls) > 3:
            raise DeviceError("The card failed.")
        return whole(self, *args)

    monkeypatch.setattr(ArrayGrower, step, failing)
    options: dict[str, Any] = {"n_estimators": 5, "random_state": 0}
    one = wl.FederatedForestClassifier(**options).fit(X, y)
    with caplog.at_level(logging.WARNING, logger=growing_place.__name__):
        check_same(one, wl.FederatedForestClassifier(**options, device="auto").fit(X, y), X)
    assert "training goes on on the CPU" in caplog.text
    calls.clear()
    with pytest.raises(DeviceError, match="The card failed"):
        wl.FederatedForestClassifier(**options, device="cuda").fit(X, y)


@pytest.mark.parametrize("name", ["digits", "diabetes"])
def test_rows_are_counted_on_the_card(name: str, arrays: None) -> None:
    X, y = REAL[name](return_X_y=True)
    kind = wl.HorizontalForestRegressor if name == "diabetes" else wl.HorizontalForestClassifier
    options: dict[str, Any] = {"n_estimators": 4, "random_state": 0, "max_depth": 6, "min_samples_leaf": 1}
    one = kind(**options).fit(X, y)
    check_same(one, kind(**options, device="cuda").fit(X, y), X)


def test_a_card_that_fails_while_rows_are_counted(
    arrays: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With "auto" the client goes on on the CPU and says so; with "cuda" the error does."""
    monkeypatch.setattr(array_module, "AUTO_ROWS", 1)
    X, y = load_iris(return_X_y=True)
    options: dict[str, Any] = {"n_estimators": 3, "random_state": 0}
    one = wl.HorizontalForestClassifier(**options).fit(X, y)
    whole, calls = CellCounter.count, []

    def failing(self: CellCounter, *args: Any) -> Any:
        calls.append(self)
        if len(calls) > 4:
            raise DeviceError("The card failed.")
        return whole(self, *args)

    monkeypatch.setattr(CellCounter, "count", failing)
    with caplog.at_level(logging.WARNING, logger=counting_place.__name__):
        check_same(one, wl.HorizontalForestClassifier(**options, device="auto").fit(X, y), X)
    assert "counting goes on on the CPU" in caplog.text
    calls.clear()
    with pytest.raises(DeviceError, match="The card failed"):
        wl.HorizontalForestClassifier(**options, device="cuda").fit(X, y)


def test_a_card_that_fails_in_a_prediction(
    arrays: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With "auto" the CPU answers, and the log says so; with "cuda" the error does."""
    monkeypatch.setattr(array_module, "AUTO_ROWS", 1)
    X, y = load_iris(return_X_y=True)
    model = wl.FederatedForestClassifier(3, random_state=0).fit(X, y)
    expected = model.predict_proba(X)

    def failing(self: ArrayPredictor, *args: Any, **options: Any) -> Any:
        raise DeviceError("The card failed.")

    monkeypatch.setattr(ArrayPredictor, "predict_outputs", failing)
    model.set_params(device="auto")
    with caplog.at_level(logging.WARNING, logger=complete.__name__):
        np.testing.assert_array_equal(model.predict_proba(X), expected)
    assert "predicting on the CPU" in caplog.text
    model.set_params(device="cuda")
    with pytest.raises(DeviceError, match="The card failed"):
        model.predict_proba(X)


@pytest.mark.parametrize("rows", [AUTO_ROWS - 1, AUTO_ROWS])
def test_without_cupy(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    array_module.card.cache_clear()
    said: list[str] = []
    assert choose("cpu", rows, said.append) is None
    assert choose("auto", rows, said.append) is None
    # small tables stay on the CPU anyway, so there is nothing to say
    assert len(said) == (rows >= AUTO_ROWS)
    assert all("pip install 'woodlot[gpu]'" in line for line in said)
    with pytest.raises(MissingExtraError, match=r"woodlot\[gpu\]"):
        choose("cuda", rows, said.append)


class NoCards:
    """A CuPy that finds no card."""

    class cuda:
        class runtime:
            class CUDARuntimeError(Exception):
                pass

            @staticmethod
            def getDeviceCount() -> int:
                return 0


def test_without_a_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", NoCards)
    array_module.card.cache_clear()
    with pytest.raises(DeviceError, match="no CUDA card"):
        choose("cuda", 10, print)
    said: list[str] = []
    assert choose("auto", AUTO_ROWS, said.append) is None
    assert "no CUDA card" in said[0]
    array_module.card.cache_clear()


def test_another_device() -> None:
    with pytest.raises(ValueError, match="'cpu', 'cuda'"):
        wl.FederatedForestClassifier(device="tpu").fit([[0], [1]], [0, 1])


def test_models_do_not_keep_the_device(tmp_path: Any, arrays: None) -> None:
    """A model that was grown on a card is fitted again on any machine."""
    X, y = load_iris(return_X_y=True)
    wl.FederatedForestClassifier(3, random_state=0, device="cuda").fit(X, y).save(tmp_path / "model")
    assert wl.load(tmp_path / "model").get_params()["device"] == "cpu"
