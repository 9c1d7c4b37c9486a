"""From the section ``[forest]`` and ``--set`` to an estimator and the plan of its forest; errors name what is wrong."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from woodlot.exceptions import ConfigError

if TYPE_CHECKING:
    from woodlot.estimators.federated_forest import FederatedForestClassifier, FederatedForestRegressor
    from woodlot.estimators.linear_models import FederatedLinearRegression, FederatedLogisticRegression
    from woodlot.estimators.revocable_forest import RevocableForestClassifier, RevocableForestRegressor
    from woodlot.estimators.whole import WholeForest
    from woodlot.protocols.core.forest_plan import ForestPlan
    from woodlot.protocols.linear.linear_model import LinearPlan
    from woodlot.protocols.revocable.revocable_plan import RevocablePlan
    from woodlot.protocols.rows.methods import HorizontalPlan

    Linear = FederatedLogisticRegression | FederatedLinearRegression
    Revocable = RevocableForestClassifier | RevocableForestRegressor

    Forest = FederatedForestClassifier | FederatedForestRegressor

E = TypeVar("E")
P = TypeVar("P")

ROW_KINDS = {
    "collaborative": "CollaborativeForest",
    "local": "LocalForests",
    "extra-trees": "FederatedExtraTrees",
    "lossless": "HorizontalForest",
    "private": "PrivateForest",
}
"""What ``kind`` in the section ``[forest]`` may be for parties with the same columns, and how its estimators begin."""
DEFAULT_ROW_KIND = "collaborative"

LINEAR_KIND = "linear"
"""Names a linear model in place of a forest, where parties have different columns."""
REVOCABLE_KIND = "revocable"
"""Names a revocable forest (RevFRF), where parties have different columns."""

ELSEWHERE = {"parties": "[job] says who takes part", "verbose": "progress is always shown"}
"""Parameters of the estimators that a job says otherwise."""
RETIRED = {
    "labels": "in place of labels = 'encrypted' write protection = 'hidden'; labels = 'shared' is protection = 'open'",
    "residuals": "in place of residuals = 'encrypted' write protection = 'hidden'; 'clear' is protection = 'open'",
    "key_bits": "labels and residuals are not encrypted any more; write protection = 'hidden'",
}
"""Parameters that there were once, and what to write in their place."""


def parse_settings(given: Sequence[str]) -> dict[str, Any]:
    """``--set max_depth=10``: whole numbers, numbers, true, false and none are such, ``{...}`` is JSON."""
    settings = {}
    for one in given:
        name, equals, text = one.partition("=")
        if not (name and equals):
            raise ConfigError(f"--set {one}: write --set NAME=VALUE, such as --set max_depth=10")
        settings[name.strip()] = _value(one, text.strip())
    return settings


def _value(one: str, text: str) -> Any:
    if text.lower() in ("true", "false", "none"):
        return {"true": True, "false": False}.get(text.lower())
    if text.startswith("{"):
        try:
            return json.loads(text)
        except ValueError as error:
            raise ConfigError(f"--set {one}: this is not JSON: {error}") from None
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def make_estimator(task: str, settings: Mapping[str, Any], origin: str) -> Forest:
    """The estimator of a task with these parameters, all of them checked, for parties with different columns.

    Parameters
    ----------
    task : {"classification", "regression"}
        What to learn.
    settings : mapping
        Parameters by name; the text ``"none"`` is None, which TOML cannot write.
    origin : str
        What errors call the file.

    """
    from woodlot.estimators.federated_forest import FederatedForestClassifier, FederatedForestRegressor

    if "kind" in settings:
        raise ConfigError(
            f"{origin}: forest.kind is {LINEAR_KIND!r}, {REVOCABLE_KIND!r} or left out, where parties have different "
            "columns; others are for parties with the same columns: [job] layout = 'rows'"
        )
    kind = FederatedForestClassifier if task == "classification" else FederatedForestRegressor
    return _with_settings(kind, task, settings, origin)


def make_linear_estimator(task: str, settings: Mapping[str, Any], origin: str) -> Linear:
    """The linear model of a task; parameters as for `make_estimator`."""
    from woodlot.estimators.linear_models import FederatedLinearRegression, FederatedLogisticRegression

    chosen = {name: value for name, value in settings.items() if name != "kind"}
    if task == "classification":
        return _with_settings(FederatedLogisticRegression, task, chosen, origin)
    return _with_settings(FederatedLinearRegression, task, chosen, origin)


def linear_plan_for(estimator: Linear, origin: str) -> LinearPlan:
    """What is to be fitted; a parameter with a value that it cannot have is an error."""
    return _planned(estimator.make_plan, origin)


def make_revocable_estimator(task: str, settings: Mapping[str, Any], origin: str) -> Revocable:
    """The revocable forest of a task; parameters as for `make_estimator`."""
    from woodlot.estimators.revocable_forest import RevocableForestClassifier, RevocableForestRegressor

    chosen = {name: value for name, value in settings.items() if name != "kind"}
    if task == "classification":
        return _with_settings(RevocableForestClassifier, task, chosen, origin)
    return _with_settings(RevocableForestRegressor, task, chosen, origin)


def revocable_plan_for(estimator: Revocable, origin: str) -> RevocablePlan:
    """What is to be grown; a parameter with a value that it cannot have is an error."""
    return _planned(estimator.make_plan, origin)


def _planned(make: Callable[[], P], origin: str) -> P:
    try:
        return make()
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{origin}: [forest]: {error}") from None


def make_row_estimator(task: str, settings: Mapping[str, Any], origin: str) -> WholeForest:
    """The estimator that ``kind`` among the parameters names, for parties with the same columns.

    Parameters as for `make_estimator`.
    """
    from woodlot.estimators.row_forests import HORIZONTAL

    chosen = dict(settings)
    kind = chosen.pop("kind", DEFAULT_ROW_KIND)
    ending = "Classifier" if task == "classification" else "Regressor"
    found = {name: HORIZONTAL[cls + ending] for name, cls in ROW_KINDS.items() if cls + ending in HORIZONTAL}
    if kind not in found:
        raise ConfigError(f"{origin}: forest.kind must be one of {', '.join(found)}, not {kind!r}")
    if isinstance(chosen.get("privacy"), Mapping):
        chosen["privacy"] = _privacy(chosen["privacy"], origin)
    return _with_settings(found[kind], task, chosen, origin)


def _privacy(settings: Mapping[str, Any], origin: str) -> Any:
    """``{ kind = "local", epsilon = 2.0 }`` or ``{ kind = "global", ... }``: a LocalDP or a GlobalDP."""
    from woodlot.data.decoding import converted
    from woodlot.privacy.settings import GlobalDP, LocalDP

    try:
        return converted(settings, LocalDP | GlobalDP)
    except ValueError as error:
        raise ConfigError(f"{origin}: forest.privacy: {error}") from None


def row_plan_for(estimator: WholeForest, origin: str, *, weighted: bool = False) -> HorizontalPlan:
    """What is to be grown over rows; a parameter with a value that it cannot have is an error."""
    return _planned(partial(estimator.make_plan, weighted=weighted), origin)


def _with_settings(kind: type[E], task: str, settings: Mapping[str, Any], origin: str) -> E:
    usual: Any = kind()
    known = [name for name in usual.get_params(deep=False) if name not in ELSEWHERE]
    for name in settings:
        if name in ELSEWHERE:
            raise ConfigError(f"{origin}: forest.{name} has no place here: {ELSEWHERE[name]}")
        if name not in known and name in RETIRED:
            raise ConfigError(f"{origin}: there is no setting forest.{name} any more: {RETIRED[name]}")
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            advice = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
            raise ConfigError(f"{origin}: there is no setting forest.{name} for {task}; {advice}")
    chosen: dict[str, Any] = {name: None if value == "none" else value for name, value in settings.items()}
    return kind(**chosen)


def plan_for(estimator: Forest, origin: str) -> ForestPlan:
    """What is to be grown; a parameter with a value that it cannot have is an error."""
    import numpy as np
    from sklearn.utils import check_random_state

    from woodlot.estimators.base import plan_of
    from woodlot.estimators.input_tables import name_class_weights
    from woodlot.estimators.parameters import check_parameters

    params = estimator.get_params(deep=False)
    weights = params.get("class_weight")
    try:
        check_parameters(estimator)
        seed = int(check_random_state(estimator.random_state).randint(np.iinfo(np.int32).max))
        return plan_of(params, seed, name_class_weights(weights, None), estimator._task)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{origin}: [forest]: {error}") from None
