"""Draws of single rows: Poisson distributed, and the same whichever other rows there are."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

import woodlot as wl
from woodlot.exceptions import DataError
from woodlot.protocols.vertical.files import fingerprint_of, forest_id_of
from woodlot.trees.drawing import RowDraws, id_keys


def digests(model: wl.FederatedForestClassifier | wl.FederatedForestRegressor) -> dict[str, str]:
    """What two equal forests have in common, to the bit."""
    forest = model.forest_
    return {"coordinator": forest_id_of(forest.coordinator)} | {p: fingerprint_of(f) for p, f in forest.parts.items()}


def keys(n: int) -> np.ndarray:
    return id_keys([str(k).encode() for k in range(n)])


@pytest.mark.parametrize("rate", [0.3, 1.0, 2.5])
def test_the_draws_are_poisson_distributed(rate: float) -> None:
    draws = RowDraws.of(keys(20_000), rate, None)
    counts = np.concatenate([draws.counts(7, tree) for tree in range(5)])
    for k in range(4):
        expected = math.exp(-rate) * rate**k / math.factorial(k)
        assert abs((counts == k).mean() - expected) < 5 * math.sqrt(expected / len(counts))


def test_the_mean_is_the_rate_times_the_weight() -> None:
    weights = np.repeat([0.0, 0.5, 3.0, 40.0, 1500.0], 400)
    draws = RowDraws.of(keys(2000), 1.0, weights)
    counts = np.mean([draws.counts(1, tree) for tree in range(40)], axis=0).reshape(5, 400).mean(axis=1)
    assert np.allclose(counts, [0.0, 0.5, 3.0, 40.0, 1500.0], rtol=0.05)
    assert counts[0] == 0


def test_other_rows_change_no_draw() -> None:
    all_keys = keys(500)
    kept = np.sort(np.random.default_rng(0).choice(500, 300, replace=False))
    for tree in range(20):
        with_others = RowDraws.of(all_keys, 0.7, None).counts(3, tree)[kept]
        assert np.array_equal(with_others, RowDraws.of(all_keys[kept], 0.7, None).counts(3, tree))


def test_a_tree_that_draws_no_row_has_every_row_with_a_weight_once() -> None:
    draws = RowDraws.of(keys(3), 0.01, np.array([1.0, 0.0, 1.0]))
    counts = np.stack([draws.counts(0, tree) for tree in range(50)])
    assert (counts == [1, 0, 1]).all(axis=1).sum() > 30
    assert (counts[:, 1] == 0).all()


def _table(n: int, seed: int = 0) -> tuple[pd.DataFrame, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = pd.DataFrame(rng.normal(size=(n, 4)).round(1), columns=list("abcd"))
    X["town"] = rng.choice(["Bern", "Chur", "Genf", "Zug"], n)
    X.loc[rng.random(n) < 0.1, "b"] = np.nan
    return X, np.asarray((X["a"] + (X["town"] == "Zug") + rng.normal(size=n) > 0.3).map({True: "yes", False: "no"}))


@pytest.mark.parametrize("kind", [wl.FederatedForestClassifier, wl.FederatedForestRegressor])
def test_the_order_of_rows_changes_nothing(kind: type) -> None:
    X, y = _table(200)
    y = y if kind is wl.FederatedForestClassifier else np.asarray(X["a"] ** 2 + X["c"])
    order = np.random.default_rng(1).permutation(len(y))
    model = kind(n_estimators=25, random_state=0, bootstrap_by="row", oob_score=True)
    first = digests(model.fit(X, y))
    oob = model.forest_.oob_outputs.copy()
    assert first == digests(model.fit(X.iloc[order], y[order]))
    assert np.array_equal(oob[order], model.forest_.oob_outputs, equal_nan=True)


def test_by_id_neither_order_nor_values_decide_the_draws() -> None:
    X, y = _table(150)
    bank = X[["a", "b"]].assign(id=np.arange(150) * 7, late=y)
    shop = X[["c", "d", "town"]].assign(id=np.arange(150) * 7)
    model = wl.FederatedForestClassifier(n_estimators=10, random_state=0, bootstrap_by="row")
    fed = wl.Federation.local({"bank": bank, "shop": shop.sample(frac=1, random_state=3)}, id="id")
    first = digests(model.fit(fed, y="bank.late"))
    again = wl.Federation.local({"bank": bank.sample(frac=1, random_state=4), "shop": shop}, id="id")
    assert first == digests(model.fit(again, y="bank.late"))


def test_a_party_leaves_a_forest_of_rows_by_id_exactly() -> None:
    X, y = _table(150)
    tables = {
        "bank": X[["a", "b"]].assign(id=np.arange(150), late=y),
        "shop": X[["c", "d"]].assign(id=np.arange(150)),
        "club": X[["town"]].assign(id=np.arange(150)),
    }
    model = wl.FederatedForestClassifier(n_estimators=10, random_state=0, bootstrap_by="row")
    model.fit(wl.Federation.local(tables, id="id"), y="bank.late")
    model.revoke("club", level=3)
    del tables["club"]
    alone = wl.FederatedForestClassifier(n_estimators=10, random_state=0, bootstrap_by="row")
    assert digests(model) == digests(alone.fit(wl.Federation.local(tables, id="id"), y="bank.late"))


def test_what_makes_a_draw_depend_on_other_rows_is_refused() -> None:
    X, y = _table(60)
    for params, words in (
        ({"max_samples": 30}, "give a share"),
        ({"class_weight": "balanced_subsample"}, "balanced_subsample"),
        ({"protection": "hidden"}, "protection='open'"),
    ):
        with pytest.raises(DataError, match=words):
            wl.FederatedForestClassifier(bootstrap_by="row", n_estimators=3, **params).fit(X, y)
    with pytest.raises(DataError, match="at most 4,096"):
        wl.FederatedForestClassifier(bootstrap_by="row", n_estimators=3).fit(X, y, sample_weight=np.full(60, 1e5))
    model = wl.FederatedForestClassifier(bootstrap_by="row", n_estimators=3).fit(X, y)
    with pytest.raises(DataError, match="drawn by all they hold"):
        model.revoke("party-2", level=3)


def test_a_default_is_not_written_and_others_are_read_back(tmp_path: object) -> None:
    X, y = _table(60)
    model = wl.FederatedForestClassifier(bootstrap_by="row", n_estimators=3, random_state=0).fit(X, y)
    model.save(f"{tmp_path}/model")
    assert wl.load(f"{tmp_path}/model").bootstrap_by == "row"
