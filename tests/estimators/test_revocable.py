"""RevocableForestClassifier and Regressor: growing, encrypted answers, and leaving at each level."""

from __future__ import annotations

import contextlib
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "protocols"))

from revocable_world import ready_master
from sklearn.base import clone
from sklearn.utils.estimator_checks import parametrize_with_checks

import woodlot as wl
from woodlot.crypto._libraries import gmp
from woodlot.exceptions import DataError, EpochError, PolicyError
from woodlot.federation.local_revocable import Encryption, RevocableGrown
from woodlot.protocols.revocable.revocable_model import CoordinatorRevocable
from woodlot.protocols.vertical.files import fingerprint_of, forest_id_of
from woodlot.runtime.codec import encode

KEYS = Encryption(512, "test", ready_master)
N = 150
DEALING = {"bank": ["x3", "x1"], "shop": ["x0", "colour", "x4"], "club": ["x2", "x5"], "idle": []}
Model = wl.RevocableForestClassifier | wl.RevocableForestRegressor


def table(seed: int) -> tuple[pd.DataFrame, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = pd.DataFrame({f"x{k}": np.round(rng.normal(size=N), 1) for k in range(6)})
    X["colour"] = pd.Categorical(rng.choice([*"abcde", None], N))
    y = X["x1"] + (X["x2"] > 0) + X["x4"] * X["x5"] + (X["colour"] == "b") + rng.normal(size=N) * 0.3
    return X, y.to_numpy()


def parts_of(forest: RevocableGrown) -> dict[str, str]:
    return {"coordinator": forest_id_of(forest.coordinator)} | {p: fingerprint_of(f) for p, f in forest.parts.items()}


@parametrize_with_checks(
    [
        wl.RevocableForestClassifier(5, max_depth=4, encryption="simulated"),
        wl.RevocableForestRegressor(5, max_depth=4, encryption="simulated"),
    ]
)
def test_scikit_learn(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.parametrize("level", [1, 3])
def test_some_leave_together(level: int) -> None:
    X, y = table(5)
    params: dict[str, Any] = {"n_estimators": 6, "max_depth": 6, "random_state": 1, "encryption": KEYS}
    labels = np.digitize(y, [0.0, 1.5])
    model = wl.RevocableForestClassifier(parties=DEALING, **params).fit(X, labels)
    one_by_one = wl.RevocableForestClassifier(parties=DEALING, **params).fit(X, labels)
    leavers = ("shop", "idle", "bank")
    for wrong, words in [((), "name who leaves"), (("shop", "shop"), "revoked before"), (tuple(DEALING), "last party")]:
        with pytest.raises(DataError, match=words):
            model.revoke_together(wrong, level=level)
    with pytest.raises(DataError, match=r"name the parties in a list: revoke_together\(\['shop'\]\)"):
        model.revoke_together("shop", level=level)
    with pytest.raises(DataError, match="one participant leaves at a time"):
        model.revoke_together(leavers, level=2)
    receipts = model.revoke_together(leavers, level=level)
    assert [r.statement.party for r in receipts] == list(leavers)
    for receipt in receipts:
        receipt.verify()
        assert receipt.statement.parties_after == ("club",)
    searched = sum(one_by_one.revoke(p, level=level).statement.cost.nodes_searched for p in leavers)
    assert receipts[0].statement.cost.nodes_searched < searched
    rest = X[DEALING["club"]]
    fresh = wl.RevocableForestClassifier(parties={"club": DEALING["club"]}, **params).fit(rest, labels)
    assert level == 1 or parts_of(model.forest_) == parts_of(fresh.forest_)
    np.testing.assert_array_equal(model.predict_encrypted(rest[:5]), model.predict_proba(rest[:5]))


SETTINGS: list[dict[str, Any]] = [
    {},
    {"max_features": None, "rho": 0},
    {"max_features": 0.5, "min_samples_leaf": 3},
    {"reuse_features": False, "max_features": 3},
    {"bootstrap": False, "zeta": 3, "rho": 5},
]


@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 2**20),
    setting=st.sampled_from(SETTINGS),
    leaver=st.sampled_from(["shop", "club", "bank"]),
    regression=st.booleans(),
)
def test_level_3_equals_the_forest_grown_without_the_leaver(
    seed: int, setting: dict[str, Any], leaver: str, regression: bool
) -> None:
    X, y = table(seed)
    kind: type[Model] = wl.RevocableForestRegressor if regression else wl.RevocableForestClassifier
    labels = y if regression else np.digitize(y, [0.0, 1.5])
    params = {"n_estimators": 6, "max_depth": 6, "random_state": seed, "encryption": "simulated"} | setting
    model = kind(parties=DEALING, **params).fit(X, labels)
    before = model.forest_.coordinator
    receipt = model.revoke(leaver, level=3)
    stays = {party: columns for party, columns in DEALING.items() if party != leaver}
    rest = X[[c for c in X.columns if c not in DEALING[leaver]]]
    fresh = kind(parties=stays, **params).fit(rest, labels)
    assert parts_of(model.forest_) == parts_of(fresh.forest_)
    np.testing.assert_array_equal(model.forest_.rebuilding.rows, fresh.forest_.rebuilding.rows)
    np.testing.assert_array_equal(model.predict(rest), fresh.predict(rest))
    receipt.verify()
    assert receipt.statement.nodes_before == before.structure.n_nodes
    # every node that is searched stands in the new forest: never more than growing it from scratch
    assert receipt.statement.cost.nodes_searched <= model.forest_.coordinator.structure.n_nodes

    again = kind(parties=DEALING, **params).fit(X, labels)
    levelled = again.revoke(leaver)
    assert set(again.forest_.coordinator.parties) == set(stays)
    gone = before.parties.index(leaver)
    trees = np.repeat(np.arange(before.structure.n_trees), np.diff(before.structure.offset))
    assert {t.tree for t in levelled.statement.trees} == set(trees[before.owner == gone])


