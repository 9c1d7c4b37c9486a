"""Explanations between organisations: the label holder computes them, and only who ordered them reads them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from processes import FIRST_ID
from small_jobs import user_of
from world import POLICY, World, running

import woodlot as wl
from woodlot.connected import ConnectedFederation
from woodlot.exceptions import DataError, JobFailed, WoodlotError
from woodlot.jobs.party_store import read_alignment

N = 160
KINDS = ["align", "train", "predict", "train-linear", "predict-linear", "train-revocable", "score", "explain"]
LIMITS = {"explains": "columns", "explanations_per_day": "unlimited"}


def company_tables() -> dict[str, dict[str, pa.Table]]:
    rng = np.random.default_rng(11)
    ids, x = np.arange(N) + FIRST_ID, rng.normal(size=(N, 5)).round(3)
    kind = np.array(["flat", "house", "boat"])[rng.integers(0, 3, N)]
    late = np.where(x[:, 0] + x[:, 3] + (kind == "boat") + 0.5 * rng.normal(size=N) > 0, "yes", "no")
    amount = x[:, 1] - 2 * x[:, 4] + 0.1 * rng.normal(size=N)
    mine, theirs = rng.permutation(N), rng.permutation(N)[: N - 5]
    bank = {"id": ids[mine], "age": x[mine, 0], "income": x[mine, 1], "late": late[mine], "amount": amount[mine]}
    shop = {"id": ids[theirs], "visits": x[theirs, 3], "basket": x[theirs, 4], "home": kind[theirs]}
    return {"bank": {"customers": pa.table(bank)}, "shop": {"customers": pa.table(shop)}}


def explaining_world(root: Path, **by_party: dict[str, Any]) -> World:
    made = World(root, company_tables(), labels=("late", "amount"))
    for party, own in made.settings.items():
        base = POLICY | LIMITS | {"protocols": KINDS, "share_model": True, "labels_to_coordinator": True}
        own["policy"] = base | by_party.get(party, {})
    return made


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with running(explaining_world(tmp_path_factory.mktemp("explain"), bank={"explains": "values"})) as made:
        yield made


@pytest.fixture
def fed(world: World) -> Iterator[ConnectedFederation]:
    with user_of(world, lead=None) as user:
        yield user


def whole_table() -> pd.DataFrame:
    held = {party: tables["customers"].to_pandas().set_index("id") for party, tables in company_tables().items()}
    return held["bank"].join(held["shop"])


def joined(world: World, fed: ConnectedFederation) -> pd.DataFrame:
    """The parties' rows in the order of the alignment, as nobody but a test can have them."""
    assert fed._alignment is not None
    _, rows = read_alignment(world.root / "bank" / "state", fed._alignment.job)
    ids = company_tables()["bank"]["customers"].to_pandas().id.iloc[rows]
    return whole_table().loc[ids]


def test_an_explanation_has_the_numbers_of_the_same_forest_in_one_process(
    world: World, fed: ConnectedFederation
) -> None:
    fed.align()
    model = wl.FederatedForestClassifier(8, random_state=0, max_depth=5).fit(fed, y="bank.late")
    explanation = model.explain(fed)
    kinds = {row.kind for row in model.prediction_disclosure_.rows}
    assert {"AllSides", "ExplainedColumns", "RowValues"} <= kinds
    assert explanation.features == ("bank.age", "bank.income", "shop.visits", "shop.basket", "shop.home")
    assert explanation.additivity_error < 1e-12
    np.testing.assert_allclose(explanation.outputs, model.predict_proba(fed), rtol=0, atol=1e-12)
    table = joined(world, fed)[["age", "income", "visits", "basket", "home"]]
    here = model.explain(table)  # the parties share their parts, so that the model is whole here
    order = [here.features.index(name) for name in explanation.features]
    np.testing.assert_allclose(explanation.values, here.values[:, order], rtol=0, atol=1e-12)
    np.testing.assert_allclose(explanation.base_values, here.base_values, rtol=0, atol=1e-12)
    assert set(explanation.data) == {"bank.age", "bank.income"}  # the shop tells no values
    assert explanation.data["bank.age"] == tuple(f"{value:.6g}" for value in table.age.astype(np.float32))
    assert set(explanation.by_party().features) == {"bank", "shop"}
    json.dumps(explanation.to_dict())


@pytest.mark.slow
def test_numbers_are_explained_and_votes_counted(world: World, fed: ConnectedFederation) -> None:
    train, test = fed.split(0.3)
    table = joined(world, fed)
    for model, label, answers in (
        (wl.FederatedForestRegressor(6, random_state=0), "bank.amount", "predict"),
        (wl.FederatedForestClassifier(5, random_state=0, voting="majority"), "bank.late", "predict_proba"),
    ):
        explanation = model.fit(train, y=label).explain(test)
        assert explanation.additivity_error < 1e-12
        np.testing.assert_allclose(explanation.outputs, getattr(model, answers)(test), rtol=0, atol=1e-12)
        assert len(explanation) == len(table) - model.forest_.coordinator.n_rows


