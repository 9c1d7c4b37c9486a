"""A coordinator that asks a party for more than the user has ordered: it is refused, and the job goes on as ordered."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hospitals import LABEL, TABLE
from party_bench import ROWS, Bench, Recorded, clinics, named, play, recorded_jobs, recorded_others, rows_order
from processes import small_tables
from small_jobs import PARTIES, PLAN

from woodlot.exceptions import PolicyError, RemoteProtocolError
from woodlot.jobs import job_messages as msg
from woodlot.jobs.order_seal import common_fields
from woodlot.jobs.ordered import OrderedConstruction, OrderedDescent
from woodlot.jobs.orders import AlignOrder, Part, PredictOrder, RevokeOrder, TrainOrder
from woodlot.jobs.party_job import PartyJob
from woodlot.jobs.party_store import DROPPED, read_alignment
from woodlot.jobs.revocable.revocable_orders import RevokeRevocableOrder
from woodlot.jobs.row_job_messages import PredictRows
from woodlot.jobs.rows.rows_orders import PredictRowsOrder, TrainRowsOrder
from woodlot.protocols.core.message import Message
from woodlot.protocols.linear import linear_messages
from woodlot.protocols.linear.dealt_messages import DescendOwn, MaskSlopes, OpenDealt, OpenDescent, StartHidden
from woodlot.protocols.linear.linear_model import LinearPlan
from woodlot.protocols.linear.linear_train import start_of
from woodlot.protocols.revocable import growth_messages
from woodlot.protocols.rows.collaborative import CollaborativePlan
from woodlot.protocols.rows.local_forests import LocalPlan
from woodlot.protocols.rows.row_client import Holdings
from woodlot.protocols.sums.sum_messages import OpenSums
from woodlot.protocols.vertical import forest_messages
from woodlot.protocols.vertical.sealed_messages import AskSealed
from woodlot.runtime.codec import decode, encode

NOT_ORDERED = "the order does not ask for"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    with recorded_jobs(tmp_path_factory.mktemp("jobs")) as made:
        yield made


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    with recorded_others(tmp_path_factory.mktemp("jobs")) as made:
        yield made


def changed(message: Message, **fields: Any) -> Message:
    return msgspec.structs.replace(message, **fields)


def refuses(job: PartyJob, message: Message, words: str = NOT_ORDERED) -> None:
    with pytest.raises(RemoteProtocolError, match=words):
        job.handle(decode(encode(message)))


# --- training ---


def other_questions(message: Message, n_rows: int) -> list[Message]:
    """What a coordinator might ask instead."""
    match message:
        case forest_messages.OpenTraining():
            return [changed(message, max_bins=16)]
        case forest_messages.ShareLabels():
            return [changed(message, reveal_unit=True), changed(message, seed=1), changed(message, balanced=True)]
        case forest_messages.StartForest():
            more: list[dict[str, Any]] = [
                {"max_depth": 9}, {"min_samples_split": 3}, {"min_samples_leaf": 2}, {"min_weight": 2}, {"n_draws": 1},
                {"entropy": True}, {"whole_tree": True}, {"order_seed": 1}, {"bootstrap_seed": None}, {"balance": True},
                {"min_cell": 1},
            ]  # fmt: skip
            return [changed(message, **one) for one in more]
        case forest_messages.PlantTrees():
            n_trees = PLAN.n_estimators + 1
            one_more = changed(message, n_trees=n_trees, candidates=np.ones(n_trees, np.uint8))
            return [one_more, changed(message, first_tree=1), changed(message, first_tree=100)]
        case forest_messages.OutOfBagAnswers():
            # one forest for each row, right in that row alone, would tell each label by its score
            every = np.zeros((n_rows, n_rows), np.uint8)
            oracle = {"sizes": np.arange(1, n_rows + 1, dtype=np.uint32), "classes": every.ravel()}
            return [changed(message, **oracle), changed(message, sizes=np.array([1, 1], np.uint32))]
        case forest_messages.AskDecisions():
            return [changed(message, wire="ranks"), changed(message, wire="leaves"), changed(message, shuffled=0)]
    return []


@pytest.mark.parametrize("party", PARTIES)
def test_a_training_is_the_one_that_was_signed(recorded: Recorded, party: str) -> None:
    played = recorded.plays["train"]
    n_rows = played.outcome.aligned.n_rows
    job, tried, said = recorded.bench.job(party, played.job), set(), {}
    for asked, answered in zip(played.asked[party], played.answered[party], strict=True):
        message = decode(asked)
        for other in other_questions(message, n_rows):
            refuses(job, other)
            tried.add(type(message))
        assert encode(job.handle(message)) == answered
        said[type(message)] = message
    assert tried == {kind for kind in said if other_questions(said[kind], n_rows)}
    assert len(tried) == (6 if party == "bank" else 4)
    # all trees are there: none is grown again, or beyond them
    refuses(job, said[forest_messages.OpenTraining])
    refuses(job, said[forest_messages.PlantTrees])
    refuses(job, changed(said[forest_messages.PlantTrees], first_tree=PLAN.n_estimators))


def test_labels_are_judged_by_once(recorded: Recorded) -> None:
    played = recorded.plays["train"]
    job = recorded.bench.job("bank", played.job)
    replies = [(message, job.handle(message)) for message in map(decode, played.asked["bank"])]
    asked, told = next(pair for pair in replies if isinstance(pair[0], forest_messages.OutOfBagAnswers))
    assert encode(job.handle(asked)) == encode(told)
    refuses(job, changed(asked, classes=1 - asked.classes), "answered once in a job")  # type: ignore[attr-defined]


def test_no_residual_is_that_of_one_row(tmp_path: Path) -> None:
    """Answers are the coordinator's: with the lowest for one row and the highest for all others, it is the largest."""
    tables, rng = small_tables(), np.random.default_rng(3)
    bank = tables["bank"]["customers"]
    targets = rng.normal(size=bank.num_rows) * 1_000
    column = bank.schema.get_field_index("late")
    tables["bank"]["customers"] = bank.set_column(column, "late", pa.array(targets))
    plan = replace(PLAN, task="targets", n_estimators=8, min_samples_leaf=10)
    with closing(Bench(tmp_path, tables)) as bench:
        told = {}
        for smallest in (1, 10):
            bench.change_policy("bank", min_samples_leaf=smallest)
            played = play(bench, TrainOrder(**bench.fields(), holder="bank", plan=plan, settings="{}"))
            _, rows = read_alignment(bench.homes["bank"].store.folder, played.job)
            y = targets[rows]
            job = bench.job("bank", played.job)
            for message in map(decode, played.asked["bank"]):
                if isinstance(message, forest_messages.OutOfBagAnswers):
                    break
                job.handle(message)
            answers = np.full((len(message.sizes), len(y)), y.max())  # type: ignore[attr-defined]
            answers[-1, 7] = y.min()
            reply = job.handle(changed(message, targets=answers.ravel()))
            told[smallest] = reply.residuals + y.min()  # type: ignore[attr-defined]
    assert np.isclose(told[1][-1], y[7])  # where the policy lets a leaf have one row
    assert not np.isclose(told[10][:, None], y).any()
    assert len(told[10]) == len(told[1]) == 201


