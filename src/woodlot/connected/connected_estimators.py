"""Models at a coordinator, whose estimators are known by their settings only: saving them, and leaving them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from woodlot.connected.connected_models import fitted_linear, grown_forest, whole_grown_forest
from woodlot.connected.connected_rows import ConnectedRowFederation
from woodlot.estimators.loading import LINEAR, fitted, from_settings, linear_model
from woodlot.estimators.whole import WholeForest
from woodlot.exceptions import ConfigError

if TYPE_CHECKING:
    from woodlot.connected import ConnectedFederation
    from woodlot.jobs.job_messages import ModelFacts, ModelPart
    from woodlot.jobs.orders import Order


def save_part(part: ModelPart, folder: str | os.PathLike[str]) -> None:
    """Write the coordinator's part of a model into a new folder, for `woodlot.load`.

    Parameters
    ----------
    part : ModelPart
        As the coordinator gives it to its user.
    folder : path
        Where it goes.

    """
    settings = json.loads(part.facts.settings)
    if settings.get("estimator") in LINEAR:
        linear_model(settings, *fitted_linear(part)).save(folder)
    else:
        forest, account = whole_grown_forest(part) if part.facts.layout == "rows" else grown_forest(part)
        fitted(from_settings(settings), forest, account, None).save(folder)


def revocation_order(
    federation: ConnectedFederation,
    model: ModelFacts,
    leaver: str,
    level: int | None,
    label: str,
    weight: str | None = None,
    *,
    allow_two: bool = False,
    held_out: tuple[float, int] | None = None,
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
    level : int or None
        How thoroughly; see `woodlot revoke`. None: as is usual for such a model.
    label : str
        The label of the training: ``party.column``, or of a forest over rows its column.
    weight : str, optional
        Weights of the rows, as in the training.
    allow_two : bool
        Whether the secure sums of a forest over rows may be of two parties, where two stay.
    held_out : (float, int), optional
        Share and seed of the rows that the training of a forest over rows has held out.
    """
    if model.layout != "rows":
        return federation.revoke_order(model, leaver, level, federation.find_labels(label, weight))
    estimator = from_settings(json.loads(model.settings))
    if not isinstance(estimator, WholeForest):
        raise ConfigError("what this model was grown by is not known here; train it again without the party")
    if allow_two and "allow_two" in estimator.get_params():
        estimator.set_params(allow_two=True)
    rows = ConnectedRowFederation(federation.client, federation.tables)
    if held_out is not None:
        rows = rows.split(held_out[0], seed=held_out[1])[0]
    plan = estimator.make_plan(weighted=weight is not None)
    return rows.revoke_rows_order(model, plan, label, leaver, 3 if level is None else level, weight)


def forgetting_order(
    federation: ConnectedFederation, model: ModelFacts, ids: Any, label: str, weight: str | None = None
) -> tuple[Order, bytes]:
    """An order to take rows out of a model of any layout; and the key of their ids in the receipt.

    Parameters
    ----------
    federation : ConnectedFederation
        The parties of the model, with the tables of its training.
    model : ModelFacts
        What is to forget them.
    ids : array-like or mapping of str to array-like
        Ids of the rows; of a forest over rows also by party.
    label, weight : str, str or None
        Labels and weights of the training: ``party.column``, or of a forest over rows their columns.
    """
    if model.layout != "rows":
        if isinstance(ids, Mapping):
            raise ConfigError("all parties of a forest over columns forget the same rows: give one list, without --at")
        return federation.forget_order(model, ids, federation.find_labels(label, weight))
    rows = ConnectedRowFederation(federation.client, federation.tables)
    return rows.forget_rows_order(model, ids, label, weight)
