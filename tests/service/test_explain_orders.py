"""Explanations as orders, as sealed bytes, and against a leader that asks for more than was ordered."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from led_bench import LEADER, OTHER, LedBench, order_of, relay
from processes import FIRST_ID
from small_jobs import PARTIES

from companies import ALL, classifier, federation
from woodlot.data.decoding import from_json
from woodlot.exceptions import DataError, PolicyError, RemoteProtocolError
from woodlot.jobs import job_messages as msg
from woodlot.jobs.drift.drift_orders import DriftOrder
from woodlot.jobs.evaluate.report_seal import new_report_key
from woodlot.jobs.explain.explain_orders import ExplainOrder
from woodlot.jobs.explain.told_explanations import ToldExplanation
from woodlot.jobs.orders import Part, PredictOrder, RowSubset
from woodlot.protocols.vertical import explain_messages
from woodlot.protocols.vertical.explain import ExplainedFeature, ExplainedRows
from woodlot.protocols.vertical.explain_messages import AskAllSides, AskExplained, AskRowValues
from woodlot.protocols.vertical.forest_messages import AskDecisions

FIELDS: dict[str, Any] = {
    "job": "1" * 32, "created": 0.0, "federation": "f", "coordinator": "c", "parties": PARTIES,
    "sealed": dict.fromkeys(PARTIES, b""), "model": "2" * 32, "led_by": "bank",
}  # fmt: skip
SUBSET = {"alignment": "3" * 32, "subset": (RowSubset(0, 0, 9),)}


@pytest.mark.parametrize("kind", [ExplainOrder, DriftOrder])
@pytest.mark.parametrize(
    "wrong",
    [
        {"led_by": msgspec.UNSET},
        {"score_at": "bank"},
        {"deliver_to": "shop"},
        {"wire": "ranks"},
        {"how": "classical"},
        {"how": "sealed"},
        {"shuffled": (0, 1)},
        {"absent": ("shop",)},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_orders_that_ask_for_more_are_refused(kind: type[PredictOrder], wrong: dict[str, Any]) -> None:
    kind(**FIELDS).check()
    kind(**FIELDS, **SUBSET).check()
    with pytest.raises(RemoteProtocolError):
        kind(**(FIELDS | wrong)).check()


def test_rows_are_named_or_selected_and_answers_go_where_they_belong() -> None:
    ExplainOrder(**FIELDS, named=True).check()
    for wrong in (SUBSET, {"alignment": "3" * 32}):
        with pytest.raises(RemoteProtocolError, match="neither aligned nor selected"):
            ExplainOrder(**FIELDS, **wrong, named=True).check()
    with pytest.raises(RemoteProtocolError, match="for the user who orders it"):
        ExplainOrder(**FIELDS, give_answers=False).check()
    with pytest.raises(RemoteProtocolError, match="returns no predictions"):
        DriftOrder(**FIELDS, give_answers=True).check()


# --- sealed bytes ---


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 3), st.integers(0, 99))
def test_what_is_told_is_what_was_computed(n_rows: int, n_features: int, n_outputs: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    features = tuple(ExplainedFeature("bank", f"c{k}" if k else None) for k in range(n_features))
    found = ExplainedRows(
        features,
        rng.normal(size=(n_rows, n_features, n_outputs)),
        rng.normal(size=n_outputs),
        rng.normal(size=(n_rows, n_outputs)),
        rng.random(n_rows) < 0.5,
        {n_features - 1: tuple(f'{"é" * k}"' for k in range(n_rows))},
    )
    told = ToldExplanation.of(found, tuple(range(n_outputs)))
    again = from_json(msgspec.json.encode(told), ToldExplanation).rows()
    assert (again.features, again.texts) == (found.features, found.texts)
    for name in ("values", "base", "outputs", "uncertain"):
        np.testing.assert_array_equal(getattr(again, name), getattr(found, name))
    for change in (
        {"n_rows": n_rows + 1},
        {"n_outputs": n_outputs + 1},
        {"values": told.values[:-8]},
        {"outputs": told.outputs + b"1"},
        {"uncertain": b""},
        {"texts": {str(n_features): told.texts[str(n_features - 1)]}},
        {"texts": {"0": ("too", "many", "for", "these", "few", "rows")}},
        {"texts": {"none": ()}},
        {"classes": tuple(range(n_outputs + 1))},
    ):
        with pytest.raises(RemoteProtocolError, match="the explanation has"):
            msgspec.structs.replace(told, **change).rows()


def test_values_of_many_rows_come_in_several_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    fed = federation(explains={"bank": "values", "shop": "columns"})
    model = classifier(n_estimators=4).fit(fed, y="bank.default")
    at_once = model.explain(fed)
    monkeypatch.setattr(explain_messages, "MAX_TEXTS", 64)
    in_parts = model.explain(fed)
    assert in_parts.data == at_once.data
    assert set(in_parts.data) == {"bank.age", "bank.income"}
    (told,) = [row.count for row in model.prediction_disclosure_.rows if row.kind == "RowValues"]
    assert told == -(-len(ALL) // 32)  # of two columns
    np.testing.assert_array_equal(in_parts.values, at_once.values)


# --- a leader that asks for more ---


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LedBench, str]]:
    with closing(LedBench(tmp_path_factory.mktemp("more"))) as made:
        yield made, relay(made, order_of(made)).job


def opened(bench: LedBench, order: PredictOrder) -> Any:
    """What the other party does for an order, once the leader has opened the model."""
    record = relay(bench, order)
    job = bench.job(OTHER, order.job)
    job.handle(bench.opening(order))
    assert record.asked[OTHER]
    work = job._work
    assert work is not None
    model = bench.led[LEADER].model_facts(order.model)
    n_rows = work.n_aligned
    work.handle(msg.UseModel(model=order.model, forest=model.forest, n_rows=n_rows))
    return work


def named(bench: LedBench, **options: Any) -> dict[str, Any]:
    ids = tuple(b"i" + (FIRST_ID + k).to_bytes(9, "big", signed=True) for k in range(5))
    own = {p: Part(table="customers", key=new_report_key(), ids=ids) for p in PARTIES}
    return bench.fields_of(own) | {"led_by": LEADER} | options


def test_a_leader_gets_no_values_of_a_party_that_does_not_tell_them(bench: tuple[LedBench, str]) -> None:
    made, model = bench
    for explains, name_it in (("party", False), ("columns", True)):
        made.change_policy(OTHER, explains=explains)
        work = opened(made, ExplainOrder(**named(made, model=model, named=True)))
        assert (work.handle(AskExplained()).names is not None) == name_it
        with pytest.raises(PolicyError, match="'values' is asked for"):
            work.handle(AskRowValues(first_row=0, n_rows=1))
        with pytest.raises(RemoteProtocolError, match="rows that do not exist"):
            work.handle(AskAllSides(first_row=0, n_rows=6))
        with pytest.raises(RemoteProtocolError, match="the order does not ask for AskDecisions"):
            work.handle(AskDecisions(wire="decisions", shuffled=None, seed=0))
        work.handle(AskAllSides(first_row=0, n_rows=5))
    made.change_policy(OTHER, explains="values")


def test_a_prediction_gets_no_sides_at_all_nodes(bench: tuple[LedBench, str]) -> None:
    """Also where the party's policy would let them be told: the user has not ordered an explanation."""
    made, model = bench
    aligned = {"alignment": model, "model": model}
    work = opened(made, PredictOrder(**made.fields(), **aligned, led_by=LEADER))
    for message in (AskExplained(), AskAllSides(first_row=0, n_rows=1), AskRowValues(first_row=0, n_rows=1)):
        with pytest.raises(RemoteProtocolError, match="the order does not ask for"):
            work.handle(message)


@pytest.mark.parametrize("ids", [(), (b"i1",) * 2, tuple(b"t%d" % k for k in range(1001)), msgspec.UNSET])
def test_ids_that_no_client_of_ours_sends_are_refused(bench: tuple[LedBench, str], ids: Any) -> None:
    made, model = bench
    own = {p: Part(table="customers", key=new_report_key(), ids=ids) for p in PARTIES}
    order = ExplainOrder(**made.fields_of(own), led_by=LEADER, model=model, named=True)
    with pytest.raises(DataError, match="names the ids of 1 to 1,000 rows, none twice"):
        made.job(OTHER, order.job).handle(made.opening(order))
