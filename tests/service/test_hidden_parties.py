"""Hidden trainings between organisations, without a network: roles, replay, refusals, and the forest that must come."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hidden_bench import HIDDEN_PLAN, THIRD, HiddenBench, hidden_order, relay_hidden, stored_order
from hidden_forests import hidden_companies, open_forest, stored_forest
from led_bench import LEADER, OTHER, carry
from party_bench import Play

from woodlot.exceptions import PolicyError, RemoteProtocolError
from woodlot.jobs.hidden.hidden_jobs import HiddenDealing
from woodlot.jobs.hidden.ordered_hidden import OrderedHidden, opening_of
from woodlot.jobs.lasting_secret import SECRET_FILE
from woodlot.jobs.led import led_messages as led
from woodlot.jobs.led.dealing import DEALER, DealerSeat
from woodlot.jobs.orders import Part, PredictOrder, TrainOrder
from woodlot.protocols.core.message import Message, Refusal, Round
from woodlot.protocols.hidden import hidden_messages as msg
from woodlot.protocols.vertical.forest_messages import OpenTraining
from woodlot.runtime.codec import decode, encode
from woodlot.runtime.journal import Journal
from woodlot.runtime.sessions import Sessions

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "protocols"))

from hidden_cases import assert_same

EVERYBODY = (LEADER, OTHER, THIRD)
ROWS = 388
"""The common rows of the three."""


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HiddenBench]:
    with closing(HiddenBench(tmp_path_factory.mktemp("hidden"))) as made:
        yield made


@pytest.fixture(scope="module")
def trained(bench: HiddenBench) -> Play:
    return relay_hidden(bench, hidden_order(bench))


# --- the forest ---


def test_the_forest_is_that_of_an_open_training_with_the_same_draws(bench: HiddenBench, trained: Play) -> None:
    grown = stored_forest(bench.world.root, trained.job, f"{LEADER}/led")
    assert set(grown[1]) == set(EVERYBODY)
    assert grown[0].structure.n_nodes > 20
    assert_same(grown, open_forest(bench.world.root, trained.job, HIDDEN_PLAN, hidden_companies()))


def test_a_forest_of_all_rows_and_balanced_classes(bench: HiddenBench) -> None:
    plan = replace(HIDDEN_PLAN, bootstrap=False, class_weight="balanced", feature_sampling="tree", n_estimators=2)
    job = relay_hidden(bench, hidden_order(bench, plan=plan)).job
    grown = stored_forest(bench.world.root, job, f"{LEADER}/led")
    assert_same(grown, open_forest(bench.world.root, job, plan, hidden_companies()))


def test_other_jobs_are_dealt_other_draws(bench: HiddenBench, trained: Play) -> None:
    again = relay_hidden(bench, hidden_order(bench)).job
    facts = [bench.led[LEADER].model_facts(job).forest for job in (trained.job, again)]
    assert facts[0] != facts[1]


def test_the_model_predicts_as_every_led_model(bench: HiddenBench, trained: Play) -> None:
    scores = []
    for how in ("one-round", "sealed"):
        fields = bench.fields(**{THIRD: Part(table="customers")})
        order = PredictOrder(**fields, model=trained.job, score_at=LEADER, deliver_to=LEADER, how=how, led_by=LEADER)
        relay_hidden(bench, order)
        stored = bench.led[LEADER].job(order.job)
        assert stored is not None
        scores.append(stored.facts.score)
    assert scores[0] == scores[1]
    assert (
        scores[0] > 0.4
    )  # three small trees of secret draws, 0.77 on average; how good forests are is tested elsewhere


# --- replay ---


@pytest.mark.parametrize("party", EVERYBODY)
def test_a_party_that_is_made_again_answers_with_the_same_bytes(bench: HiddenBench, trained: Play, party: str) -> None:
    again = bench.job(party, trained.job)
    for asked, answered in zip(trained.asked[party], trained.answered[party], strict=True):
        assert encode(again.handle(decode(asked))) == answered


class _Answers:
    """Answers as a party has answered before, and notes what it is asked."""

    def __init__(self, answered: list[bytes]) -> None:
        self._left = list(answered)

    def handle(self, message: Message) -> Message:
        return decode(self._left.pop(0))


def test_a_coordinator_that_is_started_again_deals_the_same_bytes(bench: HiddenBench, trained: Play) -> None:
    record = Play(trained.job)
    stored = bench.coordinator.job(trained.job)
    assert stored is not None
    jobs: Any = {party: _Answers(trained.answered[party]) for party in EVERYBODY}
    carry(record, jobs, bench.host.protocol(stored))
    assert record.asked == trained.asked


def test_a_dealer_with_another_secret_is_named_by_the_leader(bench: HiddenBench, trained: Play, tmp_path: Path) -> None:
    """As a coordinator would deal whose state folder was replaced in the middle of the job."""
    requests = trained.asked[LEADER]
    at = next(k for k, data in enumerate(requests) if isinstance(m := decode(data), led.LeadOn) and DEALER in m.frames)
    message = decode(requests[at])
    assert isinstance(message, led.LeadOn)
    frames = {party: np.array(frame) for party, frame in message.frames.items()}
    frames[DEALER][-1] ^= 1
    with closing(Journal(tmp_path / "journal.sqlite", durable=True)) as journal:
        sessions = Sessions(LEADER, lambda job: bench.job(LEADER, trained.job), journal=journal)
        for number, data in enumerate(requests[: at + 1], 1):
            assert sessions.answer(trained.job, number, data) == trained.answered[LEADER][number - 1]
        again = decode(sessions.answer(trained.job, at + 1, encode(led.LeadOn(frames=frames))))
        assert isinstance(again, Refusal)
        assert "the dealer deals other numbers than before" in again.reason
        assert sessions.answer(trained.job, at + 1, requests[at]) == trained.answered[LEADER][at]


def test_the_dealers_secret_stays_in_its_folder(bench: HiddenBench, trained: Play) -> None:
    secret = (bench.coordinator.folder / SECRET_FILE).read_bytes()
    assert len(bytes.fromhex(secret.decode())) == 32
    assert (bench.coordinator.folder / SECRET_FILE).stat().st_mode & 0o077 == 0
    said = [data for side in (trained.asked, trained.answered) for some in side.values() for data in some]
    assert not any(secret in data or bytes.fromhex(secret.decode()) in data for data in said)


# --- who takes which part ---


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"led_by": msgspec.UNSET}, "lead='holder'"),
        ({"server": msgspec.UNSET}, "names no second server"),
        ({"server": LEADER}, "not its label holder"),
        ({"server": DEALER}, "not such a party"),
        ({"server": "nobody"}, "not such a party"),
        ({"plan": replace(HIDDEN_PLAN, out_of_bag="soft")}, "oob_score=False"),
        ({"plan": replace(HIDDEN_PLAN, class_weight="balanced")}, "bootstrap=False"),
        ({"plan": replace(HIDDEN_PLAN, protection="open")}, "for protection='hidden' only"),
    ],
)
def test_an_order_that_cannot_be_hidden_is_refused_by_everybody(
    bench: HiddenBench, changes: dict[str, Any], words: str
) -> None:
    order = hidden_order(bench, **changes)
    with pytest.raises(RemoteProtocolError, match=words):
        order.check()
    opening = bench.opening(order)
    with pytest.raises(RemoteProtocolError, match=words):
        bench.host.read(opening.order, opening.signature, opening.certificate)
    for party in EVERYBODY:
        with pytest.raises(RemoteProtocolError, match=words):
            bench.job(party, order.job).handle(decode(encode(opening)))


def works_of(bench: HiddenBench, order: TrainOrder) -> dict[str, Any]:
    """What each party does for an order, when the rows are aligned and before the leader has begun."""
    jobs = {p: bench.job(p, order.job) for p in order.parties}
    protocol = bench.host.protocol(stored_order(bench, order))
    step: Round = next(protocol)
    while not any(isinstance(m, led.LeadJob) for m in step.requests.values()):
        step = protocol.send({p: decode(encode(jobs[p].handle(m))) for p, m in step.requests.items()})
    return {party: job._work for party, job in jobs.items()}


@pytest.mark.parametrize("party", [OTHER, THIRD])
@pytest.mark.parametrize(
    "changes",
    [
        {"server": LEADER, "holder": OTHER},
        {"server": LEADER},
        {"dealer": OTHER},
        {"server": DEALER},
        {"dealer": "coordinator"},
        {"server": THIRD},
        {"max_bins": 32},
        {"parties": (OTHER, DEALER)},
    ],
)
def test_a_party_takes_part_with_nobody_but_those_whom_the_user_has_named(
    bench: HiddenBench, party: str, changes: dict[str, Any]
) -> None:
    order = hidden_order(bench)
    work = works_of(bench, order)[party]
    opening = opening_of(order, ROWS)
    with pytest.raises(RemoteProtocolError, match=r"the order names|does not ask for this hidden training"):
        work.handle(msgspec.structs.replace(opening, **changes))
    assert isinstance(work.handle(opening), msg.HiddenSummary)


def test_a_hidden_order_is_not_grown_in_the_open(bench: HiddenBench) -> None:
    for work in works_of(bench, hidden_order(bench)).values():
        with pytest.raises(RemoteProtocolError, match="this one is open"):
            work.handle(OpenTraining(max_bins=16))


def test_the_label_holder_is_no_other_server_besides(bench: HiddenBench) -> None:
    order = hidden_order(bench)
    with pytest.raises(RemoteProtocolError, match="does not ask this party for OpenHidden"):
        works_of(bench, order)[LEADER].handle(opening_of(order, ROWS))


def test_nobody_believes_a_dealer_but_the_coordinator_of_the_order(bench: HiddenBench) -> None:
    """The leader makes a key of its own and passes it on as the dealer's: it could read both shares."""
    order = hidden_order(bench)
    works, opening = works_of(bench, order), opening_of(order, ROWS)
    introductions = {party: works[party].handle(opening).introduction for party in (OTHER, THIRD)}
    for identity in (bench.homes[LEADER].identity, bench.users["alice"], bench.identity):
        seat = DealerSeat(identity, bench.homes[LEADER].trust, lambda purpose: b"x" * 32, False, ROWS)
        key = HiddenDealing(order, seat).handle(opening)
        assert isinstance(key, msg.DealerKey)
        ask = msg.ShareColumns(introductions=introductions | {DEALER: key.introduction}, bits=5)
        for party in (OTHER, THIRD):
            if identity is bench.identity:
                assert isinstance(works[party].handle(ask), msg.ColumnShares)
            else:
                with pytest.raises(RemoteProtocolError, match="is not signed by its identity"):
                    works[party].handle(ask)


