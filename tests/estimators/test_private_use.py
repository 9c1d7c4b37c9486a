"""Private forests in use: on tables and federations, saved, exported and explained; what they say of themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

import woodlot as wl
from woodlot.exceptions import DataError, PolicyError
from woodlot.privacy.budget import Budget
from woodlot.privacy.client_budget import LocalBudget
from woodlot.protocols.core.message import Message
from woodlot.protocols.rows.private import PrivateClient


def table(n: int = 3000, seed: int = 0) -> tuple[pd.DataFrame, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = pd.DataFrame({"a": rng.uniform(0, 1, n), "b": rng.exponential(1, n), "c": rng.normal(0, 1, n)})
    X["town"] = np.array(["bern", "chur", "zug"])[rng.integers(0, 3, n)]
    y = np.where(X["a"] + (X["town"] == "zug") + 0.2 * rng.normal(size=n) > 0.8, "yes", "no")
    return X, y


@pytest.fixture(scope="module")
def model() -> wl.PrivateForestClassifier:
    return wl.PrivateForestClassifier(4.0, n_estimators=20, random_state=0).fit(*table())


def test_it_learns_and_says_what_it_is_worth(model: wl.PrivateForestClassifier) -> None:
    X, y = table(seed=1)
    assert model.score(X, y) > 0.8
    shares = model.predict_proba(X)
    np.testing.assert_allclose(shares.sum(axis=1), 1.0)
    assert abs(shares[:, 1].mean() - (y == "yes").mean()) < 0.1
    claim = model.privacy_
    assert (claim.epsilon, claim.delta) == (4.0, 1e-6)
    assert "any one client" in claim.mechanism
    assert "one row of a client, with its label" in claim.in_words
    assert any("random_state" in what for what in claim.not_protected)
    assert model.feature_importances_.sum() == pytest.approx(1.0)
    assert set(model.disclosure_.rows[0].__dict__) > {"kind"}


def test_random_state_repeats_it_and_without_one_the_noise_is_fresh() -> None:
    X, y = table(300)
    fixed = wl.PrivateForestClassifier(n_estimators=3, random_state=3)
    first, again = (clone(fixed).fit(X, y).predict_proba(X) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    fresh = clone(fixed).set_params(random_state=None)
    one, other = (clone(fresh).fit(X, y) for _ in range(2))
    assert not np.array_equal(one.predict_proba(X), other.predict_proba(X))
    assert any("not declared" in what for what in one.privacy_.not_protected)


def test_it_is_saved_and_loaded(model: wl.PrivateForestClassifier, tmp_path: Path) -> None:
    X, _ = table(50)
    model.save(tmp_path / "model")
    again = wl.load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    assert again.privacy_ == model.privacy_


@pytest.mark.parametrize("n_classes", [2, 4])
def test_other_runtimes_give_the_same_answers(n_classes: int) -> None:
    X, _ = table(400)
    values = X[["a", "b", "c"]].to_numpy(np.float32)
    y = np.minimum((values[:, 0] * n_classes).astype(int), n_classes - 1)
    grown = wl.PrivateForestClassifier(50.0, n_estimators=4, random_state=0).fit(values, y)
    with pytest.raises(DataError, match="export it with to_onnx or to_treelite"):
        grown.to_sklearn()
    assert not hasattr(grown, "estimators_")
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(grown.to_onnx().SerializeToString())
    labels, shares = session.run(None, {"X": values})
    np.testing.assert_allclose(shares, grown.predict_proba(values), atol=1e-5)
    np.testing.assert_array_equal(labels, grown.predict(values))
    treelite = pytest.importorskip("treelite")
    answers = treelite.gtil.predict(grown.to_treelite(), values.astype(np.float64)).reshape(len(values), -1)
    np.testing.assert_allclose(answers, grown.predict_proba(values), atol=1e-9)


def test_explanations_add_up_to_scores(model: wl.PrivateForestClassifier) -> None:
    X, _ = table(5)
    explained = model.explain(X)
    scores = np.log(model.predict_proba(X))
    found = explained.base_values + explained.values.sum(axis=1)
    np.testing.assert_allclose(found[:, 1] - found[:, 0], scores[:, 1] - scores[:, 0])


def federation() -> Any:
    X, y = table(600)
    rows = X.assign(late=y)
    return wl.Federation.local({"north": rows[::3], "south": rows[1::3], "west": rows[2::3]}, layout="rows")


DECLARED = {"a": (0, 1), "b": (0, 10), "c": (-4, 4), "town": ["bern", "chur", "zug"]}


def test_on_a_federation_everything_is_declared_and_charged() -> None:
    fed = federation()
    fed.use_client_budgets({name: LocalBudget(name, "", Budget(1.5, 1e-5)) for name in fed.parties})
    private = wl.PrivateForestClassifier(n_estimators=3, declared=DECLARED, classes=["no", "yes"])
    grown = private.fit(fed, y="late")
    assert list(grown.classes_) == ["no", "yes"]
    with pytest.raises(PolicyError, match=r"of epsilon 1\.5 for the rows of this data set 1 is spent"):
        clone(private).fit(fed, y="late")
    for changes, words in (
        ({"classes": None}, "needs the public list of classes"),
        ({"declared": {"a": (0, 1)}}, "no range is declared for"),
        ({"declared": {**DECLARED, "town": (0, 1)}}, "of another kind"),
    ):
        with pytest.raises((DataError, ValueError), match=words):
            clone(private).set_params(**changes).fit(federation(), y="late")


def test_targets_are_learnt() -> None:
    X, _ = table(4000)
    y = 10 * X["a"].to_numpy() + 3 * (X["town"] == "zug")
    grown = wl.PrivateForestRegressor(4.0, n_estimators=30, target_range=(0, 13), random_state=0).fit(X, y)
    assert grown.score(X, y) > 0.5
    assert np.abs(grown.predict(X).mean() - y.mean()) < 1


def test_who_dropped_out_is_kept_with_the_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    X, y = table(300)
    told = PrivateClient._told

    def failing(client: PrivateClient, message: Message, *rest: Any) -> Message:
        if client.name == "client-2" and getattr(message, "tree", -1) == 3:
            raise DataError("the table is gone")
        return told(client, message, *rest)

    monkeypatch.setattr(PrivateClient, "_told", failing)
    model = wl.PrivateForestClassifier(8.0, n_estimators=5, parties=5, random_state=0, spare_after=1.0)
    with pytest.warns(UserWarning, match="the training went on without client-2"):
        model.fit(X, y)
    model.save(tmp_path / "model")
    loaded = wl.load(tmp_path / "model")
    assert model.left_at_ == loaded.left_at_ == {"client-2": 3}
    assert model.left_ == loaded.left_ == ("client-2",)
    assert "client client-2" in str(model.card())
    assert "those of more than 67% of them are enough" in model.privacy_.mechanism
    with pytest.raises(DataError, match="the table is gone"):
        model.set_params(spare_after=None).fit(X, y)
