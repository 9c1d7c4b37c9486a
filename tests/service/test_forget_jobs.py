"""Rows are forgotten between organisations: exactly, with a receipt that all sign, and nothing of them stays."""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from halts import HANGS
from kill_stage import Stage, kill_through
from processes import FIRST_ID, processes, small_tables
from small_jobs import EVERYBODY, PARTIES, train_order, user_of
from typer.testing import CliRunner
from world import POLICY, World, running

import woodlot as wl
from woodlot.cli import app
from woodlot.connected import ConnectedFederation
from woodlot.data.ids import canonical_ids
from woodlot.exceptions import DataError, PolicyError, ReceiptError, WoodlotError
from woodlot.federation import Labels
from woodlot.identity.erasure import ErasureReceipt
from woodlot.identity.identity import Identity
from woodlot.jobs.job_messages import JobFacts

pytestmark = pytest.mark.slow

LABELS = Labels("bank", "late", None)
KINDS = ["align", "train", "predict", "revoke", "forget"]


def forgetting_world(root: Path) -> World:
    world = World(root, small_tables())
    for own in world.settings.values():
        own["policy"] = POLICY | {"protocols": KINDS, "lead": ["holder"]}
    return world


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with running(forgetting_world(tmp_path_factory.mktemp("forget"))) as made:
        yield made


@pytest.fixture
def user(world: World) -> Iterator[ConnectedFederation]:
    with user_of(world, lead=None) as federation:
        yield federation


def fit(user: ConnectedFederation, **params: Any) -> wl.FederatedForestClassifier:
    settings = {"n_estimators": 6, "max_depth": 4, "random_state": 2} | params
    return wl.FederatedForestClassifier(**settings).fit(user, y="bank.late")


def grown_on_the_rows_of(world: World, model: wl.FederatedForestClassifier, **params: Any) -> str:
    """The fingerprint of a forest that is trained from scratch on the rows that a model has kept."""
    with user_of(world, lead=None) as again:
        again._alignment = again.client.job(str(model.forest_.model))
        return again.client.find_model(str(fit(again, **params).forest_.model)).forest


def rows_of(world: World, party: str, job: str) -> set[int]:
    """The ids of the rows that a party has kept as those of a model."""
    ids = pq.read_table(world.root / party / "customers.parquet")["id"].to_numpy()
    rows = np.load(world.root / party / "state" / "alignments" / job / "rows.npy")
    return set(ids[rows].tolist())


def test_rows_are_forgotten_exactly_one_after_another(world: World, user: ConnectedFederation, tmp_path: Path) -> None:
    model = fit(user, oob_score=True)
    trained = str(model.forest_.model)
    before, asked = rows_of(world, "bank", trained), [FIRST_ID + 3, FIRST_ID + 17, 1]
    receipt = model.forget(asked)
    job = str(model.forest_.model)
    s = receipt.statement
    assert (s.rows, s.unknown, s.rows_left) == (2, 1, len(before) - 2)
    assert rows_of(world, "bank", job) == rows_of(world, "shop", job) == before - set(asked)
    assert s.after["coordinator"] == user.client.find_model(job).forest
    assert s.after["coordinator"] == grown_on_the_rows_of(world, model, oob_score=True)
    assert model.forest_.coordinator.n_rows == len(before) - 2
    assert all(receipt.names(id, receipt.key) for id in canonical_ids(asked).values)

    again = model.forget([FIRST_ID + 5]).statement  # another one on top
    assert (again.before["coordinator"], again.rows_left) == (s.after["coordinator"], s.rows_left - 1)
    assert again.after["coordinator"] == grown_on_the_rows_of(world, model, oob_score=True)
    assert len(model.erasures_) == 2

    with pytest.raises(DataError, match="replaced"):
        user.client.submit(user.predict_order(trained))
    authority = Identity.load(world.root / "alice" / "identity").authority
    (tmp_path / "ca.pem").write_bytes(authority)
    receipt.save(tmp_path / "receipt.json")
    command = ["audit", "verify", str(tmp_path / "receipt.json"), "--authority", str(tmp_path / "ca.pem"), "--json"]
    told = CliRunner().invoke(app, command)
    assert told.exit_code == 0, told.output
    assert json.loads(told.output)["signer"] == "party 'bank'"
    without = json.loads(receipt.to_json())
    assert set(without["confirmed"]) == set(PARTIES)
    swapped = without | {"confirmed": dict.fromkeys(PARTIES, without["confirmed"]["bank"])}
    for wrong, words in (
        (without | {"confirmed": {}}, "lacks the signature"),
        (swapped, "'shop' has confirmed is signed by party 'bank'"),
    ):
        with pytest.raises(ReceiptError, match=words):
            ErasureReceipt.parse(json.dumps(wrong).encode()).verify(authority)


