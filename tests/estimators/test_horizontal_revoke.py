"""A client leaves a horizontal forest: what is gone, what stays, and the receipt."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import woodlot as wl
from woodlot.exceptions import ConfigError, DataError, PolicyError
from woodlot.identity.receipts import FreshKey, Receipt, make_request
from woodlot.protocols.vertical.files import fingerprint_of, forest_id_of

CLIENTS = ("anna", "bern", "chur", "davos")
KINDS: dict[str, tuple[Any, Any]] = {
    "local": (wl.LocalForestsClassifier, wl.LocalForestsRegressor),
    "collaborative": (wl.CollaborativeForestClassifier, wl.CollaborativeForestRegressor),
    "extra-trees": (wl.FederatedExtraTreesClassifier, wl.FederatedExtraTreesRegressor),
    "lossless": (wl.HorizontalForestClassifier, wl.HorizontalForestRegressor),
}


def table(seed: int, n: int = 160) -> tuple[pd.DataFrame, np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Rows, classes and targets; one category and one class are of the last client only."""
    rng = np.random.default_rng(seed)
    client = np.array(CLIENTS)[rng.integers(0, len(CLIENTS), n)]
    X = pd.DataFrame({"age": rng.normal(50, 15, n), "dose": rng.random(n), "ward": rng.choice(["n", "s"], n)})
    X.loc[client == "davos", "ward"] = "own"
    y = np.where(X["age"] / 50 + X["dose"] + 0.3 * rng.normal(size=n) > 1.5, "yes", "no").astype(object)
    y[np.flatnonzero(client == "davos")[:6]] = "rare"
    return X, y, client


def model_of(method: str, task: int, client: Any, **params: Any) -> Any:
    options = {"n_estimators": 6, "max_depth": 4, "min_samples_leaf": 2, "random_state": 3, "parties": client} | params
    return KINDS[method][task](**options)


def ids(model: Any) -> tuple[str, str]:
    return forest_id_of(model.forest_.coordinator), fingerprint_of(model.forest_.parts["forest"])


@pytest.mark.parametrize("method", KINDS)
@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 1000), task=st.integers(0, 1), leaver=st.sampled_from(CLIENTS))
def test_level_3_is_the_forest_grown_without_the_client(method: str, seed: int, task: int, leaver: str) -> None:
    X, y, client = table(seed)
    y = X["age"].to_numpy() * X["dose"].to_numpy() if task else y
    model = model_of(method, task, client).fit(X, y)
    receipt = model.revoke(leaver, level=3)
    rest = client != leaver
    fresh = model_of(method, task, client[rest]).fit(X[rest], y[rest])
    assert ids(model) == ids(fresh)
    np.testing.assert_array_equal(model.predict(X[rest]), fresh.predict(X[rest]))
    if not task:
        assert list(model.classes_) == list(fresh.classes_)
    assert set(receipt.statement.after.values()) == set(ids(model))
    receipt.verify()


@pytest.mark.parametrize("method", KINDS)
def test_on_a_federation_with_scores_a_second_leaver_and_a_file(method: str, tmp_path: Any) -> None:
    X, y, client = table(1)
    tables = {name: X[client == name].assign(ill=y[client == name]) for name in CLIENTS}
    federation = wl.Federation.local(tables, layout="rows")
    extra: dict[str, Any] = {"declared": {"age": (0, 120), "dose": (0, 1)}} if method == "extra-trees" else {}
    options = extra | {"allow_two": True} if method != "local" else extra
    model = model_of(method, 0, 3, **options).fit(federation, y="ill")
    before = ids(model)
    others = client != "davos"  # who have its categories and classes not
    receipt = model.revoke("davos", level=3, holdout=(X[others], y[others]))
    fresh = model_of(method, 0, 3, **options).fit(federation.without("davos"), y="ill")
    assert ids(model) == ids(fresh)
    assert list(model.classes_) == ["no", "yes"]
    statement = receipt.statement
    assert statement.rows == "of those who stay"
    assert "those of davos are gone" in statement.rows_in_words
    assert statement.before["coordinator"] == before[0]
    assert (statement.parties_after, statement.epoch_after) == (CLIENTS[:3], 1)
    assert statement.scores is not None
    assert statement.scores.after == model.score(X[others], y[others])

    second = model.revoke("anna", level=1)
    assert second.statement.epoch_after == 2
    with pytest.raises(DataError, match="not a party"):
        model.revoke("anna")
    model.save(tmp_path / "model")
    loaded = wl.load(tmp_path / "model")
    assert [r.statement.party for r in loaded.receipts_] == ["davos", "anna"]
    assert loaded.forest_.epoch == 2
    with pytest.raises(DataError, match="loaded or copied"):
        loaded.revoke("bern")  # type: ignore[union-attr]