def test_a_second_server_opens_no_small_nodes_and_no_more_trees_than_ordered(bench: HiddenBench) -> None:
    order = hidden_order(bench)
    watch = OrderedHidden(order, ROWS)
    plant = msg.PlantHidden(first_tree=0, n_trees=3, columns=np.zeros(18, np.uint8), bound=b"")
    watch.check(plant)
    watch.note(plant)
    deeper = msg.AskRows(goes_on=np.zeros(1, np.uint8), slot=np.zeros(1, np.uint8), bound=b"")
    for _ in range(3):
        watch.check(deeper)
        watch.note(deeper)
    for message in (deeper, msgspec.structs.replace(plant, first_tree=3, n_trees=1)):
        with pytest.raises(RemoteProtocolError, match="the order does not ask for"):
            watch.check(message)


# --- the dealer ---


def dealing(bench: HiddenBench, order: TrainOrder) -> HiddenDealing:
    return HiddenDealing(order, DealerSeat(bench.identity, bench.homes[OTHER].trust, lambda p: b"d" * 32, False, ROWS))


@pytest.mark.parametrize("changes", [{"server": THIRD}, {"dealer": "shop"}, {"holder": OTHER}, {"max_bins": 8}])
def test_a_dealer_deals_for_nobody_but_those_whom_the_user_has_named(
    bench: HiddenBench, changes: dict[str, Any]
) -> None:
    order = hidden_order(bench)
    with pytest.raises(RemoteProtocolError, match=r"the order names|does not ask"):
        dealing(bench, order).handle(msgspec.structs.replace(opening_of(order, ROWS), **changes))