def test_nothing_is_scored_out_of_bag_unless_it_was_ordered(recorded: Recorded) -> None:
    bench, scored = recorded.bench, recorded.plays["train"]
    plan = replace(PLAN, out_of_bag=None)
    played = play(bench, TrainOrder(**bench.fields(), holder="bank", plan=plan, settings="{}"))
    questions = [m for m in map(decode, scored.asked["bank"]) if isinstance(m, forest_messages.OutOfBagAnswers)]
    questions.append(forest_messages.AskDecisions(wire="decisions", shuffled=None, seed=0))
    job = bench.job("bank", played.job)
    for asked in played.asked["bank"]:
        job.handle(decode(asked))
        for question in questions:
            refuses(job, question, f"{NOT_ORDERED}|Unexpected")
    assert len(questions) == 2


# --- predicting ---


def ready_to_predict(recorded: Recorded, **fields: Any) -> PartyJob:
    """A prediction that the bank was ordered, with its model in use."""
    bench, trained = recorded.bench, recorded.plays["train"]
    ordered = bench.fields() | {"model": trained.job, "alignment": recorded.plays["align"].job} | fields
    order = PredictOrder(**ordered)
    job = bench.job("bank", order.job)
    job.handle(bench.opening(order))
    used = next(m for m in map(decode, recorded.plays["predict"].asked["bank"]) if isinstance(m, msg.UseModel))
    job.handle(used)
    return job


