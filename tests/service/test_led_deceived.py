"""A coordinator that lies to a user about who leads: nothing is asked or ordered in the clear on its word."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import msgspec
import pytest
from led_bench import LEADER, LedBench, order_of, relay
from party_bench import play
from small_jobs import PARTIES, PLAN

from woodlot.connected import ConnectedFederation
from woodlot.connected.connected_models import grown_forest
from woodlot.connected.federation import federation_at
from woodlot.exceptions import DataError, RemoteProtocolError
from woodlot.federation import Labels
from woodlot.jobs import job_messages as msg
from woodlot.jobs.hosting import new_facts
from woodlot.jobs.led.led_messages import AskLeader
from woodlot.jobs.order_seal import read_order
from woodlot.jobs.orders import Order, TrainOrder
from woodlot.protocols.core.message import Message
from woodlot.runtime.codec import decode, encode
from woodlot.service import client as client_module
from woodlot.service.client import Client

LABELS = Labels(LEADER, "late", None)


class Liar:
    """The other end of a user's line: hides leaders where it is told to, and hands out another model."""

    def __init__(self, bench: LedBench, other: str) -> None:
        self._bench, self._other = bench, other
        self.hides = True
        self.knows = True
        self.asked: list[Message] = []
        self.orders: dict[str, Order] = {}

    def ask(self, data: bytes) -> bytes:
        self.asked.append(decode(data))
        return encode(self._answer(self.asked[-1]))

    def close(self) -> None:
        pass

    def _answer(self, request: Any) -> Message:
        match request:
            case msg.AskFederation():
                homes = self._bench.homes
                parties = [msg.PartyFacts(name=p, since=1.0, certificate=homes[p].identity.certificate) for p in homes]
                return msg.FederationFacts(parties=tuple(parties), coordinator=self._bench.identity.certificate)
            case msg.SubmitJob():
                order = read_order(request.order)
                self.orders[order.job] = order
                return self._status(order)
            case msg.AskJob() if request.job in self.orders:
                return self._status(self.orders[request.job])
            case msg.FindModel() if self.knows:
                return msg.ModelList(models=(self._bench.coordinator.model_facts(self._other),))
            case msg.AskModel():
                return self._bench.coordinator.model_part(self._other)
            case _:
                return msg.Declined(kind="data", reason="this is not known here")

    def _status(self, order: Order) -> msg.JobStatus:
        facts = msgspec.structs.replace(new_facts(order, "alice"), state="done")
        return msg.JobStatus(facts=msgspec.structs.replace(facts, leader="") if self.hides else facts)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LedBench]:
    with closing(LedBench(tmp_path_factory.mktemp("deceived"))) as made:
        yield made


@pytest.fixture(scope="module")
def unled(bench: LedBench) -> str:
    """A model that the coordinator has."""
    return play(bench, TrainOrder(**bench.fields(), holder=LEADER, plan=PLAN, settings="{}")).job


@pytest.fixture(scope="module")
def trained(bench: LedBench) -> str:
    """A model that the bank leads."""
    return relay(bench, order_of(bench)).job


@pytest.fixture
def liar(bench: LedBench, unled: str, monkeypatch: pytest.MonkeyPatch) -> Liar:
    made = Liar(bench, unled)
    monkeypatch.setattr(client_module, "UserLine", lambda *args, **options: made)
    return made


def federation(bench: LedBench, lead: Any) -> ConnectedFederation:
    client = Client("localhost:7443", bench.world.root / "alice" / "identity")
    return federation_at(client, tables="customers", parties=PARTIES, lead=lead)


def test_a_training_whose_leader_is_hidden_is_not_believed(bench: LedBench, liar: Liar) -> None:
    with pytest.raises(RemoteProtocolError, match=r"names 'nobody' as the leader of .* it is 'bank'"):
        federation(bench, None).fit_forest(PLAN, LABELS, settings=dict)


def test_the_model_is_asked_of_the_leader_of_the_order(bench: LedBench, liar: Liar) -> None:
    liar.hides = False
    user = federation(bench, None)
    order = user.train_order(PLAN, LABELS, {})
    user.client.submit(order)
    for ask in (user.client.model, user.client.predictions, user.client.receipt):
        liar.asked.clear()
        with pytest.raises(DataError, match="not known here"):
            ask(order.job)
        (question,) = (m for m in liar.asked if not isinstance(m, msg.AskFederation))
        assert isinstance(question, AskLeader)
        assert question.leader == LEADER
    with pytest.raises(RemoteProtocolError, match="and told of"):
        user.client.find_model(order.job)


@pytest.mark.parametrize("lead", [None, "holder"], ids=["default", "holder"])
@pytest.mark.parametrize("knows", [True, False], ids=["no leader", "no model"])
def test_no_order_without_a_leader_on_the_coordinators_word(
    bench: LedBench, liar: Liar, unled: str, knows: bool, lead: Any
) -> None:
    """A coordinator that says of a name that another model has it, which no party leads, gets no order to read."""
    liar.knows = knows
    user = federation(bench, lead)
    facts = bench.coordinator.model_facts(unled)
    for order in (
        lambda: user.predict_order(unled),
        lambda: user.predict_linear_order(unled),
        lambda: user.revoke_order(msgspec.structs.replace(facts, parties=(*PARTIES, "club")), "club", 3, LABELS),
    ):
        with pytest.raises(DataError, match=r"names no leader of model .* connect with lead='coordinator'"):
            order()
    with pytest.raises(DataError):
        user.scoring(unled)
    assert not liar.orders


def test_a_fitted_model_knows_its_leader(bench: LedBench, liar: Liar, trained: str, unled: str) -> None:
    """Though who uses it has connected as if the coordinator led."""
    forest, _ = grown_forest(bench.led[LEADER].model_part(trained))
    user = federation(bench, "coordinator")
    with pytest.raises(RemoteProtocolError, match="names 'nobody' as the leader"):
        user.predict(forest, "one-round", "decisions", "soft")
    (order,) = liar.orders.values()
    assert order.leader == LEADER
    with pytest.raises(DataError, match="names no leader"):
        federation(bench, "holder").predict(
            grown_forest(bench.coordinator.model_part(unled))[0], "one-round", "decisions", "soft"
        )


def test_another_model_than_was_asked_for_is_refused(bench: LedBench, liar: Liar, trained: str) -> None:
    liar.knows = False
    client = federation(bench, "coordinator").client
    with pytest.raises(RemoteProtocolError, match="was asked for model"):
        client.model(trained)
