"""What the coordinator does in jobs with parties that have the same columns."""

from __future__ import annotations

import json
from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import numpy as np

from woodlot.exceptions import DataError
from woodlot.jobs import job_messages as msg
from woodlot.jobs.job_store import JobStore
from woodlot.jobs.order_seal import read_order
from woodlot.jobs.orders import Order
from woodlot.jobs.row_job_messages import PredictRows, RowsPredicted
from woodlot.jobs.rows.rows_orders import PredictRowsOrder, TrainRowsOrder
from woodlot.protocols.core.forest_parts import CoordinatorForest, PartyForest
from woodlot.protocols.core.message import Message, Round
from woodlot.protocols.core.replies import reply_of
from woodlot.protocols.rows.methods import protocol_of
from woodlot.protocols.rows.row_claims import claim_of
from woodlot.protocols.rows.whole_forest import HOLDER
from woodlot.protocols.vertical.files import StoredForest, forest_id_of, whole_forest_id

if TYPE_CHECKING:
    from woodlot.jobs.kind import CoordinatorHost, Kept

WholeParts: TypeAlias = tuple[CoordinatorForest, PartyForest]


@dataclass(frozen=True, eq=False)
class PredictedRows:
    """How many rows each party has predicted, and how well, where it has said so: with noise, if that was ordered."""

    rows: dict[str, int]
    scores: dict[str, float]


def train_rows_job(
    order: TrainRowsOrder, opening: msg.OpenJob, host: CoordinatorHost
) -> Generator[Round, dict[str, Message], WholeParts]:
    """Grow a whole forest by the method that is ordered."""
    yield from open_parties(order, opening)
    parts: WholeParts = yield from protocol_of(order.plan, order.parties)
    return parts


def predict_rows_job(
    order: PredictRowsOrder, opening: msg.OpenJob, host: CoordinatorHost
) -> Generator[Round, dict[str, Message], PredictedRows]:
    """Bring the forest to every party, which predicts its own rows."""
    files, _ = host.store.model_files(order.model)
    yield from open_parties(order, opening)
    bring = PredictRows(model=order.model, files={name: np.frombuffer(data, np.uint8) for name, data in files.items()})
    replies = yield Round("predict", dict.fromkeys(order.parties, bring))
    told = {p: reply_of(replies[p], RowsPredicted, p) for p in order.parties}
    rows = {p: reply.n_rows for p, reply in told.items() if reply.n_rows is not None}
    scores = {p: reply.score for p, reply in told.items() if reply.score is not None}
    for p, reply in told.items():
        if reply.counts is not None:  # noise can make them negative
            right, wrong = np.maximum(reply.counts, 0).tolist()
            rows[p], scores[p] = right + wrong, right / max(1, right + wrong)
    return PredictedRows(rows, scores)


def open_parties(order: Order, opening: msg.OpenJob) -> Generator[Round, dict[str, Message], None]:
    """Have every party take the order, or refuse it, before any of them does anything."""
    replies = yield Round("open", dict.fromkeys(order.parties, opening))
    for party in order.parties:
        reply_of(replies[party], msg.JobOpened, party)


def row_training_of(store: JobStore, model: str) -> TrainRowsOrder:
    """The order by which a forest over rows was grown, before any rows were forgotten."""
    while former := store.model_facts(model).former:
        model = former
    stored = store.job(model)
    order = None if stored is None else read_order(stored.order)
    if not isinstance(order, TrainRowsOrder):
        raise DataError("the order by which this model was grown is not recorded here; train it again")
    return order


# --- what stays behind ---


def keep_training(kept: Kept, outcome: WholeParts, epoch: int = 0) -> dict[str, Any]:
    """Store the whole forest; ``epoch`` is how many parties have left it."""
    order: TrainRowsOrder = kept.order
    forest, part = outcome
    facts = msg.ModelFacts(
        model=order.job,
        name=order.name,
        user=kept.facts.user,
        created=kept.facts.created,
        forest=forest_id_of(forest),
        parties=order.parties,
        holder="",
        n_rows=forest.n_rows,
        n_trees=forest.structure.n_trees,
        n_nodes=forest.structure.n_nodes,
        splits={},
        classes=forest.classes,
        complete=True,
        unwilling=(),
        oob_score=forest.oob_score,
        settings=order.settings,
        layout="rows",
        epoch=epoch,
        privacy=json.dumps(claim_of(order.plan, len(forest.feature_keys)).to_dict()),
        disclosure=kept.account["disclosure"],
        cost=kept.account["cost"],
        left_at=forest.left_at or msgspec.UNSET,
        whole=whole_forest_id(forest, part),
    )
    kept.store.keep_model(facts, StoredForest(forest, {}, {HOLDER: part}, {}))
    return {"model": order.job, "name": order.name, "n_rows": forest.n_rows}


def keep_prediction(kept: Kept, outcome: PredictedRows) -> dict[str, Any]:
    """The answers are with the parties; what is left to tell is how many, and how good."""
    n_rows = sum(outcome.rows.values()) if outcome.rows else None
    score = None
    scored = sum(outcome.rows[p] for p in outcome.scores)
    if scored and kept.store.model_facts(kept.order.model).classes:
        score = sum(outcome.rows[p] * accuracy for p, accuracy in outcome.scores.items()) / scored
    return {
        "model": kept.order.model,
        "n_rows": n_rows,
        "rows": outcome.rows,
        "score": score,
        "scores": outcome.scores,
        "score_epsilon": kept.order.score_epsilon,
    }


def check_prediction(store: JobStore, order: PredictRowsOrder) -> None:
    """Refuse to bring parties a model that is not whole."""
    check_whole(store, order.model, "predict")


def check_whole(store: JobStore, model: str, instead: str) -> None:
    """Refuse a model that is not whole, or that was replaced."""
    facts = store.model_facts(model)
    if facts.replaced_by:
        raise DataError(f"model {model} was replaced by {facts.replaced_by} when a party left it; use that one")
    if facts.layout != "rows":
        raise DataError(
            f"this model was grown over columns of different parties, who must answer together: order {instead}"
        )
