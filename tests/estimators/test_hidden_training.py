"""``protection="hidden"`` as an estimator's parameter: the forest of ``"open"``, and other messages."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import woodlot as wl
from woodlot.data.tables import read_table
from woodlot.exceptions import DataError

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "protocols"))

from hidden_cases import assert_same

FLOORS: dict[str, Any] = {"min_samples_leaf": 20, "max_bins": 32, "min_cell": 20}
LIMITS: dict[str, Any] = {"n_estimators": 4, "max_depth": 4, "random_state": 0, **FLOORS}


def tables(n: int = 400) -> dict[str, pd.DataFrame]:
    rng = np.random.default_rng(0)
    bank = pd.DataFrame({"age": rng.normal(size=n), "income": rng.normal(size=n)})
    shop = pd.DataFrame({"visits": rng.integers(0, 9, n).astype(float), "kind": rng.choice(["a", "b", "c"], n)})
    shop.loc[::7, "visits"] = np.nan
    bank["late"] = np.where(bank["age"] + shop["visits"].fillna(4) / 4 + rng.normal(size=n) > 1, "yes", "no")
    bank["amount"] = bank["age"] * 3 + shop["visits"].fillna(0)
    club = pd.DataFrame({"sport": rng.normal(size=n)})
    return {"bank": bank, "shop": shop, "club": club}


@pytest.fixture(scope="module")
def federation() -> wl.Federation:
    return wl.Federation.local(tables())


def test_a_federation_grows_the_open_forest(federation: wl.Federation) -> None:
    hidden, opened = (
        wl.FederatedForestClassifier(**LIMITS, protection=kind).fit(federation, y="bank.late")
        for kind in ("hidden", "open")
    )
    np.testing.assert_array_equal(hidden.predict_proba(federation), opened.predict_proba(federation))
    np.testing.assert_array_equal(hidden.feature_importances_, opened.feature_importances_)
    assert hidden.classes_.tolist() == ["no", "yes"]
    assert hidden.score(federation) == opened.score(federation)


def test_one_table_dealt_to_parties_grows_the_open_forest() -> None:
    X, y = tables()["bank"][["age", "income"]], tables()["bank"]["amount"]
    hidden, opened = (wl.FederatedForestRegressor(**LIMITS, protection=kind).fit(X, y) for kind in ("hidden", "open"))
    np.testing.assert_allclose(hidden.predict(X), opened.predict(X), rtol=1e-9)


def test_the_defaults_are_the_floors(federation: wl.Federation) -> None:
    plain = {name: value for name, value in LIMITS.items() if name not in FLOORS}
    hidden = wl.FederatedForestClassifier(**plain, protection="hidden").fit(federation, y="bank.late")
    limited = wl.FederatedForestClassifier(**LIMITS | {"min_cell": "auto"}).fit(federation, y="bank.late")
    np.testing.assert_array_equal(hidden.predict_proba(federation), limited.predict_proba(federation))


def test_nobody_is_sent_a_partition_or_a_label(federation: wl.Federation) -> None:
    seen: list[tuple[str, str, str]] = []
    watched = wl.Federation.local(tables())
    watched.observer = lambda sender, receiver, message: seen.append((sender, receiver, type(message).__name__))
    model = wl.FederatedForestClassifier(**LIMITS, protection="hidden").fit(watched, y="bank.late")
    kinds = {kind for _, _, kind in seen}
    assert not kinds & {"Partition", "EncodedLabels", "StartForest", "GrowLevel", "LeafTotals"}
    assert {name for row in model.disclosure_.rows for name in (row.sender, row.receiver)} == {*tables(), "dealer"}
    assert all("bank" in (sender, receiver) for sender, receiver, _ in seen)
    assert model.cost_.bytes_by_party["dealer"] > 0


def test_parties_that_share_the_model_give_a_complete_one() -> None:
    shared = wl.Federation.local(tables(), shares_model=True)
    model = wl.FederatedForestClassifier(**LIMITS, protection="hidden").fit(shared, y="bank.late")
    joined = read_table(pd.concat(tables().values(), axis=1))
    np.testing.assert_array_equal(model.combine().outputs(joined, "soft", 1), model.predict_proba(shared))


@pytest.mark.parametrize(
    ("params", "remedy"),
    [
        ({"class_weight": "balanced"}, "bootstrap=False"),
        ({"oob_score": True}, "oob_score=False"),
    ],
)
def test_what_it_cannot_do_names_the_remedy(federation: wl.Federation, params: dict[str, Any], remedy: str) -> None:
    model = wl.FederatedForestClassifier(protection="hidden", **params)
    with pytest.raises(DataError, match=remedy):
        model.fit(federation, y="bank.late")


def test_one_party_is_not_enough() -> None:
    with pytest.raises(DataError, match="second server; add one"):
        wl.FederatedForestClassifier(parties=1, protection="hidden").fit(tables()["bank"][["age"]], [0, 1] * 200)


def test_no_party_is_called_dealer() -> None:
    X = tables()["bank"][["age", "income"]]
    model = wl.FederatedForestClassifier(parties={"a": ["age"], "dealer": ["income"]}, protection="hidden")
    with pytest.raises(DataError, match="rename it"):
        model.fit(X, [0, 1] * 200)


@pytest.mark.parametrize("leaver", ["shop", "club"])
def test_a_party_leaves_and_the_forest_is_that_of_a_hidden_training_without_it(
    federation: wl.Federation, leaver: str
) -> None:
    """The shop is the second server of the training; the club then takes its place."""
    seen: list[tuple[str, str, str]] = []
    whole = wl.Federation.local(tables())
    model = wl.FederatedForestClassifier(**LIMITS, protection="hidden").fit(whole, y="bank.late")
    before = model.forest_.coordinator.structure.n_nodes
    whole.observer = lambda sender, receiver, message: seen.append((sender, receiver, type(message).__name__))
    receipt = model.revoke(leaver)
    rest = wl.Federation.local({p: table for p, table in tables().items() if p != leaver})
    without = wl.FederatedForestClassifier(**LIMITS, protection="hidden").fit(rest, y="bank.late")
    assert_same((model.forest_.coordinator, model.forest_.parts), (without.forest_.coordinator, without.forest_.parts))
    np.testing.assert_array_equal(model.predict_proba(rest), without.predict_proba(rest))
    assert (receipt.statement.level, receipt.statement.exact, receipt.statement.party) == (3, True, leaver)
    assert (receipt.statement.removed, receipt.statement.regrown) == (
        before,
        without.forest_.coordinator.structure.n_nodes,
    )
    receipt.verify()
    assert seen
    assert not {name for _, _, name in seen} & {"Partition", "ReplantTrees", "RegrowLevel", "OpenTraining"}
    assert leaver not in {name for sender, receiver, _ in seen for name in (sender, receiver)}


def test_a_party_leaves_a_hidden_forest_of_one_table() -> None:
    """Of simulated parties, and of a copy that is given its table again."""
    X, y = tables()["bank"][["age", "income"]].assign(sport=tables()["club"]["sport"]), tables()["bank"]["amount"]
    dealing = {"a": ["age"], "b": ["income"], "c": ["sport"]}
    model = wl.FederatedForestRegressor(**LIMITS, parties=dealing, protection="hidden").fit(X, y)
    copied = copy.deepcopy(model)
    model.revoke("b", level=3)
    copied.revoke("b", data=(X, y))
    rest = X[["age", "sport"]]
    without = wl.FederatedForestRegressor(**LIMITS, parties={"a": ["age"], "c": ["sport"]}, protection="hidden")
    without.fit(rest, y)
    for left in (model, copied):
        np.testing.assert_array_equal(left.predict(rest), without.predict(rest))


def test_a_part_of_a_hidden_forest_is_not_grown_again(federation: wl.Federation) -> None:
    model = wl.FederatedForestClassifier(**LIMITS, protection="hidden").fit(federation, y="bank.late")
    before = model.predict_proba(federation)
    with pytest.raises(DataError, match="Use level 3"):
        model.revoke("shop", level=1)
    with pytest.raises(ValueError, match="'level' parameter must be one of"):
        model.revoke("shop", level=2)
    with pytest.raises(DataError, match="holds the labels"):
        model.revoke("bank")
    np.testing.assert_array_equal(model.predict_proba(federation), before)


def test_the_label_holder_is_not_left_alone_with_a_hidden_forest(federation: wl.Federation) -> None:
    model = wl.FederatedForestClassifier(**LIMITS, protection="hidden").fit(federation, y="bank.late")
    model.revoke("shop")
    with pytest.raises(DataError, match="needs a second server, and the label holder alone would be left"):
        model.revoke("club")


def test_other_tables_than_those_of_the_training_are_refused(federation: wl.Federation) -> None:
    model = wl.FederatedForestClassifier(**LIMITS, protection="hidden").fit(federation, y="bank.late")
    other = tables()
    other["club"] = other["club"].rename(columns={"sport": "golf"})
    with pytest.raises(DataError, match="not those that the forest was grown on"):
        model.revoke("shop", data=wl.Federation.local(other))


def test_weights_without_draws() -> None:
    """Without columns of categories: balanced classes tie, and open training breaks that tie by the order of rows."""
    numbers = wl.Federation.local({p: frame.drop(columns="kind", errors="ignore") for p, frame in tables().items()})
    params = LIMITS | {"bootstrap": False, "class_weight": "balanced"}
    hidden, opened = (
        wl.FederatedForestClassifier(**params, protection=kind).fit(numbers, y="bank.late")
        for kind in ("hidden", "open")
    )
    np.testing.assert_array_equal(hidden.predict_proba(numbers), opened.predict_proba(numbers))


def test_a_forest_without_splits() -> None:
    X = tables(30)["bank"][["age", "income"]]
    model = wl.FederatedForestClassifier(2, parties=2, protection="hidden", random_state=0).fit(X, [0, 1] * 15)
    assert len(np.unique(model.predict_proba(X), axis=0)) == 1
