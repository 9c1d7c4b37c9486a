"""Evaluations over rows without a network: what parties refuse of a coordinator that deviates."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow.parquet as pq
import pytest
from forger import a_class_renamed, made_up, one_class_more, other_answers, other_thresholds
from hospitals import LABEL, TABLE
from party_bench import ROWS, Bench, clinics, named, play, rows_order
from small_jobs import PARTIES

from woodlot.exceptions import DataError, PolicyError, RemoteProtocolError
from woodlot.jobs.evaluate.pooled_messages import AnswerOwnRows, CountScores, RateOwnRows
from woodlot.jobs.evaluate.report_seal import new_report_key
from woodlot.jobs.kind import CoordinatorHost, kind_of
from woodlot.jobs.orders import Part
from woodlot.jobs.row_job_messages import PredictRows
from woodlot.jobs.rows.rows_orders import EvaluateRowsOrder, PredictRowsOrder
from woodlot.protocols.core.message import Message
from woodlot.protocols.rows.local_forests import LocalPlan
from woodlot.protocols.sums.sum_messages import OpenSums
from woodlot.runtime.codec import decode, encode

Change = Callable[[str, Message], Message]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with clinics(tmp_path) as bench:
        for party in PARTIES:
            listed = (*bench.homes[party].policy.protocols, "evaluate")
            bench.change_policy(party, allow_two=True, protocols=listed)
        yield bench


def evaluated(bench: Bench, model: str, change: Change, **options: Any) -> Any:
    """Run an evaluation in which the coordinator says something else to some party."""
    parts = {p: Part(table=TABLE, label=LABEL, key=new_report_key()) for p in PARTIES}
    order = EvaluateRowsOrder(**bench.fields_of(parts), **named(bench, model), allow_two=True, **options)
    jobs = {p: bench.job(p, order.job) for p in PARTIES}
    protocol = kind_of(order).protocol(order, bench.opening(order), CoordinatorHost(bench.coordinator, 1))
    replies: Any = None
    while True:
        try:
            step = next(protocol) if replies is None else protocol.send(replies)
        except StopIteration as end:
            return end.value
        asked = {p: change(p, message) for p, message in step.requests.items()}
        replies = {p: decode(encode(jobs[p].handle(decode(encode(message))))) for p, message in asked.items()}


def test_who_brings_one_party_another_message_gets_no_sum(bench: Bench) -> None:
    """The same forest, with a file more: whatever differs, the masks do not cancel."""
    model = play(bench, rows_order(bench, LocalPlan(**ROWS))).job

    def exchanged(party: str, message: Message) -> Message:
        if isinstance(message, AnswerOwnRows) and party == "shop":
            return msgspec.structs.replace(message, files=message.files | {"more": np.zeros(1, np.uint8)})
        return message

    assert evaluated(bench, model, lambda _, message: message).sums.size > 3
    with pytest.raises(RemoteProtocolError, match="the sum is not one of these clients' numbers"):
        evaluated(bench, model, exchanged)


def test_another_forest_of_the_coordinators_is_refused(bench: Bench) -> None:
    first, second = (play(bench, rows_order(bench, LocalPlan(**ROWS | {"seed": seed}))).job for seed in (1, 2))
    files, _ = bench.coordinator.model_files(second)
    other = {name: np.frombuffer(data, np.uint8) for name, data in files.items()}

    def exchanged(party: str, message: Message) -> Message:
        return msgspec.structs.replace(message, files=other) if isinstance(message, AnswerOwnRows) else message

    with pytest.raises(RemoteProtocolError, match="brought another forest"):
        evaluated(bench, first, exchanged)


def finer(_: str, message: Message) -> Message:
    if isinstance(message, RateOwnRows):
        cuts = (np.array([5, 5], np.int64),)
        return msgspec.structs.replace(message, cuts=cuts)
    return message


def smaller(_: str, message: Message) -> Message:
    if isinstance(message, RateOwnRows):  # pads would go beyond the bound, and be cut off
        return msgspec.structs.replace(message, order=msgspec.structs.replace(message.order, bound=1))
    return message


def longer(_: str, message: Message) -> Message:
    if isinstance(message, CountScores):
        return msgspec.structs.replace(message, order=msgspec.structs.replace(message.order, length=1001))
    return message


def renamed(_: str, message: Message) -> Message:
    return msgspec.structs.replace(message, model="0" * 32) if isinstance(message, AnswerOwnRows) else message


def alone(party: str, message: Message) -> Message:
    return msgspec.structs.replace(message, clients=("bank",)) if isinstance(message, OpenSums) else message


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (finer, "bins are not made of those of the grid"),
        (smaller, "the order of the sum does not fit the report"),
        (longer, "the order of the sum does not fit the bins"),
        (renamed, "the order is for another model"),
        (alone, "sums are over all parties of the order"),
    ],
)
def test_what_was_not_ordered_is_refused(bench: Bench, change: Change, words: str) -> None:
    model = play(bench, rows_order(bench, LocalPlan(**ROWS))).job
    with pytest.raises(RemoteProtocolError, match=words):
        evaluated(bench, model, change)


def test_a_refusal_in_the_opening_counts_no_evaluation(bench: Bench) -> None:
    model = play(bench, rows_order(bench, LocalPlan(**ROWS))).job
    bench.change_policy("shop", min_evaluation_rows=1000)
    bench.change_policy("bank", evaluations_per_day=1)
    with pytest.raises(PolicyError, match="must be of 1,000 rows or more"):
        evaluated(bench, model, lambda _, message: message)
    bench.change_policy("shop", min_evaluation_rows=1)
    evaluated(bench, model, lambda _, message: message)
    with pytest.raises(PolicyError, match="1 times per day"):
        evaluated(bench, model, lambda _, message: message)


# --- exact scores of predictions ---


def score_at(bench: Bench, model: str, party: str) -> tuple[int, float]:
    """The rows of a clinic, and the share of them that is predicted right."""
    fields = bench.fields_of(dict.fromkeys(PARTIES, Part(table=TABLE, label=LABEL)))
    outcome = play(bench, PredictRowsOrder(**fields, **named(bench, model))).outcome
    return outcome.rows[party], outcome.scores[party]


def take_out_a_row(bench: Bench, party: str) -> Any:
    """The first row leaves a clinic; returns it."""
    path = bench.world.root / party / f"{TABLE}.parquet"
    table = pq.read_table(path)
    pq.write_table(table.slice(1), path)
    return table.slice(0, 1)


def test_scores_over_rows_tell_of_a_row_that_leaves_where_a_clinic_asks_for_no_rows(bench: Bench) -> None:
    model = play(bench, rows_order(bench, LocalPlan(**ROWS))).job
    n, before = score_at(bench, model, "bank")
    take_out_a_row(bench, "bank")
    _, after = score_at(bench, model, "bank")
    assert round(n * before - (n - 1) * after, 9) in {0.0, 1.0}  # whether the answer for that row is right


def test_scores_over_rows_count_as_evaluations(bench: Bench) -> None:
    """And reports as scores: both are sums over the same labels, and are subtracted from each other."""
    model = play(bench, rows_order(bench, LocalPlan(**ROWS))).job
    least = 20
    bench.change_policy("bank", min_evaluation_rows=least, evaluations_per_day=3)
    n, before = score_at(bench, model, "bank")
    take_out_a_row(bench, "bank")
    left, after = score_at(bench, model, "bank")
    assert left == n - 1  # all rows are predicted
    assert (n * before).is_integer() or round(n * before, 9).is_integer()
    assert round((n - least) * after, 9).is_integer()  # and so many are in the score
    known = bench.homes["bank"].store.evaluated
    with known._db.transaction() as db:
        _, cells = known._read(db, f"{TABLE}.{LABEL}")
    assert sorted(np.bincount(cells)) == [least, n - least]
    evaluated(bench, model, lambda _, message: message)
    with pytest.raises(PolicyError, match="evaluated with 3 times per day"):
        score_at(bench, model, "bank")
    with pytest.raises(PolicyError, match="evaluated with 3 times per day"):
        evaluated(bench, model, lambda _, message: message)


def test_a_score_of_few_rows_is_refused_before_anything_is_spent(bench: Bench) -> None:
    model = play(bench, rows_order(bench, LocalPlan(**ROWS))).job
    bench.change_policy("bank", min_evaluation_rows=10_000, predictions_per_day=1_000)
    with pytest.raises(PolicyError, match="must be of 10,000 rows or more"):
        score_at(bench, model, "bank")
    bench.change_policy("bank", min_evaluation_rows=1)
    score_at(bench, model, "bank")  # of up to 1,000 rows that the day allows, none was taken


# --- forests that the coordinator has made up ---


@pytest.mark.parametrize("change", [other_thresholds, other_answers, one_class_more, a_class_renamed])
def test_a_forest_that_was_not_ordered_is_refused_by_every_client(bench: Bench, change: Any) -> None:
    """One forest for all, so that sums would have come of it; and nothing is counted, answered or kept."""
    model = play(bench, rows_order(bench, LocalPlan(**ROWS))).job
    files, _ = bench.coordinator.model_files(model)
    brought = made_up(files, change)
    bench.change_policy("bank", evaluations_per_day=1)

    def forged(_: str, message: Message) -> Message:
        return msgspec.structs.replace(message, files=brought) if isinstance(message, AnswerOwnRows) else message

    with pytest.raises(RemoteProtocolError, match="brought another forest"):
        evaluated(bench, model, forged)
    for scored in (LABEL, None):
        fields = bench.fields_of({"bank": Part(table=TABLE, label=scored)})
        order = PredictRowsOrder(**fields, **named(bench, model))
        job = bench.job("bank", order.job)
        job.handle(bench.opening(order))
        with pytest.raises(RemoteProtocolError, match="brought another forest"):
            job.handle(PredictRows(model=model, files=brought))
        assert not (bench.world.root / "bank" / "state" / "answers" / f"{order.job}.parquet").exists()
    evaluated(bench, model, lambda _, message: message)  # the one of the day


def test_a_refusal_tells_nothing_of_which_classes_a_client_has(bench: Bench) -> None:
    """Lists of classes that the coordinator tries, with and without those of the client: one and the same refusal."""
    model = play(bench, rows_order(bench, LocalPlan(**ROWS))).job
    files, _ = bench.coordinator.model_files(model)
    told = set()
    for change in (one_class_more, a_class_renamed):
        brought = made_up(files, change)

        def forged(_: str, message: Message, brought: Any = brought) -> Message:
            return msgspec.structs.replace(message, files=brought) if isinstance(message, AnswerOwnRows) else message

        with pytest.raises(RemoteProtocolError) as refused:
            evaluated(bench, model, forged)
        told.add(re.sub(r"fingerprint \w+", "", str(refused.value)))
    assert len(told) == 1


def test_an_order_that_names_no_forest_is_refused(bench: Bench) -> None:
    model = play(bench, rows_order(bench, LocalPlan(**ROWS))).job
    for kind, key in ((PredictRowsOrder, {}), (EvaluateRowsOrder, {"key": new_report_key()})):
        order = kind(**bench.fields_of(dict.fromkeys(PARTIES, Part(table=TABLE, label=LABEL, **key))), model=model)
        with pytest.raises(DataError, match="does not name the fingerprint of its forest"):
            bench.job("bank", order.job).handle(bench.opening(order))
