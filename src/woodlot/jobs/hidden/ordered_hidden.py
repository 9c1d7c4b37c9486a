"""Holds a hidden training to what the user has signed: who has which role, and how many trees of what size.

No two of label holder, second server and dealer work together: that is what a hidden training rests on. The user names
them in the order; a dealer that is not named is the coordinator that the order is for. A party takes part with these
only.
"""

from __future__ import annotations

import msgspec

from woodlot.exceptions import DataError, RemoteProtocolError
from woodlot.jobs.hidden_roles import named_dealer
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
        dealer=order.dealer,
    )


def dealer_of(order: TrainOrder) -> str:
    """What the dealer of a hidden training is called in it: a helper by its name, the coordinator by its role."""
    return named_dealer(order.dealer) or DEALER


def check_same_dealer(order: RevokeOrder, dealer: str | msgspec.UnsetType) -> None:
    """Refuse another dealer than that of the training: only this one knows which rows trees have drawn."""
    if order.dealer != dealer:
        who = named_dealer(dealer) or "the coordinator"
        raise DataError(
            f"{who} has dealt for this forest, and knows alone which rows its trees have drawn; order the leaving with "
            "the same dealer"
        )


def check_hidden_leaving(order: RevokeOrder, *, hidden: bool) -> None:
    """Refuse an order to leave a hidden forest that would grow it in the open, or the other way round."""
    named = not isinstance(order.server, msgspec.UnsetType)
    if not hidden:
        if named:
            raise DataError("the order names a second server, and this forest was not grown with protection='hidden'")
        return
    check_hidden_leaver((*order.row_parties, order.leaver), order.leader, order.leaver, order.level)
    if not named:
        raise DataError(
            "the order names no second server, and this forest was grown with protection='hidden': it is grown again "
            "on secret shares"
        )


def opening_of(order: TrainOrder, n_rows: int) -> msg.OpenHidden:
    """How a hidden training of this many common rows is opened that was ordered like this."""
    others = tuple(party for party in order.row_parties if party != order.holder)
    dealer = dealer_of(order)
    return msg.OpenHidden(
        parties=(*others, dealer),
        holder=order.holder,
        server=order.second_server,
        dealer=dealer,
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
                    message.owners == order.row_parties
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
    """What the dealer is asked: rows, draws and trees are those of the order; see `PlanWatch`.

    A coordinator has had the common rows found, and knows how many there are. A helper is told by the label holder;
    one that tells the helper another number than the second server has gets noise, since what the two derive in common
    is bound to lengths and to all that both were told.
    """

    def __init__(self, order: TrainOrder, n_rows: int | None) -> None:
        self._order = order
        self._n_rows = n_rows
        self._opened: msg.OpenHidden | None = None

    def check(self, message: Message) -> None:
        """Refuse what was not ordered: a label holder that chose the draws could single out rows."""
        order, plan = self._order, self._order.plan
        match message:
            case msg.OpenHidden():
                # limits that follow from the number of rows are checked when that is known
                _check_roles(message, order, self._n_rows)
                ordered = True
            case msg.StartDealer():
                n_rows = message.n_rows if self._n_rows is None else self._n_rows
                if self._opened is not None:
                    _check_roles(self._opened, order, n_rows)
                n_draws = plan.n_draws(n_rows, None, 1.0) if plan.bootstrap else None
                ordered = (message.n_rows, message.n_draws) == (n_rows, n_draws) and (message.n_classes == 0) == (
                    plan.task == "targets"
                )
            case msg.DealDraws():
                ordered = message.first_tree + message.n_trees <= plan.n_estimators
            case msg.DealShuffle():
                ordered = int(message.sizes.max(initial=0)) <= (self._n_rows or 0)
            case _:
                ordered = True
        if not ordered:
            raise RemoteProtocolError(f"the order does not ask for {type(message).__name__}, or not like this")

    def note(self, message: Message) -> None:
        """The dealer has answered this message."""
        if isinstance(message, msg.OpenHidden):
            self._opened = message
        elif isinstance(message, msg.StartDealer):
            self._n_rows = message.n_rows


def _check_roles(message: msg.OpenHidden, order: TrainOrder, n_rows: int | None) -> None:
    """Refuse a training whose label holder, second server and dealer are not those that the user has named."""
    ordered = opening_of(order, 1 if n_rows is None else n_rows)
    for role in ("holder", "server", "dealer"):
        if getattr(message, role) != getattr(ordered, role):
            raise RemoteProtocolError(
                f"the order names {getattr(ordered, role)!r} as the {role} of this hidden training, and "
                f"{getattr(message, role)!r} is to be it"
            )
    if n_rows is None:
        ordered = msgspec.structs.replace(ordered, min_leaf=message.min_leaf, min_cell=message.min_cell)
    if msgspec.structs.asdict(message) != msgspec.structs.asdict(ordered):
        raise RemoteProtocolError("the order does not ask for this hidden training: other parties or other bins")
