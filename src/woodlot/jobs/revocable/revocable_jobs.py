"""Revocable forests at the coordinator: it gets the labels, judges the candidates, and keeps the splits encrypted.

In RevFRF the coordinator (CS) has the labels. Between organisations they lie at a party, who sends them at the
beginning of each job that needs them, if its policy says so in words; the coordinator keeps them no longer than that.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from woodlot.exceptions import DataError, RemoteProtocolError
from woodlot.jobs import job_messages as msg
from woodlot.jobs.columns.common_rows import Trained, model_facts, open_rows, row_facts
from woodlot.jobs.columns.revoke_jobs import KeyChange, Revoked, check_leaving, is_patched, training_of
from woodlot.jobs.job_store import JobStore
from woodlot.jobs.key_store import forest_of_model
from woodlot.jobs.revocable.key_jobs import begin_epoch, check_modulus, check_scheme
from woodlot.jobs.revocable.revocable_orders import RevokeRevocableOrder, TrainRevocableOrder
from woodlot.jobs.revocable.stored_epochs import Epoch, SharedEpoch, keep_epoch, load_epoch, told_keys
from woodlot.protocols.core.forest_parts import CoordinatorForest, active_parties, splitting_parties
from woodlot.protocols.core.message import Message, Round
from woodlot.protocols.core.replies import reply_of
from woodlot.protocols.core.target import Target
from woodlot.protocols.revocable.construct import Constructed, construct, regrow
from woodlot.protocols.revocable.growth_messages import LabelsSent, SendLabels
from woodlot.protocols.revocable.revocable_keys import revoke_key
from woodlot.protocols.revocable.rotate import encrypt_splits
from woodlot.protocols.revocable.share_predict import delete_shares, share_splits
from woodlot.protocols.vertical.files import StoredForest, forest_id_of
from woodlot.protocols.vertical.out_of_bag import judge_out_of_bag

if TYPE_CHECKING:
    from woodlot.jobs.kind import CoordinatorHost, Kept


@dataclass(frozen=True, eq=False)
class Grown:
    """The outcome of a training."""

    trained: Trained
    made: Constructed
    epoch: Epoch | SharedEpoch | None


def check_training(store: JobStore, order: TrainRevocableOrder) -> None:
    """Refuse keys that are not made."""
    if order.helper is not None:
        check_modulus(order)


def train_job(
    order: TrainRevocableOrder, opening: msg.OpenJob, host: CoordinatorHost
) -> Generator[Round, dict[str, Message], Grown]:
    """Align, get the labels, grow, score out of bag, have every party keep its part, and have the splits hidden."""
    aligned = yield from open_rows(order, opening, host)
    target = yield from _labels(order.holder, order.plan.forest.task == "classes", aligned.n_rows)
    made = yield from construct(order.plan, order.row_parties, target, host.n_jobs)
    oob = yield from judge_out_of_bag(made.forest, target, order.plan.forest.out_of_bag, host.n_jobs)
    digests = yield from _have_kept(made.forest)
    epoch = None
    if order.helper is not None:
        number = host.store.claim_epoch(order.keyring, order.job)
        epoch = yield from begin_epoch(order, made.forest, number, order.row_parties, order.job)
    forest = made.forest
    unwilling = tuple(splitting_parties(forest))  # splits stay with their providers, encrypted or not
    trained = Trained(aligned, forest, forest_id_of(forest), {}, unwilling, digests, oob)
    return Grown(trained, made, epoch)


def _labels(holder: str, classes: bool, n_rows: int) -> Generator[Round, dict[str, Message], Target]:
    """The labels, from the party that has them."""
    reply = reply_of((yield Round("labels", {holder: SendLabels()}))[holder], LabelsSent, holder)
    labels, others = (reply.numbers, reply.values) if classes else (reply.values, reply.numbers)
    if len(labels) != n_rows or len(others) or bool(reply.classes) != classes:
        raise RemoteProtocolError(f"{holder} did not send one label of the right kind for each of {n_rows} rows")
    if classes and (int(labels.min(initial=0)) < 0 or int(labels.max(initial=0)) >= len(reply.classes)):
        raise RemoteProtocolError(f"{holder} sent a label that is none of its classes")
    if not np.isfinite(reply.values).all():
        raise RemoteProtocolError(f"{holder} sent a target that is no number")
    return Target(tuple(reply.classes), reply.numbers.copy(), reply.values.copy())


def _have_kept(forest: CoordinatorForest) -> Generator[Round, dict[str, Message], dict[str, str]]:
    """Have every party keep its part, and its rows; returns the fingerprints of the parts."""
    active = active_parties(forest)
    keep: dict[str, Message] = dict.fromkeys(forest.parties, msg.KeepAlignment())
    keep |= dict.fromkeys(active, msg.KeepModel(forest=forest_id_of(forest)))
    replies = yield Round("keep", keep)
    return {p: reply_of(replies[p], msg.ModelKept, p).digest for p in active}


def keep_training(kept: Kept, outcome: Grown) -> dict[str, Any]:
    """Store the model last: whoever sees it finds its keys too."""
    order: TrainRevocableOrder = kept.order
    trained, aligned = outcome.trained, outcome.trained.aligned
    kept.store.keep_rebuilding(order.job, outcome.made.rebuilding)
    if outcome.epoch is not None:
        keep_epoch(kept.store, order.job, order.keyring, outcome.epoch)
    facts = msgspec.structs.replace(model_facts(order, kept.facts, trained, kept.account), revocable=True)
    kept.store.keep_model(facts, StoredForest(trained.forest, {}, {}, {}), trained.oob)
    return row_facts(aligned) | {"model": order.job, "name": order.name, "score": trained.oob.score}


# --- leaving ---


def check_revocation(store: JobStore, order: RevokeRevocableOrder) -> None:
    """Refuse an order that is stale, or for something that cannot be."""
    check_leaving(store, order)
    training_of(store, order.model, TrainRevocableOrder)
    if order.holder != store.model_facts(order.model).holder:
        raise DataError("the order names another label holder than the model's")
    if store.keys(order.model) is None:
        if order.helper is not None or order.level == 2:
            raise DataError(
                "this model has no keys; at level 2 they would be replaced: order keys first, or level 1 or 3"
            )
        return
    told = told_keys(store, order.model)
    if (order.helper, order.key_service, order.keyring) != (told.helper, told.key_service, told.keys):
        raise DataError(f"helper and key service of this model are {told.helper} and {told.key_service}")
    check_scheme(store, order, order.model)
    check_modulus(order)


def revoke_job(
    order: RevokeRevocableOrder, opening: msg.OpenJob, host: CoordinatorHost
) -> Generator[Round, dict[str, Message], Revoked | None]:
    """Regrow, have every party keep its new part, see to the keys, and only then drop what was before.

    None where all of that is done already.
    """
    store = host.store
    if store.receipt(order.job) is not None:  # only the end of the job was not recorded
        return None
    plan, facts = training_of(store, order.model, TrainRevocableOrder).plan, store.model_facts(order.model)
    former, rebuilding = store.forest(order.model).coordinator, store.rebuilding(order.model)
    before = None if order.helper is None else load_epoch(store, order.model)
    yield Round("open", dict.fromkeys(order.parties, opening))
    active = [party for party in order.row_parties if party in active_parties(former)]
    use = msg.UseModel(model=order.model, forest=facts.forest, n_rows=former.n_rows)
    yield Round("open", dict.fromkeys(active, use))
    target = yield from _labels(facts.holder, bool(facts.classes), former.n_rows)
    if target.classes != former.classes:
        raise DataError(f"the labels of {facts.holder} are not those of the training")
    leavers, patched = (order.leaver,), is_patched(store, order.model)
    exact = order.level == 3
    made = yield from regrow(plan, former, rebuilding, leavers, 3 if exact else 1, target, host.n_jobs, patched)
    oob = yield from judge_out_of_bag(made.forest, target, plan.forest.out_of_bag, host.n_jobs)
    digests = yield from _have_kept(made.forest)
    change = None
    if before is not None:
        change = yield from _rekey(order, store, before, made)
    yield Round("drop", dict.fromkeys(active, msg.DropModel(model=order.model, leaver=order.leaver)))
    return Revoked(
        former,
        made,
        {},
        tuple(splitting_parties(made.forest)),
        digests,
        oob,
        change,
        made.rebuilding,
    )


def _rekey(
    order: RevokeRevocableOrder, store: JobStore, before: Epoch | SharedEpoch, made: Constructed
) -> Generator[Round, dict[str, Message], KeyChange]:
    """Strike out the leaver's key or shares and hide what is new; at level 2 begin a new epoch, for everything."""
    after: Epoch | SharedEpoch
    if order.level == 2:
        number = store.claim_epoch(order.keyring, order.job)
        after = yield from begin_epoch(order, made.forest, number, order.row_parties, order.job)
    elif isinstance(before, SharedEpoch):
        after = yield from _reshare(order, before, made)
    else:
        splits = yield from encrypt_splits(
            made.forest,
            before.keys,
            before.splits,
            made.origin,
            fingerprint=forest_of_model(order.job, forest_id_of(made.forest)),
            leavers=(order.leaver,),
        )
        keys = before.keys
        if order.leaver in keys.parties:
            keys = yield from revoke_key(keys, order.leaver)
        after = Epoch(keys, splits)
    return KeyChange(order.keyring, before.keys.epoch, after, before.fingerprint(order.leaver))


def _reshare(
    order: RevokeRevocableOrder, before: SharedEpoch, made: Constructed
) -> Generator[Round, dict[str, Message], SharedEpoch]:
    """New shares of all splits of the forest without the leaver, and none of those before; then its keys go, too."""
    keys = before.keys
    fingerprint = forest_of_model(order.job, forest_id_of(made.forest))
    splits = yield from share_splits(made.forest, keys, fingerprint=fingerprint, leavers=(order.leaver,))
    if order.leaver in keys.parties:
        keys = yield from delete_shares(keys, order.leaver)
    return SharedEpoch(keys, splits)
