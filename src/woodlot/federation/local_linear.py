"""Linear models on a federation in this process."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.exceptions import DataError
from woodlot.federation.grown import Labels
from woodlot.federation.local import Federation, fresh_entropy
from woodlot.federation.local_hidden import DEALER, led_account, seen_by_leader
from woodlot.federation.members import refuse_strangers
from woodlot.protocols.core.agreement import KEY_BYTES
from woodlot.protocols.core.message import Progress
from woodlot.protocols.linear.hidden_linear_party import HiddenLinearParty
from woodlot.protocols.linear.linear_model import FittedLinear, LinearPlan, Matrix
from woodlot.protocols.linear.linear_party import LinearParty
from woodlot.protocols.linear.linear_train import fit_linear, predict_linear
from woodlot.protocols.linear.product_dealer import ProductDealer
from woodlot.runtime.audit import Account, Ledger
from woodlot.runtime.drivers.inprocess import InProcessDriver
from woodlot.runtime.run import run


def fit_here(
    federation: Federation,
    plan: LinearPlan,
    labels: Labels,
    on_progress: Callable[[Progress], None] | None = None,
) -> tuple[FittedLinear, Account]:
    """Fit a linear model.

    Parameters
    ----------
    federation : Federation
        Parties with different columns of the same rows.
    plan : LinearPlan
        What to fit.
    labels : Labels
        The labels, which only their holder sees.
    on_progress : callable, optional
        Told how many steps were made.

    Returns
    -------
    FittedLinear, Account
        The model in its parts, and who saw what while it was fitted.

    """
    if federation.layout != "columns":
        raise DataError(
            "linear models are for parties with different columns of the same rows; this federation has layout='rows'"
        )
    federation.require_every_row()
    hidden, holder = plan.protection == "hidden", labels.holder
    if hidden and DEALER in federation.parties:
        raise DataError(f"with protection='hidden' no party may be called {DEALER!r}; rename it")
    ledger = Ledger(seen_by_leader(federation, holder) if hidden else federation.observer)
    keys: dict[str, Any] = {"job": "local", "shared_secret": secrets.token_bytes(KEY_BYTES)}  # in place of identities
    handlers: dict[str, LinearParty] = {}
    for name, member in federation.members.items():
        table = member.table.select([c for c in member.table.names if name != holder or c not in labels.hidden])
        target = labels.target if name == holder else None
        if hidden:
            handlers[name] = HiddenLinearParty(name, table, target=target, entropy=fresh_entropy(), **keys)
        else:
            handlers[name] = LinearParty(name, table, target=target)
    dealing = {DEALER: ProductDealer(DEALER, entropy=fresh_entropy(), **keys)} if hidden else {}
    with InProcessDriver({**handlers, **dealing}, ledger=ledger) as driver:
        protocol = fit_linear(plan, federation.parties, holder, DEALER)
        model = run(protocol, driver, ledger=ledger, on_progress=on_progress)
    parts = {name: handler.fitted_part() for name, handler in handlers.items() if model.n_columns[name]}
    return FittedLinear(model, parts), led_account(ledger, holder) if hidden else ledger.account()


def predict_here(federation: Federation, model: FittedLinear) -> tuple[tuple[Matrix, NDArray[np.bool_]], Account]:
    """Scores of every row, and which rows are uncertain, from the parties that have rows and a part of the model."""
    if federation.n_rows == 0:
        raise DataError("Found array with 0 sample(s) while a minimum of 1 is required: there are no rows to predict")
    present = [party for party in federation.parties if party in model.parts]
    if not present and model.coordinator.asked:
        raise DataError(
            f"none of the parties {list(federation.parties)} has a part of this model; "
            f"its parties are {list(model.coordinator.asked)}"
        )
    refuse_strangers(federation.parties, model.coordinator.parties, model.coordinator.asked)
    ledger = Ledger(federation.observer)
    handlers = {
        name: LinearParty(
            name, federation.members[name].table, model=model.parts[name], known=federation.members[name].known
        )
        for name in present
    }
    with InProcessDriver(handlers, ledger=ledger) as driver:
        protocol = predict_linear(model.coordinator, present, federation.n_rows)
        return run(protocol, driver, ledger=ledger), ledger.account()