def test_level_1_of_local_forests_drops_the_trees_and_nothing_else() -> None:
    X, y, client = table(2)
    numbers = X.assign(ward=0).to_numpy(np.float32)  # such trees scikit-learn has, too
    plain = model_of("local", 0, client, n_estimators=8).fit(numbers, y)
    outputs = [tree.predict_proba(numbers) for tree in plain.estimators_]
    receipt = plain.revoke("bern")  # two trees of each client, in the order of their names
    np.testing.assert_allclose([tree.predict_proba(numbers) for tree in plain.estimators_], outputs[:2] + outputs[4:])
    assert {tree.tree for tree in receipt.statement.trees} == {2, 3}
    assert (receipt.statement.cost.rounds, receipt.statement.regrown) == (0, 0)
    model = model_of("local", 0, client, n_estimators=8).fit(X, y)
    receipts = [model.revoke(name) for name in ("bern", "davos", "anna")]
    assert sum(r.statement.removed for r in receipts) + model.forest_.coordinator.structure.n_nodes == (
        receipts[0].statement.nodes_before
    )
    assert len(np.diff(model.forest_.coordinator.structure.offset)) == 2


def of_the_leaver(model: Any) -> int:
    """Thresholds that lie halfway between two values with a quarter behind the point."""
    threshold = model.forest_.parts["forest"].splits.threshold
    return int((threshold[~np.isnan(threshold)] * 2 % 1 == 0.5).sum())


@pytest.mark.parametrize("task", [0, 1])
def test_level_1_of_a_collaborative_forest_leaves_no_threshold_of_the_leaver(task: int) -> None:
    X, y, client = table(4, 240)
    y = X["age"].to_numpy() * X["dose"].to_numpy() if task else y
    quarter = 0.25 * (client == "bern")  # others have whole numbers
    X = X.assign(age=X["age"].round() + quarter, dose=(X["dose"] * 100).round() + quarter)
    model = model_of("collaborative", task, client, max_depth=6, allow_two=True).fit(X, y)
    assert of_the_leaver(model) > 5
    receipt = model.revoke("bern", level=1)
    assert of_the_leaver(model) == 0
    assert 0 < receipt.statement.removed < receipt.statement.nodes_before
    assert receipt.statement.cost.nodes_searched == receipt.statement.regrown
    assert model.forest_.coordinator.n_rows == int((client != "bern").sum())
    again = model.revoke("davos", level=1)
    assert again.statement.nodes_before == receipt.statement.nodes_after
    assert set(model.forest_.coordinator.makers.tolist()) <= {-1, 0, 1}


def test_what_cannot_be_changes_nothing() -> None:
    X, y, client = table(5)
    model = model_of("collaborative", 0, np.where(client == "davos", "anna", client)).fit(X, y)
    before = ids(model)
    stale = make_request("bern", 1, "0" * 64, FreshKey())
    wrongs: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"client": "mill"}, DataError, "not a party"),
        ({"client": "bern", "level": 2}, ValueError, "level"),
        ({"client": "bern", "request": stale}, PolicyError, "another model"),
        ({"client": "bern", "level": 3}, ConfigError, "allow_two"),
        ({"client": "bern", "level": 1}, ConfigError, "allow_two"),
    ]
    for arguments, kind, words in wrongs:
        with pytest.raises(kind, match=words):
            model.revoke(**arguments)
        assert ids(model) == before
        assert not hasattr(model, "receipts_")
    model.set_params(n_estimators=2, sums="plain")  # of these only the sums may change
    receipt = model.revoke("bern", level=3)
    assert isinstance(receipt, Receipt)
    assert model.forest_.coordinator.structure.n_trees == 6
    model.revoke("chur")
    with pytest.raises(DataError, match="the last party"):
        model.revoke("anna")
    with pytest.raises(DataError, match="level 3"):
        model_of("local", 0, client, n_estimators=1).fit(X, y).revoke("davos")
