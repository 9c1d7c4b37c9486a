"""Hidden linear models between organisations, without a network: the bank leads, the coordinator relays and deals."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import msgspec
import numpy as np
import pytest
from hidden_bench import THIRD, HiddenBench, relay_hidden, stored_order
from led_bench import LEADER, OTHER, carry
from party_bench import Play

from woodlot.exceptions import PolicyError, RemoteProtocolError
from woodlot.jobs.led import led_messages as led
from woodlot.jobs.led.dealing import DEALER, DealerSeat
from woodlot.jobs.linear.linear_dealing import ProductDealing
from woodlot.jobs.linear.linear_orders import PredictLinearOrder, TrainLinearOrder
from woodlot.jobs.orders import Part
from woodlot.protocols.core.message import Message
from woodlot.protocols.linear import dealt_messages as msg
from woodlot.protocols.linear.linear_model import LinearPlan
from woodlot.runtime.codec import decode, encode

EVERYBODY = (LEADER, OTHER, THIRD)
PLAN = LinearPlan(
    task="classes", strength=1.0, fit_intercept=True, standardize=True, balanced=False, class_weight=(), max_iter=5,
    tol=1e-4, protection="hidden",
)  # fmt: skip


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HiddenBench]:
    with closing(HiddenBench(tmp_path_factory.mktemp("linear"))) as made:
        for party in EVERYBODY:
            made.change_policy(party, protocols=("align", "train-linear", "predict-linear"))
        yield made


def ordered(bench: HiddenBench, **changes: Any) -> TrainLinearOrder:
    fields = bench.fields(**{THIRD: Part(table="customers")})
    return msgspec.structs.replace(
        TrainLinearOrder(**fields, holder=LEADER, plan=PLAN, settings="{}", led_by=LEADER), **changes
    )


@pytest.fixture(scope="module")
def fitted(bench: HiddenBench) -> Play:
    return relay_hidden(bench, ordered(bench))


def weights_of(bench: HiddenBench, job: str) -> dict[str, np.ndarray]:
    stored, facts = bench.led[LEADER].linear(job).coordinator, bench.led[LEADER].model_facts(job)
    parts = {p: bench.homes[p].store.linear(job, facts.forest).weights for p in EVERYBODY}
    return parts | {"intercept": stored.intercept}


def test_the_weights_are_those_of_an_open_model(bench: HiddenBench, fitted: Play) -> None:
    """Rows are in the same order in both; every party keeps its own weights, the leader the intercepts."""
    opened = ordered(bench, plan=msgspec.structs.replace(PLAN, protection="open"), alignment=None)
    relay_hidden(bench, opened)
    hidden, shown = weights_of(bench, fitted.job), weights_of(bench, opened.job)
    for name, weights in hidden.items():
        np.testing.assert_allclose(weights, shown[name], rtol=0, atol=1e-12)
    assert np.abs(hidden[THIRD]).max() > 0.01


def test_the_model_predicts_as_every_led_model(bench: HiddenBench, fitted: Play) -> None:
    fields = bench.fields(**{THIRD: Part(table="customers")})
    order = PredictLinearOrder(**fields, model=fitted.job, score_at=LEADER, deliver_to=LEADER, led_by=LEADER)
    relay_hidden(bench, order)
    stored = bench.led[LEADER].job(order.job)
    assert stored is not None
    assert stored.facts.score is not None
    assert stored.facts.score > 0.6


@pytest.mark.parametrize("party", EVERYBODY)
def test_a_party_that_is_made_again_answers_with_the_same_bytes(bench: HiddenBench, fitted: Play, party: str) -> None:
    again = bench.job(party, fitted.job)
    for asked, answered in zip(fitted.asked[party], fitted.answered[party], strict=True):
        assert encode(again.handle(decode(asked))) == answered


class _Answers:
    """Answers as a party has answered before."""

    def __init__(self, answered: list[bytes]) -> None:
        self._left = list(answered)

    def handle(self, message: Message) -> Message:
        return decode(self._left.pop(0))


def test_a_coordinator_that_is_started_again_deals_the_same_bytes(bench: HiddenBench, fitted: Play) -> None:
    record = Play(fitted.job)
    stored = bench.coordinator.job(fitted.job)
    assert stored is not None
    jobs: Any = {party: _Answers(fitted.answered[party]) for party in EVERYBODY}
    carry(record, jobs, bench.host.protocol(stored))
    assert record.asked == fitted.asked


def dealt(fitted: Play) -> list[Message]:
    """What the coordinator was asked as the dealer."""
    steps = [decode(data) for data in fitted.answered[LEADER]]
    return [decode(step.frames[DEALER]) for step in steps if isinstance(step, led.LedStep) and DEALER in step.frames]


def test_the_dealer_is_told_lengths(bench: HiddenBench, fitted: Play) -> None:
    asked = dealt(fitted)
    assert [type(message) for message in asked[:3]] == [msg.OpenDealt, msg.StartProducts, msg.DealProducts]
    assert {type(message) for message in asked[3:]} == {msg.DealProducts}
    start = asked[1]
    assert isinstance(start, msg.StartProducts)
    assert (start.columns, start.n_scores) == ({OTHER: 2, THIRD: 2}, 1)
    assert all(len(message.nonce) == 32 for message in asked if isinstance(message, msg.DealProducts))


def test_the_dealer_deals_what_was_ordered(bench: HiddenBench, fitted: Play) -> None:
    asked = dealt(fitted)
    order = ordered(bench)
    n_rows = next(message.n_rows for message in asked if isinstance(message, msg.StartProducts))
    home = bench.homes[LEADER]
    seat = DealerSeat(bench.identity, home.trust, lambda purpose: purpose.encode().ljust(32), False, n_rows)
    dealing = ProductDealing(order, seat)
    late = msg.DealProducts(step=PLAN.max_iter + 1, nonce=bytes(32), of_columns={OTHER: b"", THIRD: b""})
    for wrong in (
        msgspec.structs.replace(asked[0], parties=(OTHER, "ghost", DEALER)),
        msgspec.structs.replace(asked[0], holder=OTHER),
        msgspec.structs.replace(asked[0], parties=(LEADER, DEALER)),
        msgspec.structs.replace(asked[0], dealer=OTHER),
        msgspec.structs.replace(asked[1], n_rows=n_rows + 1),
        msgspec.structs.replace(asked[1], n_scores=2),
        late,
    ):
        with pytest.raises(RemoteProtocolError, match="the order does not ask for"):
            dealing.handle(wrong)
    assert isinstance(dealing.handle(asked[0]), msg.DealtKey)
    with pytest.raises(RemoteProtocolError):  # introductions of another dealer
        dealing.handle(asked[1])


def test_the_coordinator_does_not_lead_what_it_deals(bench: HiddenBench) -> None:
    order = ordered(bench, led_by=msgspec.UNSET)
    with pytest.raises(RemoteProtocolError, match="lead='holder'"):
        order.check()


def test_a_policy_can_ask_for_it(bench: HiddenBench) -> None:
    bench.change_policy(THIRD, protection="hidden")
    try:
        order = ordered(bench, plan=msgspec.structs.replace(PLAN, protection="open"))
        with pytest.raises(PolicyError, match="hidden trainings only"):
            bench.job(THIRD, order.job).handle(bench.opening(order))
        order = ordered(bench)
        assert bench.job(THIRD, order.job).handle(bench.opening(order))
        stored_order(bench, order)
    finally:
        bench.change_policy(THIRD, protection="open")