@pytest.mark.parametrize("level", [1, 3])
def test_a_party_leaves_a_model_that_has_forgotten_rows(world: World, user: ConnectedFederation, level: int) -> None:
    """It is then the forest of those who train without the rows, and lose the party."""
    model = fit(user)
    model.forget([FIRST_ID + 2])
    with user_of(world, lead=None) as again:
        again._alignment = again.client.job(str(model.forest_.model))
        fresh = fit(again)
        receipts = [one.revoke("shop", level=level) for one in (model, fresh)]
        forests = {again.client.find_model(str(one.forest_.model)).forest for one in (model, fresh)}
    assert len(forests) == 1
    assert receipts[0].statement.after == receipts[1].statement.after | {"bank": receipts[0].statement.after["bank"]}


def test_nothing_stays_of_what_was_answered_and_kept(world: World, user: ConnectedFederation) -> None:
    model = fit(user)
    trained, gone = str(model.forest_.model), FIRST_ID + 9
    order = user.predict_order(trained, deliver_to="shop")
    user.run(order)
    answers = world.root / "shop" / "state" / "answers" / f"{order.job}.parquet"
    assert gone in pq.read_table(answers)["id"].to_pylist()
    n = len(pq.read_table(answers))
    model.forget([gone])
    assert gone not in pq.read_table(answers)["id"].to_pylist()
    assert len(pq.read_table(answers)) == n - 1
    with pytest.raises(DataError, match="has no answers here"):  # those that the user had not taken yet
        user.client.predictions(order.job)
    model.forget([gone + 1])  # of the successor, whose answers they are now
    assert len(pq.read_table(answers)) == n - 2
    names = [trained, *(r.statement.model for r in model.erasures_)]
    for party in PARTIES:
        state = world.root / party / "state"
        parts = [path for kind in ("models", "alignments") for path in (state / kind).glob(f"*{trained}*")]
        assert all((path / "dropped").exists() or path.parent.name == "alignments" for path in parts), names
    assert not (world.root / "bank" / "state" / "led" / "models" / trained / "forest").exists()


def test_owners_may_delete_the_rows_before_or_after(world: World, user: ConnectedFederation) -> None:
    model = fit(user)
    path = world.root / "shop" / "customers.parquet"
    whole = pq.read_table(path)
    gone, other = FIRST_ID + 12, FIRST_ID + 30
    try:
        pq.write_table(whole.filter(pa.compute.not_equal(whole["id"], gone)), path)
        with pytest.raises(WoodlotError, match="rows of the training that the order does not name"):
            model.forget([other])
        assert model.forget([gone]).statement.rows == 1
        assert gone not in rows_of(world, "shop", str(model.forest_.model))
        assert rows_of(world, "shop", str(model.forest_.model)) == rows_of(world, "bank", str(model.forest_.model))
        assert model.forget([other]).statement.rows == 1
        assert model.forest_.coordinator.n_rows == len(rows_of(world, "bank", str(model.forest_.model)))
    finally:
        pq.write_table(whole, path)


def test_what_is_refused(world: World, user: ConnectedFederation) -> None:
    model = fit(user)
    name = str(model.forest_.model)
    facts = user.client.find_model(name)
    with pytest.raises(DataError, match="give the ids of 1 to"):
        model.forget([])
    with pytest.raises(DataError, match="identity and prove are for parties in this process"):
        model.forget([FIRST_ID], prove=True)
    with pytest.raises(WoodlotError, match="give ids of that kind"):
        model.forget(["one"])
    with pytest.raises(WoodlotError, match="delete the model instead"):
        model.forget(sorted(rows_of(world, "bank", name)))
    order, _ = user.forget_order(facts, [FIRST_ID], LABELS)
    for changed, words in (
        ({"led_by": "shop"}, "kept by 'bank'"),
        ({"alignment": None}, "of a training"),
        ({"led_by": msgspec.UNSET}, "label holder leads"),
    ):
        changes: dict[str, Any] = dict(changed)
        with pytest.raises(WoodlotError, match=words):
            user.run(msgspec.structs.replace(order, **changes))
    with user_of(world, "bob", lead=None) as bob, pytest.raises(PolicyError, match="only alice may have it forget"):
        bob.client.submit(order)
    assert user.client.find_model(name).forest == facts.forest  # nothing was done


