"""Online scoring: the answers of a prediction, bit for bit; and nothing that is held outlives what allowed it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from party_bench import REFUSALS, Bench, number_id, play
from processes import small_tables, wait_until
from small_jobs import PARTIES, PLAN, train_order, user_of
from world import POLICY, World, running

from woodlot.connected import ConnectedFederation
from woodlot.connected.scores import Scoring
from woodlot.exceptions import DataError, PolicyError, RemoteProtocolError
from woodlot.identity.certificates import REVOKED
from woodlot.jobs.day_budgets import PredictionBudget
from woodlot.jobs.job_store import ENDED
from woodlot.jobs.orders import Part, ScoreOrder, TrainOrder
from woodlot.jobs.party_job import PartyJob
from woodlot.jobs.scores.score_seal import IdSeal, new_key
from woodlot.protocols.core.message import Message
from woodlot.protocols.vertical import score_messages as msg
from woodlot.protocols.vertical.files import forest_id_of
from woodlot.protocols.vertical.forest_messages import Decisions
from woodlot.runtime.codec import encode
from woodlot.runtime.journal import JobJournal
from woodlot.service import coordinator_scores
from woodlot.service.client import JobFailed

ALLOWED = {**POLICY, "protocols": ["align", "train", "predict", "revoke", "score"]}


def all_ids() -> tuple[list[int], dict[str, set[int]]]:
    held = {party: set(tables["customers"].column("id").to_pylist()) for party, tables in small_tables().items()}
    return sorted(held["bank"] | held["shop"]), held


# --- over the network ---


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("scoring"), small_tables())
    for party in PARTIES:
        made.settings[party]["policy"] = dict(ALLOWED)
    made.coordinator_settings["wait_for_parties"] = 5
    with running(made):
        yield made


@pytest.fixture(scope="module")
def user(world: World) -> Iterator[ConnectedFederation]:
    with user_of(world) as user:
        yield user


@pytest.fixture(scope="module")
def model(user: ConnectedFederation) -> str:
    return user.client.finish(user.client.submit(train_order(user)).job).job


@pytest.fixture
def scoring(user: ConnectedFederation, model: str) -> Iterator[Scoring]:
    with user.scoring(model) as scoring:
        yield scoring


def predicted(world: World, user: ConnectedFederation, model: str) -> dict[int, list[float]]:
    """The answers of an ordinary prediction of all rows that some party has, by id."""
    found: dict[int, list[float]] = {}
    with user_of(world, join="outer") as everywhere:
        for party in PARTIES:
            job = everywhere.client.submit(everywhere.predict_order(model, deliver_to=party)).job
            everywhere.client.finish(job)
            answers = pq.read_table(world.root / party / "state" / "answers" / f"{job}.parquet").to_pylist()
            found |= {row["id"]: [row["probability_no"], row["probability_yes"]] for row in answers}
    return found


def test_scores_are_those_of_a_prediction(
    world: World, user: ConnectedFederation, model: str, scoring: Scoring
) -> None:
    ids, held = all_ids()
    wanted = predicted(world, user, model)
    outputs, uncertain = scoring.outputs(ids)
    assert outputs.tolist() == [wanted[value] for value in ids]
    assert not uncertain[[value in held["bank"] and value in held["shop"] for value in ids]].any()
    assert scoring.predict(ids).tolist() == np.array(["no", "yes"])[outputs.argmax(axis=1)].tolist()
    stranger, is_uncertain = scoring.outputs([1])
    assert is_uncertain.all()
    assert stranger.sum() == pytest.approx(1)

    def one(value: int) -> list[float]:
        return scoring.predict_proba([value])[0].tolist()

    with ThreadPoolExecutor(16) as pool:  # asked at the same time, and answered together
        assert list(pool.map(one, ids)) == outputs.tolist()
    audit = user.client.audit(scoring.job)
    assert audit.problem == ""
    assert '"kind":"ScoreBatch"' in audit.rows


def test_a_scoring_is_its_users_and_ends_when_it_is_closed(world: World, user: ConnectedFederation, model: str) -> None:
    with user.scoring(model) as scoring, user_of(world, "bob") as bob:
        others = Scoring(bob.client, scoring.job, user.client.find_model(model), {})
        for attempt in (lambda: others.predict([987_654_321_070_001]), lambda: bob.client.cancel(scoring.job)):
            with pytest.raises(DataError, match=r"is not open|you have no job"):
                attempt()
        others.close()
        assert scoring.predict([987_654_321_070_001]).shape == (1,)
    assert user.client.job(scoring.job).state == "done"
    scoring.close()
    with pytest.raises(DataError, match=r"is not open; .* open another"):
        scoring.predict([987_654_321_070_001])
    parties = world.parties.values()
    wait_until(lambda: all(party.has_ended(scoring.job) for party in parties), "the parties to let go of it")
    held = lambda: any(scoring.job in party._sessions._sessions for party in parties)  # noqa: E731
    wait_until(lambda: not held(), "their memory to be free of it")

    cancelled = user.scoring(model)
    user.client.cancel(cancelled.job)
    assert user.client.job(cancelled.job).state == "cancelled"
    with pytest.raises(DataError, match="is not open"):
        cancelled.predict([987_654_321_070_001])


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        ([], "the ids of 1 to 1,000 rows, not of 0"),
        (range(1001), "the ids of 1 to 1,000 rows, not of 1,001"),
        ([5, 5], "more than once"),
        ([1.5], "no ids"),
        (["text"], "its ids are whole numbers"),
    ],
)
def test_ids_that_cannot_be(scoring: Scoring, ids: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        scoring.predict(ids)
    assert scoring.predict([987_654_321_070_001]).shape == (1,)


def test_the_coordinator_sees_no_ids(world: World, scoring: Scoring, monkeypatch: pytest.MonkeyPatch) -> None:
    assert world.coordinator is not None
    hub, asked, sent = world.coordinator.hub, [], []
    serve, journal = hub._serve_user, JobJournal.append

    def record(self: JobJournal, entries: Any, also: Any = None, **options: Any) -> None:
        sent.extend(entry.kind for entry in entries)
        journal(self, entries, also, **options)

    monkeypatch.setattr(hub, "_serve_user", lambda peer, data: (asked.append(data), serve(peer, data))[1])
    monkeypatch.setattr(JobJournal, "append", record)
    asked_for = 987_654_321_070_001
    scoring.predict([asked_for, 987_654_321_070_002])
    assert "ScoreBatch" in sent
    assert len(asked) == 1
    for form in (b"987654321070001", asked_for.to_bytes(8, "big"), asked_for.to_bytes(8, "little")):
        assert form not in asked[0]
    assert number_id(asked_for)[-8:] == asked_for.to_bytes(8, "big")  # as it would be in clear


def test_one_that_nobody_asks_ends(user: ConnectedFederation, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scoring = user.scoring(model)
    scoring.predict([987_654_321_070_001])
    monkeypatch.setattr(coordinator_scores, "IDLE_SECONDS", 0.0)
    wait_until(lambda: user.client.job(scoring.job).state == "done", "housekeeping to end it")


def test_what_cannot_be_opened(world: World, user: ConnectedFederation, model: str) -> None:
    with pytest.raises(DataError, match="no model 'nowhere'"):
        user.scoring("nowhere")
    with user_of(world, "bob", tables="orders") as bob, pytest.raises(JobFailed, match="no table of the name"):
        bob.scoring(model)
    opened = [user.scoring(model) for _ in range(8)]
    with pytest.raises(PolicyError, match="8 scorings open"):
        user.scoring(model)
    for scoring in opened:
        scoring.close()


def test_it_goes_on_when_a_party_comes_back_and_ends_with_the_coordinator(
    world: World, user: ConnectedFederation, model: str
) -> None:
    ids, _ = all_ids()
    scoring = user.scoring(model)
    before = scoring.predict_proba(ids)
    world.stop_party("shop")
    world.start_party("shop")
    assert np.array_equal(scoring.predict_proba(ids), before)

    world.stop_party("shop")
    world.settings["shop"]["policy"] = {**ALLOWED, "protocols": ["align", "train", "predict"]}
    world.start_party("shop")
    with pytest.raises(
        DataError, match=r"has ended: party 'shop': after its restart it refuses .* does not score: .* open another"
    ):
        scoring.predict(ids)
    assert wait_until(lambda: user.client.job(scoring.job).state in ENDED or None, "the scoring to end")
    world.stop_party("shop")
    world.settings["shop"]["policy"] = dict(ALLOWED)
    world.start_party("shop")

    scoring = user.scoring(model)
    assert np.array_equal(scoring.predict_proba(ids), before)
    world.stop_coordinator()
    world.start_coordinator()
    with pytest.raises(DataError, match="the coordinator was started again: open another"):
        scoring.predict(ids)
    assert user.client.job(scoring.job).state == "done"
    with user.scoring(model) as another:
        assert np.array_equal(another.predict_proba(ids), before)


# --- one party ---


class Opened:
    """The bank's side of a scoring, asked by hand."""

    def __init__(self, bench: Bench, model: str, forest: str) -> None:
        self.key = new_key()
        part = Part(table="customers", key=self.key)
        fields = bench.fields(bank=part, shop=part)
        self.order = ScoreOrder(**fields, model=model)
        self.bench, self.forest = bench, forest
        self.job = self.open()
        self.seal = IdSeal(self.key, self.order.job, "bank")

    def open(self) -> PartyJob:
        job = self.bench.job("bank", self.order.job)
        job.handle(self.bench.opening(self.order))
        job.handle(msg.OpenScoring(model=self.order.model, forest=self.forest))
        return job

    def batch(self, number: int, *requests: list[int], **changes: Any) -> msg.ScoreBatch:
        fields: dict[str, Any] = {
            "batch": number,
            "numbers": tuple(range(1, len(requests) + 1)),
            "n_rows": tuple(len(ids) for ids in requests),
            "sealed": tuple(self.seal.seal(k, [number_id(v) for v in ids]) for k, ids in enumerate(requests, 1)),
        }
        return msg.ScoreBatch(**(fields | changes))

    def ask(self, number: int, *requests: list[int], **changes: Any) -> Message:
        return self.job.handle(self.batch(number, *requests, **changes))


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def opened(bench: Bench) -> Opened:
    trained = play(bench, TrainOrder(**bench.fields(), holder="bank", plan=PLAN, settings="{}"))
    for party in PARTIES:
        bench.change_policy(party, protocols=tuple(ALLOWED["protocols"]))
    return Opened(bench, trained.job, forest_id_of(trained.outcome.forest))


