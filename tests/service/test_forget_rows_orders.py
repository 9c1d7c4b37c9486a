"""Forgetting rows of a forest over rows, without a network: what is carried and kept, and what parties do not sign."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hospitals import LABEL, TABLE
from party_bench import PARTIES, ROWS, Bench, clinics, forget_rows_order, number_id, play, rows_order

from woodlot.data.decoding import from_json
from woodlot.exceptions import DataError, PolicyError, RemoteProtocolError
from woodlot.identity.erasure import ErasureReceipt, ErasureStatement, statement_text
from woodlot.jobs.forget.forget_messages import EndForgetting, OpenForgetting
from woodlot.jobs.forget.forget_orders import ForgetRowsOrder
from woodlot.jobs.forget.forget_rows_work import ForgetRowsWork
from woodlot.jobs.orders import Part
from woodlot.protocols.core.message import Message
from woodlot.protocols.rows.local_forests import LocalPlan
from woodlot.protocols.rows.row_messages import DescribeRows

PLAN = LocalPlan(**ROWS)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with clinics(tmp_path) as made:
        for party in PARTIES:
            listed = (*made.homes[party].policy.protocols, "forget")
            made.change_policy(party, protocols=listed, allow_two=True)
        yield made


def test_the_coordinator_carries_no_id_and_keeps_none(bench: Bench) -> None:
    trained = play(bench, rows_order(bench, PLAN))
    played = play(bench, forget_rows_order(bench, trained.job))
    receipt = bench.coordinator.receipt(played.job)
    assert receipt is not None
    statement = ErasureReceipt.parse(receipt.encode()).statement
    assert (statement.rows, statement.unknown, statement.parties) == (1, 1, PARTIES)
    told = [data for side in (played.asked, played.answered) for said in side.values() for data in said]
    folders = [bench.coordinator.folder, *(bench.homes[party].store.folder for party in PARTIES)]
    here = [path.read_bytes() for folder in folders for path in Path(folder).rglob("*") if path.is_file()]
    assert not any(number_id(1004) in data for data in [*told, *here, receipt.encode()])


def test_a_party_signs_nothing_but_what_it_has_done(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator that states other numbers, ids or forests gets no signature, and the record stays."""
    trained = play(bench, rows_order(bench, PLAN))
    real = ForgetRowsWork.handle
    tried: list[Any] = []
    record = bench.homes["bank"].store.folder / "alignments" / trained.job

    def handle(self: ForgetRowsWork, message: Message) -> Message:
        if isinstance(message, EndForgetting) and self._taken.home.identity.name == "bank":
            statement = from_json(message.statement.encode(), ErasureStatement)
            wrongs: list[dict[str, Any]] = [
                {"rows": 0},
                {"ids": statement.ids[:1]},
                {"ids": (), "unknown": 0},
                {"unknown": 2},
                {"model": "0" * 64},
                {"parties": ("bank",)},
                {"nodes_after": statement.nodes_after + 2},
            ]
            for wrong in wrongs:
                changed = msgspec.structs.replace(statement, **wrong)
                with pytest.raises(RemoteProtocolError):
                    real(self, EndForgetting(statement=statement_text(changed)))
                assert not (record / "dropped").exists()
                tried.append(wrong)
        return real(self, message)

    monkeypatch.setattr(ForgetRowsWork, "handle", handle)
    play(bench, forget_rows_order(bench, trained.job))
    assert len(tried) == 7
    assert (record / "dropped").exists()


def test_what_does_not_fit_the_training_is_refused(bench: Bench) -> None:
    trained = play(bench, rows_order(bench, PLAN))
    named: dict[str, Any] = {"table": TABLE, "label": LABEL, "ids": (number_id(1004),), "key": bytes(32)}
    wrongs: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"ids": ()}, DataError, "names the ids of 1 to"),
        ({"ids": (number_id(1), number_id(1))}, DataError, "each id once"),
        ({"key": b"short"}, DataError, "a key of 32 bytes"),
        ({"ids": (b"tone",)}, DataError, "give ids of that kind"),
        ({"ids": tuple(number_id(1000 + k) for k in range(60))}, PolicyError, "min_rows"),
        ({"label": None}, PolicyError, "another label"),
    ]
    for wrong, kind, words in wrongs:
        parts = {party: Part(**named) for party in PARTIES} | {"bank": Part(**named | wrong)}
        order = ForgetRowsOrder(**bench.fields_of(parts), model=trained.job)
        with pytest.raises(kind, match=words):
            bench.job("bank", order.job).handle(bench.opening(order))
    alone = ForgetRowsOrder(**bench.fields_of({"bank": Part(**named)}), model=trained.job)
    with pytest.raises(DataError, match="all parties of the training"):
        bench.job("bank", alone.job).handle(bench.opening(alone))
    order = forget_rows_order(bench, trained.job)
    job = bench.job("bank", order.job)
    job.handle(bench.opening(order))
    for early in (DescribeRows(task="classes"), EndForgetting(statement="{}")):
        with pytest.raises(RemoteProtocolError, match="expected after OpenForgetting"):
            job.handle(early)
    with pytest.raises(RemoteProtocolError, match="another model"):
        job.handle(OpenForgetting(model="0" * 32, forest="a"))


def test_a_party_that_did_not_list_it_at_the_training_does_not_know_its_rows(bench: Bench) -> None:
    policy = bench.homes["bank"].policy
    bench.change_policy("bank", protocols=tuple(kind for kind in policy.protocols if kind != "forget"))
    trained = play(bench, rows_order(bench, PLAN))
    bench.change_policy("bank", protocols=policy.protocols)
    order = forget_rows_order(bench, trained.job)
    with pytest.raises(DataError, match="lists 'forget' when the forest is trained"):
        bench.job("bank", order.job).handle(bench.opening(order))
