"""What a party's columns may be used as, who may be given predictions, and how often a label is learnt from."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hospitals import LABEL, TABLE
from party_bench import LINEAR, ROWS, Bench, Play, clinics, play
from small_jobs import PLAN

from woodlot.exceptions import DataError, PolicyError
from woodlot.jobs import job_messages as msg
from woodlot.jobs.catalog.catalog_jobs import CatalogOrder
from woodlot.jobs.drift.drift_orders import DriftOrder
from woodlot.jobs.explain.explain_orders import ExplainOrder
from woodlot.jobs.forget.forget_orders import ForgetOrder, ForgetRowsOrder
from woodlot.jobs.kinds import KINDS
from woodlot.jobs.linear.linear_orders import EvaluateLinearOrder, PredictLinearOrder, TrainLinearOrder
from woodlot.jobs.orders import (
    AlignOrder,
    EvaluateOrder,
    Order,
    Part,
    PredictOrder,
    RevokeOrder,
    ScoreOrder,
    TrainOrder,
)
from woodlot.jobs.revocable.revocable_orders import PredictEncryptedOrder, RevokeRevocableOrder, TrainRevocableOrder
from woodlot.jobs.rows.rows_orders import EvaluateRowsOrder, PredictRowsOrder, RevokeRowsOrder, TrainRowsOrder
from woodlot.protocols.revocable.revocable_plan import RevocablePlan
from woodlot.protocols.rows.local_forests import LocalPlan

MODEL = "1" * 32
LEAVING: dict[str, Any] = {"model": MODEL, "leaver": "shop", "task": "classes"}
PLANNED: dict[str, Any] = {"settings": "{}", "plan": LocalPlan(**ROWS)}
GROWN: dict[str, Any] = {"settings": "{}", "holder": "bank"}

LABELLED: dict[str, Callable[[dict[str, Any]], Order]] = {
    "train": lambda fields: TrainOrder(**fields, **GROWN, plan=PLAN),
    "train-linear": lambda fields: TrainLinearOrder(**fields, **GROWN, plan=LINEAR),
    "train-revocable": lambda fields: TrainRevocableOrder(**fields, **GROWN, plan=RevocablePlan(PLAN)),
    "train-rows": lambda fields: TrainRowsOrder(**fields, **PLANNED),
    "revoke": lambda fields: RevokeOrder(**fields, **LEAVING),
    "revoke-revocable": lambda fields: RevokeRevocableOrder(**fields, **LEAVING, holder="bank"),
    "revoke-rows": lambda fields: RevokeRowsOrder(**fields, **PLANNED, model=MODEL, leaver="shop"),
    "predict": lambda fields: PredictOrder(**fields, model=MODEL, score_at="bank", give_answers=False),
    "predict-linear": lambda fields: PredictLinearOrder(**fields, model=MODEL, score_at="bank", give_answers=False),
    "evaluate": lambda fields: EvaluateOrder(**fields, model=MODEL, score_at="bank"),
    "evaluate-linear": lambda fields: EvaluateLinearOrder(**fields, model=MODEL, score_at="bank"),
    "explain": lambda fields: ExplainOrder(**fields, model=MODEL, led_by="bank"),
    "forget": lambda fields: ForgetOrder(**fields, model=MODEL, alignment=MODEL, led_by="bank"),
    "forget-rows": lambda fields: ForgetRowsOrder(**fields, model=MODEL),
    "drift": lambda fields: DriftOrder(**fields, model=MODEL, led_by="bank"),
    "predict-rows": lambda fields: PredictRowsOrder(**fields, model=MODEL, forest="0" * 64),
    "evaluate-rows": lambda fields: EvaluateRowsOrder(**fields, model=MODEL, forest="0" * 64),
    "score": lambda fields: ScoreOrder(**fields, model=MODEL),
    "catalog": lambda fields: CatalogOrder(**fields),
    "align": lambda fields: AlignOrder(**fields),
}
"""Every kind of order whose part for a party can name a label."""


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with closing(Bench(tmp_path)) as made:
        for party in ("bank", "shop"):
            made.change_policy(party, protocols=tuple(kind.listed for kind in KINDS), labels_to_coordinator=True)
        yield made


def declare(bench: Bench, party: str, table: str = "customers", **roles: tuple[str, ...]) -> None:
    """Have a party's table say something else of its columns."""
    home = bench.homes[party]
    bench.homes[party] = replace(home, tables=home.tables | {table: replace(home.tables[table], **roles)})


def refusal(bench: Bench, order: Order, party: str = "bank") -> str:
    with pytest.raises(PolicyError) as caught:
        bench.job(party, order.job).handle(bench.opening(order))
    return str(caught.value)


