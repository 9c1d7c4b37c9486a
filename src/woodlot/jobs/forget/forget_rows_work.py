"""A client's part in forgetting rows of a forest over rows: it grows the forest again on its other rows."""

from __future__ import annotations

import hashlib

import msgspec

from woodlot.data.decoding import from_json
from woodlot.data.ids import canonical_ids
from woodlot.exceptions import DataError, PolicyError, ReceiptError, RemoteProtocolError
from woodlot.identity.erasure import CONFIRMED, ErasureStatement, check_erasure, digests_of, statement_paper
from woodlot.jobs.forget.forget_messages import EndForgetting, ForgettingSigned, OpenForgetting, RowsFound
from woodlot.jobs.forget.forget_orders import MAX_FORGOTTEN, ForgetRowsOrder
from woodlot.jobs.forget.training_rows import own_rows_left
from woodlot.jobs.home import TakenOrder, private_errors
from woodlot.jobs.orders import Part
from woodlot.jobs.party_store import PartyStore
from woodlot.jobs.rows.row_records import RowTrainingRecord
from woodlot.jobs.rows.rows_work import GrowRowsWork, check_row_plan, selected_digest
from woodlot.protocols.core.message import Message
from woodlot.protocols.rows.row_forgetting import check_forgets, plan_of_all


class ForgetRowsWork(GrowRowsWork):
    """What a client does for an order to forget rows of a forest over rows.

    It grows by the plan that it was ordered in the training, on the rows of the training: what has come to its table
    since is not learnt from. The order of its messages: OpenForgetting, those of the method, EndForgetting.
    """

    def __init__(self, taken: TakenOrder[ForgetRowsOrder]) -> None:
        self._forgetting = order = taken.order
        store = taken.home.store
        self._ids, self._key = _ids_of(taken.part)
        training = store.row_training(order.model, by=order.job)
        if training is None:
            raise DataError(
                "it does not know by which plan, and on which rows, this forest was grown: it keeps that where its "
                "policy lists 'forget' when the forest is trained; train it again without the rows"
            )
        _check_same(taken, training)
        check_forgets(training.plan)
        plan = plan_of_all(training.plan)
        check_row_plan(taken, plan)
        with private_errors(taken.job, "its ids cannot be used"):
            own = canonical_ids(taken.loaded.ids)
        left = own_rows_left(store, order.model, own, self._ids)
        self._found, self._gone = left.found, left.gone
        gone_by = [name for name in training.features if name not in taken.features]
        if gone_by:
            raise DataError("its table does not offer all columns of the training any more; put them back")
        super().__init__(taken, plan, left.rows, training.features, selected_digest(taken, left.rows))
        self._left = _left_before(store, training)
        self._forest = ""
        self._began = False

    def _has_forgotten(self) -> bool:
        return True

    def handle(self, message: Message) -> Message:
        """Answer one message."""
        if isinstance(message, OpenForgetting):
            return self._open(message)
        if not self._forest:
            raise RemoteProtocolError(f"Unexpected {type(message).__name__}; expected after OpenForgetting")
        if isinstance(message, EndForgetting):
            return self._end(message)
        reply = super().handle(message)
        self._began = True
        return reply

    def _open(self, message: OpenForgetting) -> RowsFound:
        if message.model != self._forgetting.model:
            raise RemoteProtocolError("the order is for another model")
        if self._forest not in ("", message.forest):
            raise RemoteProtocolError("OpenForgetting names another forest than before")
        self._forest = message.forest
        return RowsFound(
            rows=self._gone, named=digests_of(self._ids, self._key), found=digests_of(self._found, self._key)
        )

    def _end(self, message: EndForgetting) -> ForgettingSigned:
        if not self._began:
            raise RemoteProtocolError("Unexpected EndForgetting; expected after the forest has grown")
        statement = self._checked(message.statement)
        order, home = self._forgetting, self._taken.home
        for model in (order.model, *self._left):
            home.store.drop_row_training(model, order.job)
        home.store.erase_answers_for(order.model, order.job, self._ids)
        signature = home.identity.sign(statement_paper(statement), CONFIRMED)
        return ForgettingSigned(certificate=home.identity.certificate, signature=signature)

    def _checked(self, text: str) -> ErasureStatement:
        """What a receipt states, as far as this party knows of it: its own rows, all ids, and the former forest."""
        try:
            statement = from_json(text.encode(), ErasureStatement)
            check_erasure(statement)
        except (ValueError, ReceiptError):
            raise RemoteProtocolError("EndForgetting does not carry what a receipt states") from None
        if (
            statement.model != self._forest
            or statement.before.get("coordinator") != self._forest
            or statement.rows < self._gone
            or not set(digests_of(self._ids, self._key)) <= set(statement.ids)
            or len(statement.ids) - statement.unknown < len(self._found)
            or statement.parties != self._parties
        ):
            raise RemoteProtocolError("the receipt states something else than this party has done")
        return statement


def _ids_of(part: Part) -> tuple[tuple[bytes, ...], bytes]:
    """The ids that this party is to look for, and the key of their digests."""
    if isinstance(part.ids, msgspec.UnsetType):
        return (), b""
    if not 1 <= len(part.ids) <= MAX_FORGOTTEN:
        raise DataError(f"an order to forget names the ids of 1 to {MAX_FORGOTTEN:,} rows")
    if len(set(part.ids)) < len(part.ids) or len(part.key) != hashlib.sha256().digest_size:
        raise DataError("an order to forget names each id once, and a key of 32 bytes for their digests")
    return part.ids, part.key


def _check_same(taken: TakenOrder[ForgetRowsOrder], training: RowTrainingRecord) -> None:
    """Refuse an order that is not about the training that this party knows."""
    part = taken.part
    if set(taken.order.parties) != set(training.parties):
        raise DataError("all parties of the training must take part, and no others")
    if part.table != training.table:
        raise DataError("the order names another table than the training")
    if (part.label, part.weight) != (training.label, training.weight):
        raise PolicyError("the order names another label, or other weights, than the training of this model")


def _left_before(store: PartyStore, training: RowTrainingRecord) -> list[str]:
    """The models from which parties have left to this one, where their rows are still known here."""
    models: list[str] = []
    found: RowTrainingRecord | None = training
    while found is not None and found.before and found.before not in models:
        models.append(found.before)
        found = store.row_training(found.before)
    return models if found is not None else models[:-1]
