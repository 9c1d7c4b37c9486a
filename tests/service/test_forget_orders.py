"""Forgetting without a network: what the coordinator carries, and what parties do not sign."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from led_bench import KEY, LEADER, OTHER, LedBench, forget_order, order_of, relay
from party_bench import number_id
from processes import FIRST_ID

from woodlot.data.decoding import from_json
from woodlot.exceptions import DataError, PolicyError, RemoteProtocolError
from woodlot.identity.erasure import ErasureReceipt, ErasureStatement, statement_text
from woodlot.jobs.forget.forget_messages import EndForgetting, OpenForgetting
from woodlot.jobs.forget.forget_work import ForgetWork
from woodlot.jobs.orders import Part
from woodlot.protocols.core.message import Message


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LedBench]:
    with closing(LedBench(tmp_path_factory.mktemp("forget"))) as made:
        yield made


def test_the_coordinator_carries_no_id_and_keeps_none(bench: LedBench) -> None:
    trained = relay(bench, order_of(bench))
    played = relay(bench, forget_order(bench, trained.job))
    receipt = bench.led[LEADER].receipt(played.job)
    assert receipt is not None
    statement = ErasureReceipt.parse(receipt.encode()).statement
    assert (statement.rows, statement.unknown) == (1, 1)
    told = [data for side in (played.asked, played.answered) for said in side.values() for data in said]
    here = [path.read_bytes() for path in Path(bench.coordinator.folder).rglob("*") if path.is_file()]
    for secret in (number_id(FIRST_ID + 4), str(FIRST_ID + 4).encode()):
        assert not any(secret in data for data in [*told, *here, receipt.encode()])


def test_a_party_signs_nothing_but_what_it_has_done(bench: LedBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader that states other numbers, ids or parts gets no signature, and the former model stays in use."""
    trained = relay(bench, order_of(bench))
    real = ForgetWork.handle
    tried: list[Any] = []

    def handle(self: ForgetWork, message: Message) -> Message:
        if isinstance(message, EndForgetting) and self.home.identity.name == OTHER:
            statement = from_json(message.statement.encode(), ErasureStatement)
            wrongs: list[dict[str, Any]] = [
                {"rows": statement.rows + 1},
                {"rows_left": statement.rows_left + 1},
                {"ids": statement.ids[:1]},
                {"after": statement.after | {OTHER: statement.before[OTHER]}},
                {"parties": (LEADER,)},
                {"nodes_after": statement.nodes_after + 2},
            ]
            for wrong in wrongs:
                changed = msgspec.structs.replace(statement, **wrong)
                with pytest.raises(RemoteProtocolError):
                    real(self, EndForgetting(statement=statement_text(changed)))
                assert not (self.home.store.folder / "models" / trained.job / "dropped").exists()
                tried.append(wrong)
        return real(self, message)

    monkeypatch.setattr(ForgetWork, "handle", handle)
    relay(bench, forget_order(bench, trained.job))
    assert len(tried) == 6
    assert (bench.homes[OTHER].store.folder / "models" / trained.job / "dropped").exists()


def test_orders_that_name_no_ids_or_not_as_they_must_are_refused(bench: LedBench) -> None:
    trained = relay(bench, order_of(bench))
    named: dict[str, Any] = {"table": "customers", "ids": (number_id(FIRST_ID),), "key": KEY}
    wrongs: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"ids": msgspec.UNSET}, DataError, "names the ids of 1 to"),
        ({"ids": (number_id(1), number_id(1))}, DataError, "each id once"),
        ({"key": b"short"}, DataError, "a key of 32 bytes"),
        ({"ids": (b"tone",)}, DataError, "give ids of that kind"),
        ({"label": "late"}, PolicyError, "is not one that this party offers"),
    ]
    for wrong, kind, words in wrongs:
        part: dict[str, Any] = named | wrong
        order = forget_order(bench, trained.job, **{OTHER: Part(**part)})
        with pytest.raises(kind, match=words):
            bench.job(OTHER, order.job).handle(bench.opening(order))
    order = forget_order(bench, trained.job)
    job = bench.job(OTHER, order.job)
    job.handle(bench.opening(order))
    with pytest.raises(RemoteProtocolError, match="in the clear"):  # the leader asks, not the coordinator
        job.handle(OpenForgetting(model=trained.job, forest="a"))