def test_a_party_has_its_rows_forgotten_with_its_own_identity(
    world: World, user: ConnectedFederation, tmp_path: Path
) -> None:
    model = fit(user)
    name = str(model.forest_.model)
    (tmp_path / "ids.csv").write_text(f"id\n{FIRST_ID + 2}\n")
    access = ["--coordinator", world.address, "--identity", str(world.root / "shop" / "identity")]
    command = ["forget", name, str(tmp_path / "ids.csv"), "--y", "bank.late", "--tables", "bank=customers",
               "--tables", "shop=customers", "--receipt", str(tmp_path / "receipt.json"), "--json",
               *access]  # fmt: skip
    told = CliRunner().invoke(app, command)
    assert told.exit_code == 0, told.output
    after = user.client.find_model(json.loads(told.stdout)["model"])
    assert (after.user, after.n_rows) == ("alice", model.forest_.coordinator.n_rows - 1)  # it stays its user's
    receipt = ErasureReceipt.load(tmp_path / "receipt.json")
    key = bytes.fromhex((tmp_path / "receipt.key").read_text())
    assert receipt.names(canonical_ids([FIRST_ID + 2]).values[0], key)


def test_a_party_that_does_not_list_it_forgets_nothing(world: World, user: ConnectedFederation) -> None:
    model = fit(user)
    world.stop_party("shop")
    world.settings["shop"]["policy"]["protocols"] = KINDS[:-1]
    world.start_party("shop")
    try:
        world.wait_connected("shop")
        with pytest.raises(WoodlotError, match="does not list 'forget'"):
            model.forget([FIRST_ID])
    finally:
        world.stop_party("shop")
        world.settings["shop"]["policy"]["protocols"] = KINDS
        world.start_party("shop")
        world.wait_connected("shop")


# --- everybody is killed ---


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage[ConnectedFederation]]:
    made = forgetting_world(tmp_path_factory.mktemp("kill-forget"))
    with ThreadPoolExecutor(1) as pool, processes(made) as started:
        started.wait_connected()
        with user_of(made, lead=None) as user:
            user.align()  # one order of rows, to compare forests
            yield Stage(started, user, pool, train_order, lambda job: user.client.find_model(job).forest)


@pytest.mark.parametrize("victim", EVERYBODY)
def test_a_death_in_the_middle_changes_nothing(stage: Stage[ConnectedFederation], victim: str) -> None:
    root, user = stage.running.world.root, stage.user

    def order() -> Any:
        trained, _ = stage.run(train_order(user))
        return user.forget_order(user.client.find_model(trained), [FIRST_ID + 4, FIRST_ID + 11], LABELS)[0]

    undisturbed, _ = stage.run(order())
    expected = user.client.find_model(undisturbed).forest
    total = stage.replies(victim, undisturbed)
    again = order()
    # in the middle of the growth, after the new part is kept, and after the former one is dropped
    assert kill_through(stage, again, victim, {total // 2, total - 2, total - 1, total})
    assert user.client.find_model(again.job).forest == expected
    assert user.client.erasure(again.job).statement.after["coordinator"] == expected
    assert not [m for m in user.client.models() if m.model == again.model]
    assert not (root / "bank" / "state" / "led" / "models" / again.model / "forest").exists()
    # the same forest grows on the rows that were kept
    rest = copy.copy(user)
    rest._alignment = user.client.job(again.job)
    fresh, _ = stage.run(train_order(rest))
    assert user.client.find_model(fresh).forest == expected


def test_a_party_that_is_away_is_waited_for(stage: Stage[ConnectedFederation]) -> None:
    user = stage.user
    trained, _ = stage.run(train_order(user))
    order, key = user.forget_order(user.client.find_model(trained), [FIRST_ID + 4], LABELS)
    stage.running.kill("shop")
    waited = threading.Event()

    def heard(facts: JobFacts) -> None:
        if "shop" in facts.waiting_for:
            waited.set()

    with ThreadPoolExecutor(1) as pool:
        end = pool.submit(user.run, order, heard)
        assert waited.wait(HANGS)
        stage.running.restart("shop")
        assert end.result().state == "done"
    assert user.client.erasure(order.job, key).statement.rows == 1
