"""A party's part in a revocation: it regrows its part of a forest without the leaver, then drops the former one."""

from __future__ import annotations

from woodlot.exceptions import RemoteProtocolError
from woodlot.jobs import job_messages as msg
from woodlot.jobs.columns.columns_work import ALIGNMENT, FOREST, ColumnsWork
from woodlot.jobs.hidden.ordered_hidden import check_hidden_leaving, training_without
from woodlot.jobs.hidden_roles import named_dealer
from woodlot.jobs.home import TakenOrder, private_errors
from woodlot.jobs.ordered import OrderedRegrowing
from woodlot.jobs.orders import RevokeOrder, TrainOrder
from woodlot.protocols.align import align_messages
from woodlot.protocols.core.forest_parts import PartyForest
from woodlot.protocols.core.forest_plan import ForestPlan
from woodlot.protocols.core.handling import takes
from woodlot.protocols.core.message import Message
from woodlot.protocols.revocable.key_messages import TestRows
from woodlot.protocols.vertical import forest_messages
from woodlot.protocols.vertical.regrowing import RegrowingParty

_REFUSED: tuple[type[Message], ...] = (
    align_messages.OpenAlignment,
    *ALIGNMENT,
    msg.KeepAlignment,
    *(kind for kind in FOREST if kind not in RegrowingParty.handlers),
    TestRows,
    msg.TakeAnswers,
)
"""A revocation works on the rows of the training and predicts nothing; trees are replanted, not planted."""


class RevokeWork(ColumnsWork, refuses=_REFUSED):
    """What a party does for an order to revoke; it is made on the table and the rows of the training."""

    def __init__(self, taken: TakenOrder[RevokeOrder]) -> None:
        super().__init__(taken)
        self._revocation = taken.order
        self._former: PartyForest | None = None
        self._former_plan: ForestPlan | None = None
        self._kept = False
        self.home.store.check_leaver(taken.order.model, taken.order.leaver, taken.part.label)
        protection = self.home.store.plan_of(taken.order.model, ForestPlan).protection
        self.home.policy.check_protection(protection)
        self.home.policy.check_dealer(named_dealer(taken.order.dealer))
        check_hidden_leaving(taken.order, hidden=protection == "hidden")

    def _features(self) -> list[str]:
        """Those of the training."""
        before = self.home.store.features_of(self._revocation.model)
        return [name for name in self._taken.features if before is None or name in before]

    @takes(forest_messages.ReplantTrees, forest_messages.RegrowLevel)
    def _ask_forest(self, message: Message) -> Message:
        return super()._ask_forest(message)

    def _on_UseModel(self, message: msg.UseModel) -> msg.ModelReady:
        order = self._revocation
        if message.model != order.model or message.n_rows != len(self._common_rows()):
            raise RemoteProtocolError("the order is for another model, or for other rows")
        if order.alignment != order.model:
            raise RemoteProtocolError("a revocation works on the rows of the training, and the order names others")
        plan = self.home.store.plan_of(message.model, ForestPlan)
        self.home.policy.check_plan(plan)
        self._former = self.home.store.model(message.model, message.forest, by=self.job)
        self._former_plan = plan
        return msg.ModelReady()

    def _plan(self) -> ForestPlan | None:
        return self._former_plan

    def _hidden_order(self) -> TrainOrder:
        """The hidden training that this is, where the former one was hidden, too."""
        if self._former_plan is None:
            raise RemoteProtocolError("the former model was not opened here")
        return training_without(self._revocation, self._former_plan)

    def _on_OpenTraining(self, message: forest_messages.OpenTraining) -> Message:
        if self._former_plan is not None and self._former_plan.protection == "hidden":
            raise RemoteProtocolError("this forest was grown hidden, and is grown again hidden; this training is open")
        if self._forest is None:
            rows, part = self._common_rows(), self._taken.part
            with private_errors(self.job, "its labels or its table cannot be used"):
                table = self._table(rows, self._features())
                former, plan = self._former, self._former_plan
                if former is None or plan is None:
                    raise RemoteProtocolError("the former model was not opened here")
                self._forest = RegrowingParty(
                    self.home.identity.name,
                    table,
                    former=former,
                    target=None if part.label is None else self._own_target(self._revocation.task == "classes", rows),
                    secret=self.home.store.secret_for("forest", "codes"),
                    job_secret=self.home.store.secret_for(self.job, "labels"),
                    shares_model=self.home.policy.share_model,
                    sealed_only="decisions" not in self.home.policy.wire_forms,
                    min_leaf=self.home.policy.min_samples_leaf,
                    n_jobs=self.home.n_jobs,
                )
            self._watch = OrderedRegrowing(plan, len(rows), former.structure.n_trees)
        return self._ask(self._forest, message)

    def _on_KeepModel(self, message: msg.KeepModel) -> msg.ModelKept:
        kept = super()._on_KeepModel(message)
        self._kept = True
        return kept

    @takes(msg.DropModel)
    def _on_DropModel(self, message: msg.DropModel) -> msg.ModelDropped:
        order = self._revocation
        if not self._kept or (message.model, message.leaver) != (order.model, order.leaver):
            raise RemoteProtocolError("the former model is erased when the new one is kept, and no other")
        self.home.store.drop_model(order.model, self.job)
        return msg.ModelDropped()
