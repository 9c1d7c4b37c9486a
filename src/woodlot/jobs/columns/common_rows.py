"""What the coordinator does in every job over columns: the common rows first, and answers to the parties at the end."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from woodlot.exceptions import RemoteProtocolError
from woodlot.jobs import job_messages as msg
from woodlot.jobs.linear.linear_orders import PredictLinearOrder
from woodlot.jobs.orders import AlignedOrder, PredictOrder, TrainOrder
from woodlot.jobs.revocable.revocable_orders import TrainRevocableOrder
from woodlot.protocols.align import align
from woodlot.protocols.core.forest_parts import ClassName, CoordinatorForest, PartyForest
from woodlot.protocols.core.message import Message, Round
from woodlot.protocols.core.replies import reply_of
from woodlot.protocols.vertical.out_of_bag import OutOfBagResult

if TYPE_CHECKING:
    from woodlot.jobs.kind import CoordinatorHost


@dataclass(frozen=True)
class CommonRowCounts:
    """What the coordinator knows of an alignment: how many rows are common, and how many each party has."""

    n_rows: int
    rows: dict[str, int] = field(default_factory=dict)
    common: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Predicted:
    """The outcome of a prediction."""

    aligned: CommonRowCounts
    outputs: NDArray[np.float64]
    uncertain: NDArray[np.bool_]
    score: float | None


@dataclass(frozen=True, eq=False)
class Trained:
    """The outcome of a training.

    Attributes
    ----------
    fingerprint : str
        Of the coordinator's part.
    digests : dict of str to str
        Keyed fingerprint of each party's part.

    """

    aligned: CommonRowCounts
    forest: CoordinatorForest
    fingerprint: str
    shared: dict[str, PartyForest]
    unwilling: tuple[str, ...]
    digests: dict[str, str]
    oob: OutOfBagResult


def open_rows(
    order: AlignedOrder, opening: msg.OpenJob, host: CoordinatorHost
) -> Generator[Round, dict[str, Message], CommonRowCounts]:
    """Bring the order to every party, and find the common rows unless they are known."""
    if host.rows is not None:  # the coordinator has done both before a party took the lead
        return host.rows
    replies = yield Round("open", dict.fromkeys(order.parties, opening))
    return (yield from find_rows(order, {p: reply_of(replies[p], msg.JobOpened, p).n_aligned for p in order.parties}))


def find_rows(
    order: AlignedOrder, opened: Mapping[str, int | None]
) -> Generator[Round, dict[str, Message], CommonRowCounts]:
    """Find the common rows; ``opened``: how many rows each party has aligned before and uses now, if so."""
    known = {p: opened[p] for p in order.row_parties}
    if order.alignment is None and len(order.row_parties) > 1 and not order.names_rows:
        alignment = yield from align(order.row_parties, method=order.method, join=order.join)
        return CommonRowCounts(alignment.n_rows, dict(alignment.rows), dict(alignment.common))
    counts = set(known.values())
    if len(counts) != 1 or None in counts:
        raise RemoteProtocolError(f"the parties do not agree on the number of common rows: {known}")
    return CommonRowCounts(int(counts.pop() or 0))


def deliver(
    order: PredictOrder | PredictLinearOrder, outputs: NDArray[np.float64], classes: tuple[ClassName, ...]
) -> Generator[Round, dict[str, Message], float | None]:
    """Bring the answers to the parties that keep or score them; returns the score, if one was asked for."""
    takers: dict[str, Message] = {
        p: msg.TakeAnswers(
            outputs=np.ascontiguousarray(outputs),
            classes=classes,
            keep=p == order.deliver_to,
            score=p == order.score_at,
        )
        for p in order.parties
        if p in (order.deliver_to, order.score_at)
    }
    score = None
    if takers:
        replies = yield Round("deliver", takers)
        if order.score_at is not None:
            score = reply_of(replies[order.score_at], msg.AnswersTaken, order.score_at).score
    return score


def row_facts(aligned: CommonRowCounts) -> dict[str, Any]:
    """What is told of the common rows."""
    return {"n_rows": aligned.n_rows, "rows": aligned.rows, "common": aligned.common}


def model_facts(
    order: TrainOrder | TrainRevocableOrder, facts: msg.JobFacts, outcome: Trained, account: dict[str, str]
) -> msg.ModelFacts:
    """What is told of the model that a job has grown."""
    forest = outcome.forest
    splits = np.bincount(forest.owner[forest.owner >= 0], minlength=len(forest.parties))
    return msg.ModelFacts(
        model=order.job,
        name=order.name,
        user=facts.user,
        created=facts.created,
        forest=outcome.fingerprint,
        parties=forest.parties,
        holder=order.holder,
        n_rows=forest.n_rows,
        n_trees=forest.structure.n_trees,
        n_nodes=forest.structure.n_nodes,
        splits={party: int(n) for party, n in zip(forest.parties, splits, strict=True)},
        classes=forest.classes,
        complete=not outcome.unwilling,
        unwilling=outcome.unwilling,
        oob_score=outcome.oob.score,
        oob_curve=outcome.oob.points(),
        settings=order.settings,
        layout="columns",
        privacy="null",
        disclosure=account["disclosure"],
        cost=account["cost"],
        led_by=order.led_by,
        grown="hidden" if isinstance(order, TrainOrder) and order.is_hidden else msgspec.UNSET,
        dealer=order.dealer if isinstance(order, TrainOrder) else msgspec.UNSET,
    )