def test_answers_have_the_form_that_was_ordered(recorded: Recorded) -> None:
    """Ranks tell the order of all values: only who was told of them in the order may be asked for them."""
    asked = forest_messages.AskDecisions(wire="decisions", shuffled=None, seed=0)
    job = ready_to_predict(recorded)
    for wire in ("ranks", "leaves"):
        refuses(job, changed(asked, wire=wire))
    assert isinstance(job.handle(asked), forest_messages.Decisions)


def test_one_feature_is_shuffled_in_the_way_that_was_ordered(recorded: Recorded) -> None:
    asked = forest_messages.AskDecisions(wire="decisions", shuffled=0, seed=5)
    job = ready_to_predict(recorded, shuffled=(0, 5))
    refuses(job, changed(asked, seed=6))
    told = encode(job.handle(asked))
    for other in (changed(asked, shuffled=1), changed(asked, shuffled=None, seed=0)):
        refuses(job, other)
    assert encode(job.handle(asked)) == told
    assert encode(ready_to_predict(recorded).handle(changed(asked, shuffled=None))) != told


def test_sealed_answers_are_added_among_the_parties_of_the_order(recorded: Recorded) -> None:
    job, strangers = ready_to_predict(recorded, how="sealed"), ("bank", "post", "shop")
    refuses(job, OpenSums(clients=strangers, mode="secure"))
    refuses(job, OpenSums(clients=("bank", "post"), mode="secure"))
    block = AskSealed(
        round=0, clients=strangers, first_row=0, n_rows=1, first_leaf=0, n_leaves=1, shuffled=None, seed=0
    )
    refuses(job, block)


def test_labels_score_one_prediction(recorded: Recorded) -> None:
    n = recorded.plays["align"].outcome.n_rows
    job = ready_to_predict(recorded, score_at="bank")
    answers = msg.TakeAnswers(outputs=np.eye(2)[np.arange(n) % 2], classes=("no", "yes"), keep=False, score=True)
    score = job.handle(answers).score  # type: ignore[attr-defined]
    one_row_else = np.vstack([answers.outputs[:1, ::-1], answers.outputs[1:]])
    refuses(job, changed(answers, outputs=one_row_else), "answered once in a job")
    assert job.handle(answers).score == score  # type: ignore[attr-defined]


def test_a_score_counts_as_a_prediction_whether_the_model_is_asked_for_or_not(tmp_path: Path) -> None:
    """Else a coordinator would have as many answers scored as a user signs orders, and each score tells of labels."""
    with closing(Bench(tmp_path)) as bench:
        aligned = play(bench, AlignOrder(**bench.fields(), method="psi"))
        n = aligned.outcome.n_rows
        bench.change_policy("bank", predictions_per_day=n)
        answers = msg.TakeAnswers(outputs=np.eye(2)[np.arange(n) % 2], classes=("no", "yes"), keep=False, score=True)
        for is_first in (True, False):
            order = PredictOrder(**bench.fields(), model="0" * 32, alignment=aligned.job, score_at="bank")
            job = bench.job("bank", order.job)
            job.handle(bench.opening(order))
            if is_first:
                assert encode(job.handle(answers)) == encode(job.handle(answers))  # a job is counted once
            else:
                with pytest.raises(PolicyError, match=r"predictions_per_day.*; 0 are left"):
                    job.handle(answers)


def test_a_training_gives_its_user_no_predictions(tmp_path: Path) -> None:
    """Out-of-bag answers are predictions of every row, and to receive these is a right of its own."""
    with closing(Bench(tmp_path)) as bench:
        for party in PARTIES:
            bench.change_policy(party, receive=(), predict=(), predictions_per_day=0)
        trained = play(bench, TrainOrder(**bench.fields(), holder="bank", plan=PLAN, settings="{}"))
        answers = trained.outcome.oob.outputs
        part = encode(bench.coordinator.model_part(trained.job))
    assert len(answers) == trained.outcome.aligned.n_rows
    assert trained.outcome.oob.score is not None
    assert answers.tobytes() not in part
    stored = [path.read_bytes() for path in (tmp_path / "coordinator").rglob("*") if path.is_file()]
    assert not any(answers.tobytes() in data for data in stored)


