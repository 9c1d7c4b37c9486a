"""A party in jobs about revocable forests: it sends labels where it may, recommends splits, and hides its own.

All of a job is in one `Work`, so that a forest is never there without its keys: the part is kept first, then encrypted
or shared under keys of this job (a training, a revocation at level 2) or of the present epoch, and only then is a
former part dropped.
"""

from __future__ import annotations

from typing import Any

from woodlot.exceptions import DataError, PolicyError, RemoteProtocolError
from woodlot.jobs import job_messages as msg
from woodlot.jobs.columns.columns_work import FOREST, OPENING, ColumnsWork
from woodlot.jobs.home import TakenOrder, private_errors
from woodlot.jobs.key_store import forest_of_model
from woodlot.jobs.ordered import OrderedConstruction, PlanWatch
from woodlot.jobs.revocable.provider_work import BEGINS_EPOCH, HIDES_SPLITS, check_epoch, make_provider
from woodlot.jobs.revocable.revocable_orders import RevocableOrder, RevokeRevocableOrder, TrainRevocableOrder
from woodlot.protocols.core.forest_parts import PartyForest
from woodlot.protocols.core.handling import takes
from woodlot.protocols.core.message import Message
from woodlot.protocols.revocable import growth_messages as growing
from woodlot.protocols.revocable import key_messages as keys
from woodlot.protocols.revocable.participant import NO_SPLITS, Participant
from woodlot.protocols.revocable.provider import Provider
from woodlot.protocols.revocable.revocable_plan import RevocablePlan
from woodlot.protocols.revocable.share_provider import ShareProvider
from woodlot.protocols.vertical import forest_messages
from woodlot.protocols.vertical.party import VerticalParty
from woodlot.trees.forest import Splits

_REFUSED: tuple[type[Message], ...] = (
    *OPENING,
    *(kind for kind in FOREST if kind is not forest_messages.AskDecisions),
    keys.TestRows,
    msg.TakeAnswers,
)
"""The forest is constructed, not trained, and is asked only for its own out-of-bag answers."""