def learnt(bench: Bench, played: Play, party: str = "bank") -> set[str]:
    """The columns that a party's part of a model was made from."""
    (stored,) = (bench.homes[party].store.folder / "models" / played.job).glob("*.json")
    return {name for name in ("age", "income", "late") if name in _texts(json.loads(stored.read_bytes()))}


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)


# --- labels and weights ---


def test_every_kind_of_order_is_tried() -> None:
    assert set(LABELLED) == {kind.name for kind in KINDS if kind.needs_table}


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=() if kind in ("train", "train-rows", "evaluate") else pytest.mark.slow)
        for kind in LABELLED
    ],
)
def test_nothing_is_a_label_that_its_owner_did_not_name(bench: Bench, kind: str) -> None:
    parties = ["bank"] if kind.startswith("revoke") else ["bank", "shop"]
    for column in ("income", "no such column"):
        parts = {party: Part(table="customers", label=column if party == "bank" else None) for party in parties}
        told = refusal(bench, LABELLED[kind](bench.fields_of(parts)))
        assert "names as its label (y) is not one that this party offers as such: the setting labels of that" in told
        assert column not in told, "the refusal passes through the coordinator"


@pytest.mark.parametrize("kind", ["train", "train-linear", "train-revocable", "train-rows", "revoke"])
def test_nothing_is_a_weight_that_its_owner_did_not_name(bench: Bench, kind: str) -> None:
    parties = ["bank"] if kind.startswith("revoke") else ["bank", "shop"]
    parts = {party: Part(table="customers") for party in parties}
    parts["bank"] = Part(table="customers", label="late", weight="income")
    told = refusal(bench, LABELLED[kind](bench.fields_of(parts)))
    assert "names as its weights (sample_weight) is not one that this party offers as such: the setting weights" in told


def test_a_party_that_is_not_the_holder_names_no_label_either(bench: Bench) -> None:
    order = LABELLED["train"](bench.fields(shop=Part(table="customers", label="visits")))
    assert "the setting labels of that table" in refusal(bench, order, "shop")


@pytest.mark.parametrize("kind", ["train", "train-revocable"])
def test_who_leaves_cannot_have_the_forest_learn_another_label(bench: Bench, kind: str) -> None:
    """The leaver seals the parts of the order: a model of its user would become one of something else."""
    declare(bench, "bank", labels=("late", "income"))
    trained = play(bench, LABELLED[kind](bench.fields())).job
    leave: Any = RevokeOrder if kind == "train" else partial(RevokeRevocableOrder, holder="bank")
    for label, told in (("income", "another label than the one"), ("late", "")):
        fields = bench.fields_of({"bank": Part(table="customers", label=label)})
        order = leave(**fields, model=trained, alignment=trained, leaver="shop", task="classes")
        if told:
            assert told in refusal(bench, order)
        else:
            assert isinstance(bench.job("bank", order.job).handle(bench.opening(order)), msg.JobOpened)


@pytest.mark.parametrize("kind", ["train", "train-linear", "train-revocable"])
@pytest.mark.slow
def test_another_label_or_a_weight_is_not_learnt_from_silently(bench: Bench, kind: str) -> None:
    def columns() -> set[str]:
        return learnt(bench, play(bench, LABELLED[kind](bench.fields())))

    assert columns() == {"age", "income"}
    declare(bench, "bank", labels=("late", "income"))
    assert columns() == {"age"}
    declare(bench, "bank", labels=("late",), weights=("age",))
    assert columns() == {"income"}
    declare(bench, "bank", labels=("late", "income"), weights=(), features=("income", "age", "late"))
    assert columns() == {"age", "income"}, "its owner has said so, and the label itself never is"
    declare(bench, "bank", labels=("late",), features=("age",))
    assert columns() == {"age"}


def test_over_rows_only_features_are_learnt_from(tmp_path: Path) -> None:
    with clinics(tmp_path) as bench:
        for party in ("bank", "shop"):
            declare(bench, party, TABLE, labels=(LABEL, "ward"), weights=("dose",))
        parts = dict.fromkeys(("bank", "shop"), Part(table=TABLE, label=LABEL))
        trained = play(bench, TrainRowsOrder(**bench.fields_of(parts), **PLANNED))
        files = bench.coordinator.model_files(trained.job)[0]
        everything = b"".join(files.values())
        assert [name for name in ("age", "dose", "ward", LABEL) if f'"{name}"'.encode() in everything] == ["age"]


def test_a_model_is_not_used_on_a_column_that_is_no_feature_any_more(bench: Bench) -> None:
    # of many trees: rows come in an order of their own in each run, and a party that splits no node is not asked
    trained = play(bench, TrainOrder(**bench.fields(), **GROWN, plan=replace(PLAN, n_estimators=20)))
    fitted = play(bench, LABELLED["train-linear"](bench.fields()))
    declare(bench, "bank", features=("age",))
    for order in (
        PredictOrder(**bench.fields(), model=trained.job),
        PredictLinearOrder(**bench.fields(), model=fitted.job),
        ScoreOrder(**bench.fields(**{p: Part(table="customers", key=bytes(32)) for p in ("bank", "shop")}),
                   model=trained.job),
    ):  # fmt: skip
        with pytest.raises(DataError, match="its table does not have the columns"):
            play(bench, order)


