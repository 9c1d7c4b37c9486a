"""Orders of every kind that needs no helper, run between parties in this process."""

from __future__ import annotations

import gc
import pickle
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pytest
from hospitals import HOSPITALS, LABEL, extra_trees, patients
from hospitals import PLAN as ROW_PLAN
from processes import small_tables
from small_jobs import PLAN

import woodlot as wl
from companies import federation
from runtime.carriers import MEMORY
from woodlot.exceptions import DataError, IdentityError, JobFailed, PolicyError
from woodlot.jobs.job_messages import JobFacts
from woodlot.jobs.linear.linear_orders import PredictLinearOrder, TrainLinearOrder
from woodlot.jobs.orders import AlignOrder, Order, Part, PredictOrder, RevokeOrder, ScoreOrder, TrainOrder
from woodlot.jobs.revocable.revocable_orders import KeysOrder, TrainRevocableOrder
from woodlot.jobs.rows.rows_orders import PredictRowsOrder, RevokeRowsOrder, TrainRowsOrder
from woodlot.privacy.accounting import total_epsilon
from woodlot.privacy.budget import BudgetRecord
from woodlot.protocols.core.message import Message
from woodlot.protocols.linear.linear_model import LinearPlan
from woodlot.runtime.journal import Journal


def companies(**options: Any) -> wl.Federation:
    tables = {party: own["customers"] for party, own in small_tables().items()}
    return wl.Federation.local(tables, id="id", **options)


