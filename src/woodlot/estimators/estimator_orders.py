"""Orders about a model at a coordinator whose estimator is known by its settings only."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from woodlot.connected.connected_rows import ConnectedRowFederation
from woodlot.estimators.loading import from_settings
from woodlot.estimators.whole import WholeForest
from woodlot.exceptions import ConfigError

if TYPE_CHECKING:
    from woodlot.connected import ConnectedFederation
    from woodlot.jobs.job_messages import ModelFacts
    from woodlot.jobs.orders import Order


def revocation_order(
    federation: ConnectedFederation,
    model: ModelFacts,
    leaver: str,
    level: int,
    label: str,
    weight: str | None = None,
    *,
    allow_two: bool = False,
) -> Order:
    """An order to take a party out of a model of any layout.

    Parameters
    ----------
    federation : ConnectedFederation
        The parties of the model, with the tables of its training.
    model : ModelFacts
        Who is left.
    leaver : str
        Who leaves.
    level : int
        How thoroughly; see `woodlot revoke`.
    label : str
        The label of the training: ``party.column``, or of a forest over rows its column.
    weight : str, optional
        Weights of the rows, as in the training.
    allow_two : bool
        Whether the secure sums of a forest over rows may be of two parties, where two stay.
    """
    if model.layout != "rows":
        return federation.revoke_order(model, leaver, level, federation.find_labels(label, weight))
    estimator = from_settings(json.loads(model.settings))
    if not isinstance(estimator, WholeForest):
        raise ConfigError("what this model was grown by is not known here; train it anew without the party")
    if allow_two and "allow_two" in estimator.get_params():
        estimator.set_params(allow_two=True)
    rows = ConnectedRowFederation(federation.client, federation.tables)
    return rows.revoke_rows_order(model, estimator.make_plan(), label, leaver, level)
