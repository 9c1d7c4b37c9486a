"""What the coordinator does for linear models."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from woodlot.exceptions import DataError
from woodlot.jobs import job_messages as msg
from woodlot.jobs.columns.columns_jobs import Answers
from woodlot.jobs.columns.common_rows import CommonRowCounts, Predicted, deliver, open_rows, row_facts
from woodlot.jobs.job_store import JobStore
from woodlot.jobs.linear.linear_orders import PredictLinearOrder, TrainLinearOrder
from woodlot.protocols.core.message import Message, Round
from woodlot.protocols.core.replies import reply_of
from woodlot.protocols.linear.linear_files import StoredLinear, linear_id_of
from woodlot.protocols.linear.linear_model import CoordinatorLinear
from woodlot.protocols.linear.linear_train import fit_linear, predict_linear

if TYPE_CHECKING:
    from woodlot.jobs.kind import CoordinatorHost, Kept


@dataclass(frozen=True, eq=False)
class FittedJob:
    """The outcome of a training."""

    aligned: CommonRowCounts
    model: CoordinatorLinear


def train_job(
    order: TrainLinearOrder, opening: msg.OpenJob, host: CoordinatorHost
) -> Generator[Round, dict[str, Message], FittedJob]:
    """Align, fit, and have every party keep its part."""
    aligned = yield from open_rows(order, opening, host)
    model = yield from fit_linear(order.plan, order.parties, order.holder)
    keep = msg.KeepModel(forest=linear_id_of(model))
    if model.asked:
        replies = yield Round("keep", dict.fromkeys(model.asked, keep))
        for party in model.asked:
            reply_of(replies[party], msg.ModelKept, party)
    return FittedJob(aligned, model)


def predict_job(
    order: PredictLinearOrder, opening: msg.OpenJob, host: CoordinatorHost
) -> Generator[Round, dict[str, Message], Predicted]:
    """Align, ask the parties that have weights, and bring the answers to the parties that get them.

    The answers of classes are probabilities.
    """
    aligned, outputs, uncertain, classes = yield from linear_answers(order, opening, host)
    score = yield from deliver(order, outputs, classes)
    return Predicted(aligned, outputs, uncertain, score)


def linear_answers(
    order: PredictLinearOrder, opening: msg.OpenJob, host: CoordinatorHost
) -> Generator[Round, dict[str, Message], Answers]:
    """The common rows, the outputs of each, which are uncertain, and the classes."""
    model = host.store.linear(order.model).coordinator
    aligned = yield from open_rows(order, opening, host)
    present = [party for party in model.asked if party in order.parties]
    if present:
        use = msg.UseModel(model=order.model, forest=linear_id_of(model), n_rows=aligned.n_rows)
        yield Round("predict", dict.fromkeys(present, use))
    scores, uncertain = yield from predict_linear(model, present, aligned.n_rows)
    outputs = model.probabilities(scores) if model.classes else scores
    return aligned, outputs, uncertain, model.classes


# --- what stays behind ---


def keep_training(kept: Kept, outcome: FittedJob) -> dict[str, Any]:
    """Store the coordinator's part."""
    order: TrainLinearOrder = kept.order
    model = outcome.model
    facts = msg.ModelFacts(
        model=order.job,
        name=order.name,
        user=kept.facts.user,
        created=kept.facts.created,
        forest=linear_id_of(model),
        parties=model.parties,
        holder=order.holder,
        n_rows=model.n_rows,
        n_trees=0,
        n_nodes=0,
        splits={},
        classes=model.classes,
        complete=False,
        unwilling=model.asked,
        oob_score=None,
        settings=order.settings,
        layout="columns",
        disclosure=kept.account["disclosure"],
        cost=kept.account["cost"],
        led_by=order.led_by,
    )
    kept.store.keep_model(facts, StoredLinear(model, {}, {}))
    return row_facts(outcome.aligned) | {"model": order.job, "name": order.name}


def keep_prediction(kept: Kept, outcome: Predicted) -> dict[str, Any]:
    """Store the answers, where the user gets them."""
    order: PredictLinearOrder = kept.order
    if order.give_answers:
        kept.store.keep_answers(order.job, outcome.outputs, outcome.uncertain, kept.account)
    return row_facts(outcome.aligned) | {"model": order.model, "score": outcome.score}


def check_prediction(store: JobStore, order: PredictLinearOrder) -> None:
    """Refuse a model that is no linear one, or of none of these parties."""
    facts = store.model_facts(order.model)
    if not store.is_linear(order.model):
        raise DataError("this model is a forest: order predict")
    if not set(order.parties) & set(facts.parties):
        raise DataError(f"none of these parties has a part of the model; its parties are {list(facts.parties)}")
