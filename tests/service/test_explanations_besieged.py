"""Explanations under attack: a leader, a coordinator or a user that wants more than was ordered or is allowed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hidden_bench import THIRD, HiddenBench, hidden_order, keep_hidden, relay_hidden
from led_bench import LEADER, OTHER, LedBench, order_of, relay
from party_bench import number_id
from processes import FIRST_ID

from woodlot.exceptions import DataError, PolicyError, RemoteProtocolError
from woodlot.jobs import job_messages as msg
from woodlot.jobs.evaluate.report_seal import new_report_key
from woodlot.jobs.explain.explain_orders import ExplainOrder
from woodlot.jobs.orders import Part
from woodlot.jobs.party_job import PartyJob
from woodlot.protocols.align import align_messages
from woodlot.protocols.core.message import Message
from woodlot.protocols.vertical.explain_messages import AskAllSides, AskExplained, AskRowValues, ExplainedColumns
from woodlot.protocols.vertical.files import forest_id_of
from woodlot.protocols.vertical.forest_messages import AskDecisions, RevealSplits
from woodlot.runtime.codec import decode, encode

ABSENT = 10**6
"""Added to the first id: nobody has such rows."""


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LedBench]:
    with closing(LedBench(tmp_path_factory.mktemp("besieged"))) as made:
        yield made


@pytest.fixture(scope="module")
def model(bench: LedBench) -> str:
    return relay(bench, order_of(bench)).job


def explain_order(bench: LedBench, model: str, ids: range | None = None, **parts: Part) -> ExplainOrder:
    named: dict[str, Any] = {} if ids is None else {"ids": tuple(number_id(FIRST_ID + k) for k in ids)}
    own = {OTHER: Part(table="customers", **named)} | parts
    own[LEADER] = Part(table="customers", key=new_report_key(), **named)
    return ExplainOrder(**bench.fields(**own), model=model, led_by=LEADER, named=ids is not None)


def leading(job: PartyJob, message: Message) -> Message:
    """What the leader asks behind its seal, whatever its own program would ask."""
    assert job._led is not None
    return job._led._work.handle(decode(encode(message)))


def use_of(bench: LedBench, model: str, n_rows: int) -> msg.UseModel:
    return msg.UseModel(model=model, forest=forest_id_of(bench.led[LEADER].forest(model).coordinator), n_rows=n_rows)


def opened(bench: LedBench, order: ExplainOrder, party: str = OTHER) -> PartyJob:
    job = bench.job(party, order.job)
    job.handle(bench.opening(order))
    return job


def test_a_party_does_not_tell_sides_of_a_hidden_forest_to_a_leader_that_wants_them(tmp_path: Path) -> None:
    """The leader's own program refuses; a leader that lies, and a user with it, would have every side of every row."""
    with closing(HiddenBench(tmp_path)) as hidden:
        training = hidden_order(hidden)
        keep_hidden(hidden, training, relay_hidden(hidden, training))
        order = explain_order(hidden, training.job, **{THIRD: Part(table="customers")})
        for party in (OTHER, THIRD):
            with pytest.raises(DataError, match="grown on secret shares"):
                hidden.job(party, order.job).handle(hidden.opening(order))


def test_rows_that_are_named_count_whether_the_party_has_them_or_not(tmp_path: Path) -> None:
    """Else the limit tells who is a customer, a thousand ids at a time: orders pass as long as nobody named is."""
    with closing(LedBench(tmp_path)) as bench:
        model = relay(bench, order_of(bench)).job
        bench.change_policy(OTHER, explanations_per_day=5)
        nobody, somebody = range(ABSENT, ABSENT + 3), range(3)
        job = opened(bench, explain_order(bench, model, nobody))
        assert isinstance(leading(job, use_of(bench, model, 3)), msg.ModelReady)
        for ids in (nobody, somebody):
            job = opened(bench, explain_order(bench, model, ids))
            with pytest.raises(PolicyError, match="2 are left until"):
                leading(job, use_of(bench, model, 3))


def test_named_rows_do_not_become_an_alignment(bench: LedBench, model: str) -> None:
    """Rows that a user has chosen one by one would be those of a later training or evaluation."""
    order = explain_order(bench, model, range(3))
    job = opened(bench, order)
    with pytest.raises(RemoteProtocolError, match="KeepAlignment"):
        leading(job, msg.KeepAlignment())
    opening = align_messages.OpenAlignment(parties=order.parties, method=order.method, join=order.join)
    with pytest.raises(RemoteProtocolError, match="does not ask for this alignment"):
        job.handle(opening)


def test_sides_are_told_of_the_rows_of_the_order(bench: LedBench, model: str) -> None:
    job = opened(bench, explain_order(bench, model, range(3)))
    with pytest.raises(RemoteProtocolError, match="3 here"):
        leading(job, use_of(bench, model, 4))
    with pytest.raises(RemoteProtocolError, match="expected after"):
        leading(job, AskAllSides(first_row=0, n_rows=3))
    leading(job, use_of(bench, model, 3))
    with pytest.raises(RemoteProtocolError, match="rows that do not exist"):
        leading(job, AskAllSides(first_row=0, n_rows=4))


@pytest.mark.parametrize(("level", "names", "values"), [("party", False, False), ("columns", True, False)])
def test_a_leader_that_asks_for_more_than_the_owner_shows_gets_it_not(
    bench: LedBench, model: str, level: str, names: bool, values: bool
) -> None:
    bench.change_policy(OTHER, explains=level)
    job = opened(bench, explain_order(bench, model, range(3)))
    leading(job, use_of(bench, model, 3))
    told = leading(job, AskExplained())
    assert isinstance(told, ExplainedColumns)
    assert (told.names is not None, told.tells_values) == (names, values)
    with pytest.raises((PolicyError, RemoteProtocolError)):
        leading(job, AskRowValues(first_row=0, n_rows=3))
    asked: list[Message] = [AskDecisions(wire=wire, shuffled=None, seed=0) for wire in ("ranks", "leaves", "decisions")]
    for more in (*asked, RevealSplits()):
        with pytest.raises(RemoteProtocolError):
            leading(job, more)
    bench.change_policy(OTHER, explains="values")
