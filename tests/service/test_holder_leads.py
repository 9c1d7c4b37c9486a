"""The label holder leads: the same models and answers, the coordinator only knows that they exist."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from processes import small_tables, three_companies
from sklearn.base import clone
from small_jobs import PARTIES, PLAN, train_order, user_of
from world import POLICY, World, running

import woodlot as wl
from woodlot.connected import ConnectedFederation
from woodlot.estimators.estimator_settings import from_json
from woodlot.exceptions import DataError, JobFailed, PolicyError, ReceiptError, RemoteProtocolError
from woodlot.federation import Labels
from woodlot.identity.identity import Identity
from woodlot.identity.receipts import MemberKey, make_receipt
from woodlot.jobs import job_messages as msg
from woodlot.jobs.led.led_messages import AskLeader, LeaderAnswer
from woodlot.jobs.linear.linear_orders import TrainLinearOrder
from woodlot.jobs.order_seal import completed, read_order
from woodlot.jobs.orders import Part, TrainOrder
from woodlot.jobs.revocable.revocable_orders import KeysOrder
from woodlot.protocols.revocable.revocable_plan import RevocablePlan
from woodlot.runtime.codec import encode
from woodlot.service import leader_line
from woodlot.service.leader_line import LeaderLine

LEADER = "bank"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    tables, rng = three_companies(), np.random.default_rng(0)
    bank = tables["bank"]["customers"]
    for name in ("amount", "care"):
        bank = bank.append_column(name, pa.array(rng.random(len(bank))))
    tables["bank"]["customers"] = bank
    made = World(tmp_path_factory.mktemp("led"), tables, labels=("late", "amount"), weights=("care",))
    for own in made.settings.values():
        kinds = ["align", "train", "predict", "train-linear", "predict-linear", "score", "revoke", "keys"]
        own["policy"] = POLICY | {"protocols": kinds}
    with running(made):
        yield made


@pytest.fixture
def led(world: World) -> Iterator[ConnectedFederation]:
    with user_of(world, lead=None) as user:
        yield user


@pytest.fixture
def plain(world: World) -> Iterator[ConnectedFederation]:
    with user_of(world) as user:
        yield user


@pytest.fixture(scope="module")
def models(world: World) -> tuple[str, str]:
    """The same forest, once led by the bank and once run by the coordinator."""
    with user_of(world, lead=None) as led, user_of(world) as plain:
        return led.run(train_order(led)).job, plain.run(train_order(plain)).job


def parts_of(root: Path, model: str) -> dict[str, bytes]:
    """The files of the parties' parts of a model."""
    folders = {party: root / party / "state" / "models" / model for party in PARTIES}
    return {
        f"{party} {path.name}": path.read_bytes()
        for party, folder in folders.items()
        for path in folder.iterdir()
        if path.name != "leader"
    }


# --- the same models ---


def test_the_forest_is_the_same_bit_for_bit(world: World, led: ConnectedFederation, models: tuple[str, str]) -> None:
    mine, theirs = (led.client.model(model) for model in models)
    assert mine.facts.forest == theirs.facts.forest
    assert mine.facts.oob_score == theirs.facts.oob_score is not None
    assert {name: data.tobytes() for name, data in mine.files.items()} == {
        name: data.tobytes() for name, data in theirs.files.items()
    }
    assert parts_of(world.root, models[0]) == parts_of(world.root, models[1])


@pytest.mark.parametrize(
    "options",
    [
        {"wire": "decisions"}, {"wire": "leaves"}, {"wire": "ranks"}, {"how": "classical"}, {"how": "sealed"},
        {"absent": ("shop",)}, {"shuffled": (0, 1)},
    ],
    ids=str,
)  # fmt: skip
def test_the_answers_are_the_same(
    led: ConnectedFederation, plain: ConnectedFederation, models: tuple[str, str], options: dict[str, Any]
) -> None:
    mine, theirs = (
        user.client.predictions(user.run(user.predict_order(model, **options)).job)
        for user, model in zip((led, plain), models, strict=True)
    )
    np.testing.assert_array_equal(mine.outputs, theirs.outputs)
    np.testing.assert_array_equal(mine.uncertain, theirs.uncertain)
    assert mine.classes == theirs.classes == ("no", "yes")