# --- how often a label is learnt from ---


def test_trainings_of_a_day(bench: Bench) -> None:
    bench.change_policy("bank", trainings_per_day=2)
    first = LABELLED["train"](bench.fields())
    trained = play(bench, first)
    play(bench, LABELLED["train-linear"](bench.fields()))
    for kind in ("train", "train-linear", "train-revocable"):
        with pytest.raises(PolicyError, match=r"learnt from 2 times per day \(trainings_per_day\), and this one has"):
            play(bench, LABELLED[kind](bench.fields()))
    again = bench.fields_of({"bank": Part(table="customers", label="late")}) | LEAVING
    with pytest.raises(PolicyError, match="trainings_per_day"):  # it would grow trees again
        play(bench, RevokeOrder(**again | {"model": trained.job, "alignment": trained.job}))
    play(bench, first)  # the same job, as after a fault, has paid
    bench.change_policy("bank", trainings_per_day=3)
    play(bench, LABELLED["train-revocable"](bench.fields()))  # what was refused was not counted


def test_another_label_has_a_count_of_its_own_and_a_restart_resets_none(bench: Bench) -> None:
    bench.change_policy("bank", trainings_per_day=1)
    declare(bench, "bank", labels=("late", "income"))
    play(bench, LABELLED["train"](bench.fields()))
    bench.change_policy("bank", min_rows=2)  # opens the state folder again
    with pytest.raises(PolicyError, match="trainings_per_day"):
        play(bench, LABELLED["train"](bench.fields()))
    numbers = TrainLinearOrder(
        **bench.fields(bank=Part(table="customers", label="income")), **GROWN,
        plan=msgspec.structs.replace(LINEAR, task="targets"),
    )  # fmt: skip
    play(bench, numbers)


def test_trainings_over_rows_count_too(tmp_path: Path) -> None:
    with clinics(tmp_path) as bench:
        bench.change_policy("shop", trainings_per_day=0)
        parts = dict.fromkeys(("bank", "shop"), Part(table=TABLE, label=LABEL))
        with pytest.raises(PolicyError, match="learnt from 0 times per day"):
            play(bench, TrainRowsOrder(**bench.fields_of(parts), **PLANNED))


# --- who receives predictions ---


def receivers(bench: Bench, *names: str) -> None:
    for party in ("bank", "shop"):
        bench.change_policy(party, receive=names)


@pytest.mark.parametrize("kind", [PredictOrder, PredictLinearOrder])
def test_every_party_asks_who_receives_the_answers(bench: Bench, kind: type[PredictOrder | PredictLinearOrder]) -> None:
    def order(**answers: Any) -> Order:
        return kind(**bench.fields(), model=MODEL, **({"give_answers": False} | answers))

    def opens(order: Order, *parties: str) -> None:
        for party in parties:
            assert isinstance(bench.job(party, order.job).handle(bench.opening(order)), msg.JobOpened)

    receivers(bench)
    assert "does not let 'alice' receive predictions" in refusal(bench, order(give_answers=True))
    for told in (order(deliver_to="shop"), order(deliver_to="bank", score_at="shop")):
        assert refusal(bench, told) == (
            "this party does not let 'shop' receive predictions; its operator can add \"shop\" to the setting receive "
            "in the section [policy] of its configuration"
        )
    opens(order(deliver_to="shop"), "shop")  # a party may get them itself; the other one refuses
    opens(order(), "bank", "shop")
    receivers(bench, "shop")
    opens(order(deliver_to="shop"), "bank", "shop")
    opens(order(deliver_to="shop", score_at="shop"), "bank")  # the shop has no label to score with
    receivers(bench, "alice", "shop")
    opens(order(deliver_to="shop", give_answers=True), "bank", "shop")


def test_single_rows_and_encrypted_ones_go_to_the_user(bench: Bench) -> None:
    receivers(bench, "bank")
    scored = ScoreOrder(**bench.fields(**{p: Part(table="customers", key=bytes(32)) for p in ("bank", "shop")}),
                        model=MODEL)  # fmt: skip
    encrypted = PredictEncryptedOrder(
        **bench.fields(), model=MODEL, helper="shop", key_service="shop", epoch=1, rows=1, columns=1, splits=bytes(32),
        values=b"sealed", proof=b"",
    )  # fmt: skip
    for order in (scored, encrypted):
        assert "does not let 'alice' receive predictions" in refusal(bench, order)
    receivers(bench, "*")
    assert isinstance(bench.job("bank", scored.job).handle(bench.opening(scored)), msg.JobOpened)
