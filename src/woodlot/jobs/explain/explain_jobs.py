"""What the leader does for an explanation: have parties tell sides, divide the answers, and seal them to the user."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from woodlot.exceptions import DataError
from woodlot.jobs import job_messages as msg
from woodlot.jobs.columns.columns_jobs import check_prediction
from woodlot.jobs.columns.common_rows import CommonRowCounts, open_rows, row_facts
from woodlot.jobs.explain.explain_orders import HIDDEN, ExplainOrder
from woodlot.jobs.explain.explain_work import ExplainWork
from woodlot.jobs.explain.told_explanations import ToldExplanation, keep_sealed
from woodlot.jobs.job_store import JobStore
from woodlot.jobs.kind import CoordinatorHost, Kept
from woodlot.protocols.core.forest_parts import splitting_parties
from woodlot.protocols.core.message import Message, Round
from woodlot.protocols.vertical.explain import explain_forest
from woodlot.protocols.vertical.files import forest_id_of

LINEAR = "explanations are of forests, and this is a linear model: its coefficients say what each column adds"
REVOCABLE = "explanations between organisations are of federated forests, and this is a revocable one"


@dataclass(frozen=True, eq=False)
class SealedReport:
    """The outcome of an explanation, which only the user can read."""

    aligned: CommonRowCounts
    report: bytes


def explain_job(
    order: ExplainOrder, opening: msg.OpenJob, host: CoordinatorHost
) -> Generator[Round, dict[str, Message], SealedReport]:
    """Explain the answers of a forest. Runs at the label holder, which has its trees."""
    forest = host.store.forest(order.model).coordinator
    aligned = yield from open_rows(order, opening, host)
    own = host.own
    if not isinstance(own, ExplainWork):
        raise DataError("an explanation is led by the label holder's service; train the model with lead='holder'")
    present = [party for party in splitting_parties(forest) if party in order.parties]
    use = msg.UseModel(model=order.model, forest=forest_id_of(forest), n_rows=aligned.n_rows)
    if present:
        yield Round("explain", dict.fromkeys(present, use))
    found = yield from explain_forest(forest, present, aligned.n_rows, vote=order.vote, n_jobs=host.n_jobs)
    return SealedReport(aligned, own.seal(ToldExplanation.of(found, forest.classes)))


def keep_explanation(kept: Kept, outcome: SealedReport) -> dict[str, Any]:
    """Keep what is sealed to the user, until it asks for it."""
    keep_sealed(kept.store, kept.order.job, outcome.report, kept.account)
    return row_facts(outcome.aligned) | {"model": kept.order.model}


def check_explanation(store: JobStore, order: ExplainOrder) -> None:
    """Refuse a model that is no open federated forest over columns, or is not these parties'."""
    if store.is_linear(order.model):
        raise DataError(LINEAR)
    check_prediction(store, order)
    facts = store.model_facts(order.model)
    if facts.is_hidden:
        raise DataError(HIDDEN)
    if facts.revocable:
        raise DataError(REVOCABLE)