@pytest.fixture(scope="module")
def companies() -> dict[str, pd.DataFrame]:
    X, y = table(5)
    X["target"], X["id"] = y > 0.5, np.arange(N)
    return {
        "bank": X[["id", "x1", "x3", "target"]],
        "shop": X[["id", "x0", "colour", "x4"]].sample(frac=1, random_state=0),
        "club": X[["id", "x2", "x5"]],
    }


def halves(tables: dict[str, pd.DataFrame]) -> tuple[wl.Federation, wl.Federation]:
    cut = {name: (t[t["id"] < 120], t[t["id"] >= 120]) for name, t in tables.items()}
    return tuple(wl.Federation.local({n: pair[k] for n, pair in cut.items()}, id="id") for k in (0, 1))  # type: ignore[return-value]


@pytest.fixture
def fitted(companies: dict[str, pd.DataFrame]) -> tuple[wl.RevocableForestClassifier, wl.Federation, wl.Federation]:
    train, test = halves(companies)
    model = wl.RevocableForestClassifier(4, max_depth=3, random_state=0, scheme="paper", encryption=KEYS)
    return model.fit(train, y="bank.target"), train, test


@pytest.fixture
def shared(companies: dict[str, pd.DataFrame]) -> tuple[wl.RevocableForestClassifier, wl.Federation, wl.Federation]:
    train, test = halves(companies)
    model = wl.RevocableForestClassifier(4, max_depth=3, random_state=0, scheme="shares")
    return model.fit(train, y="bank.target"), train, test


Fitted = tuple[wl.RevocableForestClassifier, wl.Federation, wl.Federation]


