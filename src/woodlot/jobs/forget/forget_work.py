"""A party's part in forgetting rows: it grows the forest on the other rows, then drops its former part."""

from __future__ import annotations

import hashlib
import hmac

import msgspec
import numpy as np
from numpy.typing import NDArray

from woodlot.data.decoding import from_json
from woodlot.data.ids import canonical_ids
from woodlot.exceptions import DataError, PolicyError, ReceiptError, RemoteProtocolError
from woodlot.identity.erasure import CONFIRMED, ErasureStatement, check_erasure, digests_of, statement_paper
from woodlot.jobs import job_messages as msg
from woodlot.jobs.columns.columns_work import ALIGNMENT, ColumnsWork
from woodlot.jobs.forget import forget_messages
from woodlot.jobs.forget.forget_orders import MAX_FORGOTTEN, ForgetOrder
from woodlot.jobs.forget.training_rows import kept_rows
from woodlot.jobs.hidden.hidden_part import HIDDEN
from woodlot.jobs.home import TakenOrder, private_errors
from woodlot.jobs.party_store import read_alignment
from woodlot.protocols.align import align_messages
from woodlot.protocols.core.forest_plan import ForestPlan
from woodlot.protocols.core.handling import takes
from woodlot.protocols.core.message import Message
from woodlot.protocols.revocable.key_messages import TestRows
from woodlot.protocols.vertical import forest_messages
from woodlot.protocols.vertical.files import fingerprint_of

_REFUSED: tuple[type[Message], ...] = (
    align_messages.OpenAlignment,
    *ALIGNMENT,
    *HIDDEN,
    msg.KeepAlignment,
    msg.UseModel,
    msg.TakeAnswers,
    TestRows,
)
"""Rows are forgotten of a training that was aligned before, in the open, and nothing is predicted."""


class ForgetWork(ColumnsWork, refuses=_REFUSED):
    """What a party does for an order to forget.

    Attributes
    ----------
    ids : tuple of bytes
        The ids that the order names.
    key : bytes
        Of their digests in the receipt.

    """

    def __init__(self, taken: TakenOrder[ForgetOrder]) -> None:
        part, order = taken.part, taken.order
        if isinstance(part.ids, msgspec.UnsetType) or not 1 <= len(part.ids) <= MAX_FORGOTTEN:
            raise DataError(f"an order to forget names the ids of 1 to {MAX_FORGOTTEN:,} rows")
        if len(set(part.ids)) < len(part.ids) or len(part.key) != hashlib.sha256().digest_size:
            raise DataError("an order to forget names each id once, and a key of 32 bytes for their digests")
        self.ids, self.key = part.ids, part.key
        self._forgetting = order
        self._rows_gone, self._unknown = 0, 0
        facts, _ = read_alignment(taken.home.store.folder, order.model)
        if set(order.row_parties) != set(facts.parties):
            raise DataError("all parties of the training must take part, and no others")
        if facts.label is not None and part.label != facts.label:
            raise PolicyError("the order names another label than the one that this model was trained with")
        self._former_plan = taken.home.store.plan_of(order.model, ForestPlan)
        taken.home.policy.check_protection(self._former_plan.protection)
        if self._former_plan.protection == "hidden":
            raise DataError("this forest has grown on secret shares (protection='hidden'), and forgets no rows")
        taken.home.policy.check_plan(self._former_plan)
        super().__init__(taken)
        self._before = ""
        self._after = ""

    @property
    def plan(self) -> ForestPlan:
        """By which the forest is grown."""
        return self._former_plan

    def _known_rows(self) -> NDArray[np.int64]:
        """Own row of each row of the training that stays."""
        loaded = self._taken.loaded
        with private_errors(self.job, "its ids cannot be used"):
            own = canonical_ids(loaded.ids)
        found = kept_rows(self.home.store, self._forgetting.model, loaded, own, self.ids)
        if len(found.rows) == 0:
            raise DataError("these are all rows of the model; delete the model instead")
        self._rows_gone, self._unknown = found.gone, found.unknown
        self._kept_digest = hashlib.sha256(found.kept.astype("<i8").tobytes()).hexdigest()
        return found.rows

    def _features(self) -> list[str]:
        """Those of the training."""
        before = self.home.store.features_of(self._forgetting.model)
        return [name for name in self._taken.features if before is None or name in before]

    def _plan(self) -> ForestPlan:
        return self._former_plan

    @takes(forget_messages.OpenForgetting)
    def _on_OpenForgetting(self, message: forget_messages.OpenForgetting) -> forget_messages.ForgettingOpened:
        order, store = self._forgetting, self.home.store
        if message.model != order.model:
            raise RemoteProtocolError("the order is for another model")
        part = store.model(order.model, message.forest, by=self.job)
        self._before = self._keyed(fingerprint_of(part))
        return forget_messages.ForgettingOpened(
            rows=self._rows_gone, unknown=self._unknown, kept=self._kept_digest, digest=self._before
        )

    def _on_OpenTraining(self, message: forest_messages.OpenTraining) -> Message:
        if not self._before:
            raise RemoteProtocolError("Unexpected OpenTraining; expected after OpenForgetting")
        leader = self._forgetting.leader
        return self._grow_by(self._former_plan, "" if leader is None else leader, message)

    def _on_KeepModel(self, message: msg.KeepModel) -> msg.ModelKept:
        kept = super()._on_KeepModel(message)
        self._after = kept.digest
        return kept

    @takes(forget_messages.EndForgetting)
    def _on_EndForgetting(self, message: forget_messages.EndForgetting) -> forget_messages.ForgettingSigned:
        if not self._after:
            raise RemoteProtocolError("Unexpected EndForgetting; expected after the forest without the rows is kept")
        statement = self._checked(message.statement)
        order, store, identity = self._forgetting, self.home.store, self.home.identity
        store.drop_model(order.model, self.job)
        store.erase_answers_for(order.model, self.job, self.ids)
        signature = identity.sign(statement_paper(statement), CONFIRMED)
        return forget_messages.ForgettingSigned(certificate=identity.certificate, signature=signature)

    def _checked(self, text: str) -> ErasureStatement:
        """What a receipt states, where this party's own records say the same."""
        name = self.home.identity.name
        try:
            statement = from_json(text.encode(), ErasureStatement)
            check_erasure(statement)
        except (ValueError, ReceiptError):
            raise RemoteProtocolError("EndForgetting does not carry what a receipt states") from None
        rows = (statement.rows, statement.unknown, statement.rows_left)
        parts = (statement.before.get(name), statement.after.get(name))
        if (
            rows != (self._rows_gone, self._unknown, len(self._common_rows()))
            or parts != (self._before, self._after)
            or statement.ids != digests_of(self.ids, self.key)
            or statement.parties != self._forgetting.parties
        ):
            raise RemoteProtocolError("the receipt states something else than this party has done")
        return statement

    def _keyed(self, digest: str) -> str:
        secret = self.home.store.secret_for("forest", "fingerprint")
        return hmac.new(secret, digest.encode(), hashlib.sha256).hexdigest()
