"""Rows of a forest over rows are forgotten between organisations: exactly, signed by all, and nothing of them stays."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from halts import HANGS
from hospitals import HOSPITALS, LABEL, PLAN, ROW_POLICY, TABLE, hospitals, private_forest, rows_of
from kill_stage import Stage, kill_through
from processes import processes, wait_until
from shared import Shared
from sklearn.base import clone
from small_jobs import COORDINATOR
from typer.testing import CliRunner
from world import World, running

import woodlot as wl
from woodlot.cli import app
from woodlot.connected.connected_rows import ConnectedRowFederation
from woodlot.data.ids import canonical_ids
from woodlot.exceptions import DataError, PolicyError, ReceiptError, WoodlotError
from woodlot.identity.erasure import ErasureReceipt
from woodlot.identity.identity import Identity
from woodlot.jobs.job_messages import JobFacts
from woodlot.jobs.orders import Order

pytestmark = pytest.mark.slow

KINDS = [*ROW_POLICY["protocols"], "forget", "delete"]
ASKED = {"anna": [1003, 1017], "bern": [2005]}
MODELS: dict[str, Any] = {
    "local": wl.LocalForestsClassifier(6, random_state=1),
    "collaborative": wl.CollaborativeForestClassifier(4, max_depth=3, random_state=1),
    "lossless": wl.HorizontalForestClassifier(3, max_depth=3, random_state=1, spare_after=60.0),
}


def forgetting_hospitals(root: Path) -> World:
    return hospitals(root, policy=ROW_POLICY | {"protocols": KINDS})


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with running(forgetting_hospitals(tmp_path_factory.mktemp("forget-rows"))) as made:
        yield made


@pytest.fixture
def user(world: World) -> Iterator[ConnectedRowFederation]:
    with rows_of(world) as federation:
        yield federation


@contextmanager
def without(world: World, gone: dict[str, list[int]]) -> Iterator[None]:
    """The tables without some rows, as their owners leave them when they delete these."""
    paths = {party: world.root / party / f"{TABLE}.parquet" for party in gone}
    whole = {party: pq.read_table(path) for party, path in paths.items()}
    try:
        for party, path in paths.items():
            ids = whole[party]["id"].to_numpy()
            pq.write_table(whole[party].filter(pa.array(~np.isin(ids, gone[party]))), path)
        yield
    finally:
        for party, path in paths.items():
            pq.write_table(whole[party], path)


def forest_of(user: ConnectedRowFederation, model: Any) -> str:
    return user.client.find_model(str(model.forest_.model)).forest


@pytest.mark.parametrize("method", MODELS)
def test_it_is_the_forest_of_a_training_without_the_rows(
    world: World, user: ConnectedRowFederation, method: str
) -> None:
    """One deletion, another on top, and a party that leaves: each time what trains from scratch on the other rows."""
    model = MODELS[method]
    fitted = clone(model).fit(user, y=LABEL)
    before = forest_of(user, fitted)
    s = fitted.forget(ASKED).statement
    assert (s.rows, s.unknown, s.rows_left, s.parties) == (3, 0, 177, HOSPITALS)
    assert s.before["coordinator"] == before != forest_of(user, fitted) == s.after["coordinator"]
    fitted.forget([3008, 1])  # everybody looks for them; of 1 there is no row
    assert (fitted.erasures_[-1].statement.rows, fitted.erasures_[-1].statement.unknown) == (1, 1)
    with without(world, ASKED | {"chur": [3008]}):
        fresh = clone(model).fit(user, y=LABEL)
        assert forest_of(user, fresh) == forest_of(user, fitted) == fitted.erasures_[-1].statement.after["coordinator"]
    if method == "local":  # the others grow it again: rows that are forgotten and still in their tables stay away
        fitted.revoke("chur", level=3)
        with without(world, ASKED):
            fresh.revoke("chur", level=3)
        assert forest_of(user, fresh) == forest_of(user, fitted)


def test_the_receipt_is_verified_offline_and_nothing_stays(
    world: World, user: ConnectedRowFederation, tmp_path: Path
) -> None:
    model = wl.LocalForestsClassifier(3, random_state=2).fit(user, y=LABEL)
    trained = str(model.forest_.model)
    job = user.predict_rows(trained).job
    answers = world.root / "anna" / "state" / "answers" / f"{job}.parquet"
    assert 1003 in pq.read_table(answers)["id"].to_pylist()
    records = [world.root / party / "state" / "alignments" / trained for party in HOSPITALS]
    assert all(record.is_dir() for record in records)
    receipt = model.forget(ASKED)
    assert set(ASKED["anna"]).isdisjoint(pq.read_table(answers)["id"].to_pylist())
    assert len(pq.read_table(answers)) == 58
    with pytest.raises(DataError, match="replaced"):
        user.predict_rows(trained)
    successor = str(model.forest_.model)
    user.client.find_model(successor)
    assert all((record / "dropped").exists() or not record.exists() for record in records)
    ca, path = tmp_path / "ca.pem", tmp_path / "receipt.json"
    authority = Identity.load(world.root / "alice" / "identity").authority
    ca.write_bytes(authority)
    receipt.save(path)
    told = CliRunner().invoke(app, ["audit", "verify", str(path), "--authority", str(ca), "--json"])
    assert told.exit_code == 0, told.output
    assert json.loads(told.output)["signer"] == "coordinator 'coordinator'"
    named = canonical_ids([1003, 1017, 2005]).values
    assert all(receipt.names(id, receipt.key) for id in named)
    text = json.loads(receipt.to_json())
    assert set(text["confirmed"]) == set(HOSPITALS)
    text["statement"]["rows"] = 4
    with pytest.raises(ReceiptError):
        ErasureReceipt.parse(json.dumps(text).encode()).verify(authority)


def test_a_party_orders_it_and_only_those_that_are_named_are_told_the_ids(
    world: World, user: ConnectedRowFederation, tmp_path: Path
) -> None:
    model = wl.LocalForestsClassifier(3, random_state=3).fit(user, y=LABEL)
    (tmp_path / "ids.csv").write_text("id\n1003\n2005\n")
    access = ["--coordinator", world.address, "--identity", str(world.root / "anna" / "identity")]
    tables = [word for party in HOSPITALS for word in ("--tables", f"{party}={TABLE}")]
    command = ["forget", str(model.forest_.model), str(tmp_path / "ids.csv"), "--at", "anna", "--y", LABEL, *tables,
               "--receipt", str(tmp_path / "r.json"), "--json", *access]  # fmt: skip
    told = CliRunner().invoke(app, command)
    assert told.exit_code == 0, told.output
    said = json.loads(told.stdout)
    assert (said["rows"], said["unknown"]) == (1, 1)  # bern was not asked
    assert user.client.find_model(said["model"]).user == "alice"  # it stays its user's
    ErasureReceipt.load(tmp_path / "r.json").verify()


def test_rows_that_came_later_are_not_learnt_from(world: World, user: ConnectedRowFederation) -> None:
    model = wl.LocalForestsClassifier(3, random_state=4).fit(user, y=LABEL)
    path = world.root / "anna" / f"{TABLE}.parquet"
    whole = pq.read_table(path)
    try:
        later = whole.slice(0, 5).set_column(0, "id", pa.array(np.arange(5) + 1900))
        pq.write_table(pa.concat_tables([later, whole]), path)
        s = model.forget({"anna": [1003, 1900]}).statement
        assert (s.rows, s.unknown, s.rows_left) == (1, 1, 179)
    finally:
        pq.write_table(whole, path)
    with without(world, {"anna": [1003]}):
        fresh = wl.LocalForestsClassifier(3, random_state=4).fit(user, y=LABEL)
    assert forest_of(user, model) == forest_of(user, fresh)


def test_what_is_refused_and_why(world: World, user: ConnectedRowFederation) -> None:
    model = wl.LocalForestsClassifier(3, random_state=5).fit(user, y=LABEL)
    facts = user.client.find_model(str(model.forest_.model))
    with pytest.raises(DataError, match="give the ids of 1 to"):
        model.forget([])
    with pytest.raises(DataError, match="no clients of this model"):
        model.forget({"dora": [1]})
    with pytest.raises(DataError, match="coordinator and all parties sign"):
        model.forget([1003], prove=True)
    with pytest.raises(WoodlotError, match="give ids of that kind"):
        model.forget({"anna": ["one"]})
    with without(world, {"chur": [3001]}), pytest.raises(WoodlotError, match="the order does not name"):
        model.forget({"anna": [1003]})
    wrong, _ = user.forget_rows_order(facts, [1003], "age")
    with pytest.raises(WoodlotError, match="labels of that table"):
        user.run(wrong)
    order, _ = user.forget_rows_order(facts, [1003], LABEL)
    with rows_of(world, "bob") as bob, pytest.raises(PolicyError, match="only alice may have it forget"):
        bob.client.submit(order)
    noisy = private_forest(1.0).fit(user, y=LABEL)
    with pytest.raises(DataError, match="differential privacy"):
        noisy.forget([1003])
    order, _ = user.forget_rows_order(user.client.find_model(str(noisy.forest_.model)), [1003], LABEL)
    with pytest.raises(DataError, match="differential privacy"):
        user.client.submit(order)
    assert forest_of(user, model) == facts.forest  # nothing was done


# --- everybody is killed ---

Rows = Stage[ConnectedRowFederation]


def train_order(user: ConnectedRowFederation) -> Order:
    return user.train_rows_order(PLAN, LABEL, {})


@contextmanager
def stage_in(root: Path) -> Iterator[Rows]:
    made = forgetting_hospitals(root)
    with ThreadPoolExecutor(1) as pool, processes(made) as started:
        started.wait_connected()
        with rows_of(made) as user:
            yield Stage(started, user, pool, train_order, lambda job: user.client.find_model(job).forest)


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared[Rows]]:
    with Shared(lambda: stage_in(tmp_path_factory.mktemp("kill-forget-rows"))) as shared:
        yield shared


@pytest.fixture
def stage(stages: Shared[Rows], request: pytest.FixtureRequest) -> Iterator[Rows]:
    yield from stages.lend(request)


@pytest.mark.parametrize("victim", [COORDINATOR, "anna"])
def test_a_death_in_the_middle_changes_nothing(stage: Rows, victim: str) -> None:
    user = stage.user

    def order() -> Any:
        trained, _ = stage.run(stage.train_order())
        return user.forget_rows_order(user.client.find_model(trained), ASKED, LABEL)[0]

    undisturbed, _ = stage.run(order())
    expected = user.client.find_model(undisturbed).forest
    total = stage.replies(victim, undisturbed)
    again = order()
    # as rows are found, in the middle of the growth, and before and after the former record is dropped
    assert kill_through(stage, again, victim, {2, total // 2, total - 1, total})
    assert user.client.find_model(again.job).forest == expected
    statement = user.client.erasure(again.job).statement
    assert (statement.rows, statement.after["coordinator"]) == (3, expected)
    assert not [m for m in user.client.models() if m.model == again.model]
    for party in HOSPITALS:
        record = stage.running.world.root / party / "state" / "alignments" / again.model
        assert not record.exists() or (record / "dropped").exists()


def test_records_of_rows_go_with_the_jobs_that_need_them(stage: Rows) -> None:
    """Of a model that a party has left, and of a training that was cancelled, also where a party was dead meanwhile."""
    user, method = stage.user, wl.LocalForestsClassifier(3, max_depth=3, random_state=1)
    train = user.train_rows_order(method.make_plan(), LABEL, {})
    trained, _ = stage.run(train)
    facts = user.client.find_model(trained)
    leaving = user.revoke_rows_order(facts, method.make_plan(), LABEL, "bern", 3)
    assert kill_through(stage, leaving, "anna", {1, 3})
    cancelled = user.train_rows_order(method.make_plan(), LABEL, {})
    with stage.running.halt("anna", cancelled.job, {2}) as halt:
        _, end = stage.begin(cancelled)
        end.add_done_callback(halt.ended)
        assert halt.wait() is not None
        state = stage.running.world.root / "anna" / "state" / "alignments"
        assert (state / cancelled.job / "trained_on.npy").is_file()
        stage.running.kill("anna")
        user.client.cancel(cancelled.job)
    stage.running.restart("anna")
    folders = [stage.running.world.root / party / "state" / "alignments" for party in HOSPITALS]
    gone = [folder / job for folder in folders for job in (trained, cancelled.job)]
    wait_until(lambda: not any(path.exists() for path in gone), "records without use to be erased")
    assert {folder.parent.parent.name for folder in folders if (folder / leaving.job).is_dir()} == {"anna", "chur"}


def test_a_party_that_is_away_is_waited_for(stage: Rows) -> None:
    user = stage.user
    trained, _ = stage.run(stage.train_order())
    order, key = user.forget_rows_order(user.client.find_model(trained), {"anna": [1003]}, LABEL)
    stage.running.kill("chur")
    waited = threading.Event()

    def heard(facts: JobFacts) -> None:
        if "chur" in facts.waiting_for:
            waited.set()

    with ThreadPoolExecutor(1) as pool:
        end = pool.submit(user.run, order, heard)
        assert waited.wait(HANGS)
        stage.running.restart("chur")
        assert end.result().state == "done"
    assert user.client.erasure(order.job, key).statement.rows == 1