def test_encrypted_answers_are_those_in_clear_before_and_after_each_leaves(fitted: Fitted) -> None:
    model, _, test = fitted
    few = wl.Federation.local({p: m.source.head(4) for p, m in test.members.items()}, id="id", join="inner")
    np.testing.assert_array_equal(model.predict_encrypted(few), model.predict_proba(few))
    former = model.forest_
    secrets = former.memo.secrets
    old = CoordinatorRevocable(former.coordinator, secrets.splits)

    first = model.revoke("shop", level=1, holdout=test)
    assert (first.statement.keys_before, first.statement.keys_after) == (1, 1)
    assert first.statement.revoked_key
    assert "encrypted splits" in first.statement.after
    kept = secrets.splits.data.tobytes()
    new = model.forest_.memo.secrets.splits
    assert new.data.shape[0] == int((model.forest_.coordinator.owner >= 0).sum())
    assert any(line.tobytes() in kept for line in new.data)  # what stays is not encrypted again
    np.testing.assert_array_equal(model.predict_encrypted(few), model.predict_proba(few))
    rows = np.zeros((1, 7))
    ring = model.forest_.memo.secrets.ring
    with pytest.raises(PolicyError, match="shop"):
        ring.predict(old, ring.request(rows, "user"))

    second = model.revoke("club", level=2)
    assert (second.statement.keys_before, second.statement.keys_after) == (1, 2)
    second.verify()
    np.testing.assert_array_equal(model.predict_encrypted(few), model.predict_proba(few))
    with pytest.raises(EpochError):
        ring.predict(old, ring.request(rows, "user"))
    with pytest.raises(DataError, match="last party"):
        model.revoke("bank", level=2)


def test_shares_answer_as_in_clear_before_and_after_each_leaves(shared: Fitted) -> None:
    model, _, test = shared
    np.testing.assert_array_equal(model.predict_encrypted(test), model.predict_proba(test))
    former, secrets = model.forest_, model.forest_.memo.secrets
    ring, old = secrets.ring, secrets.splits
    before = old.commits["shop"][1].hex()

    first = model.revoke("shop", level=1, holdout=test)
    assert (first.statement.keys_before, first.statement.keys_after) == (1, 1)
    assert first.statement.revoked_key == f"shares {before}"  # what helper and key service have deleted
    assert first.statement.after["encrypted splits"] == model.forest_.memo.secrets.splits.registered.hex()
    first.verify()
    for holder in (ring.helper, ring.key_service):
        assert [sorted(held) for held in holder.book.lines.values()] == [["bank", "club"]]
    np.testing.assert_array_equal(model.predict_encrypted(test), model.predict_proba(test))
    with pytest.raises(EpochError, match="signed for other splits"):
        ring.predict(former.coordinator, old, ring.request(np.zeros((1, 7)), "user"))

    second = model.revoke("club", level=2)
    assert (second.statement.keys_before, second.statement.keys_after) == (1, 2)
    np.testing.assert_array_equal(model.predict_encrypted(test), model.predict_proba(test))
    with pytest.raises(EpochError):
        ring.predict(former.coordinator, old, ring.request(np.zeros((1, 7)), "user"))


def test_shares_of_a_forest_that_is_loaded_and_left_at_level_3(shared: Fitted, tmp_path: Path) -> None:
    model, train, test = shared
    model.save(tmp_path / "model")
    loaded = wl.load(tmp_path / "model")
    assert loaded.scheme == "shares"
    np.testing.assert_array_equal(loaded.predict_encrypted(test), model.predict_proba(test))
    loaded.revoke("shop", level=3, data=train)
    fresh = clone(model).fit(train.without("shop"), y="bank.target")
    assert parts_of(loaded.forest_) == parts_of(fresh.forest_)
    np.testing.assert_array_equal(loaded.predict_encrypted(test), fresh.predict_proba(test))
    with pytest.raises(DataError, match="fit the forest with scheme='paper'"):
        model.score(test, encrypted_splits=True)