@pytest.mark.slow
def test_rows_are_named_by_their_ids_and_reasons_given(world: World, fed: ConnectedFederation) -> None:
    model = wl.FederatedForestClassifier(6, random_state=0, max_depth=4).fit(fed, y="bank.late")
    table, lacking = whole_table(), set(whole_table()[lambda t: t.visits.isna()].index)
    known = [one for one in table.index if one not in lacking][:3]
    explanation = model.explain(fed.named_rows(known))
    assert explanation.ids is not None
    assert explanation.ids.tolist() == known
    features = ["age", "income", "visits", "basket", "home"]
    np.testing.assert_allclose(explanation.outputs, model.combine().predict_proba(table.loc[known][features]))
    assert 1 <= len(explanation.reasons(3)) <= 3
    assert explanation.data["bank.age"] == tuple(f"{value:.6g}" for value in table.loc[known].age.astype(np.float32))
    with pytest.warns(wl.UncertainPredictionWarning, match="1 of 2 rows were explained without all parties"):
        some = model.explain(fed.named_rows([known[0], lacking.pop()]))
    assert some.uncertain.tolist() == [False, True]
    assert not some.by_party().values[1, 1].any()  # the party that lacks the row has no part in the answer


@pytest.mark.slow
def test_what_cannot_be_named_is_refused(fed: ConnectedFederation) -> None:
    model = wl.FederatedForestClassifier(2, random_state=0).fit(fed, y="bank.late")
    with pytest.raises(DataError, match="1 to 1,000 rows, not of 1,001"):
        fed.named_rows(list(range(1001)))
    with pytest.raises(DataError, match="more than once"):
        fed.named_rows([1, 1])
    with pytest.raises(DataError, match="name rows of the whole federation"):
        fed.split(0.5)[1].named_rows([1])
    with pytest.raises(JobFailed, match="its ids are whole numbers; give ids of that kind"):
        model.explain(fed.named_rows(["1", "2"]))
    for use in (model.predict, lambda rows: rows.align()):
        with pytest.raises(DataError, match=r"named by their ids are for model\.explain"):
            use(fed.named_rows([FIRST_ID]))


# --- models that are not explained ---


@pytest.mark.slow
def test_models_that_are_not_explained_are_refused_by_name(world: World, fed: ConnectedFederation) -> None:
    orders = len(fed.client.jobs())
    hidden = wl.FederatedForestClassifier(2, random_state=0, protection="hidden", min_samples_leaf=20)
    with pytest.raises(DataError, match="this forest has grown on secret shares"):
        hidden.fit(fed, y="bank.late").explain(fed)
    linear = wl.FederatedLinearRegression(tol=0.1).fit(fed, y="bank.amount")
    with pytest.raises(DataError, match="this is a linear model"):
        fed.explain_order(str(linear.linear_.model), "soft")
    with user_of(world, lead="coordinator") as user:
        forest = wl.FederatedForestClassifier(2, random_state=0).fit(user, y="bank.late")
        with pytest.raises(DataError, match="the coordinator runs the jobs of this model"):
            forest.explain(user)
        revocable = wl.RevocableForestClassifier(2, random_state=0, encryption="simulated")
        revocable.fit(user, y="bank.late", exclude={"shop": ["home"]})
        with pytest.raises(DataError, match="this is a revocable one"):
            revocable.explain(user)
    assert [facts.kind for facts in fed.client.jobs()[: -orders or None]].count("explain") == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "words"), [("hidden", "grown on secret shares"), ("linear", "this is a linear model")]
)
def test_the_leader_refuses_them_too(fed: ConnectedFederation, kind: str, words: str) -> None:
    """A client that does not ask first gets the same answer from the party that leads."""
    if kind == "hidden":
        settings: dict[str, Any] = {"protection": "hidden", "min_samples_leaf": 20}
        model = wl.FederatedForestClassifier(2, random_state=0, **settings).fit(fed, y="bank.late").forest_.model
    else:
        model = wl.FederatedLinearRegression(tol=0.1).fit(fed, y="bank.amount").linear_.model
    fed._check_explained = lambda facts: None  # type: ignore[method-assign]
    order, _ = fed.explain_order(str(model), "soft")
    with pytest.raises(JobFailed, match=words):
        fed.run(order)


# --- what policies say ---


