"""A hidden training at the label holder, which leads, and at the dealer."""

from __future__ import annotations

from collections.abc import Generator

from woodlot.exceptions import DataError
from woodlot.jobs.columns.columns_work import ColumnsWork
from woodlot.jobs.hidden.ordered_hidden import OrderedDealing, dealer_of, training_without
from woodlot.jobs.hidden_roles import named_dealer
from woodlot.jobs.kind import CoordinatorHost
from woodlot.jobs.led.dealing import DealerSeat
from woodlot.jobs.orders import RevokeOrder, TrainOrder
from woodlot.protocols.core.forest_parts import CoordinatorForest
from woodlot.protocols.core.forest_plan import ForestPlan
from woodlot.protocols.core.message import Message, Round
from woodlot.protocols.hidden.hidden_dealer import ShuffleDealer, secret_draws
from woodlot.protocols.hidden.hidden_train import HiddenForest, train_hidden
from woodlot.protocols.vertical.completion import CompletedForest, complete_forest
from woodlot.protocols.vertical.regrow import Regrown, grown_again
from woodlot.runtime.drivers import Handler


def grow_hidden(order: TrainOrder, host: CoordinatorHost) -> Generator[Round, dict[str, Message], CompletedForest]:
    """Grow a forest on secret shares, and complete it. Runs at the label holder."""
    own = host.own
    if not isinstance(own, ColumnsWork):
        raise DataError("a hidden training is led by the label holder's service; order with lead='holder'")
    grown: HiddenForest = yield from train_hidden(
        order.plan, order.row_parties, own.hidden_leader(), order.second_server, dealer_of(order)
    )
    own.keep_hidden(grown.own)
    return (yield from complete_forest(order.plan, grown.forest, order.holder, host.n_jobs))


def regrow_hidden(
    order: RevokeOrder, plan: ForestPlan, former: CoordinatorForest, host: CoordinatorHost
) -> Generator[Round, dict[str, Message], tuple[Regrown, CompletedForest]]:
    """Grow a forest again on secret shares, without the party that leaves. Runs at the label holder."""
    completed = yield from grow_hidden(training_without(order, plan), host)
    return grown_again(former, completed.forest, order.leaver), completed


def deal_hidden(order: TrainOrder, seat: DealerSeat) -> Handler | None:
    """The dealer of a hidden training, where the coordinator is it; other trainings have none here."""
    return HiddenDealing(order, seat) if order.is_hidden and named_dealer(order.dealer) is None else None


class HiddenDealing:
    """Deals for one order, at the coordinator or at a helper: which rows trees draw is known to nobody else.

    Parameters
    ----------
    order : TrainOrder
        What was ordered.
    seat : DealerSeat
        What the dealer has for it.
    draws : bytes, optional
        The secret from which the draws follow; by default one of the job.

    """

    def __init__(self, order: TrainOrder, seat: DealerSeat, draws: bytes | None = None) -> None:
        self._watch = OrderedDealing(order, seat.n_rows)
        self._dealer = ShuffleDealer(
            dealer_of(order),
            entropy=seat.entropy,
            draws=secret_draws(draws or seat.entropy("draws")),
            job=order.job,
            signer=seat.signer,
        )

    def handle(self, message: Message) -> Message:
        """Answer what was ordered."""
        self._watch.check(message)
        reply = self._dealer.handle(message)
        self._watch.note(message)
        return reply
