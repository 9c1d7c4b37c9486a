"""Jobs of linear models between parties with different columns of the same rows."""

from __future__ import annotations

import hashlib
import hmac

from woodlot.exceptions import RemoteProtocolError
from woodlot.jobs import job_messages as msg
from woodlot.jobs.columns.columns_work import FOREST, OPENING, ColumnsWork
from woodlot.jobs.home import TakenOrder, private_errors
from woodlot.jobs.led.dealing import DealtSigner
from woodlot.jobs.linear.linear_orders import PredictLinearOrder, TrainLinearOrder
from woodlot.jobs.ordered import OrderedDescent
from woodlot.jobs.orders import AlignedOrder
from woodlot.protocols.core.handling import takes
from woodlot.protocols.core.message import Message
from woodlot.protocols.linear import linear_messages
from woodlot.protocols.linear.hidden_linear_party import HiddenLinearParty
from woodlot.protocols.linear.linear_party import LinearParty, LinearState
from woodlot.protocols.revocable.key_messages import TestRows

DESCENT = tuple(
    kind for kind in {**LinearParty.handlers, **HiddenLinearParty.handlers} if kind is not linear_messages.OpenLinear
)
"""What is for the model that is fitted or used here."""


class LinearWork(ColumnsWork, refuses=(*OPENING, *FOREST, TestRows)):
    """What a party does for an order to fit a linear model, or to predict with one; rows are aligned as ever."""

    def __init__(self, taken: TakenOrder[AlignedOrder]) -> None:
        super().__init__(taken)
        self._linear: LinearParty | None = None
        order = taken.order
        self._descent: OrderedDescent | None = None
        if isinstance(order, TrainLinearOrder):
            self.home.policy.check_protection(order.plan.protection)
            self._descent = OrderedDescent(order.plan, order.row_parties)

    @takes(*DESCENT)
    def _ask_linear(self, message: Message) -> Message:
        if self._linear is None:
            raise RemoteProtocolError(
                f"Unexpected {type(message).__name__}; expected after a training or a model has been opened"
            )
        if self._descent is not None:
            self._descent.check(message)
        reply = self._linear.handle(message)
        if self._descent is not None:
            self._descent.note(message)
        return reply

    @takes(linear_messages.OpenLinear)
    def _on_OpenLinear(self, message: linear_messages.OpenLinear) -> Message:
        order = self._due(TrainLinearOrder)
        plan = order.plan
        if (message.centred, message.standardised) != (plan.fit_intercept, plan.standardize):
            raise RemoteProtocolError("the order does not ask for such a model")
        if self._linear is not None:
            raise RemoteProtocolError("a training is open here already")
        rows = self._common_rows()
        with private_errors(self.job, "its labels or its table cannot be used"):
            own = self._taken.loaded.table().select(self._features()).take(rows)
            name, target = self.home.identity.name, self._target(order.plan.task, order.holder, rows)
            if plan.protection == "hidden":
                home = self.home
                # other data has other secrets, so that no two contents are hidden alike
                about = hashlib.sha256(self._taken.loaded.digest.encode() + rows.tobytes()).hexdigest()
                self._linear = HiddenLinearParty(
                    name,
                    own,
                    target=target,
                    entropy=lambda purpose: home.store.secret_for(self.job, f"linear {purpose} {about}"),
                    job=self.job,
                    signer=DealtSigner(home.identity, home.trust, lambda: home.replays(self.job), order.coordinator),
                )
            else:
                self._linear = LinearParty(name, own, target=target)
        return self._linear.handle(message)

    def _on_KeepModel(self, message: msg.KeepModel) -> msg.ModelKept:
        order = self._due(TrainLinearOrder)
        if self._linear is None or self._linear.state != LinearState.fitted:
            raise RemoteProtocolError("Unexpected KeepModel; expected after the model has been fitted")
        part, leader = self._linear.fitted_part(), order.leader
        digest = self.home.store.keep_linear(self.job, message.forest, part, leader)
        self._keep_seen()
        secret = self.home.store.secret_for("linear", "fingerprint")
        return msg.ModelKept(digest=hmac.new(secret, digest.encode(), hashlib.sha256).hexdigest())

    def _on_UseModel(self, message: msg.UseModel) -> msg.ModelReady:
        rows = self._rows_to_predict(self._due(PredictLinearOrder), message)
        part = self.home.store.linear(message.model, message.forest)
        with self._private_table():
            fitted = LinearParty(
                self.home.identity.name,
                self._taken.loaded.table().select(self._taken.loaded.features).take_or_missing(rows),
                model=part,
                known=None if (rows >= 0).all() else rows >= 0,
            )
        self._spend(rows)
        self._linear = fitted
        return msg.ModelReady()