def restart(world: World, party: str, policy: dict[str, Any]) -> None:
    """Have a party come back with another policy."""
    world.stop_party(party)
    world.settings[party]["policy"] = policy
    world.start_party(party)
    world.wait_connected(party)


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[World, ConnectedFederation, Any]]:
    """A world whose parties change their policies, and a model of theirs."""
    with (
        running(explaining_world(tmp_path_factory.mktemp("policies"))) as made,
        user_of(made, lead=None) as user,
    ):
        user.align()
        yield made, user, wl.FederatedForestClassifier(6, random_state=0).fit(user, y="bank.late")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ({"explains": "none"}, "this party takes part in no explanations"),
        ({"explanations_per_day": 100}, r"this party explains 100 rows per day \(explanations_per_day\)"),
        ({"predictions_per_day": 100}, "this party predicts 100 rows per day"),
        ({"protocols": ["align", "train", "predict"]}, "this party does not explain"),
        ({"wire_forms": ["sealed"]}, "this party does not answer predictions in the form 'decisions'"),
        ({"receive": []}, "this party does not let 'alice' receive predictions"),
        ({"protection": "hidden"}, "this party takes part in hidden trainings only"),
        ({"lead": ["coordinator"]}, "this party does not let 'bank' run jobs over columns"),
    ],
    ids=["none", "rows", "predictions", "kind", "sealed", "receive", "hidden", "lead"],
)
def test_a_policy_that_does_not_allow_it_is_named(grown: Any, policy: dict[str, Any], words: str) -> None:
    world, user, model = grown
    before = dict(world.settings["shop"]["policy"])
    restart(world, "shop", before | policy)
    with pytest.raises(JobFailed, match=f"party 'shop': {words}"):
        model.explain(user)
    restart(world, "shop", before)
    assert len(model.explain(user)) == N - 5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ({"protocols": [kind for kind in KINDS if kind != "score"]}, "does not let users name single rows"),
        ({"min_rows": 20}, "asks for single rows, and this party takes part with 20 or more"),
    ],
    ids=["score", "min_rows"],
)
def test_single_rows_need_the_right_to_name_them(grown: Any, policy: dict[str, Any], words: str) -> None:
    world, user, model = grown
    before = dict(world.settings["shop"]["policy"])
    restart(world, "shop", before | policy)
    with pytest.raises(JobFailed, match=f"party 'shop': .*{words}"):
        model.explain(user.named_rows([FIRST_ID]))
    assert len(model.explain(user)) == N - 5
    restart(world, "shop", before)


@pytest.mark.slow
def test_a_party_that_shows_less_is_asked_for_less(grown: Any) -> None:
    world, user, model = grown
    policy, before = dict(world.settings["shop"]["policy"]), model.explain(user)
    restart(world, "shop", policy | {"explains": "party"})
    explanation = model.explain(user)
    assert explanation.features == ("bank.age", "bank.income", "shop")
    assert explanation.data == {}
    np.testing.assert_allclose(explanation.by_party().values, before.by_party().values, rtol=0, atol=1e-12)
    assert {row.kind for row in model.prediction_disclosure_.rows}.isdisjoint({"RowValues"})
    restart(world, "shop", policy)


@pytest.mark.slow
def test_rows_of_a_day_are_counted(tmp_path: Path) -> None:
    policy = {"explanations_per_day": 4}
    with running(explaining_world(tmp_path, shop=policy)) as made, user_of(made, lead=None) as user:
        model = wl.FederatedForestClassifier(6, random_state=0).fit(user, y="bank.late")
        known = whole_table()[lambda t: t.visits.notna()].index.tolist()
        assert len(model.explain(user.named_rows(known[:3]))) == 3
        with pytest.raises(JobFailed, match="1 are left until"):
            model.explain(user.named_rows(known[3:5]))
        assert len(model.explain(user.named_rows(known[5:6]))) == 1


# --- who reads it ---


@pytest.mark.slow
def test_only_the_process_that_has_ordered_it_reads_it(world: World, fed: ConnectedFederation) -> None:
    model = wl.FederatedForestClassifier(3, random_state=0).fit(fed, y="bank.late")
    order, key = fed.explain_order(str(model.forest_.model), "soft")
    facts = fed.run(order)
    told, _ = fed.read_explanation(facts, key)
    assert told.rows().outputs.shape == (155, 2)
    with pytest.raises(WoodlotError, match="the report is not one that 'bank' has sealed"):
        fed.read_explanation(facts, bytes(32))
    with user_of(world, "bob", lead=None) as bob, pytest.raises(DataError, match="you have no job"):
        bob.client.explanation(order.job)
    trained = str(model.forest_.model)
    with pytest.raises(DataError, match="it has no explanation"):
        fed.client.explanation(trained)
    for folder in ("coordinator/state", "bank/state/led"):  # at rest it is sealed, also at who has computed it
        found = b"".join(path.read_bytes() for path in (world.root / folder).rglob("*") if path.is_file())
        assert told.outputs[:1024] not in found  # of so many rows: a few may have the zeros and ones of any file
        assert told.values[:1024] not in found