# --- revoking ---


def test_a_revocation_asks_for_nothing_but_its_trees(recorded: Recorded) -> None:
    bench, trained = recorded.bench, recorded.plays["train"]
    fields = bench.fields_of({"bank": Part(table="customers", label="late")})
    order = RevokeOrder(**fields, model=trained.job, alignment=trained.job, leaver="shop", task="classes")
    job = bench.job("bank", order.job)
    job.handle(bench.opening(order))
    said = {type(m): m for m in map(decode, (*trained.asked["bank"], *recorded.plays["predict"].asked["bank"]))}
    n = trained.outcome.aligned.n_rows
    job.handle(said[msg.UseModel])
    job.handle(said[forest_messages.OpenTraining])
    for other in other_questions(said[forest_messages.OpenTraining], n) + other_questions(
        said[forest_messages.ShareLabels], n
    ):
        refuses(job, other)
    shared = job.handle(said[forest_messages.ShareLabels])
    start = changed(said[forest_messages.StartForest], labels=shared.labels)  # type: ignore[attr-defined]
    for other in other_questions(start, n):  # the plan of the training, whose trees are grown again
        refuses(job, other)
    job.handle(start)
    plain = said[forest_messages.AskDecisions]
    for other in (changed(plain, wire="ranks"), changed(plain, shuffled=0)):
        refuses(job, other)
    for other in other_questions(said[forest_messages.OutOfBagAnswers], n):
        refuses(job, other)
    assert isinstance(job.handle(plain), forest_messages.Decisions)
    answers = said[forest_messages.OutOfBagAnswers]
    assert isinstance(job.handle(answers), forest_messages.OutOfBagScores)
    refuses(job, changed(answers, classes=1 - answers.classes), "answered once in a job")  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", ["revoke", "revoke-revocable"])
def test_a_former_model_is_dropped_when_the_new_one_is_kept(others: Recorded, kind: str) -> None:
    bench, played = others.bench, others.plays[kind]
    asked = [decode(data) for data in played.asked["bank"]]
    drop = asked[-1]
    assert isinstance(drop, msg.DropModel)
    folder = bench.homes["bank"].store.folder / "models" / drop.model
    (folder / DROPPED).unlink()  # as it was before that job
    job = bench.job("bank", played.job)
    for message in asked[:-1]:
        refuses(job, drop, "when the new one is kept|Unexpected DropModel in state new")
        job.handle(message)
        assert not (folder / DROPPED).exists()
    for other in (changed(drop, model="0" * 32), changed(drop, leaver="bank")):
        refuses(job, other, "and no other")
    job.handle(drop)
    assert (folder / DROPPED).exists()


def test_a_stranger_leaves_no_model(others: Recorded) -> None:
    """Otherwise any party could have labels sent to the coordinator, where no policy lists it."""
    bench = others.bench
    revoked, grown = others.plays["revoke"], others.plays["train-revocable"]
    fields = bench.fields_of({"bank": Part(table="customers", label="late")})
    about: dict[str, Any] = {"leaver": "mill", "task": "classes"}
    # the shop has left this one before
    again = RevokeOrder(**fields, model=revoked.job, alignment=revoked.job, leaver="shop", task="classes")
    stranger = RevokeOrder(**fields, model=revoked.job, alignment=revoked.job, **about)
    labels = RevokeRevocableOrder(**fields, model=grown.job, alignment=grown.job, holder="bank", **about)
    for order in (again, stranger, labels):
        with pytest.raises(PolicyError, match="takes no part in this model"):
            bench.job("bank", order.job).handle(bench.opening(order))
    unknown = msgspec.structs.replace(labels, model="0" * 32, leaver="shop", alignment=None)
    refuses(bench.job("bank", unknown.job), bench.opening(unknown), "works on the rows of the training")


