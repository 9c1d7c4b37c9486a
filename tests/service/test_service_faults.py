"""Faults of a whole federation, all as processes: each is a typed error on the right side, and nothing else suffers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from fault_stage import Stage, another_table, table_of, watched_stage
from processes import wait_until
from shared import Shared
from small_jobs import COORDINATOR, PARTIES, PLAN, model_of, train_order, user_of

from woodlot.exceptions import DataError, IdentityError, LocalProtocolError, PolicyError
from woodlot.identity.identity import Identity
from woodlot.jobs import job_messages as msg
from woodlot.jobs.order_seal import sign_order
from woodlot.protocols.vertical import forest_messages
from woodlot.runtime.drivers.grpc_line import PartyLine
from woodlot.runtime.journal import Journal
from woodlot.service.client import Client
from woodlot.service.coordinator import Coordinator
from woodlot.service.party import Party


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared[Stage]]:
    with Shared(lambda: watched_stage(tmp_path_factory.mktemp("faults"))) as shared:
        yield shared


@pytest.fixture
def stage(stages: Shared[Stage], request: pytest.FixtureRequest) -> Iterator[Stage]:
    yield from stages.lend(request)


# --- identities ---


def test_the_wrong_role_is_refused_on_both_sides(stage: Stage) -> None:
    world = stage.world
    with pytest.raises(IdentityError, match="is the identity of a coordinator; a user needs its own"):
        Client(world.address, world.root / "coordinator" / "identity")
    as_alice = {"identity": str(world.root / "alice" / "identity")}
    bank = world.party_config("bank")
    with pytest.raises(IdentityError, match="is the identity of a user; a party needs its own"):
        Party(msgspec.structs.replace(bank, identity=world.root / "alice" / "identity"))
    with pytest.raises(IdentityError, match="is the identity of a user; the coordinator needs its own"):
        Coordinator(msgspec.structs.replace(world.coordinator_config(), identity=Path(as_alice["identity"])))
    line = PartyLine(world.address, Identity.load(as_alice["identity"]).credentials, lambda job, number, data: b"")
    line.start()
    try:
        words = "the certificate of 'alice' is for the role 'user', and 'party' is needed here"
        wait_until(lambda: words in stage.running.log(COORDINATOR), "the refusal")
        wait_until(lambda: not line.connected, "the line to be closed")
    finally:
        line.stop()
    assert stage.train() == stage.expected


def test_an_order_is_its_users_and_nobody_elses(stage: Stage) -> None:
    order = train_order(stage.alice)
    data, signature = sign_order(order, stage.alice.client.identity)
    submit = msg.SubmitJob(order=data, signature=signature)
    with user_of(stage.world, "bob") as bob:
        with pytest.raises(PolicyError, match="signature"):
            bob.client.ask(submit, msg.JobStatus)
        job = stage.alice.client.ask(submit, msg.JobStatus).facts.job
        stage.alice.client.finish(job)
        for question in (msg.AskJob(job=job, seen=0, wait=0.0), msg.CancelJob(job=job), msg.AskAudit(job=job)):
            with pytest.raises(DataError, match="you have no job"):
                bob.client.ask(question, msg.JobStatus)
        with pytest.raises(PolicyError, match="only alice may take it out"):
            bob.client.model(job)
    again = stage.alice.client.ask(submit, msg.JobStatus).facts  # sent twice, done once
    assert (again.job, again.state) == (job, "done")
    changed = msgspec.structs.replace(order, name="other")
    with pytest.raises(PolicyError, match="another job of this name"):
        stage.alice.client.submit(changed)
    assert model_of(stage.world.root, job) == stage.expected


@pytest.mark.slow
def test_a_coordinator_cannot_make_an_old_order_run_again(stage: Stage) -> None:
    """Once a job has ended at a party, its order opens nothing there, also when the coordinator has forgotten it."""
    order = train_order(stage.alice)
    stage.alice.client.finish(stage.alice.client.submit(order).job)

    def has_ended(party: str) -> bool:
        with closing(Journal.read(stage.running.journal(party))) as journal:
            return journal.job(order.job).ended

    wait_until(lambda: all(map(has_ended, PARTIES)), "the parties to be told")
    stage.running.stop(COORDINATOR)
    state = stage.world.root / COORDINATOR / "state"
    for path in (*state.glob("jobs.sqlite*"), *state.glob("journal.sqlite*")):
        path.rename(path.with_name(f"kept-{path.name}"))
    try:
        stage.running.start_coordinator()
        wait_until(lambda: len(stage.alice.client.parties()) == 2 and stage.connected(*PARTIES), "the parties")
        stage.alice.client.submit(order)
        facts = stage.alice.client.follow(order.job)
        assert facts.state == "stopped"
        assert "'bank': the job has ended here" in facts.error
    finally:
        stage.running.stop(COORDINATOR)
        for path in (*state.glob("jobs.sqlite*"), *state.glob("journal.sqlite*")):
            path.unlink()
        for path in state.glob("kept-*"):
            path.rename(path.with_name(path.name.removeprefix("kept-")))
        stage.running.start_coordinator()
        wait_until(lambda: stage.connected(*PARTIES), "the parties")
    assert stage.train() == stage.expected


def test_what_users_cannot_ask(stage: Stage) -> None:
    client = stage.alice.client
    for question in (forest_messages.RevealSplits(), msg.ForgetJob(job="0" * 32), msg.ModelReady()):
        with pytest.raises(LocalProtocolError, match="does not take"):
            client.ask(question, msg.JobStatus)
    for job in ("0" * 32, "../../etc/passwd", ""):
        with pytest.raises(DataError, match="you have no job"):
            client.job(job)
        with pytest.raises(DataError, match="there is no model"):
            client.model(job)
    with pytest.raises(DataError, match="post never joined this federation; its parties are"):
        user_of(stage.world, parties=("bank", "post")).align_order()
    assert "is declined" in stage.running.log(COORDINATOR)


# --- policies: the user is told which party, and what would help ---


@pytest.mark.slow
def test_policies_are_told_to_the_user(stage: Stage) -> None:
    with user_of(stage.world, "bob") as bob:
        words = stage.failure(train_order(bob), bob)
        assert "party 'bank': this party does not let 'bob' train; its operator can add \"bob\" to the setting" in words
    with stage.policy("shop", protocols=["align", "predict"]):
        words = stage.failure(train_order(stage.alice))
        assert "party 'shop': this party does not train: the setting protocols in the section [policy]" in words
    with stage.policy("shop", min_rows=1000, min_samples_leaf=3):
        words = stage.failure(train_order(stage.alice))
        assert "party 'shop': there are fewer common rows than this party's policy asks for (min_rows = 1000)" in words
    with stage.policy("bank", min_samples_leaf=3):
        words = stage.failure(train_order(stage.alice))
        assert "party 'bank': leaves of 1 rows are too small" in words
        assert "train with min_samples_leaf=3 or more" in words
        stage.train(plan=replace(PLAN, min_samples_leaf=3))
    assert stage.train() == stage.expected


@pytest.mark.slow
def test_predictions_per_day(stage: Stage) -> None:
    order = train_order(stage.alice)
    n = stage.alice.client.finish(stage.alice.client.submit(order).job).n_rows or 0
    with stage.policy("shop", predictions_per_day=n + 1):
        first = stage.alice.predict_order(order.job)
        stage.alice.client.finish(stage.alice.client.submit(first).job)
        words = stage.failure(stage.alice.predict_order(order.job))
        assert (
            f"party 'shop': this party predicts {n + 1} rows per day (predictions_per_day); 1 are left until" in words
        )
        assert stage.alice.client.predictions(first.job).outputs.shape == (n, 2)


# --- tables and models ---


def test_tables_that_cannot_be_used(stage: Stage) -> None:
    """The user is told whose log to read; only the party's log has the words."""
    words = stage.failure(train_order(stage.alice, column="latest"))
    assert words.endswith("does not list it")
    assert "names 'latest' as its label (y), which [tables.customers] does not list" in stage.running.log("bank")
    with user_of(stage.world, tables={"bank": "customers", "shop": "clients"}) as alice:
        words = stage.failure(train_order(alice), alice)
        assert "party 'shop': it has no table of the name that the order gives" in words
    shop = table_of(stage, "shop")
    with another_table(stage, "shop", pa.concat_tables([shop, shop.slice(0, 2)])):
        words = stage.failure(train_order(stage.alice))
        assert re.search(r"party 'shop': .*2 (ids|rows).*", words), words
    with another_table(stage, "shop", shop.set_column(0, "id", pa.array([f"c{i}" for i in range(len(shop))]))):
        assert "ids are of different types" in stage.failure(train_order(stage.alice))
    with another_table(stage, "shop", shop.set_column(0, "id", pa.array(range(len(shop))))):
        assert "no id is at every party; there are 57 at 'bank', 58 at 'shop'" in stage.failure(
            train_order(stage.alice)
        )
    assert stage.train() == stage.expected


