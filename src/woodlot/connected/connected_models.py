"""Models that a coordinator keeps, as the estimators have them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from woodlot.exceptions import DataError
from woodlot.federation import GrownForest
from woodlot.protocols.linear.linear_files import load_linear
from woodlot.protocols.linear.linear_model import FittedLinear
from woodlot.protocols.rows.whole_forest import HOLDER
from woodlot.protocols.vertical.files import load_parts, whole_forest_id, write_files
from woodlot.protocols.vertical.out_of_bag import OutOfBagCurve
from woodlot.runtime.audit import Account

if TYPE_CHECKING:
    from woodlot.jobs.job_messages import ModelFacts, ModelPart
    from woodlot.service.client import Client


@contextmanager
def files_of(part: ModelPart) -> Iterator[Path]:
    """The coordinator's part of a model in a folder, for as long as it is needed."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_files(folder, {name: data.tobytes() for name, data in part.files.items()})
        yield folder


def fitted_linear(part: ModelPart) -> tuple[FittedLinear, Account]:
    """The coordinator's part of a linear model as the estimators have it, and the account of its fitting."""
    with files_of(part) as folder:
        stored = load_linear(folder)
    account = Account.from_json(part.facts.disclosure, part.facts.cost)
    return FittedLinear(stored.coordinator, model=part.facts.model, leader=part.facts.leader), account


def scores_of(probabilities: NDArray[np.float64]) -> NDArray[np.float64]:
    """The scores behind probabilities, those of several classes up to what they have in common."""
    logs = np.log(np.maximum(probabilities, np.finfo(np.float64).tiny))
    return logs[:, 1:] - logs[:, :1] if logs.shape[1] == 2 else logs - logs.mean(axis=1, keepdims=True)


def grown_forest(part: ModelPart) -> tuple[GrownForest, Account]:
    """The coordinator's part of a model as the estimators have it, and the account of its growth."""
    with files_of(part) as folder:
        stored = load_parts(folder)
    facts = part.facts
    forest = GrownForest(
        stored.coordinator,
        {},
        stored.shared,
        facts.unwilling,
        oob_score=facts.oob_score,
        residuals=np.array(part.residuals),
        model=facts.model,
        leader=facts.leader,
        oob_curve=OutOfBagCurve.of(facts.oob_curve) if facts.oob_curve else None,
    )
    return forest, Account.from_json(facts.disclosure, facts.cost)


def whole_grown_forest(part: ModelPart) -> tuple[GrownForest, Account]:
    """A whole model as the estimators have it, and the account of its growth."""
    forest, account = grown_forest(part)
    return replace(forest, parts=forest.shared), account


def model_of(forest: GrownForest | FittedLinear) -> str:
    """A model's name at the coordinator."""
    if forest.model is None:
        raise DataError("this model was not grown on a connected federation: its parties keep no part of it")
    return forest.model


def ordered_forest(client: Client, model: str | ModelFacts | GrownForest) -> dict[str, str]:
    """What an order says of a whole forest: its name at the coordinator, and its fingerprint.

    Of a forest that is at hand the fingerprint is computed. Of one by its name it is what the coordinator tells, or,
    where it has grown under an earlier version, that of the forest which the coordinator gives to who has ordered it.
    """
    if isinstance(model, str):
        model = client.find_model(model)
    if not isinstance(model, GrownForest):
        if isinstance(model.whole, str):
            return {"model": model.model, "forest": model.whole}
        model, _ = whole_grown_forest(client.model(model.model))
    part = model.parts.get(HOLDER)
    if part is None:
        raise DataError("this model was grown over columns of different parties: connect with layout='columns'")
    return {"model": model_of(model), "forest": whole_forest_id(model.coordinator, part)}
