"""Linear models on a federation in this process."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from woodlot.exceptions import DataError
from woodlot.federation.grown import Labels
from woodlot.federation.local import Federation
from woodlot.federation.members import refuse_strangers
from woodlot.protocols.core.message import Progress
from woodlot.protocols.linear.encrypted_party import EncryptedLinearParty
from woodlot.protocols.linear.linear_model import FittedLinear, LinearPlan, Matrix
from woodlot.protocols.linear.linear_party import LinearParty
from woodlot.protocols.linear.linear_train import fit_linear, predict_linear
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
    ledger = Ledger(federation.observer)
    kind = EncryptedLinearParty if plan.residuals == "encrypted" else LinearParty
    handlers = {
        name: kind(
            name,
            member.table.select([c for c in member.table.names if name != labels.holder or c not in labels.hidden]),
            target=labels.target if name == labels.holder else None,
        )
        for name, member in federation.members.items()
    }
    with InProcessDriver(handlers, ledger=ledger) as driver:
        protocol = fit_linear(plan, federation.parties, labels.holder)
        model = run(protocol, driver, ledger=ledger, on_progress=on_progress)
    parts = {name: handler.fitted_part() for name, handler in handlers.items() if model.n_columns[name]}
    return FittedLinear(model, parts), ledger.account()


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
