"""What the coordinator does to align, train and predict, from the order to the end, as one protocol each."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from woodlot.exceptions import DataError
from woodlot.jobs import job_messages as msg
from woodlot.jobs.columns.common_rows import (
    CommonRowCounts,
    Predicted,
    Trained,
    deliver,
    model_facts,
    open_rows,
    row_facts,
)
from woodlot.jobs.hidden.hidden_jobs import grow_hidden
from woodlot.jobs.job_store import JobStore
from woodlot.jobs.kind import CoordinatorHost, Kept
from woodlot.jobs.orders import (
    AlignOrder,
    PredictOrder,
    ScoreOrder,
    TrainOrder,
)
from woodlot.jobs.revocable.key_jobs import check_test
from woodlot.jobs.revocable.stored_epochs import load_encrypted
from woodlot.protocols.core.forest_parts import ClassName, active_parties, splitting_parties
from woodlot.protocols.core.message import Message, Round
from woodlot.protocols.core.replies import reply_of
from woodlot.protocols.revocable.revocable_model import CoordinatorRevocable
from woodlot.protocols.revocable.row_test import predict_own_rows
from woodlot.protocols.vertical.completion import grow_forest, predict_forest
from woodlot.protocols.vertical.files import StoredForest, forest_id_of

Answers: TypeAlias = tuple[CommonRowCounts, NDArray[np.float64], NDArray[np.bool_], tuple[ClassName, ...]]
Rounds: TypeAlias = Generator[Round, dict[str, Message], object]


def align_job(
    order: AlignOrder, opening: msg.OpenJob, host: CoordinatorHost
) -> Generator[Round, dict[str, Message], CommonRowCounts]:
    """Find the common rows, and have every party keep them."""
    aligned = yield from open_rows(order, opening, host)
    yield Round("align", dict.fromkeys(order.parties, msg.KeepAlignment()))
    return aligned


def train_job(
    order: TrainOrder, opening: msg.OpenJob, host: CoordinatorHost
) -> Generator[Round, dict[str, Message], Trained]:
    """Align, grow, score out of bag, share where all agree, and have every party keep its part."""
    aligned = yield from open_rows(order, opening, host)
    if order.is_hidden:
        growing = grow_hidden(order, host)
    else:
        growing = grow_forest(order.plan, order.parties, order.holder, host.n_jobs)
    forest, oob, unwilling, shared = yield from growing
    # the second server of a hidden training may have no columns; it is asked again when a party leaves
    active = list(forest.parties) if order.is_hidden else active_parties(forest, order.holder)
    fingerprint = forest_id_of(forest)
    replies = yield Round("keep", dict.fromkeys(active, msg.KeepModel(forest=fingerprint)))
    digests = {p: reply_of(replies[p], msg.ModelKept, p).digest for p in active}
    return Trained(aligned, forest, fingerprint, shared, unwilling, digests, oob)


def predict_job(
    order: PredictOrder, opening: msg.OpenJob, host: CoordinatorHost
) -> Generator[Round, dict[str, Message], Predicted]:
    """Align, ask the parties that have a part of the forest, and bring the answers to the parties that get them."""
    aligned, outputs, uncertain, classes = yield from forest_answers(order, opening, host)
    score = yield from deliver(order, outputs, classes)
    return Predicted(aligned, outputs, uncertain, score)


def forest_answers(
    order: PredictOrder, opening: msg.OpenJob, host: CoordinatorHost
) -> Generator[Round, dict[str, Message], Answers]:
    """The common rows, the outputs of each, which are uncertain, and the classes."""
    forest = host.store.forest(order.model).coordinator
    aligned = yield from open_rows(order, opening, host)
    n = aligned.n_rows
    present = [p for p in splitting_parties(forest) if p in order.parties and p not in order.absent]
    use = msg.UseModel(model=order.model, forest=forest_id_of(forest), n_rows=n)
    if present:
        yield Round("predict", dict.fromkeys(present, use))
    if order.how == "encrypted-splits":
        epoch = load_encrypted(host.store, order.model)
        encrypted = CoordinatorRevocable(forest, epoch.splits)
        outputs, uncertain = yield from predict_own_rows(encrypted, epoch.keys, present, n, order.vote)
    else:
        outputs, uncertain = yield from predict_forest(
            forest, present, n, how=order.how, wire=order.wire, vote=order.vote, n_jobs=host.n_jobs,
            shuffled=order.shuffled,
        )  # fmt: skip
    return aligned, outputs, uncertain, forest.classes


# --- what stays behind ---


def keep_alignment(kept: Kept, outcome: CommonRowCounts) -> dict[str, Any]:
    """Tell of the common rows; the parties keep them."""
    return row_facts(outcome)


def keep_training(kept: Kept, outcome: Trained) -> dict[str, Any]:
    """Store the coordinator's part of the forest, and those that were shared."""
    order: TrainOrder = kept.order
    forest = StoredForest(outcome.forest, {}, outcome.shared, {})
    kept.store.keep_model(model_facts(order, kept.facts, outcome, kept.account), forest, outcome.oob)
    return row_facts(outcome.aligned) | {"model": order.job, "name": order.name, "score": outcome.oob.score}


def keep_prediction(kept: Kept, outcome: Predicted) -> dict[str, Any]:
    """Store the answers, where the user gets them."""
    order: PredictOrder = kept.order
    if order.give_answers:
        kept.store.keep_answers(order.job, outcome.outputs, outcome.uncertain, kept.account)
    return row_facts(outcome.aligned) | {"model": order.model, "score": outcome.score}


def check_prediction(store: JobStore, order: PredictOrder | ScoreOrder) -> None:
    """Refuse a model that is no forest over columns, was replaced, or is of none of these parties."""
    facts = store.model_facts(order.model)
    if store.is_linear(order.model):
        raise DataError("this is a linear model, not a forest: order predict-linear")
    if facts.replaced_by:
        raise DataError(f"model {order.model} was replaced by {facts.replaced_by} when a party left it; use that one")
    if facts.layout == "rows":
        raise DataError("this model is whole, and every party can predict its own rows with it: order predict-rows")
    if not set(order.parties) & set(facts.parties):
        raise DataError(f"none of these parties has a part of the model; its parties are {list(facts.parties)}")
    if isinstance(order, PredictOrder) and order.how == "encrypted-splits":
        check_test(store, order)