class RevocableWork(ColumnsWork, refuses=_REFUSED):
    """What a party does for an order to grow a revocable forest, or to have a party leave one."""

    def __init__(self, taken: TakenOrder[RevocableOrder]) -> None:
        super().__init__(taken)
        self._revocable = order = taken.order
        home, name = taken.home, taken.home.identity.name
        if name in (order.helper, order.key_service):
            raise PolicyError("this is a party, and neither a helper nor a key service")
        home.policy.check_protection("open")
        if name == order.holder:
            home.policy.check_labels_given()
        if order.helper is not None and order.key_service is not None:
            home.policy.check_members(order.helper, order.key_service)
            home.policy.check_keys(order.setting)
        if isinstance(order, RevokeRevocableOrder):  # before labels are sent
            if order.alignment != order.model:
                raise RemoteProtocolError("a revocation works on the rows of the training, and the order names others")
            home.store.check_leaver(order.model, order.leaver, taken.part.label)
        self._participant: Participant | None = None
        self._construction_watch: PlanWatch | None = None
        if isinstance(order, TrainRevocableOrder):  # what a revocation grows again may begin at any node
            home.policy.check_plan(order.plan.forest)
            self._construction_watch = OrderedConstruction(order.plan.n_estimators)
        self._former: PartyForest | None = None
        self._former_plan: RevocablePlan | None = None
        self._part: PartyForest | None = None
        self._provider: Provider | ShareProvider | None = None
        self._kept = ""

    def _features(self) -> list[str]:
        """Those of the order; a revocation takes those of the training."""
        order, own = self._revocable, super()._features()
        before = self.home.store.features_of(order.model) if isinstance(order, RevokeRevocableOrder) else None
        return [name for name in own if before is None or name in before]

    # --- growing ---

    @takes(growing.SendLabels)
    def _on_SendLabels(self, message: growing.SendLabels) -> growing.LabelsSent:
        order = self._revocable
        if order.holder != self.home.identity.name:
            raise RemoteProtocolError("the order does not ask this party for labels")
        classes = order.task == "classes" if isinstance(order, RevokeRevocableOrder) else _is_classes(order)
        with private_errors(self.job, "its labels cannot be used"):
            target = self._own_target(classes, self._common_rows())
        return growing.LabelsSent(classes=target.classes, numbers=target.numbers, values=target.values)

    def _on_UseModel(self, message: msg.UseModel) -> msg.ModelReady:
        order = self._revocable
        if not isinstance(order, RevokeRevocableOrder):
            raise RemoteProtocolError("the order does not ask for that")
        if message.model != order.model or message.n_rows != len(self._common_rows()):
            raise RemoteProtocolError("the order is for another model, or for other rows")
        plan = self.home.store.plan_of(message.model, RevocablePlan)
        self.home.policy.check_plan(plan.forest)
        self._former = self.home.store.model(message.model, message.forest, by=self.job)
        self._former_plan = plan
        return msg.ModelReady()

    @takes(growing.OpenConstruction)
    def _on_OpenConstruction(self, message: growing.OpenConstruction) -> Message:
        regrows = isinstance(self._revocable, RevokeRevocableOrder)
        rows = self._common_rows()
        if (plan := self._construction_plan()) is not None:
            self.home.policy.check_leaf(plan.min_samples_leaf(len(rows)))
        if message.regrows != regrows:
            raise RemoteProtocolError("the order asks for a new forest, or for a former one to be regrown")
        participant = self._participant
        if participant is None:
            with private_errors(self.job, "its table cannot be used"):
                participant = Participant(
                    self.home.identity.name,
                    self._taken.loaded.table().select(self._features()).take(rows),
                    former=self._former,
                    plan=self._construction_plan(),
                    secret=self.home.store.secret_for("forest", "codes"),
                )
        reply = self._construct(participant, message)
        self._participant = participant  # one that refuses may have been made before its former part was opened
        return reply

    def _construction_plan(self) -> RevocablePlan | None:
        """What was ordered; in a revocation, what was when the forest was grown."""
        order = self._revocable
        return order.plan if isinstance(order, TrainRevocableOrder) else self._former_plan

    def _plan(self) -> RevocablePlan | None:
        return self._construction_plan()

    def _construct(self, participant: Participant, message: Message) -> Message:
        """Ask the participant, unless the user has ordered something else."""
        watch = self._construction_watch
        if watch is not None:
            watch.check(message)
        reply = participant.handle(message)
        if watch is not None:
            watch.note(message)
        return reply

    @takes(growing.ExpandLeaves)
    def _on_ExpandLeaves(self, message: growing.ExpandLeaves) -> Message:
        return self._construct(self._construction(), message)

    def _construction(self) -> Participant:
        if self._participant is None:
            raise RemoteProtocolError("no construction is open here")
        return self._participant

    @takes(growing.FinishConstruction)
    def _on_FinishConstruction(self, message: growing.FinishConstruction) -> Message:
        reply = self._construction().handle(message)
        part = self._construction().forest
        if part is None:
            raise RemoteProtocolError("the construction has left no part here")
        table = self._taken.loaded.table().take(self._common_rows())
        self._part = part
        self._forest = VerticalParty(
            self.home.identity.name,
            table.select(list(part.names)),
            forest=part,
            secret=self.home.store.secret_for("forest", "codes"),
            sealed_only="decisions" not in self.home.policy.wire_forms,
            n_jobs=self.home.n_jobs,
        )
        return reply

    # --- what stays ---

    def _on_KeepModel(self, message: msg.KeepModel) -> msg.ModelKept:
        kept = super()._on_KeepModel(message)
        self._kept = forest_of_model(self.job, message.forest)
        return kept

    @takes(*HIDES_SPLITS, *BEGINS_EPOCH)
    def _keys(self, message: Message) -> Message:
        order = self._revocable
        begins = isinstance(order, TrainRevocableOrder) or (
            isinstance(order, RevokeRevocableOrder) and order.level == 2
        )
        if order.helper is None or (type(message) in BEGINS_EPOCH and not begins):
            raise RemoteProtocolError(f"the order does not ask for {type(message).__name__}")
        check_epoch(message, order)
        if self._provider is None:
            self._provider = make_provider(
                self.home,
                order,
                self._splits,
                structure=lambda: None if self._has_none() else self._kept_part().structure,
                fingerprint=lambda: None if self._has_none() else self._kept,
            )
        return self._provider.handle(message)

    def _kept_part(self) -> PartyForest:
        if self._part is None or not self._kept:
            raise RemoteProtocolError("splits are encrypted or shared when they are kept")
        return self._part

    def _has_none(self) -> bool:
        """Whether this party has no part of the forest, since it has no columns to learn from: labels at most."""
        return not self._taken.features

    def _splits(self) -> Splits:
        return NO_SPLITS if self._has_none() else self._kept_part().splits

    @takes(msg.DropModel)
    def _on_DropModel(self, message: msg.DropModel) -> msg.ModelDropped:
        order = self._revocable
        if not isinstance(order, RevokeRevocableOrder):
            raise RemoteProtocolError("the order is not about the end of a model")
        if not self._kept or (message.model, message.leaver) != (order.model, order.leaver):
            raise RemoteProtocolError("the former model is erased when the new one is kept, and no other")
        self.home.store.drop_model(order.model, self.job)
        return msg.ModelDropped()


def _is_classes(order: Any) -> bool:
    if not isinstance(order, TrainRevocableOrder):
        raise DataError("the order does not say what its labels are")
    return order.plan.forest.task == "classes"