@pytest.mark.parametrize("changes", [{"n_draws": 1}, {"n_draws": None}, {"n_rows": 7}, {"n_classes": 0}])
def test_a_dealer_draws_as_was_ordered(bench: HiddenBench, changes: dict[str, Any]) -> None:
    """A tree of one row would tell its bins and its label."""
    order = hidden_order(bench)
    dealer = dealing(bench, order)
    dealer.handle(opening_of(order, ROWS))
    usual: dict[str, Any] = {"n_rows": ROWS, "n_classes": 2, "width": 9, "bits": 5, "n_columns": 6, "n_draws": ROWS}
    with pytest.raises(RemoteProtocolError, match="does not ask for StartDealer"):
        dealer.handle(msg.StartDealer(introductions={}, salt=b"", **(usual | changes)))


# --- policies ---


def test_a_party_can_refuse_open_trainings(tmp_path: Path) -> None:
    with closing(HiddenBench(tmp_path)) as bench:
        bench.change_policy(THIRD, protection="hidden")
        plan = replace(HIDDEN_PLAN, protection="open")
        order = hidden_order(bench, plan=plan, server=msgspec.UNSET)
        with pytest.raises(PolicyError, match='protection = "hidden" in the section'):
            bench.job(THIRD, order.job).handle(decode(encode(bench.opening(order))))
        bench.job(OTHER, order.job).handle(decode(encode(bench.opening(order))))
        hidden = hidden_order(bench)
        bench.job(THIRD, hidden.job).handle(decode(encode(bench.opening(hidden))))


def test_a_policy_of_larger_leaves_holds_for_hidden_trainings(tmp_path: Path) -> None:
    with closing(HiddenBench(tmp_path)) as bench:
        bench.change_policy(THIRD, min_samples_leaf=50)
        with pytest.raises(PolicyError, match="min_samples_leaf=50"):
            relay_hidden(bench, hidden_order(bench))


def test_cells_follow_from_the_number_of_common_rows(tmp_path: Path) -> None:
    """A party whose policy names no min_cell takes what the rule says of its rows, and no less."""
    with closing(HiddenBench(tmp_path)) as bench:
        bench.change_policy(OTHER, min_cell=None)
        with pytest.raises(PolicyError, match=r"cells of 20 rows are too small .* min_cell=64 or more"):
            relay_hidden(bench, hidden_order(bench))
        job = relay_hidden(bench, hidden_order(bench, plan=replace(HIDDEN_PLAN, min_cell="auto"))).job
        plan = replace(HIDDEN_PLAN, min_cell=64)
        grown = stored_forest(bench.world.root, job, f"{LEADER}/led")
        assert_same(grown, open_forest(bench.world.root, job, plan, hidden_companies()))
        assert (grown[0].structure.right >= 0).any()
