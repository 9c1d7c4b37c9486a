"""Holds a hidden training to what the user has signed: who has which role, and how many trees of what size.

No two of label holder, second server and dealer work together: that is what a hidden training rests on. The user names
the first two in the order, and the third is the coordinator that the order is for. A party takes part with these only.
"""

from __future__ import annotations

import msgspec

from woodlot.exceptions import DataError, RemoteProtocolError
from woodlot.jobs.led.dealing import DEALER
from woodlot.jobs.orders import RevokeOrder, TrainOrder
from woodlot.protocols.core.forest_plan import ForestPlan
from woodlot.protocols.core.leavers import check_hidden_leaver
from woodlot.protocols.core.message import Message
from woodlot.protocols.hidden import hidden_messages as msg


def training_without(order: RevokeOrder, plan: ForestPlan) -> TrainOrder:
    """The hidden training that the leaving of a party is: of the parties that stay, by the plan of the former one."""
    return TrainOrder(
        job=order.job,
        created=order.created,
        federation=order.federation,
        coordinator=order.coordinator,
        parties=order.parties,
        sealed=order.sealed,
        led_by=order.led_by,
        alignment=order.alignment,
        holder=order.leader or "",
        plan=plan,
        settings="",
        server=order.server,
    )


def check_hidden_leaving(order: RevokeOrder, *, hidden: bool) -> None:
    """Refuse an order to leave a hidden forest that would grow it in the open, or the other way round."""
    named = not isinstance(order.server, msgspec.UnsetType)
    if not hidden:
        if named:
            raise DataError("the order names a second server, and this forest was not grown with protection='hidden'")
        return
    check_hidden_leaver((*order.parties, order.leaver), order.leader, order.leaver, order.level)
    if not named:
        raise DataError(
            "the order names no second server, and this forest was grown with protection='hidden': it is grown again "
            "on secret shares"
        )


def opening_of(order: TrainOrder, n_rows: int) -> msg.OpenHidden:
    """How a hidden training of this many common rows is opened that was ordered like this."""
    others = tuple(party for party in order.parties if party != order.holder)
    return msg.OpenHidden(
        parties=(*others, DEALER),
        holder=order.holder,
        server=order.second_server,
        dealer=DEALER,
        max_bins=order.plan.max_bins or 0,
        min_leaf=order.plan.smallest_leaf(n_rows),
        min_cell=order.plan.cell(n_rows),
    )


class OrderedHidden:
    """What a party is asked in a hidden training; see `PlanWatch`."""

    def __init__(self, order: TrainOrder, n_rows: int) -> None:
        self._order = order
        self._n_rows = n_rows
        self._planted = 0
        self._levels = 0

    def check(self, message: Message) -> None:
        """Refuse what was not ordered."""
        order, plan = self._order, self._order.plan
        match message:
            case msg.OpenHidden():
                _check_roles(message, order, self._n_rows)
                ordered = True
            case msg.StartServer():
                n_columns = len(message.n_codes)
                travels = plan.n_candidates(n_columns) if plan.feature_sampling == "tree" else n_columns
                ordered = (
                    message.owners == order.parties
                    and (message.n_classes == 0) == (plan.task == "targets")
                    and (message.masked is None) == (not plan.bootstrap)
                    and message.n_columns == travels
                )
            case msg.PlantHidden():
                left = plan.n_estimators - self._planted
                ordered = message.first_tree == self._planted and message.n_trees <= left
            case msg.AskRows():
                ordered = plan.max_depth is None or self._levels < plan.max_depth
            case msg.KeepSplits():
                ordered = len(message.offset) == plan.n_estimators + 1
            case _:
                ordered = True
        if not ordered:
            raise RemoteProtocolError(f"the order does not ask for {type(message).__name__}, or not like this")

    def note(self, message: Message) -> None:
        """The party has answered this message."""
        if isinstance(message, msg.PlantHidden):
            self._planted += message.n_trees
            self._levels = 0
        elif isinstance(message, msg.AskRows):
            self._levels += 1


class OrderedDealing:
    """What the dealer is asked: rows, draws and trees are those of the order; see `PlanWatch`."""

    def __init__(self, order: TrainOrder, n_rows: int) -> None:
        self._order = order
        self._n_rows = n_rows

    def check(self, message: Message) -> None:
        """Refuse what was not ordered: a label holder that chose the draws could single out rows."""
        order, plan, n_rows = self._order, self._order.plan, self._n_rows
        match message:
            case msg.OpenHidden():
                _check_roles(message, order, n_rows)
                ordered = True
            case msg.StartDealer():
                n_draws = plan.n_draws(n_rows, None, 1.0) if plan.bootstrap else None
                ordered = (message.n_rows, message.n_draws) == (n_rows, n_draws) and (message.n_classes == 0) == (
                    plan.task == "targets"
                )
            case msg.DealDraws():
                ordered = message.first_tree + message.n_trees <= plan.n_estimators
            case msg.DealShuffle():
                ordered = int(message.sizes.max(initial=0)) <= n_rows
            case _:
                ordered = True
        if not ordered:
            raise RemoteProtocolError(f"the order does not ask for {type(message).__name__}, or not like this")


def _check_roles(message: msg.OpenHidden, order: TrainOrder, n_rows: int) -> None:
    """Refuse a training whose label holder, second server and dealer are not those that the user has named."""
    ordered = opening_of(order, n_rows)
    for role in ("holder", "server", "dealer"):
        if getattr(message, role) != getattr(ordered, role):
            raise RemoteProtocolError(
                f"the order names {getattr(ordered, role)!r} as the {role} of this hidden training, and "
                f"{getattr(message, role)!r} is to be it"
            )
    if msgspec.structs.asdict(message) != msgspec.structs.asdict(ordered):
        raise RemoteProtocolError("the order does not ask for this hidden training: other parties or other bins")