def test_requests_that_go_together_are_answered_as_if_alone(opened: Opened) -> None:
    together = opened.ask(1, [987_654_321_070_003, 987_654_321_070_001], [987_654_321_070_002])
    alone = opened.ask(2, [987_654_321_070_003, 987_654_321_070_001, 987_654_321_070_002])
    assert isinstance(together, Decisions)
    assert encode(together) == encode(alone)


def revoke_user(opened: Opened) -> None:
    world = opened.bench.world
    world.authority.revoke("alice")
    opened.bench.homes["bank"].trust.update((world.root / "authority" / REVOKED).read_bytes())


def change_table(opened: Opened) -> None:
    path = opened.bench.world.root / "bank" / "customers.parquet"
    table = pq.read_table(path)
    pq.write_table(table.set_column(1, "age", pa.array(np.zeros(len(table)))), path)


@pytest.mark.parametrize(
    ("happens", "words"),
    [
        (revoke_user, "not valid any more: .* is revoked"),
        (change_table, "its table has changed since the scoring was opened"),
        (lambda o: (o.bench.world.root / "bank" / "customers.parquet").unlink(), "its table has changed"),
        (lambda o: o.bench.homes["bank"].store.drop_model(o.order.model, "f" * 32), "replaced when a party left it"),
        (lambda o: o.bench.homes["bank"].store.erase_model(o.order.model), "does not know this model"),
    ],
    ids=["certificate revoked", "table changed", "table gone", "a party left", "model erased"],
)
def test_what_is_held_does_not_outlive_what_allowed_it(
    opened: Opened, happens: Callable[[Opened], object], words: str
) -> None:
    assert isinstance(opened.ask(1, [987_654_321_070_001]), Decisions)
    happens(opened)
    for _ in range(2):
        with pytest.raises((DataError, PolicyError), match=words):
            opened.ask(2, [987_654_321_070_001])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"protocols": ("align", "train", "predict", "revoke")}, "does not list 'score'"),
        ({"predict": ("bob",)}, "does not let 'alice' score"),
        ({"min_rows": 2}, r"single rows, and this party takes part with 2 or more \(min_rows\)"),
        ({"wire_forms": ("sealed",)}, "form 'decisions'.*allows sealed"),
    ],
)
def test_policies_that_forbid_it(opened: Opened, changes: dict[str, Any], words: str) -> None:
    opened.bench.change_policy("bank", **changes)
    with pytest.raises(PolicyError, match=words):
        opened.open()


