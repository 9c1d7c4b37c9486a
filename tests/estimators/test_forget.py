"""Forgetting rows: afterwards the forest is the one that grows without them, to the bit, and a receipt says so."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import woodlot as wl
from model_parts import check_kept_receipts
from woodlot.data.ids import canonical_ids
from woodlot.exceptions import DataError, ReceiptError
from woodlot.identity.erasure import ErasureReceipt
from woodlot.protocols.vertical.files import fingerprint_of, forest_id_of
from woodlot.trees import forgetting


def digests(model: Any) -> dict[str, Any]:
    """What two equal forests have in common, to the bit."""
    forest = model.forest_
    parts = {p: fingerprint_of(f) for p, f in forest.parts.items()}
    return {"coordinator": forest_id_of(forest.coordinator), "rows": forest.coordinator.n_rows} | parts


def make(n: int, seed: int, categories: bool) -> tuple[pd.DataFrame, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = pd.DataFrame(rng.normal(size=(n, 4)).round(1), columns=list("abcd"))
    if categories:
        X["town"] = rng.choice(["Bern", "Chur", "Genf", "Zug", "Thun"], n)
        X["kind"] = rng.choice(list("uvwxyz"), n)
    X.loc[rng.random(n) < 0.1, "b"] = np.nan
    score = X["a"] + rng.normal(size=n) * 0.5
    return X, np.asarray(score + X["town"].isin(["Zug", "Bern"]) if categories else score)


@pytest.fixture(autouse=True)
def small_nodes_have_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forgetting, "LARGE", 8)
    monkeypatch.setattr(forgetting, "MEASURED_AT", 1)
    monkeypatch.setattr(forgetting, "SEARCHED_SHARE", 100.0)
    monkeypatch.setattr(forgetting, "FAR", 1.0)
    # and few partitions by themselves, so that groups of cuts decide
    monkeypatch.setattr(forgetting, "RIVAL_SUMS", 1)
    monkeypatch.setattr(forgetting, "FEWEST_RIVALS", 2)
    monkeypatch.setattr(forgetting, "GROUP_SUMS", 24)


@pytest.mark.filterwarnings("ignore:Some inputs do not have OOB scores", "ignore::woodlot.trees.encoding.UnseenWarning")
@given(
    seed=st.integers(0, 10_000),
    n=st.integers(12, 150),
    task=st.sampled_from(["two", "three", "targets", "entropy"]),
    categories=st.booleans(),
    gaps=st.booleans(),
    weighted=st.sampled_from([None, None, "whole", "real"]),
    params=st.fixed_dictionaries(
        {
            "max_depth": st.sampled_from([None, None, 3]),
            "min_samples_leaf": st.sampled_from([1, 1, 3]),
            "min_samples_split": st.sampled_from([2, 5]),
            "max_features": st.sampled_from([None, "sqrt", 2]),
            "bootstrap": st.sampled_from([True, True, False]),
            "feature_sampling": st.sampled_from(["node", "node", "tree"]),
            "parties": st.integers(1, 3),
        }
    ),
    batches=st.lists(st.integers(1, 5), min_size=1, max_size=3),
)
@pytest.mark.slow
@settings(max_examples=60, deadline=None)
def test_the_forest_is_the_one_that_grows_without_the_rows(
    seed: int,
    n: int,
    task: str,
    categories: bool,
    gaps: bool,
    weighted: str | None,
    params: dict[str, Any],
    batches: list[int],
) -> None:
    X, score = make(n, seed, categories)
    if not gaps:  # splits are defended, and columns bounded unsorted, only where no value is missing
        X["b"] = X["b"].fillna(0.0)
    rng = np.random.default_rng(seed)
    weights = {None: None, "whole": rng.integers(1, 4, n) * 1.0, "real": rng.random(n) + 0.2}[weighted]
    params = params | {"n_estimators": 4, "random_state": seed, "bootstrap_by": "row"}
    kind: Any = wl.FederatedForestRegressor if task == "targets" else wl.FederatedForestClassifier
    y = {"targets": score, "three": np.digitize(score, [0, 1])}.get(task, (score > 0.3) * 1)
    if task == "entropy":
        params["criterion"] = "entropy"
    model = kind(**params).fit(X, y, sample_weight=weights)
    left = np.arange(n)
    for batch in batches:
        gone = rng.choice(left, min(batch, len(left) - 2), replace=False)
        receipt = model.forget(gone)
        left = np.setdiff1d(left, gone)
        again = kind(**params).fit(X.iloc[left], y[left], sample_weight=None if weights is None else weights[left])
        assert digests(model) == digests(again)
        assert np.array_equal(model.predict(X), again.predict(X))
        receipt.verify()
        assert (receipt.statement.rows, receipt.statement.rows_left) == (len(gone), len(left))


@pytest.mark.slow  # compiles what forgets
@pytest.mark.parametrize("n", [900])
def test_large_nodes_stand_by_the_bound(n: int) -> None:
    rng = np.random.default_rng(0)
    X = rng.integers(0, 6, size=(n, 5)).astype(float)
    y = (X[:, 0] + X[:, 1] + rng.normal(size=n) > 5) * 1
    model = wl.FederatedForestClassifier(n_estimators=10, max_depth=4, random_state=0, bootstrap_by="row").fit(X, y)
    stood = [model.forget([row]).statement.stood for row in range(6)]
    assert sum(stood[1:]) > 30
    again = wl.FederatedForestClassifier(n_estimators=10, max_depth=4, random_state=0, bootstrap_by="row")
    assert digests(model) == digests(again.fit(X[6:], y[6:]))


@pytest.mark.slow  # compiles what forgets
@pytest.mark.parametrize("criterion", ["gini", "entropy"])
def test_splits_are_defended_where_nothing_is_remembered(criterion: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forgetting, "LARGE", 200)
    monkeypatch.setattr(forgetting, "MEASURED_AT", 2)
    rng = np.random.default_rng(1)
    X = np.column_stack([rng.normal(size=(900, 4)), rng.integers(0, 9, size=(900, 2))])
    y = (X[:, 0] + X[:, 4] / 4 + rng.normal(size=900) > 1) * 1
    stood = []
    defend = forgetting.defend

    def counted(touched: Any, *rest: Any) -> None:
        before = rest[-1].copy()
        defend(touched, *rest)
        stood.append((before != rest[-1]).sum())

    monkeypatch.setattr(forgetting, "defend", counted)
    params: dict[str, Any] = {"n_estimators": 10, "random_state": 0, "bootstrap_by": "row", "criterion": criterion}
    model = wl.FederatedForestClassifier(**params).fit(X, y)
    for first in range(0, 24, 3):
        model.forget([first, first + 1, first + 2])
    assert sum(stood) > 200
    assert digests(model) == digests(wl.FederatedForestClassifier(**params).fit(X[24:], y[24:]))
    many = np.arange(24, 64)  # more than MOST_AT_ONCE: nodes that lose many give their records up
    again = model.forget(many).statement.again
    assert again == "" or criterion == "entropy"  # the scale of entropies is another for so many rows less
    assert digests(model) == digests(wl.FederatedForestClassifier(**params).fit(X[64:], y[64:]))


def companies(n: int = 120) -> tuple[dict[str, pd.DataFrame], np.ndarray]:
    X, score = make(n, 3, True)
    ids = np.array([f"c{k:04}" for k in range(n)])
    bank = X[["a", "b"]].assign(id=ids, late=np.where(score > 0.3, "yes", "no"))
    return {"bank": bank, "shop": X[["c", "d", "town", "kind"]].assign(id=ids)}, ids


@pytest.mark.slow  # compiles what forgets
@pytest.mark.filterwarnings("ignore:Some inputs do not have OOB scores")
def test_rows_are_forgotten_by_id_and_the_receipt_is_checked_offline(tmp_path: Any) -> None:
    tables, ids = companies()
    params: dict[str, Any] = {"n_estimators": 8, "random_state": 0, "bootstrap_by": "row", "oob_score": True}
    model = wl.FederatedForestClassifier(**params).fit(wl.Federation.local(tables, id="id"), y="bank.late")
    before = digests(model)["coordinator"]
    receipt = model.forget([ids[3], ids[77], "a stranger"], prove=True)
    rest = {name: table.drop(index=[3, 77]) for name, table in tables.items()}
    again = wl.FederatedForestClassifier(**params).fit(wl.Federation.local(rest, id="id"), y="bank.late")
    assert digests(model) == digests(again)
    assert model.oob_score_ == again.oob_score_
    assert np.array_equal(model.oob_decision_function_, again.oob_decision_function_, equal_nan=True)
    s = receipt.statement
    assert (s.rows, s.unknown, s.proved, s.model) == (2, 1, True, before)
    assert s.after["coordinator"] == digests(model)["coordinator"]
    assert receipt.names(canonical_ids([ids[3]]).values[0], receipt.key)
    assert not receipt.names(canonical_ids([ids[4]]).values[0], receipt.key)
    receipt.save(tmp_path / "receipt.json")
    text = (tmp_path / "receipt.json").read_text()
    assert str(ids[3]) not in text
    assert receipt.key.hex() not in text
    assert ErasureReceipt.load(tmp_path / "receipt.json").verify().signer.startswith("key ")
    forged = json.loads(text)
    forged["statement"]["rows"] = 3
    with pytest.raises(ReceiptError, match="changed"):
        ErasureReceipt.parse(json.dumps(forged).encode()).verify()


@pytest.mark.slow  # compiles what forgets
def test_rows_that_the_model_never_saw_change_nothing() -> None:
    tables, _ = companies()
    model = wl.FederatedForestClassifier(n_estimators=4, random_state=0, bootstrap_by="row")
    model.fit(wl.Federation.local(tables, id="id"), y="bank.late")
    before = digests(model)
    receipt = model.forget(["nobody"])
    assert digests(model) == before
    assert (receipt.statement.rows, receipt.statement.unknown) == (0, 1)
    assert model.forget(["c0001"]).statement.rows == 1
    assert model.forget(["c0001"]).statement.unknown == 1


@pytest.mark.parametrize(
    ("params", "reason"),
    [
        ({"bootstrap_by": "draw"}, "bootstrap_by='draw'"),
        ({"class_weight": "balanced"}, "balanced"),
        ({"max_leaf_nodes": 9}, "max_leaf_nodes"),
        ({"min_impurity_decrease": 0.001}, "min_impurity_decrease"),
        ({"max_bins": 8, "min_cell": 3}, "min_cell"),
    ],
)
def test_what_every_row_decides_is_grown_again(params: dict[str, Any], reason: str) -> None:
    X, score = make(100, 5, False)
    y = (score > 0) * 1
    params = {"n_estimators": 4, "random_state": 0, "bootstrap_by": "row"} | params
    model = wl.FederatedForestClassifier(**params).fit(X, y)
    receipt = model.forget([5, 50])
    assert reason in receipt.statement.again
    receipt.verify()
    left = np.setdiff1d(np.arange(100), [5, 50])
    assert digests(model) == digests(wl.FederatedForestClassifier(**params).fit(X.iloc[left], y[left]))


def test_the_last_row_of_a_class_takes_the_class_with_it() -> None:
    X, score = make(60, 6, False)
    y = np.where(score > 0, "yes", "no").astype(object)
    y[7] = "perhaps"
    model = wl.FederatedForestClassifier(n_estimators=4, random_state=0, bootstrap_by="row").fit(X, y)
    assert "class" in model.forget([7]).statement.again
    assert model.classes_.tolist() == ["no", "yes"]
    assert set(model.predict(X)) <= {"no", "yes"}


@pytest.mark.slow  # compiles what forgets
def test_bins_keep_their_edges() -> None:
    X, score = make(150, 8, False)
    y = (score > 0) * 1
    model = wl.FederatedForestClassifier(n_estimators=5, random_state=0, bootstrap_by="row", max_bins=200)
    model.fit(X, y)
    assert model.forget([1, 2]).statement.again == ""
    again = wl.FederatedForestClassifier(n_estimators=5, random_state=0, bootstrap_by="row", max_bins=200)
    assert digests(model) == digests(
        again.fit(X[2:].iloc[1:].pipe(lambda f: pd.concat([X[:1], f])), np.delete(y, [1, 2]))
    )


@pytest.mark.slow  # compiles what forgets
def test_a_loaded_model_forgets_with_its_data(tmp_path: Any) -> None:
    X, score = make(80, 9, True)
    y = (score > 0) * 1
    model = wl.FederatedForestClassifier(n_estimators=4, random_state=0, bootstrap_by="row").fit(X, y)
    model.save(tmp_path / "model")
    loaded: Any = wl.load(tmp_path / "model")
    with pytest.raises(DataError, match="give them again"):
        loaded.forget([4])
    loaded.forget([4], data=(X, y))
    model.forget([4])
    assert digests(loaded) == digests(model)
    loaded.save(tmp_path / "again")
    check_kept_receipts(loaded, wl.load(tmp_path / "again"))


def test_what_cannot_be_forgotten_is_refused() -> None:
    X, score = make(40, 10, False)
    y = (score > 0) * 1
    model = wl.FederatedForestClassifier(n_estimators=2, random_state=0, bootstrap_by="row").fit(X, y)
    before = digests(model)
    with pytest.raises(DataError, match="delete the model"):
        model.forget(np.arange(40))
    with pytest.raises(DataError, match="row numbers"):
        model.forget(["c1"])
    with pytest.raises(DataError, match="more than once"):
        model.forget([3, 3])
    assert digests(model) == before
    revocable = wl.RevocableForestClassifier(n_estimators=2, encryption="simulated", random_state=0).fit(
        X[["a", "c"]], y
    )
    with pytest.raises(DataError, match="forgets no rows"):
        revocable.forget([3])


@pytest.mark.slow  # compiles what forgets
def test_nobody_can_tell_a_forgotten_row_from_one_that_was_never_there() -> None:
    """Membership is told by how sure a forest is of a row's own label: it is as sure as if it had never seen it."""
    X, score = make(140, 5, False)
    y = (score > 0.3) * 1
    params: dict[str, Any] = {"n_estimators": 20, "random_state": 0, "bootstrap_by": "row"}
    gone, left = np.arange(20), np.arange(20, 140)
    model = wl.FederatedForestClassifier(**params).fit(X, y)

    def sureness(of: Any) -> np.ndarray:
        return np.asarray(of.predict_proba(X.iloc[gone]))[gone, y[gone]]

    member = sureness(model)
    model.forget(gone)
    never = wl.FederatedForestClassifier(**params).fit(X.iloc[left], y[left])
    assert np.array_equal(sureness(model), sureness(never))
    assert member.mean() > sureness(model).mean() + 0.1  # what the attack lives on was there before
