"""Leaving a hidden forest under attack: what a user, a leader or a server could gain from growing it again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hidden_bench import THIRD, HiddenBench, hidden_order, keep_hidden, leaving_order, relay_hidden, stored_order
from led_bench import LEADER, OTHER, carry
from party_bench import Play

from woodlot.exceptions import DataError, PolicyError, RemoteProtocolError, WoodlotError
from woodlot.jobs.orders import Part, RevokeOrder
from woodlot.protocols.core.message import Message
from woodlot.protocols.hidden import hidden_messages as msg
from woodlot.protocols.hidden.hidden_dealer import ShuffleDealer
from woodlot.protocols.hidden.hidden_party import HiddenParty
from woodlot.runtime.codec import decode, encode


def trained_on(bench: HiddenBench) -> str:
    order = hidden_order(bench)
    keep_hidden(bench, order, relay_hidden(bench, order))
    return order.job


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HiddenBench]:
    with closing(HiddenBench(tmp_path_factory.mktemp("leaving"))) as made:
        yield made


class CancelledError(Exception):
    """The user has cancelled the job."""


def broken_off(bench: HiddenBench, order: RevokeOrder) -> Play:
    """A leaving that grows everything, and that the user cancels before anything is kept."""
    record = Play(order.job)
    jobs = {p: bench.job(p, order.job) for p in order.parties}

    def rounds() -> Iterator[Any]:
        replies = yield next(protocol)
        for _ in range(40):
            replies = yield protocol.send(replies)
        raise CancelledError

    protocol: Any = bench.host.protocol(stored_order(bench, order))
    with pytest.raises(CancelledError):
        carry(record, jobs, rounds())  # type: ignore[arg-type]
    stored = bench.coordinator.job(order.job)
    assert stored is not None
    bench.coordinator.update(msgspec.structs.replace(stored.facts, version=stored.facts.version + 1, state="cancelled"))
    return record


@pytest.mark.slow
def test_leavings_count_as_trainings_also_those_that_are_broken_off(tmp_path: Path) -> None:
    """Each opens counts of another forest on the same rows: what bounds trainings bounds them."""
    with closing(HiddenBench(tmp_path)) as bench:
        bench.change_policy(LEADER, trainings_per_day=2)
        model = trained_on(bench)
        broken_off(bench, leaving_order(bench, model, THIRD))
        with pytest.raises(DataError, match="it has ended the job that it leads") as ended:
            relay_hidden(bench, leaving_order(bench, model, OTHER))
        assert "trainings_per_day" in str(ended.value.__cause__)


def test_no_mask_of_the_training_is_used_again(bench: HiddenBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The draws are the same; what hides them, the labels and the bins is not."""
    said: dict[str, list[Message]] = {"training": [], "leaving": []}
    now = "training"

    def listen(kind: Any) -> None:
        handle = kind.handle

        def heard(self: Any, message: Message) -> Message:
            reply: Message = handle(self, message)
            said[now].extend((message, reply))
            return reply

        monkeypatch.setattr(kind, "handle", heard)

    listen(HiddenParty)
    listen(ShuffleDealer)
    model = trained_on(bench)
    now = "leaving"
    relay_hidden(bench, leaving_order(bench, model, THIRD))

    def words(when: str, kind: type[Message], name: str) -> set[bytes]:
        found = [getattr(one, name) for one in said[when] if isinstance(one, kind)]
        blocks = {bytes(data[at : at + 32]) for data in (np.asarray(one).tobytes() for one in found) for at in
                  range(0, len(data) - 31, 8)}  # fmt: skip
        assert blocks
        return blocks

    for kind, name in (
        (msg.DealtDraws, "words"),
        (msg.DealtShuffle, "first"),
        (msg.DealtSecond, "second"),
        (msg.StartServer, "masked"),
        (msg.DealerReady, "secret"),
        (msg.StartDealer, "salt"),
    ):
        again = words("training", kind, name) & words("leaving", kind, name)
        assert not again, (kind, name, len(again))


def test_only_who_ordered_the_model_has_others_leave_it(bench: HiddenBench) -> None:
    order = leaving_order(bench, trained_on(bench), THIRD)
    bench.host.check(order, "alice")
    for host in (bench.host, bench.homes[LEADER].lead):
        assert host is not None
        with pytest.raises(WoodlotError):
            host.check(order, "bob")


def test_who_leaves_and_who_stays_are_those_of_the_training(bench: HiddenBench) -> None:
    model = trained_on(bench)
    order = leaving_order(bench, model, THIRD)
    leaver_stays = RevokeOrder(
        **bench.fields_of({p: Part(table="customers", label="late" if p == LEADER else None) for p in
                           (LEADER, OTHER, THIRD)}),
        model=model, alignment=model, leaver=THIRD, task="classes", level=3, led_by=LEADER, server=OTHER,
    )  # fmt: skip
    for changed in (
        leaver_stays,
        msgspec.structs.replace(order, leaver="nobody"),
        msgspec.structs.replace(order, led_by=OTHER, server=LEADER),
    ):
        for party in (LEADER, OTHER):
            with pytest.raises((DataError, PolicyError, RemoteProtocolError)):
                bench.job(party, changed.job).handle(decode(encode(bench.opening(changed))))