def test_the_score_is_the_same_and_answers_are_delivered(
    world: World, led: ConnectedFederation, plain: ConnectedFederation, models: tuple[str, str]
) -> None:
    mine, theirs = (
        user.run(user.predict_order(model, "bank.late", deliver_to="shop", give_answers=False))
        for user, model in zip((led, plain), models, strict=True)
    )
    assert mine.score == theirs.score is not None
    folder = world.root / "shop" / "state" / "answers"
    delivered = [pq.read_table(folder / f"{job}.parquet").replace_schema_metadata() for job in (mine.job, theirs.job)]
    assert delivered[0].equals(delivered[1])
    with pytest.raises(DataError, match="no answers"):
        led.client.predictions(mine.job)


def test_an_estimator_works_with_it(led: ConnectedFederation, tmp_path: Path) -> None:
    seen: list[Any] = []
    forest = wl.FederatedForestClassifier(n_estimators=4, oob_score=True, random_state=0)
    forest.fit(led, y="bank.late")
    assert forest.predict_proba(led).shape == (55, 2)
    assert forest.score(led) > 0.6  # four trees, and rows in an order of the parties' own
    readers = {row.receiver for row in forest.disclosure_}
    assert readers == {"bank (leader)", *PARTIES}
    assert forest.cost_.rounds > 5
    forest.save(tmp_path / "forest")
    assert wl.load(tmp_path / "forest").forest_.leader == forest.forest_.leader == LEADER
    led.run(train_order(led), seen.append)
    assert max(facts.total for facts in seen) > 0
    assert {facts.note for facts in seen if facts.phase not in ("", "align")} == {""}


def test_a_linear_model_is_the_same(led: ConnectedFederation, plain: ConnectedFederation, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"tol": 1e-3}
    models = [wl.FederatedLogisticRegression(**settings).fit(user, y="bank.late") for user in (led, plain)]
    np.testing.assert_array_equal(*(m.predict_proba(user) for m, user in zip(models, (led, plain), strict=True)))
    assert models[0].score(led) == models[1].score(plain)
    models[0].save(tmp_path / "linear")
    assert wl.load(tmp_path / "linear").linear_.leader == LEADER
    assert led.client.models()[1].leader == LEADER


@pytest.mark.slow
@pytest.mark.parametrize(
    ("estimator", "label", "options"),
    [
        (wl.FederatedForestRegressor(4, random_state=1, oob_score=True), "bank.amount", {}),
        (
            wl.FederatedForestClassifier(4, random_state=1, class_weight="balanced"),
            "bank.late",
            {"sample_weight": "bank.care"},
        ),
        (wl.FederatedForestClassifier(4, random_state=1, max_leaf_nodes=6), "bank.late", {}),
        (wl.FederatedLinearRegression(tol=0.1), "bank.amount", {}),
        (wl.FederatedLinearRegression(tol=0.1, max_iter=2), "bank.amount", {}),
    ],
    ids=["regression", "weights", "best first", "linear", "few steps"],
)
def test_what_else_can_be_trained_is_the_same(
    world: World, estimator: Any, label: str, options: dict[str, Any]
) -> None:
    """With rows that private set intersection finds, too."""
    found = []
    for lead in ("holder", "coordinator"):
        with user_of(world, lead=lead, align="psi") as user:
            model = clone(estimator).fit(user, y=label, **options)
            answers = model.predict_proba(user) if hasattr(model, "predict_proba") else model.predict(user)
            found.append((answers, model.score(user), getattr(model, "oob_score_", None)))
    (mine, *own), (theirs, *others) = found
    np.testing.assert_array_equal(mine, theirs)
    assert own == others


# --- where it lies, and who may read it ---


def test_the_coordinator_knows_that_the_model_exists(
    world: World, led: ConnectedFederation, models: tuple[str, str]
) -> None:
    folder = world.root / "coordinator" / "state" / "models" / models[0]
    assert [path.name for path in folder.iterdir()] == ["facts.json"]
    known = msgspec.json.decode((folder / "facts.json").read_bytes(), type=msg.ModelFacts)
    assert (known.leader, known.forest, known.classes, known.splits, known.oob_score) == (LEADER, "", (), {}, None)
    assert known.n_rows == 55
    told = led.client.find_model(models[0])
    assert (told.leader, told.classes, told.n_trees) == (LEADER, ("no", "yes"), PLAN.n_estimators)
    assert {m.model: m.leader for m in led.client.models()}[models[0]] == LEADER
    stored = world.root / LEADER / "state" / "led" / "models" / models[0] / "forest"
    assert stored.is_dir()


