"""What the leader, or the coordinator, does for an evaluation: predict, and bring the answers to the label holder."""

from __future__ import annotations

import json
from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from woodlot.exceptions import RemoteProtocolError
from woodlot.jobs import job_messages as msg
from woodlot.jobs.columns.columns_jobs import forest_answers
from woodlot.jobs.columns.common_rows import CommonRowCounts, row_facts
from woodlot.jobs.evaluate.evaluate_messages import AnswersRated, RateAnswers
from woodlot.jobs.linear.linear_jobs import linear_answers
from woodlot.jobs.linear.linear_orders import EvaluateLinearOrder
from woodlot.jobs.orders import AnsweredOrder, EvaluateOrder
from woodlot.protocols.core.forest_parts import ClassName
from woodlot.protocols.core.message import Message, Round
from woodlot.protocols.core.replies import reply_of

if TYPE_CHECKING:
    from woodlot.jobs.kind import CoordinatorHost, Kept

Rounds = Generator[Round, dict[str, Message], "RatedAnswers"]


@dataclass(frozen=True, eq=False)
class RatedAnswers:
    """The outcome of an evaluation: a report that only the user can read."""

    aligned: CommonRowCounts
    report: bytes


def evaluate_job(order: EvaluateOrder, opening: msg.OpenJob, host: CoordinatorHost) -> Rounds:
    """Evaluate a forest."""
    aligned, outputs, _, classes = yield from forest_answers(order, opening, host)
    return (yield from _rate(order, aligned, outputs, classes))


def evaluate_linear_job(order: EvaluateLinearOrder, opening: msg.OpenJob, host: CoordinatorHost) -> Rounds:
    """Evaluate a linear model."""
    aligned, outputs, _, classes = yield from linear_answers(order, opening, host)
    return (yield from _rate(order, aligned, outputs, classes))


def _rate(
    order: AnsweredOrder, aligned: CommonRowCounts, outputs: NDArray[np.float64], classes: tuple[ClassName, ...]
) -> Rounds:
    holder = order.score_at
    if holder is None:
        raise RemoteProtocolError("the order names no label holder")
    rate = RateAnswers(outputs=np.ascontiguousarray(outputs), classes=classes)
    replies = yield Round("evaluate", {holder: rate})
    return RatedAnswers(aligned, reply_of(replies[holder], AnswersRated, holder).report.tobytes())


def keep_evaluation(kept: Kept, outcome: RatedAnswers) -> dict[str, Any]:
    """Tell the user its report, which is sealed."""
    order: AnsweredOrder = kept.order
    told = json.dumps({"holder": order.score_at, "report": outcome.report.hex()})
    return row_facts(outcome.aligned) | {"model": order.model, "told": told}
