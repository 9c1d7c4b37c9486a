"""A party leaves a forest, at the coordinator: the job, what it leaves behind, and the receipt.

The forest without the leaver is a new model; the former one stays in use until the new one is complete at every party.
Then the parties drop their parts of the former, and the coordinator replaces it, with a receipt that it signs. A crash
anywhere on the way is a job that goes on from its journal.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, get_args

import msgspec
import numpy as np

from woodlot.exceptions import DataError, PolicyError
from woodlot.identity.identity import Identity
from woodlot.identity.receipts import (
    CLOCK_SECONDS,
    REQUEST_SECONDS,
    MemberKey,
    Receipt,
    RevocationScores,
    SignedRequest,
    Statement,
    cost_of,
    make_receipt,
    now,
    signature_of,
    tree_changes,
)
from woodlot.jobs import job_messages as msg
from woodlot.jobs.columns.common_rows import open_rows
from woodlot.jobs.hidden.hidden_jobs import regrow_hidden
from woodlot.jobs.hidden.ordered_hidden import check_hidden_leaving
from woodlot.jobs.job_store import JobStore
from woodlot.jobs.leaving_orders import Forgetting, Replacing, Revocation
from woodlot.jobs.order_seal import PURPOSE, read_order
from woodlot.jobs.orders import RevokeOrder, TrainOrder
from woodlot.jobs.revocable.revocable_orders import RevokeRevocableOrder, TrainRevocableOrder
from woodlot.jobs.revocable.stored_epochs import Epoch, SharedEpoch, keep_epoch
from woodlot.jobs.rows.rows_jobs import WholeParts, keep_training, row_training_of, train_rows_job
from woodlot.jobs.rows.rows_orders import RevokeRowsOrder
from woodlot.protocols.core.forest_parts import CoordinatorForest, active_parties
from woodlot.protocols.core.leavers import check_leaver
from woodlot.protocols.core.message import Message, Round
from woodlot.protocols.core.replies import reply_of
from woodlot.protocols.revocable.construct import Constructed
from woodlot.protocols.revocable.revocable_model import Rebuilding
from woodlot.protocols.rows.whole_forest import HOLDER
from woodlot.protocols.vertical.completion import regrow_forest
from woodlot.protocols.vertical.files import StoredForest, fingerprint_of, forest_id_of
from woodlot.protocols.vertical.out_of_bag import OutOfBagResult
from woodlot.protocols.vertical.regrow import Regrown
from woodlot.runtime.audit import Account

if TYPE_CHECKING:
    from woodlot.jobs.kind import CoordinatorHost, Kept


"""Orders by which a party leaves a model."""


class KeyChange(NamedTuple):
    """What became of the keys of a forest: their name, the epochs, and the key or shares that count no longer."""

    keyring: str
    before: int
    after: Epoch | SharedEpoch
    revoked: str


@dataclass(frozen=True, eq=False)
class Revoked:
    """The outcome of a revocation; see `coordinator_common.Trained`."""

    former: CoordinatorForest
    regrown: Regrown | Constructed
    shared: dict[str, Any]
    unwilling: tuple[str, ...]
    digests: dict[str, str]
    oob: OutOfBagResult
    keys: KeyChange | None = None
    rebuilding: Rebuilding | None = None


T = TypeVar("T", TrainOrder, TrainRevocableOrder)


def training_of(store: JobStore, model: str, kind: type[T]) -> T:
    """The order by which a model was grown, before any party left it or rows were forgotten."""
    while True:
        while former := store.model_facts(model).former:
            model = former
        stored = store.job(model)
        order = None if stored is None else read_order(stored.order)
        if isinstance(order, kind):
            return order
        if not isinstance(order, RevokeOrder | RevokeRevocableOrder):
            raise DataError("the order by which this model was grown is not recorded here; train it again")
        model = order.model


def check_no_other(store: JobStore, order: Replacing) -> None:
    """Refuse an order while another one replaces the model: each would leave behind what the other takes out.

    What it finds holds until the next job is recorded.
    """
    done = {kind.__struct_config__.tag: "by which a party leaves" for kind in get_args(Revocation)}
    done |= {kind.__struct_config__.tag: "by which rows are forgotten in" for kind in get_args(Forgetting)}
    for other in store.open_jobs_of(order.model):
        if other.kind in done:
            raise DataError(
                f"job {other.job}, {done[other.kind]} model {order.model}, {other.standing}; let it end (if it has "
                "stopped, resume it) and order this of the model that replaces this one, or cancel it"
            )


def _check_leaving(store: JobStore, order: Revocation, layout: str) -> msg.ModelFacts:
    """Refuse an order that is stale, or whose leaver cannot leave; returns what is known of the model."""
    if not -CLOCK_SECONDS <= time.time() - order.created <= REQUEST_SECONDS:
        raise PolicyError("the order to revoke is too old, or of the future: sign a new one")
    facts = store.model_facts(order.model)
    if facts.replaced_by:
        raise DataError(
            f"model {order.model} was replaced by {facts.replaced_by} when a party left it; revoke from that one"
        )
    if facts.layout != layout:
        raise DataError(f"this model was grown over {facts.layout}, and the order is for one over {layout}")
    if facts.revocable != isinstance(order, RevokeRevocableOrder):
        raise DataError("revocable forests are left by orders revoke-revocable, other forests by orders revoke")
    check_leaver(facts.parties, facts.holder or None, order.leaver)
    staying = order.parties if isinstance(order, RevokeRowsOrder) else order.row_parties
    if set(staying) != set(facts.parties) - {order.leaver}:
        raise DataError(f"all parties that stay must take part: {sorted(set(facts.parties) - {order.leaver})}")
    return facts


def check_revocation(store: JobStore, order: RevokeOrder) -> None:
    """Refuse an order that is stale, or for something that cannot be."""
    check_leaving(store, order)
    check_hidden_leaving(order, hidden=training_of(store, order.model, TrainOrder).is_hidden)


def check_leaving(store: JobStore, order: RevokeOrder | RevokeRevocableOrder) -> None:
    """What is asked of every order to have a party leave a forest over columns."""
    facts = _check_leaving(store, order, "columns")
    if (order.task == "classes") != bool(facts.classes):
        raise DataError("the order speaks of labels of the other kind than the model's")
    if order.alignment != order.model:
        raise DataError("a revocation works on the rows of the training; order it with the model as alignment")


def revoke_job(
    order: RevokeOrder, opening: msg.OpenJob, host: CoordinatorHost
) -> Generator[Round, dict[str, Message], Revoked | None]:
    """Regrow, have every party keep its new part, and drop the former one. None where all of that is done already."""
    store = host.store
    if store.receipt(order.job) is not None:  # only the end of the job was not recorded
        return None
    training, facts = training_of(store, order.model, TrainOrder), store.model_facts(order.model)
    former = store.forest(order.model).coordinator
    yield from open_rows(order, opening, host)
    keepers = former.parties if training.is_hidden else active_parties(former, facts.holder)
    active = [party for party in keepers if party != order.leaver]
    use = msg.UseModel(model=order.model, forest=facts.forest, n_rows=former.n_rows)
    yield Round("open", dict.fromkeys(active, use))
    if training.is_hidden:
        growing = regrow_hidden(order, training.plan, former, host)
    else:
        patched = is_patched(store, order.model)
        growing = regrow_forest(training.plan, former, order.leaver, order.level, facts.holder, host.n_jobs, patched)
    regrown, (forest, oob, unwilling, shared) = yield from growing
    replies = yield Round("keep", dict.fromkeys(active, msg.KeepModel(forest=forest_id_of(forest))))
    digests = {p: reply_of(replies[p], msg.ModelKept, p).digest for p in active}
    yield Round("drop", dict.fromkeys(active, msg.DropModel(model=order.model, leaver=order.leaver)))
    return Revoked(former, regrown, shared, unwilling, digests, oob)


def is_patched(store: JobStore, model: str) -> bool:
    """Whether a model is that of a revocation that was not exact: another forest would grow from scratch."""
    receipt = None if store.model_facts(model).former else store.receipt(model)  # forgetting rows grows all trees again
    return receipt is not None and not Receipt.parse(receipt.encode()).statement.exact


def _left_model(store: JobStore, order: Revocation) -> msg.ModelFacts:
    """What is known of the model that a party leaves; refuses one that another job has replaced."""
    facts = store.model_facts(order.model)
    if facts.replaced_by not in ("", order.job):
        raise DataError(
            f"model {order.model} was replaced by {facts.replaced_by} while this job ran; revoke from that one"
        )
    return facts


def keep_revocation(kept: Kept, outcome: Revoked | None) -> dict[str, Any]:
    """Store the new model and the receipt, replace the former model by it, and note that the leaver is to be told."""
    store, identity, order, facts, account = kept.store, kept.identity, kept.order, kept.facts, kept.account
    before = _left_model(store, order)
    store.note_untold(order.job, order.leaver)
    if outcome is None:
        if not before.replaced_by:
            store.retire_model(order.model, order.job)
        return _told(store.model_facts(order.job))
    forest = outcome.regrown.forest
    splits = np.bincount(forest.owner[forest.owner >= 0], minlength=len(forest.parties))
    after = msgspec.structs.replace(
        before, model=order.job, created=facts.created, user=facts.user, forest=forest_id_of(forest),
        parties=forest.parties, n_nodes=forest.structure.n_nodes, unwilling=outcome.unwilling,
        splits={party: int(n) for party, n in zip(forest.parties, splits, strict=True)},
        complete=not outcome.unwilling, oob_score=outcome.oob.score, oob_curve=outcome.oob.points(),
        epoch=before.epoch + 1, **account,
    )  # fmt: skip
    if outcome.rebuilding is not None:
        store.keep_rebuilding(order.job, outcome.rebuilding)
    if outcome.keys is not None:
        keep_epoch(store, order.job, outcome.keys.keyring, outcome.keys.after)
    store.keep_model(after, StoredForest(forest, {}, outcome.shared, {}), outcome.oob)
    scores = None
    if before.oob_score is not None and after.oob_score is not None:
        scores = RevocationScores(
            measure="accuracy" if after.classes else "R2",
            rows="out of bag",
            before=before.oob_score,
            after=after.oob_score,
        )
    regrown, keys = outcome.regrown, outcome.keys
    stated: dict[str, Any] = {
        "before": {"coordinator": before.forest}, "after": {"coordinator": after.forest} | outcome.digests,
        "trees": tree_changes(regrown.removed.tolist(), regrown.regrown.tolist()), "scores": scores,
        "notified": order.row_parties,
    }  # fmt: skip
    if keys is not None:
        stated |= {"keys_before": keys.before, "keys_after": keys.after.keys.epoch, "revoked_key": keys.revoked}
    _keep_receipt(store, identity, order, before, after, regrown.searched, stated)
    store.retire_model(order.model, order.job)
    return _told(after)


def _told(model: msg.ModelFacts) -> dict[str, Any]:
    """What a user is told of a job that has left a model."""
    return {"model": model.model, "n_rows": model.n_rows, "name": model.name, "score": model.oob_score}


def _keep_receipt(
    store: JobStore, identity: Identity, order: Revocation,
    before: msg.ModelFacts, after: msg.ModelFacts, searched: int, stated: dict[str, Any],
) -> None:  # fmt: skip
    """Sign a receipt; ``stated`` has what the kinds of forests differ in."""
    usual: dict[str, Any] = {"keys_before": 0, "keys_after": 0, "revoked_key": "", "notified": order.parties}
    usual["rows"] = "of those who stay" if after.layout == "rows" else "of the training"
    stored = store.job(order.job)
    if stored is None:
        raise DataError("the order of this revocation is not recorded")
    statement = Statement(
        party=order.leaver, level=order.level, model=order.model, created=now(),
        parties_before=before.parties, parties_after=after.parties,
        epoch_before=before.epoch, epoch_after=after.epoch,
        nodes_before=before.n_nodes, nodes_after=after.n_nodes,
        cost=cost_of(Account.from_json(after.disclosure, after.cost).cost, searched), **(usual | stated),
    )  # fmt: skip
    request = SignedRequest(
        data=stored.order, purpose=PURPOSE, signed=signature_of(stored.certificate, stored.signature)
    )
    store.keep_receipt(order.job, make_receipt(statement, request, MemberKey(identity)).to_json())


# --- forests over rows ---


def check_rows_revocation(store: JobStore, order: RevokeRowsOrder) -> None:
    """Refuse an order that is stale, for something that cannot be, or that would grow another forest."""
    _check_leaving(store, order, "rows")
    training = row_training_of(store, order.model)
    # sums are the same however they are made, and a plan without random_state has drawn its seed
    summing = ("seed", "sums", "allow_two", "spare_after", "quorum")
    free = {name: getattr(training.plan, name) for name in summing if hasattr(order.plan, name)}
    if type(order.plan) is not type(training.plan) or msgspec.structs.replace(order.plan, **free) != training.plan:
        raise DataError("the order has other parameters than the training; a revocation grows the same without a party")
    if order.subsets != training.subsets:
        raise DataError(
            "the model was trained on a part of the rows, and the order is for another one: revoke from the model that "
            "was fitted on this part (on the command line, with the --split of the training)"
        )


def revoke_rows_job(
    order: RevokeRowsOrder, opening: msg.OpenJob, host: CoordinatorHost
) -> Generator[Round, dict[str, Message], WholeParts | None]:
    """Grow the forest without the leaver. None where all is done already."""
    if host.store.receipt(order.job) is not None:
        return None
    return (yield from train_rows_job(order, opening, host))


def keep_rows_revocation(kept: Kept, outcome: WholeParts | None) -> dict[str, Any]:
    """Store the new model and the receipt, and replace the former model by it."""
    store, order = kept.store, kept.order
    before = _left_model(store, order)
    store.note_untold(order.job, order.leaver)
    if outcome is not None:
        former = store.forest(order.model)
        keep_training(kept, outcome, before.epoch + 1)
        forests = (former.coordinator, outcome[0])
        sizes = [np.diff(forest.structure.offset) for forest in forests]
        n_trees = max(len(size) for size in sizes)
        removed, regrown = (np.pad(size, (0, n_trees - len(size))).tolist() for size in sizes)
        parts = (former.shared[HOLDER], outcome[1])
        digests = [
            {"coordinator": forest_id_of(forest), "whole forest": fingerprint_of(part)}
            for forest, part in zip(forests, parts, strict=True)
        ]
        after = store.model_facts(order.job)
        stated = {
            "before": digests[0], "after": digests[1], "trees": tree_changes(removed, regrown), "scores": None,
        }  # fmt: skip
        _keep_receipt(store, kept.identity, order, before, after, after.n_nodes, stated)
    if not before.replaced_by:
        store.retire_model(order.model, order.job)
    return _told(store.model_facts(order.job))