@pytest.fixture(scope="module", autouse=True)
def in_memory() -> Iterator[None]:
    """Hosts write small files, and a disk would make each of them wait for it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tempfile.tempdir", MEMORY)
        yield


@pytest.fixture(scope="module")
def fed() -> wl.Federation:
    """A federation whose host several tests use."""
    return companies(shares_model=True)


def fields(fed: wl.Federation, label: str | None = "late", parties: tuple[str, ...] | None = None) -> dict[str, Any]:
    """The fields that every order has; the bank is told the label."""
    return fed.order_fields({p: fed.part(p, label=label if p == "bank" else None) for p in parties or fed.parties})


def train(fed: wl.Federation, **options: Any) -> TrainOrder:
    return TrainOrder(**fields(fed), **({"holder": "bank", "plan": PLAN, "settings": "{}"} | options))


def test_a_forest_is_aligned_grown_used_and_left(fed: wl.Federation) -> None:
    told: list[JobFacts] = []
    aligned = fed.run(AlignOrder(**fields(fed, None)))
    assert (aligned.n_rows, aligned.rows) == (fed.n_rows, {"bank": 57, "shop": 58})
    order = train(fed, alignment=aligned.job, name="credit")
    facts = fed.run(order, told.append)
    assert (facts.state, facts.model, facts.name, facts.n_rows) == ("done", order.job, "credit", fed.n_rows)
    assert {"open", "grow", "keep"} <= {news.phase for news in told}
    assert [news.version for news in told] == list(range(2, len(told) + 2))
    model = fed.host.store.model_facts(order.job)
    assert (model.n_trees, model.holder, model.complete) == (PLAN.n_estimators, "bank", True)

    asked = fed.run(PredictOrder(**fields(fed), model=order.job, alignment=aligned.job, score_at="bank"))
    outputs, uncertain, _ = fed.host.store.answers(asked.job)
    assert outputs.shape == (fed.n_rows, 2)
    assert not uncertain.any()
    assert asked.score is not None
    assert asked.score > 0.7

    left = fed.run(
        RevokeOrder(**fields(fed, parties=("bank",)), model=order.job, leaver="shop", task="classes",
                    alignment=order.job)
    )  # fmt: skip
    assert fed.host.store.model_facts(left.model).parties == ("bank",)
    assert fed.host.store.model_facts(order.job).replaced_by == left.job
    assert fed.host.store.receipt(left.job) is not None
    with pytest.raises(DataError, match="was replaced by"):  # not even taken
        fed.run(PredictOrder(**fields(fed), model=order.job))
    assert fed.host.store.ended_untold() == []


def test_a_linear_model(fed: wl.Federation) -> None:
    plan = LinearPlan(
        task="classes", strength=1.0, fit_intercept=True, standardize=True, balanced=False, class_weight=(),
        max_iter=100, tol=1e-4,
    )  # fmt: skip
    trained = fed.run(TrainLinearOrder(**fields(fed), holder="bank", plan=plan, settings="{}"))
    asked = fed.run(PredictLinearOrder(**fields(fed), model=trained.job, score_at="bank", give_answers=False))
    assert asked.score is not None
    assert asked.score > 0.8
    with pytest.raises(DataError, match="no answers"):
        fed.host.store.answers(asked.job)


def row_parts(fed: wl.Federation, *parties: str) -> dict[str, Any]:
    return fed.order_fields({party: fed.part(party, label=LABEL) for party in parties})


def test_a_forest_over_rows_is_grown_used_and_left() -> None:
    fed = wl.Federation.local({n: patients(k + 1) for k, n in enumerate(HOSPITALS)}, id="id", layout="rows")
    trained = fed.run(TrainRowsOrder(**row_parts(fed, *HOSPITALS), plan=ROW_PLAN, settings="{}"))
    named = {"model": trained.job, "forest": fed.host.store.model_facts(trained.job).whole}
    scored = fed.run(PredictRowsOrder(**row_parts(fed, *HOSPITALS), **named))
    assert scored.rows == dict.fromkeys(HOSPITALS, 60)
    assert all(score > 0.6 for score in scored.scores.values())
    plan = msgspec.structs.replace(ROW_PLAN, allow_two=True)
    two = row_parts(fed, "anna", "bern")
    left = fed.run(RevokeRowsOrder(**two, plan=plan, settings="{}", model=trained.job, leaver="chur"))
    assert fed.host.store.model_facts(left.job).parties == ("anna", "bern")


@pytest.mark.slow
def test_a_private_forest_is_paid_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    fed = wl.Federation.local({"anna": patients(1), "bern": patients(2)}, id="id", layout="rows")
    plan = extra_trees(wl.GlobalDP(epsilon=40.0), n_estimators=1, allow_two=True).make_plan()
    fed.run(TrainRowsOrder(**row_parts(fed, "anna", "bern"), plan=plan, settings="{}"))
    (path,) = tmp_path.glob("*/anna/state/journal.sqlite")
    with closing(Journal.read(path)) as journal:
        charges = journal.consult(lambda db: BudgetRecord(db).charges("anna", "table"))
    assert 0.0 < total_epsilon(charge.spend for charge in charges) <= 40.0 * (1 + 1e-9)
    assert {charge.unit for charge in charges} == {"rows"}


def test_splits_are_encrypted_by_members_that_join_when_they_are_named(
    fed: wl.Federation, caplog: pytest.LogCaptureFixture
) -> None:
    helper, key_service = fed.host.helper, fed.host.key_service
    keys: dict[str, Any] = {"helper": helper, "key_service": key_service, "bits": 512, "setting": "test"}

    def parts(**bank: Any) -> dict[str, Any]:
        own = {party: fed.part(party, **(bank if party == "bank" else {})) for party in fed.parties}
        return fed.order_fields(own | {helper: Part(), key_service: Part()})

    plan = wl.RevocableForestClassifier(n_estimators=2, max_depth=2, random_state=0).make_plan()
    order = TrainRevocableOrder(**parts(label="late"), **keys, holder="bank", plan=plan, settings="{}")
    fed.run(order)
    assert "helper and coordinator are in this process" in caplog.text
    assert fed.host.store.model_facts(order.job).revocable
    again = fed.run(KeysOrder(**parts(), **keys, model=order.job))  # a new epoch
    assert again.state == "done"
    asked = [
        fed.run(
            PredictOrder(
                **fed.order_fields({party: fed.part(party, keys=order.job) for party in fed.parties}),
                model=order.job,
                how=how,
                alignment=order.job,
            )
        )
        for how in ("encrypted-splits", "one-round")
    ]
    outputs = [fed.host.store.answers(facts.job)[0] for facts in asked]
    np.testing.assert_array_equal(*outputs)


def test_a_party_that_has_labels_only_vouches_for_no_splits() -> None:
    """The helper wants everybody's word, also that of a party that keeps no part of the forest."""
    rng, ids = np.random.default_rng(0), np.arange(60)
    tables = {name: pd.DataFrame({"id": ids, f"of_{name}": rng.normal(size=60)}) for name in ("club", "shop")}
    bank = pd.DataFrame({"id": ids, "late": rng.integers(0, 2, 60).astype(str)})
    fed = wl.Federation.local(tables | {"bank": bank}, id="id")
    helper, key_service = fed.host.helper, fed.host.key_service
    keys: dict[str, Any] = {"helper": helper, "key_service": key_service, "bits": 512, "setting": "test"}

    def parts(**bank: Any) -> dict[str, Any]:
        own = {party: fed.part(party, **(bank if party == "bank" else {})) for party in fed.parties}
        return fed.order_fields(own | {helper: Part(), key_service: Part()})

    plan = wl.RevocableForestClassifier(n_estimators=2, max_depth=2, random_state=0).make_plan()
    order = TrainRevocableOrder(**parts(label="late"), **keys, holder="bank", plan=plan, settings="{}")
    assert fed.run(order).state == "done"
    assert fed.run(KeysOrder(**parts(), **keys, model=order.job)).state == "done"


# --- what the parties and the host refuse ---


