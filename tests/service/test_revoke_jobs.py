"""A party leaves a forest between organisations: orders, receipts, refusals, and deaths on the way."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kill_stage import Stage, kill_through
from processes import processes, small_tables, three_companies
from small_jobs import COORDINATOR, PLAN, model_of, train_order, user_of
from typer.testing import CliRunner
from world import World, running

import woodlot as wl
from woodlot.cli import app
from woodlot.connected import ConnectedFederation
from woodlot.exceptions import DataError, PolicyError, WoodlotError
from woodlot.federation import Labels
from woodlot.identity.identity import Identity
from woodlot.identity.receipts import REQUEST_SECONDS, Receipt
from woodlot.jobs import job_messages as msg
from woodlot.jobs.order_seal import sign_order

TRIO = ("bank", "shop", "club")
LABELS = Labels("bank", "late", None)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with running(World(tmp_path_factory.mktemp("revoke"), three_companies())) as made:
        yield made


@pytest.fixture
def user(world: World) -> Iterator[ConnectedFederation]:
    with user_of(world, parties=TRIO) as federation:
        yield federation


def fit(user: ConnectedFederation, **params: Any) -> wl.FederatedForestClassifier:
    settings = {"n_estimators": 4, "max_depth": 4, "random_state": 2} | params
    return wl.FederatedForestClassifier(**settings).fit(user, y="bank.late")


def test_exactly_as_if_the_leaver_had_never_been(world: World, user: ConnectedFederation, tmp_path: Path) -> None:
    model = fit(user, oob_score=True, n_estimators=30)
    trained = str(model.forest_.model)
    receipt = model.revoke("shop", level=3)
    statement = receipt.statement
    assert statement.notified == ("bank", "club")
    assert statement.scores is not None
    assert statement.after["coordinator"] == user.client.find_model(str(model.forest_.model)).forest

    with user_of(world, parties=("bank", "club")) as rest:
        rest._alignment = user.client.job(str(model.forest_.model))
        fresh = fit(rest, oob_score=True, n_estimators=30)  # on the training's rows, kept with the model
        assert user.client.find_model(str(fresh.forest_.model)).forest == statement.after["coordinator"]
        np.testing.assert_array_equal(model.predict_proba(rest), fresh.predict_proba(rest))
        np.testing.assert_array_equal(model.oob_curve_, fresh.oob_curve_)
        assert model.oob_curve_.points()[-1] == (30, model.oob_score_)

    with pytest.raises(DataError, match="replaced"):
        user.client.finish(user.client.submit(user.predict_order(trained)).job)
    for party in TRIO:
        kept = world.root / party / "state" / "models" / trained
        assert party == "shop" or not kept.exists() or (kept / "dropped").exists()

    receipt.save(tmp_path / "receipt.json")
    (tmp_path / "ca.pem").write_bytes(Identity.load(world.root / "alice" / "identity").authority)
    command = ["audit", "verify", str(tmp_path / "receipt.json"), "--authority", str(tmp_path / "ca.pem"), "--json"]
    told = CliRunner().invoke(app, command)
    assert told.exit_code == 0, told.output
    assert json.loads(told.output)["signer"] == "coordinator 'coordinator'"
    assert json.loads(told.output)["requester"] == "user 'alice'"


@pytest.fixture
def idle_shop(world: World) -> Iterator[None]:
    """The shop's columns have one value each: it splits nothing."""
    path = world.root / "shop" / "customers.parquet"
    whole = pq.read_table(path)
    constant = pa.array(np.ones(len(whole)))
    pq.write_table(whole.set_column(1, "visits", constant).set_column(2, "basket", constant), path)
    yield
    pq.write_table(whole, path)


@pytest.mark.usefixtures("idle_shop")
@pytest.mark.parametrize("level", [1, 3])
def test_who_has_split_no_node_can_leave_too(user: ConnectedFederation, level: int) -> None:
    """Then no tree is grown again, and the parties keep what they had."""
    model = fit(user)
    before = user.client.find_model(str(model.forest_.model))
    assert before.splits["shop"] == 0
    model.revoke("shop", level=level)
    after = user.client.find_model(str(model.forest_.model))
    assert after.parties == ("bank", "club")
    assert level == 3 or after.splits == {"bank": before.splits["bank"], "club": before.splits["club"]}


