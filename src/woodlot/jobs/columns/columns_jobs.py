"""What the coordinator does in a job, from the order to the end, as one protocol: journalled and replayed whole.

`KINDS` lists what is done for each kind of order; see `woodlot.jobs.party_job` for how to add one.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, NamedTuple, TypeAlias

from woodlot.exceptions import DataError
from woodlot.identity.identity import Identity
from woodlot.jobs import job_messages as msg
from woodlot.jobs.columns.common_rows import (
    CommonRows,
    Predicted,
    Trained,
    deliver,
    model_facts,
    open_rows,
    row_facts,
)
from woodlot.jobs.columns.revoke_jobs import (
    check_revocation,
    check_rows_revocation,
    keep_revocation,
    keep_rows_revocation,
    revoke_job,
    revoke_rows_job,
)
from woodlot.jobs.job_store import JobStore
from woodlot.jobs.linear import linear_jobs as linear
from woodlot.jobs.orders import (
    AlignOrder,
    AnyOrder,
    KeysOrder,
    PredictEncryptedOrder,
    PredictLinearOrder,
    PredictOrder,
    PredictRowsOrder,
    RevokeOrder,
    RevokeRevocableOrder,
    RevokeRowsOrder,
    ScoreOrder,
    TrainLinearOrder,
    TrainOrder,
    TrainRevocableOrder,
    TrainRowsOrder,
)
from woodlot.jobs.revocable import key_jobs as keys
from woodlot.jobs.revocable import revocable_jobs as revocable
from woodlot.jobs.rows import rows_jobs as rows
from woodlot.jobs.scores import score_jobs as scores
from woodlot.protocols.core.forest_parts import CoordinatorForest, splitting_parties
from woodlot.protocols.core.message import Message, Round
from woodlot.protocols.core.replies import reply_of
from woodlot.protocols.vertical.files import StoredForest, forest_id_of
from woodlot.protocols.vertical.out_of_bag import score_out_of_bag
from woodlot.protocols.vertical.predict import predict_in_one_round, predict_node_by_node
from woodlot.protocols.vertical.reveal import reveal_splits
from woodlot.protocols.vertical.sealed import predict_sealed
from woodlot.protocols.vertical.train import train
from woodlot.trees.parallel import effective_jobs

Rounds: TypeAlias = Generator[Round, dict[str, Message], object]


def align_job(order: AlignOrder, opening: msg.OpenJob) -> Generator[Round, dict[str, Message], CommonRows]:
    """Find the common rows, and have every party keep them."""
    aligned = yield from open_rows(order, opening)
    yield Round("align", dict.fromkeys(order.parties, msg.KeepAlignment()))
    return aligned


def train_job(order: TrainOrder, opening: msg.OpenJob, n_jobs: int) -> Generator[Round, dict[str, Message], Trained]:
    """Align, grow, score out of bag, share where all agree, and have every party keep its part."""
    aligned = yield from open_rows(order, opening)
    forest = yield from train(order.plan, order.parties, order.holder, n_jobs)
    oob = yield from score_out_of_bag(forest, order.holder, order.plan.out_of_bag, n_jobs)
    unwilling = tuple(p for p in splitting_parties(forest) if p not in forest.sharing)
    shared = {} if unwilling else (yield from reveal_splits(forest))
    active = [p for i, p in enumerate(forest.parties) if p == order.holder or (forest.feature_party == i).any()]
    fingerprint = forest_id_of(forest)
    replies = yield Round("keep", dict.fromkeys(active, msg.KeepModel(forest=fingerprint)))
    digests = {p: reply_of(replies[p], msg.ModelKept, p).digest for p in active}
    return Trained(aligned, forest, fingerprint, shared, unwilling, digests, oob)


def predict_job(
    order: PredictOrder, opening: msg.OpenJob, forest: CoordinatorForest, n_jobs: int
) -> Generator[Round, dict[str, Message], Predicted]:
    """Align, ask the parties that have a part of the forest, and bring the answers to the parties that get them."""
    aligned = yield from open_rows(order, opening)
    n = aligned.n_rows
    present = [p for p in splitting_parties(forest) if p in order.parties and p not in order.absent]
    use = msg.UseModel(model=order.model, forest=forest_id_of(forest), n_rows=n)
    if present:
        yield Round("predict", dict.fromkeys(present, use))
    if order.how == "classical":
        outputs, uncertain = yield from predict_node_by_node(forest, present, n, order.vote)
    elif order.how == "sealed":
        outputs, uncertain = yield from predict_sealed(forest, present, n, order.vote, order.shuffled)
    else:
        outputs, uncertain = yield from predict_in_one_round(
            forest, present, n, order.wire, order.vote, n_jobs, order.shuffled
        )
    score = yield from deliver(order, outputs, forest.classes)
    return Predicted(aligned, outputs, uncertain, score)


# --- what stays behind ---


def _keep_alignment(kept: Kept, outcome: CommonRows) -> dict[str, Any]:
    return row_facts(outcome)


def _keep_training(kept: Kept, outcome: Trained) -> dict[str, Any]:
    order: TrainOrder = kept.order
    forest = StoredForest(outcome.forest, {}, outcome.shared, {})
    kept.store.keep_model(model_facts(order, kept.facts, outcome, kept.account), forest, outcome.oob)
    return row_facts(outcome.aligned) | {"model": order.job, "name": order.name, "score": outcome.oob.score}


def _keep_prediction(kept: Kept, outcome: Predicted) -> dict[str, Any]:
    order: PredictOrder = kept.order
    if order.give_answers:
        kept.store.keep_answers(order.job, outcome.outputs, outcome.uncertain, kept.account)
    return row_facts(outcome.aligned) | {"model": order.model, "score": outcome.score}


def _check_prediction(store: JobStore, order: PredictOrder | ScoreOrder) -> None:
    facts = store.model_facts(order.model)
    if store.is_linear(order.model):
        raise DataError("this is a linear model, not a forest: order predict-linear")
    if facts.replaced_by:
        raise DataError(f"model {order.model} was replaced by {facts.replaced_by} when a party left it; use that one")
    if facts.layout == "rows":
        raise DataError("this model is whole, and every party can predict its own rows with it: order predict-rows")
    if not set(order.parties) & set(facts.parties):
        raise DataError(f"none of these parties has a part of the model; its parties are {list(facts.parties)}")


# --- all kinds ---


class Kept(NamedTuple):
    """What the coordinator knows when a job has reached its end.

    Attributes
    ----------
    store : JobStore
        Where the outcome is to stay.
    order : Order
        What was ordered.
    facts : JobFacts
        How the job stands.
    account : dict of str to str
        Who saw what and what it cost, as `Account.to_json` has it.
    identity : Identity
        The coordinator's, to sign what others rely on.

    """

    store: JobStore
    order: Any
    facts: msg.JobFacts
    account: dict[str, str]
    identity: Identity


class Kind(NamedTuple):
    """What the coordinator does for one kind of order.

    Attributes
    ----------
    protocol : callable
        From the order, its opening and the store to the generator that is run.
    keep : callable
        Stores what the generator returns; gives back the fields of `JobFacts` that tell of it.
    check : callable
        Refuses an order when it is submitted.

    """

    protocol: Callable[[Any, msg.OpenJob, JobStore], Rounds]
    keep: Callable[[Kept, Any], dict[str, Any]]
    check: Callable[[JobStore, Any], None] = lambda store, order: None


KINDS: dict[type[AnyOrder], Kind] = {
    AlignOrder: Kind(lambda order, opening, store: align_job(order, opening), _keep_alignment),
    TrainOrder: Kind(lambda order, opening, store: train_job(order, opening, effective_jobs(-1)), _keep_training),
    PredictOrder: Kind(
        lambda order, opening, store: predict_job(
            order, opening, store.forest(order.model).coordinator, effective_jobs(-1)
        ),
        _keep_prediction,
        _check_prediction,
    ),
    RevokeOrder: Kind(
        lambda order, opening, store: revoke_job(order, opening, store, effective_jobs(-1)),
        lambda kept, outcome: keep_revocation(kept.store, kept.identity, kept.order, kept.facts, kept.account, outcome),
        check_revocation,
    ),
    RevokeRowsOrder: Kind(revoke_rows_job, keep_rows_revocation, check_rows_revocation),
    TrainRevocableOrder: Kind(
        lambda order, opening, store: revocable.train_job(order, opening, store, effective_jobs(-1)),
        revocable.keep_training,
        revocable.check_training,
    ),
    RevokeRevocableOrder: Kind(
        lambda order, opening, store: revocable.revoke_job(order, opening, store, effective_jobs(-1)),
        lambda kept, outcome: keep_revocation(kept.store, kept.identity, kept.order, kept.facts, kept.account, outcome),
        revocable.check_revocation,
    ),
    TrainRowsOrder: Kind(lambda order, opening, store: rows.train_rows_job(order, opening), rows.keep_training),
    TrainLinearOrder: Kind(lambda order, opening, store: linear.train_job(order, opening), linear.keep_training),
    PredictLinearOrder: Kind(
        lambda order, opening, store: linear.predict_job(order, opening, store.linear(order.model).coordinator),
        linear.keep_prediction,
        linear.check_prediction,
    ),
    PredictRowsOrder: Kind(
        lambda order, opening, store: rows.predict_rows_job(order, opening, store.model_files(order.model)[0]),
        rows.keep_prediction,
        rows.check_prediction,
    ),
    ScoreOrder: Kind(scores.open_job, lambda kept, outcome: {}, _check_prediction),
    KeysOrder: Kind(keys.keys_job, keys.keep_keys, keys.check_keys),
    PredictEncryptedOrder: Kind(keys.predict_encrypted_job, keys.keep_prediction, keys.check_prediction),
}