def test_others_may_use_the_model_and_not_take_it_out(world: World, models: tuple[str, str]) -> None:
    with user_of(world, "bob") as bob:
        assert bob.client.find_model(models[0]).classes == ("no", "yes")
        with pytest.raises(PolicyError, match="only alice may take it out"):
            bob.client.model(models[0])
        with pytest.raises(DataError, match="you have no job"):
            bob.client.ask_leader(LEADER, msg.AskJob(job=models[0], seen=0, wait=0.0), msg.JobStatus)
        job = bob.run(bob.predict_order(models[0])).job
        assert len(bob.client.predictions(job).outputs) == 55


def test_a_leader_takes_questions_only(led: ConnectedFederation) -> None:
    with pytest.raises(wl.exceptions.LocalProtocolError, match="does not take CancelJob"):
        led.client.ask_leader(LEADER, msg.CancelJob(job="0" * 32), msg.JobStatus)


def test_the_audit_tells_of_sealed_frames(led: ConnectedFederation, models: tuple[str, str]) -> None:
    report = led.client.audit(models[0])
    assert report.problem == ""
    kinds = {row["kind"] for row in msgspec.json.decode(report.rows)}
    assert {"SealedRequest", "SealedReply", "LedStep", "LeadOn"} <= kinds
    assert not any(kind.startswith(("Grow", "Plant", "Offers", "Share")) for kind in kinds)


