"""What a saved model says about itself, and reading it back."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, TypeVar

import msgspec
import numpy as np

from woodlot.data.decoding import converted
from woodlot.estimators.base import FederatedForest
from woodlot.estimators.estimator_settings import from_json, settings_of
from woodlot.estimators.federated_forest import FederatedForestClassifier, FederatedForestRegressor
from woodlot.estimators.input_tables import class_array
from woodlot.estimators.kept_receipts import notes_of_receipts, restore_receipts
from woodlot.estimators.linear_models import FederatedLinear, FederatedLinearRegression, FederatedLogisticRegression
from woodlot.estimators.origin import Origin
from woodlot.estimators.revocable_forest import RevocableForestClassifier, RevocableForestRegressor
from woodlot.estimators.row_forests import HORIZONTAL, restore_whole
from woodlot.estimators.whole import WholeForest
from woodlot.exceptions import ModelFileError
from woodlot.federation import GrownForest
from woodlot.protocols.core.forest_plan import ForestPlan
from woodlot.protocols.core.part_files import STUMBLES, coordinators_folder, format_of
from woodlot.protocols.linear.linear_files import FORMAT as LINEAR_FORMAT
from woodlot.protocols.linear.linear_files import load_linear
from woodlot.protocols.linear.linear_model import FittedLinear
from woodlot.protocols.vertical.files import StoredForest, load_parts
from woodlot.protocols.vertical.out_of_bag import OutOfBagCurve
from woodlot.runtime.audit import Account, Cost, DisclosureRow, Disclosures

AnyForest = FederatedForestClassifier | FederatedForestRegressor | WholeForest
F = TypeVar("F", bound=AnyForest)

LINEAR: dict[str, type[FederatedLogisticRegression] | type[FederatedLinearRegression]] = {
    "FederatedLogisticRegression": FederatedLogisticRegression,
    "FederatedLinearRegression": FederatedLinearRegression,
}
ESTIMATORS: dict[str, type[FederatedForestClassifier] | type[FederatedForestRegressor]] = {
    cls.__name__: cls
    for cls in (
        FederatedForestClassifier,
        FederatedForestRegressor,
        RevocableForestClassifier,
        RevocableForestRegressor,
    )
}


def load(folder: str | os.PathLike[str]) -> AnyForest | FederatedLinearRegression | FederatedLogisticRegression:
    """Load a model that ``save`` has written, with the parts of the parties that are in the folder.

    Parameters
    ----------
    folder : path
        What was given to ``save``; or the coordinator's folder in it, for its part alone.

    Returns
    -------
    estimator
        The one that was saved. Where a party's part of a federated forest is not there, it must come from its
        own folder (``combine``), or its nodes are unknown. Horizontal forests are always whole.

    Examples
    --------
    >>> import woodlot as wl
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> model = wl.FederatedForestClassifier(n_estimators=5, random_state=0).fit(X, y)
    >>> model.save("model")
    >>> wl.load("model").predict(X[::50]).tolist()
    [0, 1, 2]
    """
    if format_of(coordinators_folder(folder)) == LINEAR_FORMAT:
        try:
            return _restore_linear(folder)
        except STUMBLES as error:
            raise ModelFileError(f"{folder} holds a model that this Woodlot cannot restore: {error!r}") from None
    stored = load_parts(folder)
    name = str(stored.extra.get("estimator"))
    if name not in ESTIMATORS and name not in HORIZONTAL:
        raise ModelFileError(f"{folder} holds a model of unknown kind {stored.extra.get('estimator')!r}")
    try:
        if name in HORIZONTAL:
            return restore_whole(HORIZONTAL[name], stored)
        return _restore(ESTIMATORS[name], stored)
    except STUMBLES as error:
        raise ModelFileError(f"{folder} holds a model that this Woodlot cannot restore: {error!r}") from None


def kind_of(settings: Mapping[str, Any]) -> type[AnyForest] | None:
    """The estimator's class that ``settings_of`` has named, if this Woodlot knows it."""
    name = str(settings.get("estimator"))
    return ESTIMATORS.get(name) or HORIZONTAL.get(name)


def from_settings(settings: Mapping[str, Any]) -> AnyForest:
    """The estimator, not yet fitted, that ``settings_of`` has described."""
    kind = kind_of(settings)
    if kind is None:
        raise ModelFileError(f"this Woodlot knows no estimator {settings.get('estimator')!r}")
    try:
        return kind(**from_json(settings["params"]))
    except STUMBLES as error:
        raise ModelFileError(f"the settings are not those of a {kind.__name__}: {error!r}") from None


def fitted(model: F, forest: GrownForest, account: Account, label: str | None) -> F:
    """Make an estimator the one that has grown this forest on a federation, and return it.

    Parameters
    ----------
    model : FederatedForestClassifier, FederatedForestRegressor or WholeForest
        With the parameters that the forest was grown with.
    forest : GrownForest
        What has grown.
    account : Account
        Who saw what meanwhile, and what it cost.
    label : str or None
        Party and column of the labels, where they are known.
    """
    model._origin = Origin((), None, label, model.criterion)
    model.n_features_in_ = len(forest.coordinator.feature_keys)
    if isinstance(model, WholeForest):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # whoever ordered the training was told
            model._keep(model._plan(seed=0), forest, account)
        return model
    model.disclosure_, model.cost_ = account.disclosure, account.cost
    model._set_forest(forest)
    return model


