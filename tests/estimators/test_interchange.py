"""Export to ONNX and treelite: other runtimes send every row to the same leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pandas as pd
import pytest
import treelite
from sklearn.base import is_classifier

import woodlot as wl
from woodlot.exceptions import DataError

KINDS = [
    wl.LocalForestsClassifier,
    wl.CollaborativeForestClassifier,
    wl.CollaborativeForestRegressor,
    wl.HorizontalForestClassifier,
    wl.HorizontalForestRegressor,
    wl.FederatedExtraTreesClassifier,
    wl.FederatedForestClassifier,
    wl.FederatedForestRegressor,
]


def data(kind: Any, n: int = 300, classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Values on a coarse grid, so that many rows lie next to a threshold; missing ones; a column of nothing else."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(n, 4)).round(1).astype(np.float32)
    X[rng.random((n, 4)) < 0.1] = np.nan
    X[:, 3] = np.nan
    signal = np.nan_to_num(X[:, 0]) + np.nan_to_num(X[:, 1], nan=1.0) + rng.normal(size=n) * 0.2
    return X, np.digitize(signal, [0.0, 0.9][: classes - 1]) if is_classifier(kind()) else signal


def rows_beside(model: Any, X: np.ndarray) -> np.ndarray:
    """The rows, and rows whose values are the float32 numbers around every threshold, and infinities."""
    splits = model.combine().splits
    tests = [X]
    for f in range(X.shape[1]):
        near = splits.threshold[(splits.feature == f) & np.isfinite(splits.threshold)].astype(np.float32)
        values = np.concatenate([near, np.nextafter(near, np.float32(np.inf)), np.nextafter(near, np.float32(-np.inf))])
        some = X[np.arange(len(values)) % len(X)].copy()
        some[:, f] = values
        tests.append(some)
    return np.concatenate(tests)


def fitted(kind: Any, y: np.ndarray, X: Any, **params: Any) -> Any:
    if kind is wl.FederatedExtraTreesClassifier:
        params |= {"declared": {str(i): (-4.0, 4.0) for i in range(4)}}
    return kind(9, random_state=0, **params).fit(X, y)


@pytest.mark.parametrize("kind", KINDS)
def test_onnx_runtime_agrees_on_every_row(kind: Any, tmp_path: Path) -> None:
    X, y = data(kind)
    if is_classifier(kind()):
        y = np.array(["low", "middle", "high"])[y]
    model = fitted(kind, y, X)
    model.combine().to_onnx(tmp_path / "forest.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "forest.onnx", providers=["CPUExecutionProvider"])
    rows = rows_beside(model, X)
    found = session.run(None, {"X": rows})
    if is_classifier(model):
        np.testing.assert_array_equal(found[0], model.predict(rows))
        np.testing.assert_allclose(found[1], model.predict_proba(rows), atol=1e-6)
    else:
        np.testing.assert_allclose(found[0][:, 0], model.predict(rows), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_treelite_agrees_on_every_row(kind: Any) -> None:
    X, y = data(kind)
    model = fitted(kind, y, X)
    rows = rows_beside(model, X)
    found = treelite.gtil.predict(model.combine().to_treelite(), rows.astype(np.float64))
    if is_classifier(model):
        np.testing.assert_allclose(found[:, 0], model.predict_proba(rows), atol=1e-12)
        np.testing.assert_array_equal(model.classes_[found[:, 0].argmax(axis=1)], model.predict(rows))
    else:
        np.testing.assert_allclose(found[:, 0, 0], model.predict(rows), atol=1e-12)


@pytest.mark.parametrize("kind", [wl.HorizontalForestClassifier, wl.CollaborativeForestClassifier])
@pytest.mark.parametrize("labels", [[True, False], [1.0, 2.0], [7, 3], ["yes", "no"], ["only"]])
def test_labels_of_any_type_and_one_or_two_classes(kind: Any, labels: list[Any]) -> None:
    X, y = data(kind, classes=len(labels))
    model = fitted(kind, np.array(labels)[y], X)
    rows = rows_beside(model, X)
    session = onnxruntime.InferenceSession(model.to_onnx().SerializeToString(), providers=["CPUExecutionProvider"])
    label, probabilities = session.run(None, {"X": rows})
    np.testing.assert_array_equal(label, model.predict(rows))
    np.testing.assert_allclose(probabilities, model.predict_proba(rows), atol=1e-6)
    found = treelite.gtil.predict(model.to_treelite(), rows.astype(np.float64))
    np.testing.assert_allclose(found.reshape(len(rows), -1), model.predict_proba(rows), atol=1e-12)


def test_majority_votes_and_the_combined_vertical_model() -> None:
    X, y = data(wl.FederatedForestClassifier)
    model = wl.FederatedForestClassifier(9, parties=3, voting="majority", random_state=0).fit(X, y)
    complete = model.combine()
    rows = rows_beside(model, X)
    session = onnxruntime.InferenceSession(complete.to_onnx().SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(session.run(None, {"X": rows})[0], model.predict(rows))
    found = treelite.gtil.predict(complete.to_treelite(), rows.astype(np.float64))[:, 0]
    np.testing.assert_allclose(found, complete.predict_proba(rows), atol=1e-12)


@pytest.mark.parametrize("kind", [wl.HorizontalForestClassifier, wl.HorizontalForestRegressor])
def test_categories_go_to_treelite_and_not_to_onnx(kind: Any) -> None:
    X, y = data(kind)
    frame = pd.DataFrame(X[:, :3], columns=["a", "b", "c"])
    towns = np.array(["Aarau", "Brugg", "Chur", "Davos", None], dtype=object)
    frame["town"] = towns[np.random.default_rng(1).integers(0, 5, len(X))]
    y = y + 2 * frame["town"].isin(["Brugg", "Davos"]).to_numpy()
    model = fitted(kind, y, frame, max_features=None)
    complete = model.combine()
    assert complete.categories == {"town": ("Aarau", "Brugg", "Chur", "Davos")}
    place = {town: k for k, town in enumerate(complete.categories["town"])}
    rows = np.column_stack([frame[["a", "b", "c"]], frame["town"].map(place).astype(np.float64)])
    found = treelite.gtil.predict(model.to_treelite(), rows)
    expected = model.predict_proba(frame) if is_classifier(model) else model.predict(frame)
    np.testing.assert_allclose(found.reshape(expected.shape), expected, atol=1e-12)
    with pytest.raises(DataError, match=r"\['town'\].*to_treelite"):
        model.to_onnx()


def test_trees_of_one_leaf() -> None:
    X, _ = data(wl.HorizontalForestRegressor)
    model = wl.HorizontalForestRegressor(3, random_state=0).fit(X, np.full(len(X), 4.0))
    session = onnxruntime.InferenceSession(model.to_onnx().SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, {"X": X})[0], 4.0, rtol=1e-6)
    np.testing.assert_allclose(treelite.gtil.predict(model.to_treelite(), X.astype(np.float64)), 4.0, rtol=1e-9)


@pytest.mark.parametrize("name", ["onnx", "treelite"])
def test_without_the_extra_the_error_says_what_to_install(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = data(wl.HorizontalForestClassifier)
    model = fitted(wl.HorizontalForestClassifier, y, X)
    monkeypatch.setattr("woodlot.data.extras.import_module", _absent)
    with pytest.raises(ModuleNotFoundError, match=rf"{name} is not installed.*woodlot\[export\]"):
        getattr(model, f"to_{name}")()


def _absent(name: str) -> Any:
    raise ModuleNotFoundError(f"No module named {name!r}", name=name)
