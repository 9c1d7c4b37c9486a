"""What the leader does to have rows forgotten: the forest is grown without them, kept, and signed for by all parties.

The forest without the rows is a new model; the former one stays in use until the new one is complete at every party.
Then each party checks and signs what the receipt states, and drops its former part. A crash anywhere on the way is a
job that goes on from its journal.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
import numpy as np

from woodlot.exceptions import DataError, RemoteProtocolError
from woodlot.identity.erasure import (
    NOT_REACHED,
    ErasureStatement,
    check_erasure,
    digests_of,
    make_erasure,
    statement_text,
)
from woodlot.identity.receipts import MemberKey, Signed, signature_of, tree_changes
from woodlot.jobs import job_messages as msg
from woodlot.jobs.columns.common_rows import CommonRowCounts, open_rows, row_facts
from woodlot.jobs.forget import forget_messages
from woodlot.jobs.forget.forget_orders import ForgetOrder, ForgetRowsOrder
from woodlot.jobs.forget.forget_work import ForgetWork
from woodlot.jobs.job_store import JobStore
from woodlot.jobs.kind import CoordinatorHost, Kept
from woodlot.protocols.core.message import Message, Round
from woodlot.protocols.core.replies import reply_of
from woodlot.protocols.vertical.completion import CompletedForest, grow_forest
from woodlot.protocols.vertical.files import StoredForest, forest_id_of

ALL_AGAIN = "between organisations all trees are grown again without the rows"
"""Why, as receipts say."""
ALSO_NOT_REACHED = (
    *NOT_REACHED,
    "parties' own records of which rows were evaluated, compared or in hidden trainings, as keyed digests of ids",
)
HIDDEN = "this forest has grown on secret shares (protection='hidden'); train it again without the rows"
REVOCABLE = "revocable forests forget no rows; train it again without them"
LINEAR = "this is a linear model, and only forests forget rows; train it again without them"


@dataclass(frozen=True, eq=False)
class ForgottenRows:
    """The outcome: the forest without the rows, and what all parties have signed."""

    aligned: CommonRowCounts
    grown: CompletedForest
    statement: ErasureStatement
    confirmed: dict[str, Signed]
    key: bytes


def forget_job(
    order: ForgetOrder, opening: msg.OpenJob, host: CoordinatorHost
) -> Generator[Round, dict[str, Message], ForgottenRows | None]:
    """Have rows forgotten. Runs at the label holder. None where all is done already, and only its end not recorded."""
    store = host.store
    if store.receipt(order.job) is not None:
        return None
    facts, former = store.model_facts(order.model), store.forest(order.model).coordinator
    aligned = yield from open_rows(order, opening, host)
    own = host.own
    if not isinstance(own, ForgetWork):
        raise DataError("rows are forgotten by the label holder's service; train the model with lead='holder'")
    use = forget_messages.OpenForgetting(model=order.model, forest=facts.forest)
    replies = yield Round("open", dict.fromkeys(order.parties, use))
    opened = {p: reply_of(replies[p], forget_messages.ForgettingOpened, p) for p in order.parties}
    first = opened[facts.holder]
    for party, found in opened.items():
        if (found.rows, found.unknown, found.kept) != (first.rows, first.unknown, first.kept):
            raise RemoteProtocolError(
                f"{party!r} finds other rows of these ids than {facts.holder!r}: nothing was done"
            )
    grown = yield from grow_forest(own.plan, order.parties, facts.holder, host.n_jobs)
    forest = grown.forest
    fingerprint = forest_id_of(forest)
    replies = yield Round("keep", dict.fromkeys(order.parties, msg.KeepModel(forest=fingerprint)))
    after = {p: reply_of(replies[p], msg.ModelKept, p).digest for p in order.parties}
    sizes = [np.diff(structure.offset).tolist() for structure in (former.structure, forest.structure)]
    statement = ErasureStatement(
        model=facts.forest, created=datetime.fromtimestamp(order.created, UTC).isoformat(timespec="seconds"),
        rows=first.rows, unknown=first.unknown, ids=digests_of(own.ids, own.key),
        before={"coordinator": facts.forest} | {p: opened[p].digest for p in order.parties},
        after={"coordinator": fingerprint} | after,
        rows_left=forest.n_rows, again=ALL_AGAIN, searched=0, stood=0, trees=tree_changes(*sizes),
        nodes_before=former.structure.n_nodes, nodes_after=forest.structure.n_nodes, seconds=0.0, proved=True,
        not_reached=ALSO_NOT_REACHED, parties=order.parties,
    )  # fmt: skip
    check_erasure(statement)
    end = forget_messages.EndForgetting(statement=statement_text(statement))
    replies = yield Round("sign", dict.fromkeys(order.parties, end))
    signed = {p: reply_of(replies[p], forget_messages.ForgettingSigned, p) for p in order.parties}
    confirmed = {p: signature_of(reply.certificate, reply.signature) for p, reply in signed.items()}
    return ForgottenRows(aligned, grown, statement, confirmed, own.key)


def check_forgetting(store: JobStore, order: ForgetOrder) -> None:
    """Refuse a model that no rows can be taken out of, or an order that is not for all its parties."""
    facts = store.model_facts(order.model)
    check_model(facts, linear=store.is_linear(order.model))
    if facts.replaced_by:
        raise DataError(f"model {order.model} was replaced by {facts.replaced_by}; forget the rows in that one")
    if set(order.parties) != set(facts.parties):
        raise DataError(f"all parties of the model must take part: {sorted(facts.parties)}")


def check_model(facts: msg.ModelFacts, *, linear: bool) -> None:
    """Refuse a model that is no open federated forest over columns, which its label holder leads."""
    if facts.layout != "columns":
        raise DataError("this model was grown over the rows of its parties: order forget-rows")
    for found, why in ((facts.is_hidden, HIDDEN), (facts.revocable, REVOCABLE), (linear, LINEAR)):
        if found:
            raise DataError(why)
    if not facts.leader:
        raise DataError(
            "the coordinator runs the jobs of this model (lead='coordinator'); rows are forgotten where the label "
            "holder leads: train it with lead='holder', the default"
        )


def keep_forgetting(kept: Kept, outcome: ForgottenRows | None) -> dict[str, Any]:
    """Store the new model and the receipt, replace the former model, and erase what it has answered."""
    store, order = kept.store, kept.order
    before = replaceable(store, order)
    told: dict[str, Any] = {}
    if outcome is not None:
        grown, forest = outcome.grown, outcome.grown.forest
        splits = np.bincount(forest.owner[forest.owner >= 0], minlength=len(forest.parties))
        after = msgspec.structs.replace(
            successor_of(before, order, kept.facts, kept.account), forest=forest_id_of(forest),
            n_rows=forest.n_rows, n_nodes=forest.structure.n_nodes, unwilling=grown.unwilling,
            complete=not grown.unwilling, classes=forest.classes, oob_score=grown.oob.score,
            oob_curve=grown.oob.points(),
            splits={party: int(n) for party, n in zip(forest.parties, splits, strict=True)},
        )  # fmt: skip
        store.keep_model(after, StoredForest(forest, {}, grown.shared, {}), grown.oob)
        receipt = make_erasure(outcome.statement, MemberKey(kept.identity), outcome.key, outcome.confirmed)
        store.keep_receipt(order.job, receipt.to_json())
        told = row_facts(outcome.aligned)
    store.erase_answers_of(order.model)
    if not before.replaced_by:
        store.retire_model(order.model, order.job)
    facts = store.model_facts(order.job)
    return told | {"model": facts.model, "n_rows": facts.n_rows, "name": facts.name, "score": facts.oob_score}


def replaceable(store: JobStore, order: ForgetOrder | ForgetRowsOrder) -> msg.ModelFacts:
    """What is known of the model that loses rows; refuses one that another job has replaced."""
    before = store.model_facts(order.model)
    if before.replaced_by not in ("", order.job):
        raise DataError(
            f"model {order.model} was replaced by {before.replaced_by} while this job ran; forget in that one"
        )
    return before


def successor_of(
    before: msg.ModelFacts, order: ForgetOrder | ForgetRowsOrder, facts: msg.JobFacts, account: dict[str, str]
) -> msg.ModelFacts:
    """What is known of the model without the rows, wherever it is kept."""
    return msgspec.structs.replace(
        before, model=order.job, created=facts.created, user=facts.user, forgets=order.model,
        disclosure=account["disclosure"], cost=account["cost"],
    )  # fmt: skip