def test_a_party_asks_its_own_policy() -> None:
    fed = companies(sealed_predictions=["shop"])
    order = train(fed, plan=replace(PLAN, out_of_bag=None))  # which asks for decisions
    fed.run(order)
    assert not fed.host.store.model_facts(order.job).complete  # nobody shares the model
    with pytest.raises(JobFailed, match="wire_forms") as caught:
        fed.run(PredictOrder(**fields(fed), model=order.job))
    assert isinstance(caught.value.__cause__, PolicyError)
    (failed, _) = fed.host.store.latest(2)
    assert (failed.state, failed.kind) == ("failed", "predict")
    assert fed.run(PredictOrder(**fields(fed), model=order.job, how="sealed")).state == "done"


def test_a_column_that_the_party_lacks_is_its_own_refusal(fed: wl.Federation) -> None:
    order = TrainOrder(**fields(fed, "unknown"), holder="bank", plan=PLAN, settings="{}")
    with pytest.raises(JobFailed, match="bank"):
        fed.run(order)


def test_orders_that_are_not_taken(fed: wl.Federation) -> None:
    before = fed.host.store.latest(99)
    with pytest.raises(DataError, match="stranger never joined this federation"):
        fed.order_fields({"stranger": fed.part("bank")})
    with pytest.raises(DataError, match="stays open"):
        fed.run(ScoreOrder(**fields(fed), model="0" * 32))
    with pytest.raises(DataError, match="no model"):
        fed.run(PredictOrder(**fields(fed), model="0" * 32))
    other = companies()
    with pytest.raises(PolicyError, match="another federation"):
        other.run(AlignOrder(**fields(fed, None)))
    assert (fed.host.store.latest(99), other.host.store.latest(99)) == (before, [])


def test_an_interrupted_job_is_over(fed: wl.Federation) -> None:
    order = AlignOrder(**fields(fed, None))

    def interrupt(sender: str, receiver: str, message: Message) -> None:
        raise KeyboardInterrupt

    fed.observer = interrupt
    with pytest.raises(KeyboardInterrupt):
        fed.run(order)
    fed.observer = None
    stored = fed.host.store.job(order.job)
    assert stored is not None
    assert (stored.facts.state, stored.untold) == ("cancelled", ())
    assert fed.run(AlignOrder(**fields(fed, None))).state == "done"


# --- tables, names and files ---


def aligned_rows(fed: wl.Federation) -> int | None:
    return fed.run(AlignOrder(**fed.order_fields({party: fed.part(party) for party in fed.parties}))).n_rows


def test_tables_of_other_kinds() -> None:
    assert aligned_rows(federation()) == len(federation().ids)  # pandas, with text and missing values
    bare = pd.DataFrame({"a": np.arange(9.0)})
    assert aligned_rows(wl.Federation.local({"bank": bare, "shop": bare.rename(columns={"a": "row"})})) == len(bare)


def test_members_names() -> None:
    fed = wl.Federation.local({name: pd.DataFrame({f"x{name}": [1.0, 2.0]}) for name in ("owner", "authority")})
    assert aligned_rows(fed) == 2
    named = wl.Federation.local({"Bank AG": pd.DataFrame({"x": [1.0, 2.0]})})
    with pytest.raises(IdentityError, match="'Bank AG' cannot be a name"):
        named.order_fields({})


def test_parties_of_one_dealt_table_have_none_of_their_own() -> None:
    from woodlot.data.tables import read_table

    dealt = wl.Federation.dealt(read_table(pd.DataFrame({"a": [1.0], "b": [2.0]})), {"p": ["a"], "q": ["b"]})
    with pytest.raises(DataError, match="dealt"):
        dealt.order_fields({})


def test_the_files_go_with_the_federation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    fed = companies()
    assert not list(tmp_path.iterdir())  # nothing before the first order
    order: Order = AlignOrder(**fields(fed, None))
    fed.run(order)
    again = pickle.loads(pickle.dumps(fed))  # noqa: S301 - of our own making
    assert len(list(tmp_path.iterdir())) == 1
    del fed
    gc.collect()
    assert not list(tmp_path.iterdir())
    assert aligned_rows(again) == again.n_rows


FORKED = """
import os
import sys
import tempfile

import pandas as pd

import woodlot as wl

tempfile.tempdir = sys.argv[1]
fed = wl.Federation.local({"bank": pd.DataFrame({"x": [1.0, 2.0]})})
fed.host
child = os.fork()
if child == 0:
    del fed
    os._exit(0)
os.waitpid(child, 0)
print(len(os.listdir(sys.argv[1])))
"""


@pytest.mark.slow
def test_a_forked_child_leaves_the_files(tmp_path: Path) -> None:
    script = [sys.executable, "-c", FORKED, str(tmp_path)]
    done = subprocess.run(script, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1"]
    assert not list(tmp_path.iterdir())  # the parent has taken them away at its end