def test_messages_that_are_not_due_or_not_the_users(opened: Opened) -> None:
    good = encode(opened.ask(5, [987_654_321_070_001]))
    stolen = IdSeal(new_key(), opened.order.job, "bank").seal(1, [number_id(987_654_321_070_001)])
    elsewhere = IdSeal(opened.key, opened.order.job, "shop").seal(1, [number_id(987_654_321_070_001)])
    wrong: list[Callable[[], Message]] = [
        lambda: opened.ask(6, [987_654_321_070_001], sealed=(stolen,)),
        lambda: opened.ask(6, [987_654_321_070_001], sealed=(elsewhere,)),
        lambda: opened.ask(6, [987_654_321_070_001], numbers=(2,)),
        lambda: opened.ask(6, [987_654_321_070_001], n_rows=(2,)),
        lambda: opened.ask(4, [987_654_321_070_001]),
        lambda: opened.ask(5, [987_654_321_070_002]),
        lambda: opened.job.handle(msg.OpenScoring(model=opened.order.model, forest=opened.forest)),
        lambda: opened.job.handle(msg.ScoringReady()),
    ]
    for attempt in wrong:
        with pytest.raises(RemoteProtocolError):
            attempt()
    assert encode(opened.ask(5, [987_654_321_070_001])) == good
    unopened = opened.bench.job("bank", opened.order.job)
    unopened.handle(opened.bench.opening(opened.order))
    for message in (opened.batch(1, [987_654_321_070_001]), msg.OpenScoring(model="0" * 32, forest=opened.forest)):
        with pytest.raises(REFUSALS):
            unopened.handle(message)


