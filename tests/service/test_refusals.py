"""What a party refuses has changed nothing: the right thing can be asked afterwards, and costs what it always costs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hospitals import LABEL, TABLE
from party_bench import ROWS, Bench, clinics, named, play, rows_order
from small_jobs import PARTIES, PLAN

from woodlot.exceptions import DataError, PolicyError, RemoteProtocolError
from woodlot.jobs import job_messages as msg
from woodlot.jobs.order_seal import common_fields
from woodlot.jobs.orders import Part
from woodlot.jobs.revocable.provider_work import _OrderGate
from woodlot.jobs.revocable.revocable_orders import PredictEncryptedOrder, RevokeRevocableOrder, TrainRevocableOrder
from woodlot.jobs.row_job_messages import PredictRows, RowsPredicted
from woodlot.jobs.rows.rows_orders import PredictRowsOrder
from woodlot.protocols.revocable import growth_messages
from woodlot.protocols.revocable.key_messages import Ticket
from woodlot.protocols.revocable.revocable_plan import RevocablePlan
from woodlot.protocols.rows.local_forests import LocalPlan
from woodlot.runtime.codec import decode


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.close()


def alone(bench: Bench, **part: Any) -> dict[str, Any]:
    """The fields of an order for the bank only."""
    return common_fields({"bank": Part(**part)}, {"bank": bench.homes["bank"].identity.certificate}, **bench.here)


# --- the rows of a day ---


@pytest.fixture
def clinic_bench(tmp_path: Path) -> Iterator[Bench]:
    with clinics(tmp_path) as bench:
        yield bench


def test_rows_that_are_not_predicted_are_not_spent(clinic_bench: Bench) -> None:
    bench = clinic_bench
    trained = play(bench, rows_order(bench, LocalPlan(**ROWS)))
    files = bench.coordinator.model_files(trained.job)[0]
    message = PredictRows(
        model=trained.job, files={name: np.frombuffer(data, np.uint8) for name, data in files.items()}
    )
    path = bench.world.root / "bank" / f"{TABLE}.parquet"
    table = pq.read_table(path)
    bench.change_policy("bank", predictions_per_day=table.num_rows)
    labels = table.column(LABEL).to_pylist()
    pq.write_table(table.set_column(4, LABEL, pa.array([None, *labels[1:]])), path)
    for label in (LABEL, LABEL, None):  # the day's rows are enough for one order
        order = PredictRowsOrder(**alone(bench, table=TABLE, label=label), **named(bench, trained.job))
        job = bench.job("bank", order.job)
        job.handle(bench.opening(order))
        kept = bench.world.root / "bank" / "state" / "answers" / f"{order.job}.parquet"
        if label is not None:
            with pytest.raises(DataError, match="its labels cannot be used"):
                job.handle(message)
            assert not kept.exists()
        else:
            told = job.handle(message)
            assert isinstance(told, RowsPredicted)
            assert told.n_rows == table.num_rows
            assert kept.exists()


def test_an_encrypted_request_is_paid_for_when_it_is_answered(bench: Bench) -> None:
    order = PredictEncryptedOrder(
        **bench.fields(),
        model="1" * 32,
        helper="shop",
        key_service="shop",
        epoch=1,
        rows=3,
        columns=2,
        splits=bytes(32),
        values=b"sealed",
        proof=b"",
    )
    ticket = Ticket(
        requester="alice", request=bytes.fromhex(order.job), epoch=1, rows=3, features=2,
        digest=hashlib.sha256(order.values).digest(), splits=order.splits,
    )  # fmt: skip
    bench.change_policy("bank", predictions_per_day=2)
    gate = _OrderGate(bench.homes["bank"], order, "alice")
    gate.check(ticket)  # what comes after it may still refuse
    with pytest.raises(RemoteProtocolError, match="not the one that was ordered"):
        gate.check(msgspec.structs.replace(ticket, rows=2))
    with pytest.raises(PolicyError, match=r"predictions_per_day\); 2 are left"):
        gate.admit(ticket)


# --- what is opened ---


def test_a_construction_that_was_asked_for_too_soon_is_opened_when_it_is_due(bench: Bench) -> None:
    for party in PARTIES:
        bench.change_policy(party, protocols=("train-revocable", "revoke-revocable"), labels_to_coordinator=True)
    plan = RevocablePlan(PLAN, rho=0, zeta=3)
    trained = play(bench, TrainRevocableOrder(**bench.fields(), holder="bank", plan=plan, settings="{}"))
    fields = alone(bench, table="customers", label="late") | {"model": trained.job, "alignment": trained.job}
    order = RevokeRevocableOrder(**fields, leaver="shop", task="classes", holder="bank")
    job = bench.job("bank", order.job)
    job.handle(bench.opening(order))
    opening = growth_messages.OpenConstruction(rho=0, zeta=3, regrows=True)
    with pytest.raises(RemoteProtocolError, match="no part of a former forest"):
        job.handle(opening)
    n_rows = bench.coordinator.forest(trained.job).coordinator.n_rows
    (kept,) = [m for m in map(decode, trained.asked["bank"]) if isinstance(m, msg.KeepModel)]
    job.handle(msg.UseModel(model=trained.job, forest=kept.forest, n_rows=n_rows))
    assert isinstance(job.handle(opening), growth_messages.ParticipantSummary)
