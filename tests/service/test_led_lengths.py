"""Who carries frames learns from the lengths of answers how many rows were asked for, and nothing of the rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from led_bench import LEADER, OTHER, LedBench, carry, order_of, relay, score_order
from party_bench import Play, number_id
from processes import FIRST_ID, small_tables
from small_jobs import PARTIES, PLAN

from woodlot.jobs.evaluate.report_seal import new_report_key
from woodlot.jobs.explain.explain_orders import ExplainOrder
from woodlot.jobs.explain.told_explanations import sealed_explanation
from woodlot.jobs.led import frame_seal
from woodlot.jobs.led.frame_seal import HEADER_BYTES
from woodlot.jobs.led.led_messages import SealedReply, SealedRequest
from woodlot.jobs.led.led_scores import RelayScorer
from woodlot.jobs.orders import Part
from woodlot.jobs.scores.score_seal import IdSeal
from woodlot.protocols.core.message import Message
from woodlot.protocols.vertical.answers import PartyAnswers
from woodlot.protocols.vertical.explain_messages import AskAllSides, AskRowValues
from woodlot.protocols.vertical.forest_messages import AskDecisions
from woodlot.protocols.vertical.score_messages import AskScore
from woodlot.runtime.codec import decode, encode

DEEP = replace(PLAN, n_estimators=100, max_depth=8, out_of_bag=None)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LedBench]:
    with closing(LedBench(tmp_path_factory.mktemp("lengths"))) as made:
        yield made


@pytest.fixture(scope="module")
def model(bench: LedBench) -> str:
    return relay(bench, msgspec.structs.replace(order_of(bench), plan=DEEP)).job


def lengths_of_scores(bench: LedBench, model: str) -> dict[tuple[str, str], set[int]]:
    """Lengths of all frames while single rows are scored: some that a party lacks, one that none has."""
    order, keys = score_order(bench, model)
    opened = relay(bench, order)
    scorer = opened.outcome
    assert isinstance(scorer, RelayScorer)
    jobs = {p: bench.job(p, order.job) for p in PARTIES}
    for party, job in jobs.items():
        for data in opened.asked[party]:
            job.handle(decode(data))
    held = {p: set(tables["customers"]["id"].to_pylist()) for p, tables in small_tables().items()}
    asked = sorted(held[LEADER] | held[OTHER])
    assert held[OTHER] - held[LEADER]
    found = defaultdict(set)
    for number, row in enumerate([*asked, FIRST_ID + 9_999_999], 1):
        sealed = {p: IdSeal(key, order.job, p).seal(number, [number_id(row)]) for p, key in keys.items()}
        record = Play(order.job)
        request = AskScore(job=order.job, number=number, n_rows=1, sealed=sealed)
        answers = carry(record, jobs, scorer.score(number, [request]))
        found["answer", "user"].add(len(answers[0].answer))
        for party in PARTIES:
            for way, said in (("asked", record.asked), ("answered", record.answered)):
                for data in said[party]:
                    message: Any = decode(data)
                    for frame in [getattr(message, "frame", None), *getattr(message, "frames", {}).values()]:
                        if frame is not None:
                            found[f"{way} {type(message).__name__}", party].add(len(frame))
    return found


def test_single_rows_that_are_scored_one_by_one_have_one_length(
    bench: LedBench, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By them a coordinator knew which ids a party has, and a third of the variance of a column."""
    found = lengths_of_scores(bench, model)
    assert {("answered SealedReply", OTHER), ("answered LedStep", LEADER), ("asked ScoreOn", LEADER)} <= set(found)
    assert {key: lengths for key, lengths in found.items() if len(lengths) > 1} == {}
    monkeypatch.setattr(frame_seal, "pad", lambda data, floor=0: data + len(data).to_bytes(8, "little"))
    assert len(lengths_of_scores(bench, model)["answered SealedReply", OTHER]) > 1, "lengths told of rows before"


@pytest.mark.parametrize("wire", ["decisions", "leaves", "ranks"])
@pytest.mark.parametrize("rows", [1, 3, 64, 65])
def test_no_answer_to_a_prediction_is_longer_than_its_bound(bench: LedBench, model: str, wire: Any, rows: int) -> None:
    """Which holds for every row, known or not, and follows from the number of rows and the model alone."""
    home = bench.homes[OTHER]
    forest = home.store.model(model, bench.led[LEADER].model_facts(model).forest)
    table = home.held.read(home.tables["customers"], None).table()
    rng = np.random.default_rng(rows)
    lengths, bounds = set(), set()
    for _ in range(40):
        chosen = rng.choice(table.n_rows, rows)
        for known in (None, np.zeros(rows, bool), rng.random(rows) < 0.5):
            answers = PartyAnswers(forest, table.take(chosen), known, 1)
            reply = answers.decide(AskDecisions(wire=wire, shuffled=None, seed=0))
            lengths.add(len(encode(reply)))
            bounds.add(answers.most_bytes(reply) + HEADER_BYTES)
    assert len(bounds) == 1
    assert max(lengths) <= bounds.pop()
    assert len(lengths) > 1


@pytest.mark.parametrize("rows", [1, 3, 64, 65])
def test_no_answer_to_an_explanation_is_longer_than_its_bound(bench: LedBench, model: str, rows: int) -> None:
    """Sides at all nodes, and values in words, of rows that are known or not."""
    home = bench.homes[OTHER]
    forest = home.store.model(model, bench.led[LEADER].model_facts(model).forest)
    table = home.held.read(home.tables["customers"], None).table()
    rng = np.random.default_rng(rows)
    lengths: dict[type[Message], set[int]] = defaultdict(set)
    bounds: dict[type[Message], set[int]] = defaultdict(set)
    for _ in range(40):
        chosen = rng.choice(table.n_rows, rows)
        for known in (None, np.zeros(rows, bool), rng.random(rows) < 0.5):
            answers = PartyAnswers(forest, table.take(chosen), known, 1)
            for reply in (
                answers.all_sides(AskAllSides(first_row=0, n_rows=rows)),
                answers.row_values(AskRowValues(first_row=0, n_rows=rows)),
            ):
                lengths[type(reply)].add(len(encode(reply)))
                bounds[type(reply)].add(answers.most_bytes(reply) + HEADER_BYTES)
    for kind, found in lengths.items():
        assert len(bounds[kind]) == 1
        assert max(found) <= bounds[kind].pop()
        assert len(found) > 1


def test_single_rows_that_are_explained_one_by_one_have_one_length(bench: LedBench, model: str) -> None:
    """Rows that a party lacks, too; and what is sealed to the user, which the coordinator brings."""
    held = {p: set(tables["customers"]["id"].to_pylist()) for p, tables in small_tables().items()}
    lengths = defaultdict(set)
    for row in sorted(held[LEADER] | held[OTHER])[::5]:
        own = {p: Part(table="customers", ids=(number_id(row),), key=new_report_key()) for p in PARTIES}
        order = ExplainOrder(**bench.fields_of(own), model=model, led_by=LEADER, named=True)
        record = relay(bench, order)
        lengths["sealed to the user"].add(len(sealed_explanation(bench.led[LEADER], order.job).report))
        for party in PARTIES:
            said = [decode(data) for data in (*record.asked[party], *record.answered[party])]
            frames = [message.frame for message in said if isinstance(message, SealedRequest | SealedReply)]
            lengths[party].add(tuple(map(len, frames)))
    assert lengths[OTHER] != {()}
    assert {key: found for key, found in lengths.items() if len(found) > 1} == {}