@pytest.mark.usefixtures("idle_shop")
def test_after_somebody_has_left_at_level_1_every_node_is_searched(world: World, user: ConnectedFederation) -> None:
    """Nothing is taken for granted of a forest that was not grown from scratch, even if an idle party leaves it."""
    model = fit(user, max_features=None)
    model.revoke("club", level=1)
    statement = model.revoke("shop", level=3).statement
    assert statement.cost.nodes_searched >= (statement.nodes_after - 4) // 2  # all that are split, of four trees
    with user_of(world, parties=("bank",)) as alone:
        alone._alignment = user.client.job(str(model.forest_.model))
        fresh = fit(alone, max_features=None)
        assert user.client.find_model(str(fresh.forest_.model)).forest == statement.after["coordinator"]


def test_the_command_and_what_is_refused(world: World, user: ConnectedFederation, tmp_path: Path) -> None:
    model = fit(user)
    name = str(model.forest_.model)
    facts = user.client.find_model(name)
    for leaver, words in [("mill", "not a party"), ("bank", "holds the labels")]:
        with pytest.raises(DataError, match=words):
            user.revoke_order(facts, leaver, 1, LABELS)
    order = user.revoke_order(facts, "shop", 1, LABELS)
    wrongs: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"created": time.time() - REQUEST_SECONDS - 60}, PolicyError, "too old"),
        ({"parties": ("bank",), "sealed": {"bank": order.sealed["bank"]}}, DataError, "all parties that stay"),
        ({"leaver": "mill"}, DataError, "not a party"),
        ({"task": "targets"}, DataError, "other kind"),
        ({"alignment": None}, DataError, "rows of the training"),
    ]
    for changed, kind, words in wrongs:
        with pytest.raises(kind, match=words):
            user.client.submit(msgspec.structs.replace(order, **changed))
    with user_of(world, "bob", parties=TRIO) as bob, pytest.raises(PolicyError, match="only alice"):
        bob.client.submit(order)
    data, signature = sign_order(order, user.client.identity)
    forged = data.replace(b'"leaver":"shop"', b'"leaver":"club"')
    with pytest.raises(WoodlotError, match="signature"):
        user.client.ask(msg.SubmitJob(order=forged, signature=signature), msg.JobStatus)

    access = ["--coordinator", world.address, "--identity", str(world.root / "alice" / "identity")]
    command = ["revoke", name[:8], "shop", "--y", "bank.late", "--tables", "bank=customers", "--tables",
               "club=customers", "--lead", "coordinator", "--out", str(tmp_path / "receipt.json"), *access]  # fmt: skip
    told = CliRunner().invoke(app, command)
    assert told.exit_code == 0, told.output
    assert "has left at level 1" in told.output
    assert "lacked stay out" in told.output
    assert Receipt.load(tmp_path / "receipt.json").statement.party == "shop"

    # the same order again is the same job; a new one meets a model that is no more
    with pytest.raises(WoodlotError, match="replaced"):
        user.client.submit(user.revoke_order(facts, "shop", 1, LABELS))


def test_a_party_orders_its_own_leaving_with_its_own_identity(
    world: World, user: ConnectedFederation, tmp_path: Path
) -> None:
    model = fit(user)
    name = str(model.forest_.model)
    with user_of(world, "shop", parties=TRIO) as shop:
        facts = shop.client.find_model(name)
        for ask in (
            lambda: shop.client.submit(shop.revoke_order(facts, "club", 1, LABELS)),  # another's leaving
            lambda: shop.client.submit(train_order(user)),
        ):
            with pytest.raises(
                WoodlotError,
                match="can order its own leaving of a model, or that rows of one are forgotten, and nothing else",
            ):
                ask()
        with pytest.raises(PolicyError, match="ListModels is for users"):
            shop.client.models()
        order = shop.revoke_order(facts, "shop", 1, LABELS)
        with pytest.raises(WoodlotError, match="signature"):  # a user's word does not become the party's
            shop.client.ask(msg.SubmitJob(order=b"{}", signature=b""), msg.JobStatus)
    with user_of(world, "bob", parties=TRIO) as bob, pytest.raises(PolicyError, match="only alice"):
        bob.client.submit(order)

    access = ["--coordinator", world.address, "--identity", str(world.root / "shop" / "identity")]
    command = ["revoke", name[:8], "shop", "--y", "bank.late", "--tables", "bank=customers", "--tables",
               "club=customers", "--lead", "coordinator", "--out", str(tmp_path / "receipt.json"), *access]  # fmt: skip
    told = CliRunner().invoke(app, command)
    assert told.exit_code == 0, told.output
    receipt = Receipt.load(tmp_path / "receipt.json")
    assert (receipt.statement.party, receipt.statement.level) == ("shop", 1)
    verdict = receipt.verify(Identity.load(world.root / "shop" / "identity").authority)
    assert "shop" in verdict.requester
    after = user.client.find_model(json.loads(receipt.request.data)["job"])
    assert (after.user, after.parties) == ("alice", ("bank", "club"))  # the model stays its user's
    with pytest.raises(DataError, match="replaced"):
        user.client.finish(user.client.submit(user.predict_order(name)).job)


