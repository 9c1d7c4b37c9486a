"""Common rows predicted by encrypted splits (FRF-Test) in jobs: the parties do what was ordered, and nothing more."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from key_bench import KeyBench, recorded_keys, splits_order
from party_bench import Play, Recorded, play, train_order

from woodlot.exceptions import CiphertextError, DataError, EpochError, PolicyError, RemoteProtocolError
from woodlot.jobs.job_messages import ForgetJob, UseModel
from woodlot.jobs.kind import kind_of
from woodlot.jobs.orders import PredictOrder
from woodlot.jobs.party_job import PartyJob, housekeeping_job
from woodlot.protocols.core.message import Message
from woodlot.protocols.revocable import key_messages as msg
from woodlot.protocols.vertical.forest_messages import AskDecisions, AskNodes
from woodlot.runtime.codec import decode, encode


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    with recorded_keys(tmp_path_factory.mktemp("splits")) as made:
        yield made


@pytest.fixture
def tested(recorded: Recorded) -> Play:
    return recorded.plays["encrypted-splits"]


@pytest.fixture
def model(recorded: Recorded, tested: Play) -> str:
    """The forest, which is also the name of its keys."""
    asked = [decode(data) for data in tested.asked["bank"]]
    return next(message.model for message in asked if isinstance(message, UseModel))


def replayed(recorded: Recorded, job: Play, until: type[Message], party: str = "bank") -> PartyJob:
    """A party's side of a recorded job, up to the first message of a kind."""
    made = recorded.bench.job(party, job.job)
    for asked, answered in zip(job.asked[party], job.answered[party], strict=True):
        if isinstance(decode(asked), until):
            break
        assert encode(made.handle(decode(asked))) == answered
    return made


def said(job: Play, kind: type[Message], party: str = "bank") -> list[Any]:
    return [message for message in map(decode, job.asked[party]) if isinstance(message, kind)]


def test_the_answers_and_the_score_are_those_of_one_round(recorded: Recorded, tested: Play, model: str) -> None:
    plain = play(recorded.bench, PredictOrder(**recorded.bench.fields(), model=model, score_at="bank")).outcome
    np.testing.assert_array_equal(tested.outcome.outputs, plain.outputs)
    assert tested.outcome.score == plain.score is not None
    assert not tested.outcome.uncertain.any()
    assert said(tested, msg.TestRows, "bank")
    assert said(tested, msg.TestRows, "shop")


def test_what_was_not_ordered_is_refused(recorded: Recorded, tested: Play, model: str) -> None:
    bench = recorded.bench
    question = said(tested, msg.TestRows)[0]
    nodes = AskNodes(rows=question.rows, nodes=question.nodes)
    decisions = AskDecisions(wire="decisions", shuffled=None, seed=0)
    job = replayed(recorded, tested, msg.TestRows)
    for stray in (nodes, decisions):
        with pytest.raises(
            RemoteProtocolError, match=r"Unexpected AskNodes; |Unexpected AskDecisions; |the order does not ask for"
        ):
            job.handle(stray)
    with pytest.raises(RemoteProtocolError, match="expected after a model has been opened to be tested"):
        replayed(recorded, tested, UseModel).handle(question)
    for how in ("one-round", "classical", "sealed"):
        other = play(bench, PredictOrder(**bench.fields(), model=model, how=how))
        with pytest.raises(RemoteProtocolError, match="expected after a model has been opened to be tested"):
            replayed(recorded, other, AskNodes).handle(question)
    assert isinstance(job.handle(question), msg.RowsTested)


