"""What the coordinator does to have rows of a forest over rows forgotten: all clients grow it again without them.

The forest without the rows is a new model, and the former one stays in use until the new one is complete. Then each
client checks and signs what the receipt states, and drops what it has kept of the former. A crash anywhere on the way
is a job that goes on from its journal.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
import numpy as np

from woodlot.exceptions import DataError, RemoteProtocolError
from woodlot.identity.erasure import ErasureStatement, check_erasure, make_erasure, statement_text
from woodlot.identity.receipts import MemberKey, Signed, signature_of, tree_changes
from woodlot.jobs import job_messages as msg
from woodlot.jobs.forget.forget_jobs import ALL_AGAIN, ALSO_NOT_REACHED, replaceable, successor_of
from woodlot.jobs.forget.forget_messages import EndForgetting, ForgettingSigned, OpenForgetting, RowsFound
from woodlot.jobs.forget.forget_orders import ForgetRowsOrder
from woodlot.jobs.job_store import JobStore
from woodlot.jobs.kind import CoordinatorHost, Kept
from woodlot.jobs.rows.rows_jobs import open_parties, row_training_of
from woodlot.protocols.core.message import Message, Round
from woodlot.protocols.core.replies import reply_of
from woodlot.protocols.rows.row_forgetting import GrownAgain, check_forgets, grow_without_rows, plan_of_all
from woodlot.protocols.rows.whole_forest import HOLDER
from woodlot.protocols.vertical.files import StoredForest, fingerprint_of, forest_id_of, whole_forest_id


@dataclass(frozen=True, eq=False)
class ForgottenOwnRows:
    """The outcome: the whole forest without the rows, and what all clients have signed."""

    grown: GrownAgain
    statement: ErasureStatement
    confirmed: dict[str, Signed]


def forget_rows_job(
    order: ForgetRowsOrder, opening: msg.OpenJob, host: CoordinatorHost
) -> Generator[Round, dict[str, Message], ForgottenOwnRows | None]:
    """Have the forest grown without the rows. None where all is done already, and only its end not recorded."""
    store = host.store
    if store.receipt(order.job) is not None:
        return None
    plan, former = plan_of_all(row_training_of(store, order.model).plan), store.forest(order.model)
    yield from open_parties(order, opening)
    use = OpenForgetting(model=order.model, forest=forest_id_of(former.coordinator))
    replies = yield Round("open", dict.fromkeys(order.parties, use))
    told = {p: reply_of(replies[p], RowsFound, p) for p in order.parties}
    named = {digest for found in told.values() for digest in found.named}
    found = {digest for own in told.values() for digest in own.found}
    if not found <= named:
        raise RemoteProtocolError("a party has found rows of ids that it was not asked for: nothing was done")
    gone = {party: own.rows for party, own in told.items()}
    grown: GrownAgain = yield from grow_without_rows(
        plan, order.parties, former.coordinator, former.shared[HOLDER], gone
    )
    forests, parts = (former.coordinator, grown.forest), (former.shared[HOLDER], grown.part)
    before, after = (
        {"coordinator": forest_id_of(forest), "whole forest": fingerprint_of(part)}
        for forest, part in zip(forests, parts, strict=True)
    )
    sizes = [np.diff(forest.structure.offset).tolist() for forest in forests]
    n_trees = max(map(len, sizes))
    removed, regrown = ([*own, *[0] * (n_trees - len(own))] for own in sizes)
    for tree in grown.kept:
        removed[tree] = regrown[tree] = 0
    statement = ErasureStatement(
        model=before["coordinator"], created=datetime.fromtimestamp(order.created, UTC).isoformat(timespec="seconds"),
        rows=sum(gone.values()), unknown=len(named - found), ids=tuple(sorted(named)), before=before, after=after,
        rows_left=grown.forest.n_rows, again="" if grown.kept else ALL_AGAIN,
        searched=sum(regrown) if grown.kept else 0, stood=0, trees=tree_changes(removed, regrown),
        nodes_before=forests[0].structure.n_nodes, nodes_after=forests[1].structure.n_nodes, seconds=0.0,
        proved=not grown.kept, not_reached=ALSO_NOT_REACHED, parties=order.parties,
    )  # fmt: skip
    check_erasure(statement)
    end = EndForgetting(statement=statement_text(statement))
    replies = yield Round("sign", dict.fromkeys(order.parties, end))
    signed = {p: reply_of(replies[p], ForgettingSigned, p) for p in order.parties}
    confirmed = {p: signature_of(reply.certificate, reply.signature) for p, reply in signed.items()}
    return ForgottenOwnRows(grown, statement, confirmed)


def check_forgetting_rows(store: JobStore, order: ForgetRowsOrder) -> None:
    """Refuse a model that no rows can be taken out of, or an order that is not for all its parties."""
    facts = store.model_facts(order.model)
    if facts.layout != "rows":
        raise DataError("this model was grown over columns of different parties: order forget")
    if facts.replaced_by:
        raise DataError(f"model {order.model} was replaced by {facts.replaced_by}; forget the rows in that one")
    if set(order.parties) != set(facts.parties):
        raise DataError(f"all parties of the model must take part: {sorted(facts.parties)}")
    check_forgets(row_training_of(store, order.model).plan)


def keep_forgetting_rows(kept: Kept, outcome: ForgottenOwnRows | None) -> dict[str, Any]:
    """Store the new model and the receipt, and replace the former model."""
    store, order = kept.store, kept.order
    before = replaceable(store, order)
    if outcome is not None:
        forest, part = outcome.grown.forest, outcome.grown.part
        after = msgspec.structs.replace(
            successor_of(before, order, kept.facts, kept.account), forest=forest_id_of(forest), n_rows=forest.n_rows,
            n_nodes=forest.structure.n_nodes, n_trees=forest.structure.n_trees, classes=forest.classes,
            oob_score=forest.oob_score, epoch=before.epoch + 1, whole=whole_forest_id(forest, part),
        )  # fmt: skip
        store.keep_model(after, StoredForest(forest, {}, {HOLDER: part}, {}))
        receipt = make_erasure(outcome.statement, MemberKey(kept.identity), b"", outcome.confirmed)
        store.keep_receipt(order.job, receipt.to_json())
    if not before.replaced_by:
        store.retire_model(order.model, order.job)
    facts = store.model_facts(order.job)
    return {"model": facts.model, "n_rows": facts.n_rows, "name": facts.name, "score": facts.oob_score}