def test_while_the_leader_is_away_its_jobs_and_questions_wait(
    world: World, led: ConnectedFederation, models: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    order = led.predict_order(models[0])
    world.stop_party(LEADER)
    try:
        led.client.submit(order)
        waiting = [facts.waiting_for for facts in led.client.jobs(1)]
        monkeypatch.setattr(leader_line, "PATIENCE_SECONDS", 0.1)
        with pytest.raises(DataError, match="'bank' leads this job, keeps what comes of it, and is not connected"):
            led.client.find_model(models[0])
        assert {model.model: model.leader for model in led.client.models()}[models[0]] == LEADER
    finally:
        world.start_party(LEADER)
        world.wait_connected(LEADER)
    monkeypatch.undo()
    assert waiting in ([(LEADER,)], [()])  # the coordinator notices a lost line within a moment
    assert led.client.finish(order.job).state == "done"


def test_a_user_has_some_questions_under_way_and_no_more() -> None:
    """So that others' find a thread free, while a leader does not answer."""
    answered = threading.Event()

    class Silent:
        def carry(self, requests: Any, on_reply: Any, **options: Any) -> None:
            answered.wait()
            on_reply("bank", encode(LeaderAnswer(answer=np.zeros(3, np.uint8))))

        def close(self) -> None:
            pass

    line = LeaderLine(lambda job, **options: Silent())
    question = AskLeader(leader="bank", question=b"sealed")
    waiting = [line.ask("alice", question) for _ in range(leader_line.MAX_OF_ONE_USER)]
    with pytest.raises(PolicyError, match="questions to leaders that wait"):
        line.ask("alice", question)
    others = line.ask("bob", question)
    answered.set()
    assert {len(answer.result().answer) for answer in (*waiting, others)} == {3}  # type: ignore[attr-defined]
    line.close()


# --- what cannot be ---


@pytest.mark.parametrize(
    "estimator",
    [
        wl.FederatedForestClassifier(3, random_state=1, class_weight={"yes": 7.0, "no": 1.0}),
        wl.FederatedLogisticRegression(tol=0.01, class_weight={"yes": 7.0, "no": 1.0}),
    ],
    ids=["forest", "linear"],
)
def test_weights_by_class_are_sealed_to_the_leader(
    world: World, led: ConnectedFederation, plain: ConnectedFederation, estimator: Any
) -> None:
    """The same model as where the coordinator reads them; it knows neither classes nor weights."""
    mine, theirs = (clone(estimator).fit(user, y="bank.late") for user in (led, plain))
    np.testing.assert_array_equal(mine.predict_proba(led), theirs.predict_proba(plain))
    unweighted = clone(estimator).set_params(class_weight=None).fit(led, y="bank.late")
    assert not np.array_equal(mine.predict_proba(led), unweighted.predict_proba(led))
    model = str((mine.forest_ if hasattr(mine, "forest_") else mine.linear_).model)
    told = json.loads(led.client.find_model(model).settings)
    assert from_json(told["params"])["class_weight"] == {"yes": 7.0, "no": 1.0}
    assert world.coordinator is not None
    stored = world.coordinator.store.job(model)
    assert stored is not None
    order = read_order(stored.order)
    assert isinstance(order, TrainOrder | TrainLinearOrder)
    assert not order.plan.class_weight
    read = {name: value for name, value in json.loads(stored.order).items() if name != "sealed"}
    assert "yes" not in json.dumps(read)  # in what is sealed, three letters come by chance
    assert "class_weight" not in world.coordinator.store.model_facts(model).settings


def test_weights_by_class_are_taken_by_a_leader_of_a_training_only(led: ConnectedFederation) -> None:
    weights = Part(class_weight=(("yes", 2.0),))
    order = train_order(led)
    assert completed(order, Part()) is order
    assert completed(order, weights).plan.class_weight == (("yes", 2.0),)
    for other in (msgspec.structs.replace(order, led_by=msgspec.UNSET), led.align_order()):
        with pytest.raises(RemoteProtocolError, match="weights by class"):
            completed(other, weights)


def test_what_cannot_be_led_is_refused(led: ConnectedFederation) -> None:
    with pytest.raises(DataError, match="layout='columns'"):
        wl.connect("localhost:1", "nowhere", tables="x", layout="rows", lead="holder")
    with pytest.raises(ValueError, match="lead must be"):
        wl.connect("localhost:1", "nowhere", tables="x", lead="shop")  # type: ignore[arg-type]


def test_the_leader_must_take_part(world: World, models: tuple[str, str]) -> None:
    with user_of(world, parties=("shop",)) as user, pytest.raises(DataError, match="'bank' keeps this model"):
        user.predict_order(models[0])


def test_by_default_the_coordinator_runs_what_cannot_be_led(world: World, led: ConnectedFederation) -> None:
    """And an explicit lead='holder' refuses it."""
    plan = RevocablePlan(PLAN)
    labels = Labels(LEADER, "late", None)
    assert led.train_revocable_order(plan, labels, {}, None).leader is None
    assert train_order(led).leader == LEADER
    with user_of(world, lead="holder") as strict:
        assert train_order(strict).leader == LEADER
        with pytest.raises(DataError, match="revocable forests cannot be led"):
            strict.train_revocable_order(plan, labels, {}, None)


def test_kinds_that_no_party_leads_are_refused_by_name(led: ConnectedFederation, models: tuple[str, str]) -> None:
    order = KeysOrder(
        **led.client.order_fields({p: Part() for p in PARTIES}), model=models[0], helper="bank", key_service="shop"
    )
    with pytest.raises(DataError, match="kept by 'bank', who leads its jobs"):
        led.run(order)


def test_an_order_names_the_leader_of_its_model(
    led: ConnectedFederation, plain: ConnectedFederation, models: tuple[str, str]
) -> None:
    order = led.predict_order(models[0])
    with pytest.raises(DataError, match="kept by 'bank'"):
        led.run(msgspec.structs.replace(order, led_by=msgspec.UNSET))
    with pytest.raises(DataError, match="kept by 'bank'"):
        led.run(msgspec.structs.replace(order, led_by="shop"))
    other = msgspec.structs.replace(plain.predict_order(models[1]), led_by="bank")
    with pytest.raises(DataError, match="kept by the coordinator"):
        plain.run(other)
    with pytest.raises(DataError, match="names no leader of model"):
        led.predict_order(models[1])


def test_what_ends_a_job_at_the_leader_is_told_to_the_user(world: World, led: ConnectedFederation) -> None:
    """Of a refusal before the leader begins everybody is told, as ever; of what happens then only the user."""
    with pytest.raises(JobFailed, match="setting labels"):
        led.run(train_order(led, column="age"))
    order = train_order(led)
    weighted = replace(order.plan, class_weight=(("maybe", 2.0),))
    with pytest.raises(JobFailed, match="class_weight"):
        led.run(msgspec.structs.replace(order, plan=weighted))
    assert world.coordinator is not None
    stored = world.coordinator.store.job(order.job)
    assert stored is not None
    assert stored.facts.error == (
        "party 'bank': it has ended the job that it leads; the user who ordered it can ask it why"
    )


# --- online scoring ---


def test_rows_are_scored_by_their_ids_as_ever(
    led: ConnectedFederation, plain: ConnectedFederation, models: tuple[str, str]
) -> None:
    """By several threads at once, for rows that a party lacks too."""
    ids = sorted({i for held in small_tables().values() for i in held["customers"]["id"].to_pylist()})
    with led.scoring(models[0]) as mine, plain.scoring(models[1]) as theirs, ThreadPoolExecutor(4) as pool:
        np.testing.assert_array_equal(mine.classes_, theirs.classes_)
        for answers in zip(mine.outputs(ids), theirs.outputs(ids), strict=True):
            np.testing.assert_array_equal(*answers)
        whole = theirs.outputs(ids)[0]
        for k, outputs in enumerate(pool.map(lambda k: mine.outputs(ids[k : k + 3])[0], range(12))):
            np.testing.assert_array_equal(outputs, whole[k : k + 3])
        with pytest.raises(DataError, match="ids are whole numbers"):
            mine.outputs(["nobody"])
        np.testing.assert_array_equal(mine.outputs(ids[:2])[0], whole[:2])  # a refusal ends nothing
        job = mine.job
    assert led.client.job(job).state == "done"
    with pytest.raises(DataError, match="not open"):
        mine.outputs(ids[:2])


# --- a party leaves ---


@pytest.mark.parametrize("level", [1, 3])
@pytest.mark.slow
def test_a_party_leaves_a_led_forest_as_any_other(world: World, level: int) -> None:
    trio = (*PARTIES, "club")
    with user_of(world, parties=trio, lead=None) as led, user_of(world, parties=trio) as plain:
        forests = [
            wl.FederatedForestClassifier(
                n_estimators=6, max_depth=4, oob_score=True, random_state=2, class_weight={"yes": 1.5, "no": 1.0}
            ).fit(user, y="bank.late")
            for user in (led, plain)
        ]
        former = str(forests[0].forest_.model)
        receipts = [forest.revoke("shop", level=level) for forest in forests]
        mine, theirs = (led.client.find_model(str(forest.forest_.model)) for forest in forests)
        assert mine.forest == theirs.forest
        assert (mine.leader, mine.parties, mine.epoch, mine.oob_score) == (
            LEADER, ("bank", "club"), 1, theirs.oob_score
        )  # fmt: skip
        authority = led.client.identity.authority
        assert [receipt.verify(authority).signer for receipt in receipts] == [
            "party 'bank'", "coordinator 'coordinator'"
        ]  # fmt: skip
        assert receipts[0].statement.trees == receipts[1].statement.trees
        with user_of(world, parties=("bank", "club")) as rest:
            np.testing.assert_array_equal(*(forest.predict_proba(rest) for forest in forests))
        known = {model.model: model for model in led.client.models()}
        assert former not in known
        assert (known[mine.model].leader, known[mine.model].forest, known[mine.model].epoch) == (LEADER, "", 1)
        with pytest.raises(DataError, match="replaced by"):
            led.run(led.predict_order(former))


def test_a_receipt_is_signed_by_the_leader_whom_the_request_names(world: World) -> None:
    """Nobody else's signature will do, though the authority vouches for it."""
    with user_of(world, parties=(*PARTIES, "club"), lead=None) as led:
        forest = wl.FederatedForestClassifier(2, max_depth=2, random_state=2).fit(led, y="bank.late")
        receipt = forest.revoke("shop")
        for other, words in {"club": "names 'bank' as the leader", "coordinator": "it takes a party"}.items():
            signer = MemberKey(Identity.load(world.root / other / "identity"))
            with pytest.raises(ReceiptError, match=words):
                make_receipt(receipt.statement, receipt.request, signer).verify(led.client.identity.authority)