def test_a_party_leaves_no_model_that_it_has_no_part_in(world: World, user: ConnectedFederation) -> None:
    with user_of(world, parties=("bank", "club")) as two:
        name = str(fit(two).forest_.model)
    with user_of(world, "shop", parties=TRIO) as shop:
        with pytest.raises(PolicyError, match="'shop' takes no part in this model"):
            shop.client.find_model(name)
        order = user.revoke_order(user.client.find_model(name), "club", 1, LABELS)
        with pytest.raises(DataError, match="not a party"):
            shop.client.submit(msgspec.structs.replace(order, leaver="shop"))


def test_two_parties_do_not_leave_the_same_model_at_once(
    world: World, user: ConnectedFederation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each would leave a model behind in which the other still is, with a receipt that says otherwise."""
    assert world.coordinator is not None
    facts = user.client.find_model(str(fit(user).forest_.model))
    orders = [user.revoke_order(facts, leaver, 1, LABELS) for leaver in ("shop", "club")]
    store, add = world.coordinator.store, world.coordinator.store.add

    def add_slowly(*job: Any) -> None:
        time.sleep(0.3)
        add(*job)

    world.stop_party("bank")
    try:
        monkeypatch.setattr(store, "add", add_slowly)
        with ThreadPoolExecutor(2) as pool:
            asked = [pool.submit(user.client.submit, order) for order in orders]
        errors = [error for future in asked if (error := future.exception()) is not None]
        assert len(errors) == 1
        taken = next(order.job for order, future in zip(orders, asked, strict=True) if future.exception() is None)
        assert isinstance(errors[0], DataError)
        assert f"job {taken}, by which a party leaves model {facts.model}, is " in str(errors[0])
        user.client.cancel(taken)
        assert user.client.follow(taken).state == "cancelled"
        again = user.client.submit(user.revoke_order(facts, "club", 1, LABELS)).job  # nobody leaves it any more
    finally:
        world.start_party("bank")
    user.client.finish(again)
    assert user.client.find_model(again).parties == ("bank", "shop")
    with pytest.raises(DataError, match=f"replaced by {again}"):
        user.client.submit(user.revoke_order(facts, "shop", 1, LABELS))


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage[ConnectedFederation]]:
    world = World(tmp_path_factory.mktemp("kill-revoke"), small_tables())
    with ThreadPoolExecutor(1) as pool, processes(world) as started:
        started.wait_connected()
        with user_of(world) as user:
            yield Stage(started, user, pool, train_order, lambda job: model_of(world.root, job))


@pytest.mark.faults
@pytest.mark.parametrize("victim", ["bank", COORDINATOR])
def test_a_death_in_the_middle_of_a_revocation_changes_nothing(stage: Stage[ConnectedFederation], victim: str) -> None:
    root, user = stage.running.world.root, stage.user

    def order() -> Any:
        trained, _ = stage.run(train_order(user, PLAN))
        return user.revoke_order(user.client.find_model(trained), "shop", 3, LABELS)

    undisturbed, _ = stage.run(order())
    expected = user.client.find_model(undisturbed).forest
    total = stage.replies(victim, undisturbed)
    again = order()
    # in the middle of the growth, after the new part is kept, and after the former one is dropped
    assert kill_through(stage, again, victim, {total // 2, total - 1, total})
    assert user.client.find_model(again.job).forest == expected
    assert user.client.receipt(again.job).statement.after["coordinator"] == expected
    assert not [m for m in user.client.models() if m.model == again.model]
    assert not (root / COORDINATOR / "state" / "models" / again.model / "forest").exists()
