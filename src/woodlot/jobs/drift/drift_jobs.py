"""What the leader does to compare new rows with those of a training: predict, and have every owner tell the user."""

from __future__ import annotations

import json
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from woodlot.exceptions import DataError
from woodlot.jobs import job_messages as msg
from woodlot.jobs.columns.columns_jobs import check_prediction, forest_answers
from woodlot.jobs.columns.common_rows import CommonRowCounts, row_facts
from woodlot.jobs.drift.drift_messages import AskDrift, DriftTold
from woodlot.jobs.drift.drift_orders import DriftOrder
from woodlot.jobs.drift.drift_references import AnswersPage
from woodlot.jobs.drift.drift_work import DriftWork
from woodlot.jobs.job_store import JobStore
from woodlot.jobs.kind import CoordinatorHost, Kept
from woodlot.protocols.core.forest_parts import active_parties
from woodlot.protocols.core.message import Message, Round
from woodlot.protocols.core.replies import reply_of

LINEAR = "drift is watched for forests, and this is a linear model"


@dataclass(frozen=True, eq=False)
class SealedPages:
    """The outcome: by party what it tells the user, and what the leader tells of answers."""

    aligned: CommonRowCounts
    pages: dict[str, bytes]
    answers: bytes


def drift_job(
    order: DriftOrder, opening: msg.OpenJob, host: CoordinatorHost
) -> Generator[Round, dict[str, Message], SealedPages]:
    """Compare new rows with those of a training. Runs at the label holder."""
    own = host.own
    if not isinstance(own, DriftWork):
        raise DataError("drift is watched by the label holder's service; train the model with lead='holder'")
    aligned, outputs, _, classes = yield from forest_answers(order, opening, host)
    asked = [party for party in active_parties(host.store.forest(order.model).coordinator) if party in order.parties]
    replies = yield Round("drift", dict.fromkeys(asked, AskDrift()))
    pages = {party: reply_of(replies[party], DriftTold, party).page.tobytes() for party in asked}
    before = host.store.answers_reference(order.model)
    indices = None if before is None else before.indices(outputs[own.compared()])
    return SealedPages(aligned, pages, own.seal(AnswersPage(indices, classes), indices or ()))


def keep_drift(kept: Kept, outcome: SealedPages) -> dict[str, Any]:
    """Tell the user what is sealed to it."""
    pages = {party: page.hex() for party, page in outcome.pages.items()}
    told = json.dumps({"pages": pages, "answers": outcome.answers.hex()})
    return row_facts(outcome.aligned) | {"model": kept.order.model, "told": told}


def check_drift(store: JobStore, order: DriftOrder) -> None:
    """Refuse a model that is no forest over columns, or is not these parties'."""
    if store.is_linear(order.model):
        raise DataError(LINEAR)
    check_prediction(store, order)
