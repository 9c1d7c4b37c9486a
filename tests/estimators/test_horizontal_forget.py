"""Rows are taken out of a horizontal forest: it is then the one that grows without them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import woodlot as wl
from model_parts import check_kept_receipts
from woodlot.data.ids import canonical_ids
from woodlot.exceptions import DataError
from woodlot.identity.erasure import ErasureReceipt
from woodlot.protocols.vertical.files import fingerprint_of, forest_id_of

CLIENTS = ("anna", "bern", "chur")
KINDS: dict[str, tuple[Any, Any]] = {
    "local": (wl.LocalForestsClassifier, wl.LocalForestsRegressor),
    "collaborative": (wl.CollaborativeForestClassifier, wl.CollaborativeForestRegressor),
    "extra-trees": (wl.FederatedExtraTreesClassifier, wl.FederatedExtraTreesRegressor),
    "lossless": (wl.HorizontalForestClassifier, wl.HorizontalForestRegressor),
}


def table(seed: int, n: int = 120) -> tuple[pd.DataFrame, np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Rows, classes and targets; a category, a class and the largest target are of one row each."""
    rng = np.random.default_rng(seed)
    client = np.array(CLIENTS)[rng.integers(0, len(CLIENTS), n)]
    X = pd.DataFrame({"age": rng.normal(50, 15, n), "dose": rng.random(n), "ward": rng.choice(["n", "s"], n)})
    X.loc[rng.random(n) < 0.1, "dose"] = np.nan
    X.loc[3, "ward"] = "own"
    y = np.where(X["age"] / 50 + X["dose"].fillna(0) + 0.3 * rng.normal(size=n) > 1.5, "yes", "no").astype(object)
    y[5] = "rare"
    return X, y, client


def targets_of(X: pd.DataFrame) -> np.ndarray[Any, Any]:
    y = X["age"].to_numpy() * X["dose"].fillna(0).to_numpy()
    y[7] = 1e4
    return np.asarray(y)


def model_of(method: str, task: int, **params: Any) -> Any:
    options = {"n_estimators": 6, "max_depth": 4, "min_samples_leaf": 2, "random_state": 3} | params
    return KINDS[method][task](**options)


def on_clients(method: str, **params: Any) -> Any:
    """As `model_of`, for clients whose tables nobody sees together."""
    declared = {"age": (0, 120), "dose": (0, 1), "ward": ["n", "own", "s"]}
    return model_of(method, 0, **params, **({"declared": declared} if method == "extra-trees" else {}))


def ids(model: Any) -> tuple[str, str]:
    return forest_id_of(model.forest_.coordinator), fingerprint_of(model.forest_.parts["forest"])


@pytest.mark.parametrize("method", KINDS)
@settings(max_examples=6, deadline=None)
@given(
    seed=st.integers(0, 1000),
    task=st.integers(0, 1),
    first=st.sets(st.sampled_from([3, 5, 7, *range(20, 40)]), min_size=1, max_size=6),
    second=st.sets(st.integers(40, 60), min_size=1, max_size=3),
    weighted=st.booleans(),
)
def test_the_forest_is_the_one_that_grows_without_the_rows(
    method: str, seed: int, task: int, first: set[int], second: set[int], weighted: bool
) -> None:
    X, y, client = table(seed)
    y = targets_of(X) if task else y
    weights: Any = {}
    if weighted and method in ("local", "lossless"):
        weights = {"sample_weight": np.random.default_rng(seed).integers(1, 4, len(X)).astype(float)}
    model = model_of(method, task, parties=client).fit(X, y, **weights)
    before = ids(model)
    gone: set[int] = set()
    for some in (first, second):  # another deletion on top
        gone |= some
        s = model.forget(sorted(some), prove=True).statement
        assert (s.rows, s.unknown, s.rows_left, s.proved) == (len(some), 0, len(X) - len(gone), True)
        assert set(s.before.values()) == set(before)
        before = ids(model)
        assert set(s.after.values()) == set(before)
        rest = np.setdiff1d(np.arange(len(X)), list(gone))
        kept = {name: values[rest] for name, values in weights.items()}
        fresh = model_of(method, task, parties=client[rest]).fit(X.iloc[rest], y[rest], **kept)
        assert ids(fresh) == before
        np.testing.assert_array_equal(model.predict(X.iloc[rest]), fresh.predict(X.iloc[rest]))
        if not task:
            assert list(model.classes_) == list(fresh.classes_)
    assert len(model.erasures_) == 2


