"""The coordinator as the dealer of a hidden linear model."""

from __future__ import annotations

from woodlot.exceptions import RemoteProtocolError
from woodlot.jobs.led.dealing import DEALER, DealerSeat
from woodlot.jobs.linear.linear_orders import TrainLinearOrder
from woodlot.protocols.core.message import Message
from woodlot.protocols.linear import dealt_messages as msg
from woodlot.protocols.linear.product_dealer import ProductDealer
from woodlot.runtime.drivers import Handler


def deal_products(order: TrainLinearOrder, seat: DealerSeat) -> Handler | None:
    """The dealer of a hidden linear model; others have none. Runs at the coordinator."""
    return ProductDealing(order, seat) if order.plan.protection == "hidden" else None


class ProductDealing:
    """Deals for one order: to its parties, for its rows, and as many steps as it has."""

    def __init__(self, order: TrainLinearOrder, seat: DealerSeat) -> None:
        self._order, self._n_rows = order, seat.n_rows
        self._dealer = ProductDealer(DEALER, entropy=seat.entropy, job=order.job, signer=seat.signer)

    def handle(self, message: Message) -> Message:
        """Answer what was ordered."""
        order, others = self._order, set(self._order.parties) - {self._order.holder}
        match message:
            case msg.OpenDealt():
                *parties, last = message.parties or ("",)
                ordered = last == message.dealer == DEALER and set(parties) <= others and message.holder == order.holder
            case msg.StartProducts():
                ordered = message.n_rows == self._n_rows and order.plan.may_score(message.n_scores)
            case msg.DealProducts():
                ordered = message.step <= order.plan.max_iter  # once more than there are steps
            case _:
                ordered = True
        if not ordered:
            raise RemoteProtocolError(f"the order does not ask for {type(message).__name__}, or not like this")
        return self._dealer.handle(message)