def test_a_model_or_its_columns_are_gone(stage: Stage) -> None:
    order = train_order(stage.alice)
    stage.alice.client.finish(stage.alice.client.submit(order).job)
    with another_table(stage, "shop", table_of(stage, "shop").rename_columns(["id", "visits", "trolley"])):
        words = stage.failure(stage.alice.predict_order(order.job))
        assert "party 'shop': its table does not have the columns that the model was trained with; its own" in words
        assert "basket" in stage.running.log("shop")
    folder = stage.world.root / "shop" / "state" / "models" / order.job
    folder.rename(folder.with_name("elsewhere"))
    assert "party 'shop': it does not know this model" in stage.failure(stage.alice.predict_order(order.job))
    folder.with_name("elsewhere").rename(folder)
    again = stage.alice.predict_order(order.job)
    stage.alice.client.finish(stage.alice.client.submit(again).job)
    with pytest.raises(DataError, match="there is no model"):
        stage.alice.client.submit(stage.alice.predict_order("0" * 32))


def test_a_table_that_has_changed_since_it_was_aligned(stage: Stage) -> None:
    with user_of(stage.world) as alice:
        alice.align()
        order = train_order(alice)
        assert order.alignment is not None
        with another_table(stage, "bank", table_of(stage, "bank").slice(1)):
            words = stage.failure(train_order(alice), alice)
            assert "party 'bank': its table has changed since it was aligned, or is another one; align again" in words
        alice.client.finish(alice.client.submit(order).job)
        assert model_of(stage.world.root, order.job) == stage.expected
