"""What a party's job takes and what it refuses: orders, policies, models, alignments and tables."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from party_bench import PRIVATE, REFUSALS, Bench, Recorded, play, recorded_jobs
from small_jobs import PARTIES, PLAN

from woodlot.exceptions import DataError, PolicyError, RemoteProtocolError
from woodlot.identity.receipts import CLOCK_SECONDS
from woodlot.jobs import job_messages as msg
from woodlot.jobs import order_seal
from woodlot.jobs.order_seal import ORDER_DAYS, common_fields, housekeeping_job, new_job, pass_on
from woodlot.jobs.orders import AlignOrder, Order, Part, PredictOrder, RevokeOrder, TrainOrder
from woodlot.jobs.party_job import PartyJob
from woodlot.protocols.align import align_messages
from woodlot.protocols.core.message import Message
from woodlot.protocols.sums.sum_messages import OpenSums, SumsIntroduced
from woodlot.protocols.vertical import forest_messages
from woodlot.protocols.vertical.sealed_messages import AskSealed
from woodlot.runtime.codec import decode, encode
from woodlot.service.party import Party


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    with recorded_jobs(tmp_path_factory.mktemp("jobs")) as made:
        yield made


# --- the order ---


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.close()


def train_order(bench: Bench, **changes: Any) -> TrainOrder:
    fields = bench.fields() | {"holder": "bank", "plan": PLAN, "settings": "{}"} | changes
    return TrainOrder(**fields)


def refused(bench: Bench, order: Order, party: str = "bank", user: str = "alice", job: str | None = None) -> str:
    """Why a party does not open a job; nothing of the job is left there."""
    attempt = bench.job(party, job or order.job)
    with pytest.raises(REFUSALS) as caught:
        attempt.handle(bench.opening(order, user))
    for message in (msg.KeepAlignment(), forest_messages.OpenTraining(max_bins=None)):
        with pytest.raises(RemoteProtocolError, match="in state new; expected after OpenJob"):
            attempt.handle(message)
    assert PRIVATE.search(str(caught.value)) is None
    return str(caught.value)


def test_an_order_is_for_one_job(bench: Bench) -> None:
    order = train_order(bench)
    assert "of another job" in refused(bench, order, job=new_job())
    shop = bench.homes["shop"].identity.certificate
    alone = AlignOrder(**common_fields({"shop": Part(table="customers")}, {"shop": shop}, **bench.here))
    assert "not for this party" in refused(bench, alone)
    job = bench.job("bank", order.job)
    job.handle(bench.opening(order))
    with pytest.raises(RemoteProtocolError, match="Unexpected OpenJob in state open; expected in state new"):
        job.handle(bench.opening(order))


def test_an_order_is_for_one_federation_and_one_coordinator(bench: Bench) -> None:
    """What was ordered elsewhere cannot be done again here, nor by whoever has got hold of it."""
    order = train_order(bench)
    elsewhere = msgspec.structs.replace(order, federation="0" * 64)
    assert "the order is for another federation (its authority's key is 0000000000000000" in refused(bench, elsewhere)
    other = msgspec.structs.replace(order, coordinator="other")
    assert "the order is for coordinator 'other', and 'coordinator' has passed it on" in refused(bench, other)
    job = bench.job("bank", order.job)
    whole = bench.passed_on(order)
    shop, alice = bench.homes["shop"].identity, bench.users["alice"]
    for own, passed in (
        (b"", b""),
        (whole["coordinator"], b""),
        (whole["coordinator"], whole["signature"]),
        pass_on(whole["order"], shop),
        pass_on(whole["order"], alice),
        pass_on(whole["order"] + b" ", bench.identity),
    ):
        with pytest.raises(PolicyError, match="the order is not taken"):
            job.handle(msg.OpenJob(**whole | {"coordinator": own, "passed": passed}))
    job.handle(msg.OpenJob(**whole))


def test_an_order_is_begun_within_its_time(bench: Bench) -> None:
    old = train_order(bench, created=time.time() - (ORDER_DAYS * 86_400 + 60))
    assert f"more than {ORDER_DAYS} days ago" in refused(bench, old)
    bench.homes["bank"] = replace(bench.homes["bank"], replays=lambda job: job == old.job)
    assert bench.job("bank", old.job).handle(bench.opening(old)).n_aligned is None  # type: ignore[attr-defined]
    assert f"more than {ORDER_DAYS} days ago" in refused(bench, train_order(bench, created=0.0))
    for ahead in (CLOCK_SECONDS + 60, 365 * 86_400, float("1e300")):  # else it could be kept for as much longer
        assert "dated more than 5 minutes ahead" in refused(bench, train_order(bench, created=time.time() + ahead))
    for age in ((ORDER_DAYS - 1) * 86_400, 60 - CLOCK_SECONDS):
        young = train_order(bench, created=time.time() - age)
        assert bench.job("bank", young.job).handle(bench.opening(young)).n_aligned is None  # type: ignore[attr-defined]


def test_a_job_that_was_begun_in_time_goes_on_for_any_time(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    order, late, config = train_order(bench), train_order(bench), bench.world.party_config("bank")
    bench.close()
    with Party(config) as party:
        assert isinstance(decode(party.answer(order.job, 1, encode(bench.opening(order)))), msg.JobOpened)
    monkeypatch.setattr(order_seal, "ORDER_DAYS", -1)
    with Party(config) as party:
        told = decode(party.answer(order.job, 2, encode(msg.KeepAlignment())))
        assert "the rows are not aligned yet" in told.reason  # type: ignore[attr-defined]
        told = decode(party.answer(late.job, 1, encode(bench.opening(late))))
        assert "order again" in told.reason  # type: ignore[attr-defined]


def test_an_order_is_taken_once_also_by_a_party_whose_journal_was_lost(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    order, config = train_order(bench), bench.world.party_config("bank")
    bench.close()
    opening = encode(bench.opening(order))
    with Party(config) as party:
        assert isinstance(decode(party.answer(order.job, 1, opening)), msg.JobOpened)
    for path in config.state.glob("journal.sqlite*"):
        path.unlink()
    with Party(config) as party:
        assert "journal.sqlite is new: 1 orders that were taken before, and what was spent of privacy" in caplog.text
        told = decode(party.answer(order.job, 1, opening))
        assert "the job has ended here" in told.reason  # type: ignore[attr-defined]


def test_a_training_needs_every_row_of_an_alignment_made_before(bench: Bench) -> None:
    outer = play(bench, AlignOrder(**bench.fields(), join="outer"))
    assert "align with join='inner'" in refused(bench, train_order(bench, alignment=outer.job))
    inner = play(bench, AlignOrder(**bench.fields()))
    assert play(bench, train_order(bench, alignment=inner.job)).outcome.forest.n_rows == inner.outcome.n_rows


def test_an_order_must_be_the_users_own(bench: Bench) -> None:
    order = train_order(bench)
    mine, other = bench.opening(order), bench.opening(train_order(bench))
    for stolen in (
        msgspec.structs.replace(mine, signature=other.signature),
        msgspec.structs.replace(mine, order=other.order),
        msgspec.structs.replace(mine, certificate=bench.users["bob"].certificate),
        msgspec.structs.replace(mine, certificate=bench.homes["shop"].identity.certificate),
    ):
        with pytest.raises(PolicyError, match="the order is not taken"):
            bench.job("bank", order.job).handle(stolen)
    swapped = msgspec.structs.replace(order, sealed={"bank": order.sealed["shop"], "shop": order.sealed["bank"]})
    assert "no part that this party can open" in refused(bench, swapped)


def test_what_only_the_party_may_know_is_in_its_log_only(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    table = bench.world.root / "bank" / "customers.parquet"
    wrong_label = train_order(bench, **bench.fields(bank=Part(table="customers", label="incom")))
    wrong_weight = train_order(bench, **bench.fields(bank=Part(table="customers", label="late", weight="wealth")))
    for order, words, setting in ((wrong_label, "'incom'", "labels"), (wrong_weight, "'wealth'", "weights")):
        told = refused(bench, order)
        assert f"the setting {setting} of that table" in told
        assert words not in told
        assert re.search(rf"it names {words} .* does not list among its {setting}", caplog.text)
    assert "no table of the name" in refused(bench, train_order(bench, **bench.fields(bank=Part(table="income"))))
    caplog.clear()
    table.rename(table.with_suffix(".old"))
    assert refused(bench, train_order(bench)) == "its table cannot be used; its own log says why"
    assert "customers.parquet) is not there" in caplog.text


def test_labels_that_cannot_be_used_are_told_in_general_words(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    path = bench.world.root / "bank" / "customers.parquet"
    table = pq.read_table(path)
    late = pa.array([None, *table.column("late").to_pylist()[1:]])
    pq.write_table(table.set_column(table.column_names.index("late"), "late", late), path)
    with pytest.raises(DataError, match=r"^its labels or its table cannot be used; its own log says why$"):
        play(bench, train_order(bench))
    assert "late" in caplog.text or "label" in caplog.text


# --- the coordinator asks for something else than was ordered ---


def opened(bench: Bench, order: Order, party: str = "bank") -> PartyJob:
    job = bench.job(party, order.job)
    job.handle(bench.opening(order))
    return job


def test_another_alignment_than_the_ordered_one_is_refused(bench: Bench) -> None:
    order = AlignOrder(**bench.fields(), method="psi")
    asked = align_messages.OpenAlignment(parties=PARTIES, method="psi", join="inner")
    for changes in (
        {"method": "keyed-hash"},
        {"method": "keyed-hash", "join": "outer"},
        {"parties": ("shop", "bank")},
        {"parties": ("bank", "post")},
        {"parties": (*PARTIES, "post")},
    ):
        with pytest.raises(RemoteProtocolError, match="does not ask for this alignment"):
            opened(bench, order).handle(msgspec.structs.replace(asked, **changes))
    done = play(bench, AlignOrder(**bench.fields()))
    again = train_order(bench, alignment=done.job, method="psi")
    with pytest.raises(RemoteProtocolError, match="does not ask for this alignment"):
        opened(bench, again).handle(asked)
    assert isinstance(opened(bench, order).handle(asked), align_messages.Introduced)


def test_other_predictions_than_the_ordered_ones_are_refused(recorded: Recorded) -> None:
    bench, trained, aligned = recorded.bench, recorded.plays["train"], recorded.plays["align"]
    n = trained.outcome.aligned.n_rows
    use = msg.UseModel(
        model=trained.job, forest=msgspec.structs.asdict(decode(trained.asked["bank"][-1]))["forest"], n_rows=n
    )

    def ask(order: PredictOrder, question: Message) -> Message:
        job = opened(bench, order)
        job.handle(use)
        return job.handle(question)

    fields = bench.fields() | {"model": trained.job, "alignment": aligned.job}
    simple, shuffled = PredictOrder(**fields), PredictOrder(**fields, shuffled=(0, 1))
    by_nodes, sealed = PredictOrder(**fields, how="classical"), PredictOrder(**fields, how="sealed")
    under_seal = AskSealed(
        round=0, clients=PARTIES, first_row=0, n_rows=n, first_leaf=0, n_leaves=1, shuffled=None, seed=0
    )
    decisions = forest_messages.AskDecisions(wire="decisions", shuffled=None, seed=0)
    nodes = forest_messages.AskNodes(rows=np.zeros(0, np.int32), nodes=np.zeros(0, np.int32))
    for order, question in (
        (simple, msgspec.structs.replace(decisions, wire="ranks")),
        (simple, msgspec.structs.replace(decisions, wire="leaves")),
        (simple, msgspec.structs.replace(decisions, shuffled=0)),
        (simple, nodes),
        (by_nodes, decisions),
        (sealed, decisions),
        (sealed, nodes),
        (simple, under_seal),
        (simple, OpenSums(clients=PARTIES, mode="secure")),
        (sealed, msgspec.structs.replace(under_seal, shuffled=0)),
        (simple, forest_messages.RevealSplits()),
        (simple, forest_messages.PlantTrees(first_tree=0, n_trees=1, candidates=np.ones(1, np.uint8))),
        (
            simple,
            forest_messages.OutOfBagAnswers(
                sizes=np.ones(1, np.uint32), classes=np.zeros(n, np.uint8), targets=None, since=np.zeros(n, np.uint8)
            ),
        ),
    ):
        with pytest.raises(RemoteProtocolError, match="the order does not ask for"):
            ask(order, question)
    assert isinstance(ask(simple, decisions), forest_messages.Decisions)
    assert isinstance(ask(shuffled, msgspec.structs.replace(decisions, shuffled=0, seed=1)), forest_messages.Decisions)
    assert isinstance(ask(by_nodes, nodes), forest_messages.Sides)
    for changes, words in (
        ({"model": new_job()}, "for another model"),
        ({"n_rows": n + 1}, f"speaks of {n + 1} rows"),
        ({"forest": "0" * 64}, "belongs to another forest"),
    ):
        with pytest.raises((RemoteProtocolError, DataError), match=words):
            opened(bench, simple).handle(msgspec.structs.replace(use, **changes))


def test_sealed_predictions_over_services(recorded: Recorded) -> None:
    bench, trained = recorded.bench, recorded.plays["train"]
    fields = bench.fields() | {"model": trained.job, "alignment": recorded.plays["align"].job}
    plain = play(bench, PredictOrder(**fields)).outcome.outputs
    np.testing.assert_array_equal(recorded.plays["sealed"].outcome.outputs, plain)
    keys = set()
    for _ in range(2):
        order = PredictOrder(**bench.fields(), model=trained.job, how="sealed")
        said = [decode(data) for data in play(bench, order).answered["bank"]]
        keys |= {message.introduction.share for message in said if isinstance(message, SumsIntroduced)}
    assert len(keys) == 2  # keys are drawn for each job


def test_a_policy_of_sealed_predictions(bench: Bench) -> None:
    bench.change_policy("shop", wire_forms=("sealed",), predictions_per_day=100)
    with pytest.raises(PolicyError, match=r"under seal only: predict with sealed=True"):
        play(bench, train_order(bench))  # it would be scored out of bag
    plan = replace(PLAN, out_of_bag=None)
    trained = play(bench, train_order(bench, plan=plan))
    for how in ("one-round", "classical"):
        with pytest.raises(PolicyError, match=r"wire_forms.*--method sealed"):
            play(bench, PredictOrder(**bench.fields(), model=trained.job, how=how))
    order = PredictOrder(**bench.fields(), model=trained.job, how="sealed")
    assert len(play(bench, order).outcome.outputs) == trained.outcome.aligned.n_rows


def test_a_user_does_not_choose_to_be_told_the_order_of_values(bench: Bench) -> None:
    trained = play(bench, train_order(bench))
    play(bench, PredictOrder(**bench.fields(), model=trained.job, wire="ranks"))
    bench.change_policy("shop", wire_forms=("sealed", "decisions"))
    with pytest.raises(PolicyError, match=r"form 'ranks'.*allows sealed, decisions"):
        play(bench, PredictOrder(**bench.fields(), model=trained.job, wire="ranks"))
    play(bench, PredictOrder(**bench.fields(), model=trained.job))


def test_answers_go_to_whom_the_order_names(recorded: Recorded) -> None:
    bench, trained, aligned = recorded.bench, recorded.plays["train"], recorded.plays["align"]
    n = trained.outcome.aligned.n_rows
    fields = bench.fields() | {"model": trained.job, "alignment": aligned.job}
    answers = msg.TakeAnswers(outputs=np.full((n, 2), 0.5), classes=("no", "yes"), keep=True, score=False)
    for order, changes, words in (
        (PredictOrder(**fields), {}, "does not give the answers to this party"),
        (PredictOrder(**fields, deliver_to="shop"), {}, "does not give the answers to this party"),
        (PredictOrder(**fields, deliver_to="bank"), {"score": True}, "does not give the answers to this party"),
        (PredictOrder(**fields, deliver_to="bank"), {"outputs": np.full((n - 1, 2), 0.5)}, "do not fit the rows"),
        (PredictOrder(**fields, deliver_to="bank"), {"outputs": np.full((n, 3), 0.5)}, "not those of a model"),
        (PredictOrder(**fields, deliver_to="bank"), {"outputs": np.full((n, 2), np.nan)}, "not those of a model"),
    ):
        with pytest.raises(RemoteProtocolError, match=words):
            opened(bench, order).handle(msgspec.structs.replace(answers, **changes))
        assert not (bench.world.root / "bank" / "state" / "answers" / f"{order.job}.parquet").exists()
    good = PredictOrder(**fields, deliver_to="bank")
    assert opened(bench, good).handle(answers).score is None  # type: ignore[attr-defined]
    kept = pq.read_table(bench.world.root / "bank" / "state" / "answers" / f"{good.job}.parquet")
    assert kept.column_names == ["id", "prediction", "probability_no", "probability_yes"]
    assert kept.num_rows == n


# --- the policy ---


def test_the_policy_is_asked_at_every_step(bench: Bench) -> None:
    order = train_order(bench)
    assert "does not let 'bob' train; its operator can add \"bob\"" in refused(bench, order, user="bob")
    play(bench, AlignOrder(**bench.fields()), user="bob")
    bench.change_policy("bank", protocols=("align", "predict"))
    assert "does not train: the setting protocols" in refused(bench, train_order(bench))
    bench.change_policy("bank", protocols=("align", "train", "predict"), min_rows=1000)
    for forbidden in (train_order(bench), AlignOrder(**bench.fields())):
        with pytest.raises(PolicyError, match=r"fewer common rows .* \(min_rows = 1000\)"):
            play(bench, forbidden)
    assert not (bench.world.root / "bank" / "state" / "models").exists()
    bench.change_policy("bank", min_rows=1, min_samples_leaf=4)
    with pytest.raises(PolicyError, match="train with min_samples_leaf=4 or more"):
        play(bench, train_order(bench))
    play(bench, train_order(bench, plan=replace(PLAN, min_samples_leaf=4)))


def test_the_policy_bounds_how_finely_values_are_told(bench: Bench) -> None:
    coarse = replace(PLAN, n_estimators=2, max_bins=8, min_cell=5)
    bench.change_policy("bank", trees=2, max_bins=8, min_cell=5)
    for finer, remedy in (
        (replace(coarse, n_estimators=3), "n_estimators=2 or less"),
        (replace(coarse, max_bins=9), "max_bins=8 or less"),
        (replace(coarse, min_cell=4), "min_cell=5 or more"),
    ):
        assert remedy in refused(bench, train_order(bench, plan=finer))
    play(bench, train_order(bench, plan=coarse))


def test_predictions_are_counted_before_they_are_made(bench: Bench) -> None:
    trained = play(bench, train_order(bench))
    n = trained.outcome.aligned.n_rows
    bench.change_policy("shop", predictions_per_day=2 * n + 1)
    order = PredictOrder(**bench.fields(), model=trained.job)
    for _ in range(3):  # the same job again, as after a crash: it has paid
        play(bench, order)
    play(bench, PredictOrder(**bench.fields(), model=trained.job), user="bob")
    with pytest.raises(PolicyError, match=r"rows per day \(predictions_per_day\); 1 are left until"):
        play(bench, PredictOrder(**bench.fields(), model=trained.job))


# --- models, alignments and tables that are not what they were ---


def test_a_model_that_the_party_does_not_have(bench: Bench) -> None:
    trained = play(bench, train_order(bench))
    folder = bench.world.root / "shop" / "state" / "models" / trained.job
    order = PredictOrder(**bench.fields(), model=trained.job)
    folder.rename(folder.with_name("elsewhere"))
    with pytest.raises(DataError, match="it does not know this model; was it trained with another state folder"):
        play(bench, order)
    folder.with_name("elsewhere").rename(folder)
    part = folder / "part.json"
    part.write_bytes(part.read_bytes().replace(b"visits", b"Visits"))
    with pytest.raises(DataError, match="its part of the model cannot be used") as caught:
        play(bench, order)
    assert str(bench.world.root) not in str(caught.value)
    assert PRIVATE.search(str(caught.value)) is None


def test_other_columns_than_in_training(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    trained = play(bench, train_order(bench))
    path = bench.world.root / "shop" / "customers.parquet"
    table = pq.read_table(path)
    pq.write_table(table.rename_columns(["id", "visits", "trolley"]), path)
    with pytest.raises(DataError, match=r"^its table does not have the columns that the model was trained with; its"):
        play(bench, PredictOrder(**bench.fields(), model=trained.job))
    assert "basket" in caplog.text
    pq.write_table(table, path)
    play(bench, PredictOrder(**bench.fields(), model=trained.job))


def test_a_table_that_has_changed_since_it_was_aligned(bench: Bench) -> None:
    aligned = play(bench, AlignOrder(**bench.fields()))
    path = bench.world.root / "shop" / "customers.parquet"
    table = pq.read_table(path)
    order = train_order(bench, alignment=aligned.job)
    pq.write_table(table.slice(0, table.num_rows - 1), path)
    assert "its table has changed since it was aligned, or is another one; align again" in refused(bench, order, "shop")
    pq.write_table(table, path, compression="gzip", row_group_size=7)  # the same table, written otherwise
    play(bench, order)
    assert "it does not know this alignment; align again" in refused(bench, train_order(bench, alignment=new_job()))


def test_a_table_that_has_changed_in_the_middle_of_a_job(recorded: Recorded) -> None:
    """A party that is restarted would tell another fingerprint when it opens the job: that is how it is noticed."""
    bench, order = recorded.bench, AlignOrder(**recorded.bench.fields())
    path = bench.world.root / "shop" / "customers.parquet"
    table, opening = pq.read_table(path), bench.opening(order)
    before = encode(bench.job("shop", order.job).handle(opening))
    assert encode(bench.job("shop", order.job).handle(opening)) == before
    values = table.column("basket").to_numpy().copy()
    values[3] += 1e-9
    pq.write_table(table.set_column(2, "basket", pa.array(values)), path)
    try:
        assert encode(bench.job("shop", order.job).handle(opening)) != before
    finally:
        pq.write_table(table, path)


# --- the end ---


def test_only_the_job_of_its_end_ends_a_job(bench: Bench) -> None:
    job = new_job()
    order = train_order(bench)
    for stranger in (bench.job("bank", job), bench.job("bank", housekeeping_job(new_job())), opened(bench, order)):
        with pytest.raises(RemoteProtocolError, match=r"is for another job|Unexpected ForgetJob in state open"):
            stranger.handle(msg.ForgetJob(job=job))
    assert bench.ended == []
    assert isinstance(bench.job("bank", housekeeping_job(job)).handle(msg.ForgetJob(job=job)), msg.JobForgotten)
    assert bench.ended == [job]


# --- a party is told that it has left ---


def test_a_notice_to_leave_is_checked_against_the_policy(bench: Bench) -> None:
    """Whoever may not have a party leave must not make it erase its part either."""
    trained = play(bench, train_order(bench))
    fields = bench.fields_of({"bank": Part(table="customers", label="late")})
    order = RevokeOrder(**fields, model=trained.job, alignment=trained.job, leaver="shop", task="classes")

    def notice(user: str) -> msg.LeaveNotice:
        return msg.LeaveNotice(**bench.passed_on(order, user))

    def told(user: str) -> Message:
        return bench.job("shop", housekeeping_job(order.job)).handle(notice(user))

    folder = bench.homes["shop"].store.folder / "models" / trained.job
    bench.change_policy("shop", protocols=("align", "train", "predict"))
    with pytest.raises(PolicyError, match="revoke"):
        told("alice")
    bench.change_policy("shop", protocols=("align", "train", "predict", "revoke"), train=("alice",))
    with pytest.raises(PolicyError, match="bob"):
        told("bob")
    assert folder.exists()
    with pytest.raises(RemoteProtocolError, match="not for this party"):
        bench.job("bank", housekeeping_job(order.job)).handle(notice("alice"))
    with pytest.raises(RemoteProtocolError, match="not for this party"):
        bench.job("shop", order.job).handle(notice("alice"))
    assert folder.exists()
    assert isinstance(told("alice"), msg.LeaveNoted)
    assert not folder.exists()