def test_a_party_that_leaves_orders_no_training_over_rows(rows_bench: Bench) -> None:
    """The parties that stay have no record of such a model: that there is one would be the leaver's word."""
    bench = rows_bench
    bench.change_policy("bank", train=("alice",))
    bench.users["shop"] = bench.homes["shop"].identity
    order = rows_order(bench, LocalPlan(**ROWS), ("bank",), model="0" * 32, leaver="shop")
    with pytest.raises(PolicyError, match=r"does not let 'party shop' train-rows; .* add \"party shop\" to .* train "):
        bench.job("bank", order.job).handle(bench.opening(order, "shop"))
    bench.change_policy("bank", train=("party shop",))
    assert isinstance(bench.job("bank", order.job).handle(bench.opening(order, "shop")), msg.JobOpened)


# --- rows ---


@pytest.fixture
def rows_bench(tmp_path: Path) -> Iterator[Bench]:
    with clinics(tmp_path) as bench:
        yield bench


def test_sums_are_over_the_parties_of_the_order(rows_bench: Bench) -> None:
    bench = rows_bench
    part, certificates = Part(table=TABLE, label=LABEL), {p: bench.homes[p].identity.certificate for p in PARTIES}
    three = (*PARTIES, "post")
    fields = common_fields(dict.fromkeys(three, part), certificates | {"post": certificates["shop"]}, **bench.here)
    order = TrainRowsOrder(**fields, plan=CollaborativePlan(**ROWS, allow_two=True), settings="{}")
    job = bench.job("bank", order.job)
    job.handle(bench.opening(order))  # three parties: nobody is asked to add its numbers to those of one other
    for clients in (PARTIES, ("bank", "post"), (*three, "mill"), ("bank", "mill", "shop")):
        refuses(job, OpenSums(clients=tuple(sorted(clients)), mode="secure"), "over all parties of the order")
    # of these, but not yet
    refuses(job, OpenSums(clients=tuple(sorted(three)), mode="secure"), "Unexpected OpenSums in state idle")


@pytest.mark.parametrize("allowed", [False, True])
def test_a_plan_for_two_is_for_those_who_allow_it(allowed: bool) -> None:
    own: Any = {"name": "bank", "table": None, "target": None, "lasting": None}
    secret = {"entropy": lambda purpose: bytes(32), "shared_secret": bytes(range(16))}
    sums = Holdings(**own, **secret, allow_two=allowed).sum_client("secure", True)
    opening = OpenSums(clients=PARTIES, mode="secure")
    if allowed:
        sums.handle(opening)
    else:
        with pytest.raises(PolicyError, match="sums over 2 clients"):
            sums.handle(opening)


def test_one_forest_is_scored_at_a_party(rows_bench: Bench) -> None:
    bench, models, files = rows_bench, [], []
    for seed in (1, 2):
        trained = play(bench, rows_order(bench, LocalPlan(**ROWS | {"seed": seed})))
        models.append(trained.job)
        files.append(bench.coordinator.model_files(trained.job)[0])
    fields = bench.fields_of({"bank": Part(table=TABLE, label=LABEL)})
    order = PredictRowsOrder(**fields, **named(bench, models[0]))
    job = bench.job("bank", order.job)
    job.handle(bench.opening(order))
    one, another = (
        PredictRows(model=models[0], files={name: np.frombuffer(data, np.uint8) for name, data in some.items()})
        for some in files
    )
    home = bench.homes["bank"]
    strict = replace(home, policy=msgspec.structs.replace(home.policy, min_rows=61))
    with pytest.raises(PolicyError, match="fewer rows"):
        PartyJob(strict, order.job).handle(bench.opening(order))
    told = encode(job.handle(one))
    refuses(job, another, "answered once in a job")
    assert encode(job.handle(one)) == told


# --- revocable forests ---