def federation(X: pd.DataFrame, y: Any, client: Any, **options: Any) -> Any:
    whole = X.assign(ill=y, id=X.index + 100)
    return wl.Federation.local({name: whole[client == name] for name in CLIENTS}, layout="rows", **options)


@pytest.mark.parametrize("method", KINDS)
def test_on_a_federation_by_id_and_only_where_the_ids_are_asked_for(method: str) -> None:
    X, y, client = table(1)
    model = on_clients(method).fit(federation(X, y, client, id="id"), y="ill")
    before = ids(model)
    at = {name: int(np.flatnonzero(client == name)[0]) for name in CLIENTS}
    receipt = model.forget({"anna": [at["anna"] + 100, at["bern"] + 100], "chur": [at["chur"] + 100]}, prove=True)
    s = receipt.statement
    assert (s.rows, s.unknown) == (2, 1)  # bern was not asked
    rest = np.setdiff1d(np.arange(len(X)), [at["anna"], at["chur"]])
    fresh = on_clients(method).fit(federation(X.iloc[rest], y[rest], client[rest], id="id"), y="ill")
    assert ids(model) == ids(fresh) != before
    receipt.verify()
    assert receipt.names(canonical_ids([at["chur"] + 100]).values[0], receipt.key)
    nothing = model.forget([1, 2]).statement
    assert (nothing.rows, nothing.unknown, nothing.trees) == (0, 2, ())
    assert ids(model) == ids(fresh)
    with pytest.raises(DataError, match=r"\['dora'\], who are no clients"):
        model.forget({"dora": [1]})
    with pytest.raises(DataError, match="delete the model instead"):
        model.forget((np.arange(len(X)) + 100).tolist())


@pytest.mark.parametrize("task", [0, 1])
def test_clients_of_local_forests_keep_the_trees_that_none_of_the_rows_is_in(task: int) -> None:
    X, y, client = table(6)
    y = targets_of(X) if task else y
    model = model_of("local", task, parties=client, n_estimators=7).fit(X, y)
    anna = [int(row) for row in np.flatnonzero(client == "anna") if row not in (3, 5, 7)]
    s = model.forget(anna[:2], prove=True).statement
    assert (s.again, [tree.tree for tree in s.trees]) == ("", [0, 1])
    assert s.searched == sum(tree.regrown for tree in s.trees)
    grew = [row for row in model.disclosure_ if row.kind == "LocalTrees"]
    assert [(row.sender, row.count) for row in grew] == [("anna", 1)]
    rest = np.setdiff1d(np.arange(len(X)), anna[:2])
    assert ids(model) == ids(model_of("local", task, parties=client[rest], n_estimators=7).fit(X.iloc[rest], y[rest]))
    assert model.forget([3]).statement.again  # the only row of its category: every client's columns are others
    model.revoke("chur", level=1)
    assert model.forest_.coordinator.structure.n_trees < 7
    assert model.forget([int(np.flatnonzero(client == "bern")[4])]).statement.again  # what has gone is grown again
    assert model.forest_.coordinator.structure.n_trees == 7


