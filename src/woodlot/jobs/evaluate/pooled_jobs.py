"""What the coordinator does for an evaluation over rows: bring the forest to every client, and add up its counts."""

from __future__ import annotations

import json
from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from woodlot.exceptions import DataError
from woodlot.jobs import job_messages as msg
from woodlot.jobs.evaluate.pooled_messages import AnswerOwnRows, CountScores, OwnRowsAnswered, RateOwnRows
from woodlot.jobs.evaluate.sum_pads import PAD_BOUND
from woodlot.jobs.job_store import JobStore
from woodlot.jobs.rows.rows_jobs import check_whole, open_parties
from woodlot.jobs.rows.rows_orders import EvaluateRowsOrder
from woodlot.metrics.pooled_classes import GRID, merged_cuts, ranked_classes, vector_length
from woodlot.metrics.pooled_targets import target_length
from woodlot.protocols.core.message import Message, Round
from woodlot.protocols.core.replies import reply_of
from woodlot.protocols.sums.sum_client import minimum_clients
from woodlot.protocols.sums.sum_coordinator import open_sums, sum_round

if TYPE_CHECKING:
    from woodlot.jobs.kind import CoordinatorHost, Kept

PHASE = "evaluate"
_MOST_ROWS = 2**32 - 1


@dataclass(frozen=True, eq=False)
class RatedRows:
    """The outcome of an evaluation over rows: sums under the user's pads, and reports that only the user can read.

    Attributes
    ----------
    sums : array of int
        What the clients' vectors add up to, pads included.
    cuts : tuple of array
        The bins that they are in.
    reports : dict of str to bytes
        What clients tell of their own.
    round_counts : int
        To multiples of what a client has rounded, at most.
    """

    sums: NDArray[np.int64]
    cuts: tuple[NDArray[np.int64], ...]
    reports: dict[str, bytes]
    round_counts: int


def evaluate_rows_job(
    order: EvaluateRowsOrder, opening: msg.OpenJob, host: CoordinatorHost
) -> Generator[Round, dict[str, Message], RatedRows]:
    """Evaluate a whole forest on the rows of all clients."""
    files, _ = host.store.model_files(order.model)
    n_classes = len(host.store.model_facts(order.model).classes)
    yield from open_parties(order, opening)
    session = yield from open_sums(order.parties, allow_two=order.allow_two)
    bring = AnswerOwnRows(
        model=order.model, files={name: np.frombuffer(data, np.uint8) for name, data in files.items()}
    )
    replies = yield Round(PHASE, dict.fromkeys(order.parties, bring))
    told = {party: reply_of(replies[party], OwnRowsAnswered, party) for party in order.parties}
    cuts: tuple[NDArray[np.int64], ...] = ()
    length = target_length()
    if n_classes:
        counts = yield from sum_round(
            session,
            PHASE,
            lambda asked: CountScores(order=asked),
            length=GRID * len(ranked_classes(n_classes)),
            bound=_MOST_ROWS,
            whole=True,
        )
        cuts = tuple(merged_cuts(counts))
        length = vector_length(n_classes, cuts)
    sums = yield from sum_round(
        session, PHASE, lambda asked: RateOwnRows(order=asked, cuts=cuts), length=length, bound=PAD_BOUND, whole=True
    )
    reports = {party: reply.report.tobytes() for party, reply in told.items() if reply.report is not None}
    return RatedRows(sums, cuts, reports, max(reply.round_counts for reply in told.values()))


def keep_rows_evaluation(kept: Kept, outcome: RatedRows) -> dict[str, Any]:
    """Tell the user what it alone can read."""
    order: EvaluateRowsOrder = kept.order
    told = json.dumps(
        {
            "sums": outcome.sums.tolist(),
            "cuts": [own.tolist() for own in outcome.cuts],
            "reports": {party: report.hex() for party, report in outcome.reports.items()},
            "round_counts": outcome.round_counts,
        }
    )
    return {"model": order.model, "told": told}


def check_rows_evaluation(store: JobStore, order: EvaluateRowsOrder) -> None:
    """Refuse to evaluate a model that is not whole, and sums over too few parties."""
    check_whole(store, order.model, "evaluate")
    if len(order.parties) < minimum_clients("secure", order.allow_two):
        raise DataError(
            f"the report of an evaluation over rows is a sum over three parties or more, and there are "
            f"{len(order.parties)}: from a sum over fewer each learns the figures of another. Name more parties, or "
            "allow two with allow_two=True (--allow-two) where their policies do"
        )