def test_what_cannot_be_revoked_changes_nothing(fitted: Fitted) -> None:
    model, _, test = fitted
    before, answers = parts_of(model.forest_), model.predict(test)
    for party, words in [("mill", "not a party"), ("bank", "holds the labels")]:
        with pytest.raises(DataError, match=words):
            model.revoke(party, level=2)
    with pytest.raises(ValueError, match="level"):
        model.revoke("shop", level=4)
    assert parts_of(model.forest_) == before
    np.testing.assert_array_equal(model.predict(test), answers)
    model.revoke("shop")
    with pytest.raises(DataError, match="revoked before"):
        model.revoke("shop")


def test_models_are_kept_without_keys_and_revoked_with_their_data(fitted: Fitted, tmp_path: Path) -> None:
    model, train, test = fitted
    plain = wl.RevocableForestClassifier(4, max_depth=3, random_state=0, encryption="simulated")
    plain.fit(train, y="bank.target")
    assert parts_of(plain.forest_) == parts_of(model.forest_)
    with pytest.raises(DataError, match="no keys"):
        plain.predict_encrypted(test)
    plain.save(tmp_path / "model")
    fresh = wl.RevocableForestClassifier(4, max_depth=3, random_state=0, encryption="simulated")
    fresh.fit(train.without("shop"), y="bank.target")
    for again in (wl.load(tmp_path / "model"), pickle.loads(pickle.dumps(plain))):  # noqa: S301
        assert isinstance(again, wl.RevocableForestClassifier)
        np.testing.assert_array_equal(again.predict_proba(test), plain.predict_proba(test))
        again.revoke("shop", level=3, data=train)
        assert parts_of(again.forest_) == parts_of(fresh.forest_)


def test_an_encrypted_request_names_every_party(fitted: Fitted) -> None:
    model, _, test = fitted
    renamed = test.with_members({name.replace("shop", "shpo"): member for name, member in test.members.items()})
    with pytest.raises(DataError, match=r"'shpo' is not a party of this model.*did you mean 'shop'"):
        model.predict_encrypted(renamed)
    with pytest.raises(DataError, match=r"needs the columns of every party; \['shop'\] are not here"):
        model.predict_encrypted(test.without("shop"))


@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 10**6), depth=st.integers(1, 6), classes=st.booleans(), weighted=st.booleans())
def test_the_score_by_encrypted_splits_is_the_score(seed: int, depth: int, classes: bool, weighted: bool) -> None:
    X, y = table(seed)
    kind: Any = wl.RevocableForestClassifier if classes else wl.RevocableForestRegressor
    labels = y > 0.5 if classes else y
    model: Model = kind(5, max_depth=depth, random_state=seed, scheme="paper", encryption=KEYS, parties=DEALING)
    model.fit(X[:100], labels[:100])
    weights = np.random.default_rng(seed).uniform(size=N - 100) if weighted else None
    expected = model.score(X[100:], labels[100:], weights)
    assert model.score(X[100:], labels[100:], weights, encrypted_splits=True) == expected


def test_scores_by_encrypted_splits_before_and_after_each_leaves(fitted: Fitted, tmp_path: Path) -> None:
    model, _, test = fitted
    assert model.score(test, encrypted_splits=True) == model.score(test)
    assert {row.receiver for row in model.prediction_disclosure_ if row.kind == "TestRows"} <= {"bank", "shop", "club"}
    model.save(tmp_path / "model")
    loaded = wl.load(tmp_path / "model").set_params(encryption=KEYS)  # its keys are new ones
    assert loaded.score(test, "bank.target", encrypted_splits=True) == model.score(test)
    model.revoke("shop", level=1)
    assert model.score(test, encrypted_splits=True) == model.score(test)
    model.revoke("club", level=2)
    assert model.score(test, encrypted_splits=True) == model.score(test)


