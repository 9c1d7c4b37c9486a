"""Deleting a model as a kind of job: every party erases its part, then the coordinator erases its own.

Only the user who has ordered the model may delete it, as the coordinator finds in its records; a party asks its policy
whether that user may train. All parties have taken the order before the first erases anything. The job needs no table
and tells nothing. Its messages are in the journals of all sides, and the job in the list of jobs: that a model was
deleted, when and by whom, stays.
"""

from __future__ import annotations

import logging
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from woodlot.exceptions import DataError, RemoteProtocolError
from woodlot.jobs.delete.delete_messages import EraseModel, ModelErased
from woodlot.jobs.home import AskedOrder
from woodlot.jobs.job_messages import OpenJob
from woodlot.jobs.job_store import JobStore
from woodlot.jobs.orders import JobId, Order
from woodlot.protocols.core.handling import MessageHandler, takes
from woodlot.protocols.core.message import Message, Round
from woodlot.protocols.core.replies import reply_of

if TYPE_CHECKING:
    from woodlot.jobs.kind import CoordinatorHost, Kept
    from woodlot.privacy.accounting import Unit

logger = logging.getLogger(__name__)


class DeleteOrder(Order, frozen=True, kw_only=True, tag="delete"):
    """Have a model erased wherever it is kept.

    Attributes
    ----------
    model : str
        The job by which it was grown. All its parties take part.

    """

    model: JobId


def check_deletion(store: JobStore, order: DeleteOrder) -> None:
    """Refuse to delete a model that is in use, was replaced, or has keys at other members."""
    facts = store.model_facts(order.model)
    if facts.replaced_by:
        raise DataError(
            f"model {order.model} was erased when a party left it, and replaced by {facts.replaced_by}; delete that one"
        )
    if facts.revocable or store.has_keys(order.model):
        raise DataError(
            f"helper and key service have keys or shares of model {order.model}, which this order does not reach; have "
            "parties leave it with new keys instead (woodlot revoke MODEL PARTY --level 2)"
        )
    if set(order.parties) != set(facts.parties):
        raise DataError(f"all parties of the model must take part in its deletion: {', '.join(sorted(facts.parties))}")
    for job in store.open_jobs_of(order.model):
        raise DataError(f"job {job.job} with model {order.model} {job.standing}; let it end, or cancel it, then delete")


def delete_job(
    order: DeleteOrder, opening: OpenJob, host: CoordinatorHost
) -> Generator[Round, dict[str, Message], None]:
    """Have every party erase its part; the coordinator's own is the last."""
    yield Round("open", dict.fromkeys(order.parties, opening))
    replies = yield Round("delete", dict.fromkeys(order.parties, EraseModel(model=order.model)))
    for party in order.parties:
        reply_of(replies[party], ModelErased, party)


def keep_deletion(kept: Kept, outcome: None) -> dict[str, Any]:
    """Erase what is kept here; where that was done before a crash, there is nothing left to erase."""
    kept.store.delete_model(kept.order.model)
    return {}


class DeleteWork(MessageHandler):
    """A party's side: it erases its part, and as the leader of the model's jobs also what it keeps of the model."""

    n_aligned = None
    uncovered: tuple[Unit, ...] = ()

    def __init__(self, asked: AskedOrder[DeleteOrder]) -> None:
        self._asked = asked

    @takes(EraseModel)
    def erase(self, message: EraseModel) -> ModelErased:
        """Erase the model that the order names, and no other."""
        home, order = self._asked.home, self._asked.order
        if message.model != order.model:
            raise RemoteProtocolError("the order is to delete another model")
        home.store.erase_model(order.model)
        if home.lead is not None:
            home.lead.store.delete_model(order.model)
        logger.info(
            "model %s is deleted, by an order of %s", order.model, self._asked.user,
            extra={"job": order.job, "user": self._asked.user},
        )  # fmt: skip
        return ModelErased()
