"""What the coordinator does in a job, from the order to the end, as one protocol: journalled and replayed whole."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from woodlot.exceptions import RemoteProtocolError
from woodlot.protocols.align import align
from woodlot.protocols.messages import jobs as msg
from woodlot.protocols.messages.base import Message, Round
from woodlot.protocols.vertical.files import forest_id_of
from woodlot.protocols.vertical.model import CoordinatorForest, PartyForest
from woodlot.protocols.vertical.predict import predict_in_one_round, predict_node_by_node, score_out_of_bag
from woodlot.protocols.vertical.replies import reply_of
from woodlot.protocols.vertical.reveal import reveal_splits, splitting_parties
from woodlot.protocols.vertical.train import train
from woodlot.service.orders import AlignOrder, AnyOrder, PredictOrder, TrainOrder


@dataclass(frozen=True)
class CommonRows:
    """What the coordinator knows of an alignment: how many rows are common, and how many each party has."""

    n_rows: int
    rows: dict[str, int] = field(default_factory=dict)
    common: dict[str, int] = field(default_factory=dict)


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

    aligned: CommonRows
    forest: CoordinatorForest
    fingerprint: str
    shared: dict[str, PartyForest]
    unwilling: tuple[str, ...]
    digests: dict[str, str]
    oob_outputs: NDArray[np.float64] | None
    oob_score: float | None
    residuals: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Predicted:
    """The outcome of a prediction."""

    aligned: CommonRows
    outputs: NDArray[np.float64]
    uncertain: NDArray[np.bool_]
    score: float | None


Rounds: TypeAlias = Generator[Round, dict[str, Message], object]


def align_job(order: AlignOrder, opening: msg.OpenJob) -> Generator[Round, dict[str, Message], CommonRows]:
    """Find the common rows, and have every party keep them."""
    aligned = yield from _open(order, opening)
    yield Round("align", dict.fromkeys(order.parties, msg.KeepAlignment()))
    return aligned


def train_job(order: TrainOrder, opening: msg.OpenJob, n_jobs: int) -> Generator[Round, dict[str, Message], Trained]:
    """Align, grow, score out of bag, share where all agree, and have every party keep its part."""
    aligned = yield from _open(order, opening)
    forest = yield from train(order.plan, order.parties, order.holder, n_jobs)
    outputs, score, residuals = None, None, np.empty(0)
    if order.plan.out_of_bag is not None:
        outputs, verdict = yield from score_out_of_bag(forest, order.holder, order.plan.out_of_bag, n_jobs)
        score, residuals = verdict.score, verdict.residuals.copy()
    unwilling = tuple(p for p in splitting_parties(forest) if p not in forest.sharing)
    shared = {} if unwilling else (yield from reveal_splits(forest))
    active = [p for i, p in enumerate(forest.parties) if p == order.holder or (forest.feature_party == i).any()]
    fingerprint = forest_id_of(forest)
    replies = yield Round("keep", dict.fromkeys(active, msg.KeepModel(forest=fingerprint)))
    digests = {p: reply_of(replies[p], msg.ModelKept, p).digest for p in active}
    return Trained(aligned, forest, fingerprint, shared, unwilling, digests, outputs, score, residuals)


def predict_job(
    order: PredictOrder, opening: msg.OpenJob, forest: CoordinatorForest, n_jobs: int
) -> Generator[Round, dict[str, Message], Predicted]:
    """Align, ask the parties that have a part of the forest, and bring the answers to the parties that get them."""
    aligned = yield from _open(order, opening)
    n = aligned.n_rows
    present = [p for p in splitting_parties(forest) if p in order.parties]
    use = msg.UseModel(model=order.model, forest=forest_id_of(forest), n_rows=n)
    if present:
        yield Round("predict", dict.fromkeys(present, use))
    if order.how == "classical":
        outputs, uncertain = yield from predict_node_by_node(forest, present, n, order.vote)
    else:
        outputs, uncertain = yield from predict_in_one_round(
            forest, present, n, order.wire, order.vote, n_jobs, order.shuffled
        )
    takers: dict[str, Message] = {
        p: msg.TakeAnswers(
            outputs=np.ascontiguousarray(outputs),
            classes=forest.classes,
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
    return Predicted(aligned, outputs, uncertain, score)


def _open(order: AnyOrder, opening: msg.OpenJob) -> Generator[Round, dict[str, Message], CommonRows]:
    """Bring the order to every party, and find the common rows unless they are known."""
    replies = yield Round("open", dict.fromkeys(order.parties, opening))
    known = {p: reply_of(replies[p], msg.JobOpened, p).n_aligned for p in order.parties}
    if order.alignment is None and len(order.parties) > 1:
        alignment = yield from align(order.parties, method=order.method, join=order.join)
        return CommonRows(alignment.n_rows, dict(alignment.rows), dict(alignment.common))
    counts = set(known.values())
    if len(counts) != 1 or None in counts:
        raise RemoteProtocolError(f"the parties do not agree on the number of common rows: {known}")
    return CommonRows(int(counts.pop() or 0))