def test_what_is_said_in_a_score_does_not_depend_on_labels(fitted: Fitted) -> None:
    model, _, test = fitted
    said: list[list[tuple[str, str, bytes]]] = []
    for labels in ("bank.target", "bank.x1"):
        said.append([])
        test.observer = lambda sender, receiver, message: said[-1].append((sender, receiver, encode(message)))
        with contextlib.suppress(ValueError):  # numbers are no classes: that is noticed when all has been said
            model.score(test, labels, encrypted_splits=True)
    assert said[0] == said[1] != []


def test_scores_by_encrypted_splits_that_are_refused(fitted: Fitted, companies: dict[str, pd.DataFrame]) -> None:
    model, train, test = fitted
    with pytest.raises(ValueError, match="choose one of them"):
        model.score(test, sealed=True, encrypted_splits=True)
    with pytest.raises(DataError, match="'club' is absent"):
        model.score(test.without("club"), encrypted_splits=True)
    cut = companies | {"club": companies["club"][5:]}
    with pytest.raises(DataError, match="every row at every party"):
        model.score(wl.Federation.local(cut, id="id", join="outer"), encrypted_splits=True)
    sealed = wl.Federation.local(companies, id="id", sealed_predictions=["shop"])
    with pytest.raises(PolicyError, match="under seal only: score with sealed=True"):
        model.score(sealed, encrypted_splits=True)
    simulated = clone(model).set_params(encryption="simulated").fit(train, y="bank.target")
    with pytest.raises(DataError, match="fit it with keys"):
        simulated.score(test, encrypted_splits=True)


def test_bad_rows_are_refused() -> None:
    X, y = table(3)
    model = wl.RevocableForestRegressor(3, max_depth=2, random_state=0, encryption=KEYS, parties=DEALING).fit(X, y)
    np.testing.assert_array_equal(model.predict_encrypted(X.head(3))[:, 0], model.predict(X.head(3)))
    holes = X.head(3).copy()
    holes.loc[1, "x2"] = np.nan
    with pytest.raises(DataError, match="x2"):
        model.predict_encrypted(holes)
    with pytest.raises(ValueError, match="infin"):
        model.predict_encrypted(X.head(3).assign(x2=np.inf))
    with pytest.raises(ValueError, match="feature"):
        model.predict_encrypted(X.head(3).drop(columns="x2"))
    with pytest.raises(DataError, match="x2"):
        wl.RevocableForestRegressor(2, encryption="simulated").fit(holes, y[:3])
    for wrong in (
        {"encryption": 1024},
        {"encryption": "none"},
        {"rho": -1},
        {"zeta": 0},
        {"zeta": 300},
        {"max_depth": None},
    ):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            wl.RevocableForestRegressor(2, **{"encryption": "simulated"} | wrong).fit(X, y)


def test_a_label_holder_without_columns_scores_out_of_bag() -> None:
    X = np.random.default_rng(0).normal(size=(60, 3))
    y, dealing = X[:, 0] > 0, {"office": [], "bank": [0, 1], "shop": [2]}
    model = wl.RevocableForestClassifier(
        8, max_depth=3, random_state=0, encryption="simulated", oob_score=True, parties=dealing
    ).fit(X, y)
    plain = clone(model).set_params(parties=1).fit(X, y)
    assert model.oob_score_ == plain.oob_score_
    assert model.revoke("bank", level=3).statement.scores is not None


def test_without_the_extra_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    X = pd.DataFrame({"a": np.arange(20.0), "b": np.arange(20.0)[::-1]})
    gmp.cache_clear()
    monkeypatch.setitem(sys.modules, "gmpy2", None)
    try:
        with pytest.raises(DataError, match=r"gmpy2 is not installed.*pip install 'woodlot\[crypto\]'"):
            wl.RevocableForestClassifier(1, max_depth=1, parties=2, scheme="paper").fit(X, X["a"] > 9)
        shared = wl.RevocableForestClassifier(1, max_depth=1, parties=2).fit(X, X["a"] > 9)  # it needs no big numbers
        np.testing.assert_array_equal(shared.predict_encrypted(X), shared.predict_proba(X))
    finally:
        gmp.cache_clear()