@pytest.mark.parametrize("how", ["encrypted-splits", "classical"])
def test_a_model_that_is_opened_again_does_not_forget_the_paths(recorded: Recorded, model: str, how: Any) -> None:
    """Else the coordinator could send rows down other paths, and see the sides at all nodes."""
    bench = recorded.bench
    kind: type[Message] = msg.TestRows if how == "encrypted-splits" else AskNodes
    plain = PredictOrder(**bench.fields(), model=model, how="classical")
    done = play(bench, splits_order(bench, model, model) if kind is msg.TestRows else plain)
    job, use = replayed(recorded, done, kind), said(done, UseModel)[0]
    job.handle(said(done, kind)[0])
    job.handle(use)
    with pytest.raises(RemoteProtocolError, match=r"when it is first asked about|cannot have reached, or again"):
        job.handle(said(done, kind)[0])
    with pytest.raises(RemoteProtocolError, match="answered once in a job"):
        job.handle(UseModel(model=use.model, forest="0" * 64, n_rows=use.n_rows))


def test_what_parties_refuse(recorded: Recorded, model: str) -> None:
    bench = recorded.bench
    before = bench.homes["shop"].policy
    try:
        bench.change_policy("shop", wire_forms=("sealed", "decisions", "classical"))
        with pytest.raises(PolicyError, match="the form 'encrypted-splits'"):
            play(bench, splits_order(bench, model, model))
    finally:
        bench.change_policy("shop", wire_forms=before.wire_forms)
    with pytest.raises(DataError, match="no keys of this model"):
        play(bench, splits_order(bench, model, "0" * 32))
    with pytest.raises(DataError, match="every row at every party"):
        play(bench, splits_order(bench, model, model, join="outer"))


def test_what_the_coordinator_refuses(recorded: Recorded, model: str) -> None:
    bench = recorded.bench
    bare = play(bench, train_order(bench)).job
    check = kind_of(splits_order(bench, model, model)).check
    for order, words in (
        (splits_order(bench, model, model, shuffled=(0, 1)), "no feature is shuffled"),
        (splits_order(bench, model, model, absent=("shop",)), "no party left out"),
        (splits_order(bench, bare, bare), "has no keys"),
    ):
        with pytest.raises(DataError, match=words):
            check(bench.coordinator, order)
    check(bench.coordinator, splits_order(bench, model, model))


def test_keys_of_another_model_are_refused(recorded: Recorded, model: str) -> None:
    """The order's part names the keys, and that name is the coordinator's word to the user."""
    bench = recorded.bench
    assert isinstance(bench, KeyBench)
    other = play(bench, train_order(bench)).job
    play(bench, bench.order(model=other))
    with pytest.raises(EpochError, match="not those under which this party's splits of the forest were encrypted"):
        play(bench, splits_order(bench, model, other))
    play(bench, splits_order(bench, other, other))


def test_a_wrong_copy_is_remembered_after_a_restart(recorded: Recorded, model: str) -> None:
    """Else a coordinator could try the next one whenever the party was restarted."""
    bench = recorded.bench
    done = play(bench, splits_order(bench, model, model))
    question = said(done, msg.TestRows)[0]
    wrong = question.splits.copy()
    wrong[0, wrong.shape[1] // 2 :] = wrong[
        0, : wrong.shape[1] // 2
    ]  # its own ciphertext, which opens as another number
    with pytest.raises(CiphertextError, match="not the split that this party gave"):
        replayed(recorded, done, msg.TestRows).handle(msgspec.structs.replace(question, splits=wrong))
    home = bench.homes["bank"]
    rebuilt = replayed(recorded, done, msg.TestRows)
    with pytest.raises(CiphertextError, match="this job is over here"):
        rebuilt.handle(question)
    # what it answered before that is answered again when the job is rebuilt, and another job is not concerned
    bench.homes["bank"] = replace(home, replays=lambda job: True)
    try:
        assert isinstance(replayed(recorded, done, msg.TestRows).handle(question), msg.RowsTested)
    finally:
        bench.homes["bank"] = home
    play(bench, splits_order(bench, model, model))
    end = bench.job("bank", housekeeping_job(done.job))
    end.handle(ForgetJob(job=done.job))
    assert not home.store.was_deceived(done.job)