def test_a_part_of_a_federation_forgets_rows_and_then_a_client_leaves() -> None:
    X, y, client = table(2)
    whole = federation(X, y, client, id="id")
    train = whole.split(0.3, seed=1)[0]
    model = model_of("lossless", 0, allow_two=True).fit(train, y="ill")
    gone = [int(np.flatnonzero(client == "anna")[k]) + 100 for k in range(4)]
    rows = model.forget(gone).statement.rows
    assert 0 < rows <= 4
    assert model.forest_.coordinator.n_rows == train.n_rows - rows
    model.revoke("bern", level=3)
    rest = ~np.isin(np.arange(len(X)) + 100, gone)
    fresh_of = federation(X[rest], y[rest], client[rest], id="id").split(0.3, seed=1)[0].without("bern")
    assert ids(model) == ids(model_of("lossless", 0, allow_two=True).fit(fresh_of, y="ill"))


def test_the_sums_of_both_growths_differ_by_the_row() -> None:
    """What the coordinator can subtract, secure or not: shown on sums that are not masked."""
    X, y, client = table(8)
    whole, heard = federation(X, y, client, id="id"), []
    gone = int(np.flatnonzero((client == "anna") & (y == "yes"))[0])

    def listen(sender: str, receiver: str, message: Any) -> None:
        if (sender, type(message).__name__) == ("anna", "PlainVector"):
            heard[-1].append(message)

    whole.observer = listen
    heard.append([])
    model = model_of("lossless", 0, sums="plain", max_depth=2, n_estimators=3).fit(whole, y="ill")
    heard.append([])
    model.forget([gone + 100])
    classes, shape = list(model.classes_), (3 + 1, len(model.classes_) + 2)
    drawn = [next(m.values[:-2] for m in side if len(m.values) == shape[0] * shape[1] + 2) for side in heard]
    totals = [values.astype(np.int64).reshape(shape) for values in drawn]
    every_row = (totals[0] - totals[1])[-1]  # what is added for trees that draw no row
    assert every_row[: len(classes)].tolist() == [int(name == "yes") for name in classes]  # the row's label


def test_a_loaded_model_needs_its_tables_again(tmp_path: Path) -> None:
    X, y, client = table(4)
    whole = federation(X, y, client, id="id")
    model_of("local", 0).fit(whole, y="ill").save(tmp_path / "model")
    loaded = wl.load(tmp_path / "model")
    with pytest.raises(DataError, match="give them again"):
        loaded.forget([103])
    other = federation(X.iloc[1:], y[1:], client[1:], id="id")
    with pytest.raises(DataError, match="do not give this model"):
        loaded.forget([103], data=other)
    receipt = loaded.forget([103], data=whole)
    assert receipt.statement.rows == 1
    rest = np.arange(len(X)) != 3
    fresh = model_of("local", 0).fit(federation(X[rest], y[rest], client[rest], id="id"), y="ill")
    assert ids(loaded) == ids(fresh)
    loaded.save(tmp_path / "again")
    check_kept_receipts(loaded, wl.load(tmp_path / "again"))
    path = tmp_path / "receipt.json"
    receipt.save(path)
    assert ErasureReceipt.load(path).statement == receipt.statement
    free = model_of("local", 0, random_state=None, parties=client).fit(X, y)
    with pytest.raises(DataError, match="without random_state"):
        free.forget([3], data=(X, y))
    free.forget([3])  # in the process that has grown it, the seed is known


def test_what_cannot_forget_says_why() -> None:
    X, y, client = table(5)
    model = model_of("collaborative", 0).fit(federation(X.drop(columns="ward"), y, client), y="ill")
    with pytest.raises(DataError, match="have no ids"):
        model.forget([3])
    noisy = [
        model_of("collaborative", 0, parties=client, leaf_average="rows", dp_leaf_epsilon=1.0),
        model_of("extra-trees", 0, parties=client, privacy=wl.LocalDP(epsilon=2.0), classes=["no", "rare", "yes"],
                 declared={"age": (0, 120), "dose": (0, 1), "ward": ["n", "own", "s"]}),
    ]  # fmt: skip
    for model in noisy:
        fitted = model.fit(X, y)
        before = ids(fitted)
        with pytest.raises(DataError, match="differential privacy"):
            fitted.forget([3])
        assert ids(fitted) == before