def test_every_row_is_paid_for_once(opened: Opened) -> None:
    opened.bench.change_policy("bank", predictions_per_day=4)
    opened.job = opened.open()
    _, held = all_ids()
    ids = sorted(held["bank"])
    first = encode(opened.ask(1, ids[:3], [1]))  # 1 is nobody's
    assert encode(opened.ask(1, ids[:3], [1])) == first
    opened.job = opened.open()  # as after a restart
    assert encode(opened.ask(1, ids[:3], [1])) == first
    with pytest.raises(PolicyError, match="1 are left until"):
        opened.ask(2, ids[:2])
    opened.ask(3, ids[:1])
    with pytest.raises(PolicyError, match="0 are left"):
        opened.ask(4, ids[:1])


def test_batches_are_counted_with_other_predictions(tmp_path: Path) -> None:
    noon = datetime(2025, 3, 9, 12, tzinfo=UTC)
    with PredictionBudget(tmp_path, 10) as budget:
        budget.spend("a", "alice", 3, noon)
        for batch, day in ((1, 0), (2, 0), (2, 0), (3, 1), (3, 1)):
            budget.spend_batch("s", batch, bytes([batch]), "alice", 3, noon + timedelta(days=day))
        budget.spend_batch("s", 4, b"4", "alice", 7, noon + timedelta(days=1))
        with pytest.raises(PolicyError, match="0 are left"):
            budget.spend("b", "alice", 1, noon + timedelta(days=1))
        budget.end("s")
        budget.spend_batch("s", 1, b"1", "alice", 10, noon + timedelta(days=2))