def test_a_construction_begins_at_the_roots_that_were_ordered() -> None:
    """Else a coordinator would have any few rows compared, as often as it likes."""
    watch, nothing, words = OrderedConstruction(2), np.empty(0, np.uint8), np.empty(0, np.uint32)
    opening = growth_messages.OpenConstruction(rho=0, zeta=3, regrows=False)
    two = growth_messages.ExpandLeaves(
        is_split=nothing, flags=nothing, is_open=nothing, won_pair=words, won_cut=nothing, vectors=nothing,
        sizes=np.ones(2, np.uint32), samples=np.zeros(2, np.uint32), keys=np.empty(0, np.uint64), selected=nothing,
    )  # fmt: skip
    none = changed(two, sizes=words, samples=words)
    for _ in range(2):
        watch.check(opening)
        watch.note(opening)
    with pytest.raises(RemoteProtocolError, match=NOT_ORDERED):
        watch.check(changed(two, sizes=np.ones(3, np.uint32)))
    for message in (none, two, none):
        watch.check(message)
        watch.note(message)
    for message in (two, opening):
        with pytest.raises(RemoteProtocolError, match=NOT_ORDERED):
            watch.check(message)


# --- linear models ---


def test_a_target_has_one_score() -> None:
    """With one score for each row, a single step would tell the products of all rows."""
    plan = LinearPlan(
        task="targets", strength=1.0, fit_intercept=True, standardize=True, balanced=False, class_weight=(),
        max_iter=1, tol=1e-4,
    )  # fmt: skip
    one = linear_messages.Descend(step=np.empty(0), residuals=np.zeros((5, 1)), penalty=0.0, curvature=1.0)
    hidden = OpenDescent(introductions={}, n_scores=1, penalty=0.0, curvature=1.0, tol=plan.tol)
    for task, allowed in (("targets", {1}), ("classes", {1, 3, 5})):
        watch = OrderedDescent(msgspec.structs.replace(plan, task=task), PARTIES)
        for n in (1, 2, 3, 5):
            for message in (changed(one, residuals=np.eye(5)[:, :n]), changed(hidden, n_scores=n)):
                if n in allowed:
                    watch.check(message)
                else:
                    with pytest.raises(RemoteProtocolError, match=NOT_ORDERED):
                        watch.check(message)


def test_a_descent_has_the_steps_that_were_ordered() -> None:
    plan = LinearPlan(
        task="classes", strength=1.0, fit_intercept=True, standardize=True, balanced=False, class_weight=(),
        max_iter=2, tol=1e-4, protection="hidden",
    )  # fmt: skip
    watch = OrderedDescent(plan, PARTIES)
    start = linear_messages.StartLinear(**start_of(plan))
    hidden = StartHidden(**start_of(plan), columns={"shop": 3})
    for right in (start, hidden):
        watch.check(right)
        for wrong in ({"strength": 0.0}, {"balanced": True}, {"fit_intercept": False}):
            with pytest.raises(RemoteProtocolError, match=NOT_ORDERED):
                watch.check(changed(right, **wrong))
    with pytest.raises(RemoteProtocolError, match=NOT_ORDERED):
        watch.check(changed(hidden, columns={"shop": 3, "ghost": 30}))
    opening = OpenDealt(parties=("shop", "dealer"), holder="bank", dealer="dealer")
    watch.check(opening)
    for wrong in ({"parties": ("shop", "ghost", "dealer")}, {"dealer": "shop"}, {"holder": "ghost"}, {"parties": ()}):
        with pytest.raises(RemoteProtocolError, match=NOT_ORDERED):
            watch.check(changed(opening, **wrong))
    with pytest.raises(RemoteProtocolError, match=NOT_ORDERED):
        watch.check(linear_messages.AskScores())  # of the rows of the training; a prediction is another order
    with pytest.raises(RemoteProtocolError, match=NOT_ORDERED):
        watch.check(OpenDescent(introductions={}, n_scores=1, penalty=0.0, curvature=1.0, tol=1.0))
    none = np.zeros((1, 1))
    steps: dict[Message, int] = {
        linear_messages.Advance(scores=none, products=none): 2,
        linear_messages.Descend(step=none[0], residuals=none, penalty=0.0, curvature=1.0): 3,
        MaskSlopes(products={}): 3,
        DescendOwn(step=none[0]): 3,
    }
    for message, n in steps.items():
        for _ in range(n):
            watch.check(message)
            watch.note(message)
        with pytest.raises(RemoteProtocolError, match=NOT_ORDERED):
            watch.check(message)
