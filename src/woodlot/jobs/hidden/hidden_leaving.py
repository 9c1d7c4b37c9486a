"""The coordinator as the dealer of a hidden forest that a party leaves."""

from __future__ import annotations

from woodlot.exceptions import DataError
from woodlot.jobs.columns.revoke_jobs import training_of
from woodlot.jobs.hidden.hidden_jobs import HiddenDealing
from woodlot.jobs.hidden.ordered_hidden import training_without
from woodlot.jobs.hidden_roles import named_dealer
from woodlot.jobs.led.dealing import DealerSeat, dealer_entropy
from woodlot.jobs.orders import RevokeOrder, TrainOrder
from woodlot.runtime.drivers import Handler


def deal_leaving(order: RevokeOrder, seat: DealerSeat) -> Handler | None:
    """Deal where a hidden forest is grown again; other forests need no dealer.

    Trees draw the rows that they drew in the training. Only so the forest is the one that the training would have
    grown without the leaver. Other draws would be new equations, too (decision 0026).
    """
    if seat.store is None:
        raise DataError("the dealer has no record of former jobs, and deals for new trainings only")
    if not seat.store.model_facts(order.model).is_hidden:
        return None
    training = training_of(seat.store, order.model, TrainOrder)
    if named_dealer(training.dealer) is not None:  # a helper has dealt, and deals again
        return None
    draws = dealer_entropy(seat.store, training.job)("draws")
    return HiddenDealing(training_without(order, training.plan), seat, draws)