def notes_of(model: FederatedForest) -> dict[str, Any]:
    """All that makes a fitted model of a forest, in plain values."""
    if type(model).__name__ not in ESTIMATORS:
        raise ModelFileError(f"only {' and '.join(ESTIMATORS)} can be saved, not {type(model).__name__}")
    forest = model.forest_
    return {
        **_common_notes(model),
        "model": forest.model,
        **_leader_note(forest.leader),
        "plan": None if forest.plan is None else msgspec.to_builtins(forest.plan),
        "epoch": forest.epoch,
        "revocable": model._notes(),
        **notes_of_receipts(model),
        "unwilling": list(forest.unwilling),
        "oob_score": repr(float(model.oob_score_)) if hasattr(model, "oob_score_") else None,
        "residuals": forest.residuals.tolist(),
        "oob_curve": None if forest.oob_curve is None else forest.oob_curve.points(),
    }


def linear_notes_of(model: FederatedLinear) -> dict[str, Any]:
    """All that makes a fitted linear model of its parts, in plain values."""
    fitted = model.linear_
    own = {"model": fitted.model, "n_features": int(model.n_features_in_)}
    return {**_common_notes(model), **own, **_leader_note(fitted.leader)}


def _leader_note(leader: str) -> dict[str, Any]:
    return {"leader": leader} if leader else {}


def _common_notes(model: FederatedForest | FederatedLinear) -> dict[str, Any]:
    origin = model._origin
    return {
        **settings_of(model),
        "origin": {
            "names": list(origin.names),
            "dealing": origin.dealing,
            "label": origin.label,
            "criterion": origin.criterion,
            "weight": origin.weight,
        },
        "named": hasattr(model, "feature_names_in_"),
        "class_type": model.classes_.dtype.str if hasattr(model, "classes_") else None,
        "disclosure": model.disclosure_.to_dicts(),
        "cost": asdict(model.cost_),
    }


def _restore_common(
    model: FederatedForest | FederatedLinear, notes: Mapping[str, Any], parties: tuple[str, ...]
) -> None:
    origin, dealing = notes["origin"], notes["origin"]["dealing"]
    if dealing is not None:  # headers sort their keys, and features are counted, and labels held, in the parties' order
        dealing = {party: list(dealing[party]) for party in parties}
    model._origin = Origin(tuple(origin["names"]), dealing, origin["label"], origin["criterion"], origin.get("weight"))
    if notes["named"]:
        model.feature_names_in_ = np.array(model._origin.names, dtype=object)
    model.disclosure_ = Disclosures(tuple(DisclosureRow(**row) for row in notes["disclosure"]))
    model.cost_ = Cost(**notes["cost"])


def linear_model(
    settings: Mapping[str, Any], parts: FittedLinear, account: Account
) -> FederatedLogisticRegression | FederatedLinearRegression:
    """The estimator that ``settings_of`` has described, made the one that has fitted this model on a federation."""
    name = str(settings.get("estimator"))
    if name not in LINEAR:
        raise ModelFileError(f"this Woodlot knows no linear model {name!r}")
    model = LINEAR[name](**from_json(settings["params"]))
    model._origin = Origin((), None, None, "")
    model.disclosure_, model.cost_ = account.disclosure, account.cost
    model._set_fitted(parts)
    return model


def _restore_linear(folder: str | os.PathLike[str]) -> FederatedLogisticRegression | FederatedLinearRegression:
    stored = load_linear(folder)
    notes = stored.extra
    name = str(notes.get("estimator"))
    if name not in LINEAR:
        raise ModelFileError(f"{folder} holds a model of unknown kind {notes.get('estimator')!r}")
    model = LINEAR[name](**from_json(notes["params"]))
    _restore_common(model, notes, stored.coordinator.parties)
    model.n_features_in_ = int(notes["n_features"])
    if isinstance(model, FederatedLogisticRegression):
        model.classes_ = class_array(stored.coordinator.classes, notes["class_type"])
    model._set_fitted(FittedLinear(stored.coordinator, stored.parts, notes.get("model"), str(notes.get("leader", ""))))
    return model


def _restore(
    kind: type[FederatedForestClassifier] | type[FederatedForestRegressor], stored: StoredForest
) -> FederatedForestClassifier | FederatedForestRegressor:
    notes = stored.extra
    model = kind(**from_json(notes["params"]))
    _restore_common(model, notes, stored.coordinator.parties)
    model.n_features_in_ = len(stored.coordinator.feature_keys)
    if isinstance(model, FederatedForestClassifier):
        model.classes_ = class_array(stored.coordinator.classes, notes["class_type"])
        model.n_classes_ = len(model.classes_)
    forest = GrownForest(
        stored.coordinator,
        stored.parts,
        stored.shared if model._origin.dealing is None else stored.parts,
        tuple(notes["unwilling"]),
        oob_score=None if notes["oob_score"] is None else float(notes["oob_score"]),
        residuals=np.array(notes["residuals"], np.float64),
        model=notes.get("model"),
        leader=str(notes.get("leader", "")),
        plan=None if notes.get("plan") is None else converted(notes["plan"], ForestPlan),
        epoch=int(notes.get("epoch", 0)),
        oob_curve=None if notes.get("oob_curve") is None else OutOfBagCurve.of(notes["oob_curve"]),
    )
    restore_receipts(model, notes)
    model._set_forest(model._restored(forest, notes))
    return model
