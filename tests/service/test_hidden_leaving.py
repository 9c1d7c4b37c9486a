"""A party leaves a forest that was grown hidden: the others grow it again on secret shares, without it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hidden_bench import (
    HIDDEN_PLAN,
    THIRD,
    HiddenBench,
    hidden_order,
    keep_hidden,
    leaving_order,
    relay_hidden,
    without_columns,
)
from hidden_forests import hidden_companies, open_forest, stored_forest
from led_bench import LEADER, OTHER
from party_bench import Play

from woodlot.exceptions import DataError, PolicyError, RemoteProtocolError
from woodlot.identity.receipts import Receipt
from woodlot.jobs.hidden.hidden_leaving import deal_leaving
from woodlot.jobs.hidden.ordered_hidden import opening_of, training_without
from woodlot.jobs.job_messages import UseModel
from woodlot.jobs.led import led_messages as led
from woodlot.jobs.led.dealing import DealerSeat
from woodlot.jobs.orders import RevokeOrder
from woodlot.protocols.hidden import hidden_messages as msg
from woodlot.protocols.vertical.forest_messages import OpenTraining, ReplantTrees
from woodlot.runtime.codec import decode, encode

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "protocols"))

from hidden_cases import assert_same

ROWS = 388
"""The common rows of the three."""


def stayers(leaver: str) -> dict[str, Any]:
    return {party: held for party, held in hidden_companies().items() if party != leaver}


def trained_on(bench: HiddenBench) -> str:
    order = hidden_order(bench)
    keep_hidden(bench, order, relay_hidden(bench, order))
    return order.job


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HiddenBench]:
    with closing(HiddenBench(tmp_path_factory.mktemp("leaving"))) as made:
        yield made


@pytest.fixture(scope="module")
def trained(bench: HiddenBench) -> str:
    return trained_on(bench)


@pytest.fixture(scope="module", params=[OTHER, THIRD])
def left(bench: HiddenBench, request: pytest.FixtureRequest) -> tuple[str, RevokeOrder, Play]:
    """Who has left, by which order, and what was said; the shop was the second server of the training."""
    model, leaver = trained_on(bench), str(request.param)
    order = leaving_order(bench, model, leaver)
    play = relay_hidden(bench, order)
    keep_hidden(bench, order, play)
    return leaver, order, play


def test_the_forest_is_that_of_the_training_without_the_leaver(
    bench: HiddenBench, left: tuple[str, RevokeOrder, Play]
) -> None:
    """The trees draw the rows that they drew in the training."""
    leaver, order, _ = left
    grown = stored_forest(bench.world.root, order.job, f"{LEADER}/led")
    assert grown[0].parties == order.parties
    assert leaver not in order.parties
    assert grown[0].structure.n_nodes > 10
    without = open_forest(bench.world.root, order.job, HIDDEN_PLAN, stayers(leaver), drawn_by=order.model)
    assert_same(grown, without)


def test_nobody_is_asked_for_partitions_and_the_leaver_for_nothing(left: tuple[str, RevokeOrder, Play]) -> None:
    leaver, _, play = left
    assert leaver not in play.asked
    asked = {type(decode(data)) for some in play.asked.values() for data in some}
    assert not asked & {OpenTraining, ReplantTrees}
    assert led.SealedRequest in asked


def test_the_receipt_names_what_was_grown_again(bench: HiddenBench, left: tuple[str, RevokeOrder, Play]) -> None:
    leaver, order, _ = left
    store = bench.led[LEADER]
    text = store.receipt(order.job)
    assert text is not None
    receipt = Receipt.parse(text.encode())
    assert receipt.verify(bench.identity.authority).requester == "user 'alice'"
    before, after = store.model_facts(order.model), store.model_facts(order.job)
    told = receipt.statement
    assert (told.party, told.level, told.exact, told.notified) == (leaver, 3, True, order.parties)
    assert (told.removed, told.regrown) == (before.n_nodes, after.n_nodes)
    assert after.is_hidden
    assert before.replaced_by == order.job
    assert bench.coordinator.model_facts(order.job).is_hidden
    assert bench.coordinator.model_facts(order.model).replaced_by == order.job


def test_those_who_stay_drop_their_former_parts(bench: HiddenBench, left: tuple[str, RevokeOrder, Play]) -> None:
    leaver, order, _ = left
    for party in (LEADER, OTHER, THIRD):
        store = bench.homes[party].store
        if party == leaver:
            store.check_model(order.model)  # what it does with its own part is its own affair
        else:
            with pytest.raises(DataError, match="replaced when a party left it"):
                store.check_model(order.model)


def test_a_party_that_is_made_again_answers_with_the_same_bytes(
    bench: HiddenBench, left: tuple[str, RevokeOrder, Play]
) -> None:
    _, order, play = left
    for party in order.parties:
        if party == LEADER:
            continue  # it has kept the outcome, and runs the job no more
        again = bench.job(party, order.job)
        for asked, answered in zip(play.asked[party], play.answered[party], strict=True):
            assert encode(again.handle(decode(asked))) == answered


def test_the_second_server_has_no_columns(tmp_path: Path) -> None:
    """It trains and is there when another leaves; it cannot be learnt from, and has nothing to solve counts with."""
    with closing(HiddenBench(tmp_path)) as bench:
        without_columns(bench, THIRD)
        training = hidden_order(bench, server=THIRD)
        keep_hidden(bench, training, relay_hidden(bench, training))
        tables = hidden_companies()
        tables[THIRD] = {"customers": tables[THIRD]["customers"].select(["id"])}
        grown = stored_forest(bench.world.root, training.job, f"{LEADER}/led")
        assert len(grown[1].pop(THIRD).splits.node) == 0
        assert grown[0].structure.n_nodes > 20
        assert_same(grown, open_forest(bench.world.root, training.job, HIDDEN_PLAN, tables))
        order = leaving_order(bench, training.job, OTHER)
        relay_hidden(bench, order)
        del tables[OTHER]
        left = stored_forest(bench.world.root, order.job, f"{LEADER}/led")
        assert len(left[1].pop(THIRD).splits.node) == 0
        assert_same(left, open_forest(bench.world.root, order.job, HIDDEN_PLAN, tables, drawn_by=training.job))


# --- what is refused, and by whom ---


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"level": 1, "server": msgspec.UNSET}, "Use level 3"),
        ({"server": msgspec.UNSET}, "names no second server"),
    ],
)
def test_everybody_refuses_to_grow_a_part_or_in_the_open(
    bench: HiddenBench, trained: str, changes: dict[str, Any], words: str
) -> None:
    order = leaving_order(bench, trained, THIRD, **changes)
    with pytest.raises(DataError, match=words):
        bench.host.check(order, "alice")
    with pytest.raises(DataError, match=words):
        bench.homes[LEADER].lead.check(order, "alice")  # type: ignore[union-attr]
    for party in order.parties:
        with pytest.raises(DataError, match=words):
            bench.job(party, order.job).handle(decode(encode(bench.opening(order))))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"level": 1}, "at level 3"),
        ({"led_by": msgspec.UNSET}, "its label holder leads"),
        ({"server": LEADER}, "not its label holder"),
        ({"server": THIRD}, "not such a party"),
    ],
)
def test_an_order_that_cannot_be_is_refused(
    bench: HiddenBench, trained: str, changes: dict[str, Any], words: str
) -> None:
    order = leaving_order(bench, trained, THIRD, **changes)
    with pytest.raises(RemoteProtocolError, match=words):
        order.check()
    for party in order.parties:
        with pytest.raises(RemoteProtocolError, match=words):
            bench.job(party, order.job).handle(decode(encode(bench.opening(order))))


def test_the_label_holder_is_not_left_alone(bench: HiddenBench, trained: str) -> None:
    order = leaving_order(bench, trained, THIRD)
    parts = {LEADER: order.sealed[LEADER]}
    alone = msgspec.structs.replace(order, parties=(LEADER,), sealed=parts, server=msgspec.UNSET)
    with pytest.raises(DataError, match="needs a second server, and the label holder alone would be left"):
        bench.host.check(alone, "alice")


def test_a_forest_of_an_open_training_has_no_second_server(bench: HiddenBench) -> None:
    training = hidden_order(bench, plan=replace(HIDDEN_PLAN, protection="open"), server=msgspec.UNSET)
    keep_hidden(bench, training, relay_hidden(bench, training))
    order = leaving_order(bench, training.job, THIRD)
    with pytest.raises(DataError, match="was not grown with protection='hidden'"):
        bench.host.check(order, "alice")
    with pytest.raises(DataError, match="was not grown with protection='hidden'"):
        bench.job(OTHER, order.job).handle(decode(encode(bench.opening(order))))
    seat = DealerSeat(bench.identity, bench.homes[OTHER].trust, lambda p: b"d" * 32, False, 9, bench.coordinator)
    assert deal_leaving(order, seat) is None


def works_of(bench: HiddenBench, order: RevokeOrder) -> dict[str, Any]:
    """What each party does for an order, before the leader has begun."""
    jobs = {p: bench.job(p, order.job) for p in order.parties}
    opening = bench.opening(order)
    for job in jobs.values():
        job.handle(decode(encode(opening)))
    return {party: job._work for party, job in jobs.items()}


def test_a_party_that_takes_hidden_trainings_only_lets_others_leave(tmp_path: Path) -> None:
    with closing(HiddenBench(tmp_path)) as bench:
        for party in (OTHER, THIRD):
            bench.change_policy(party, protection="hidden")
        model = trained_on(bench)
        order = leaving_order(bench, model, THIRD)
        works_of(bench, order)
        bench.change_policy(OTHER, min_samples_leaf=50)  # what is asked of a training is asked of this one
        with pytest.raises(PolicyError, match="min_samples_leaf=50"):
            relay_hidden(bench, order)


def test_nothing_is_grown_before_the_former_model_was_opened_or_in_the_open(bench: HiddenBench, trained: str) -> None:
    order = leaving_order(bench, trained, THIRD)
    work = works_of(bench, order)[OTHER]
    opening = opening_of(training_without(order, HIDDEN_PLAN), ROWS)
    with pytest.raises(RemoteProtocolError, match="the former model was not opened here"):
        work.handle(opening)
    facts = bench.led[LEADER].model_facts(trained)
    work.handle(UseModel(model=trained, forest=facts.forest, n_rows=facts.n_rows))
    with pytest.raises(RemoteProtocolError, match="this training is open"):
        work.handle(OpenTraining(max_bins=HIDDEN_PLAN.max_bins))
    for changes in ({"server": LEADER}, {"min_cell": 1}, {"max_bins": 64}):
        with pytest.raises(RemoteProtocolError, match=r"the order names|does not ask for this"):
            work.handle(msgspec.structs.replace(opening, **changes))
    assert isinstance(work.handle(opening), msg.HiddenSummary)


def test_the_dealer_knows_the_training_from_its_own_record(bench: HiddenBench, trained: str) -> None:
    order = leaving_order(bench, trained, THIRD)
    seat = DealerSeat(bench.identity, bench.homes[OTHER].trust, lambda p: b"d" * 32, False, ROWS, bench.coordinator)
    dealer = deal_leaving(order, seat)
    assert dealer is not None
    opening = opening_of(training_without(order, HIDDEN_PLAN), ROWS)
    with pytest.raises(RemoteProtocolError, match="does not ask for this hidden training"):
        dealer.handle(msgspec.structs.replace(opening, min_cell=1))
    assert isinstance(dealer.handle(opening), msg.DealerKey)
    with pytest.raises(DataError, match="no record of former jobs"):
        deal_leaving(order, replace(seat, store=None))
