"""Woodlot grows random forests across organisations that cannot pool their data."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if not getattr(sys, "_is_gil_enabled", lambda: True)():
    raise ImportError(
        "Woodlot does not run on Python without the global interpreter lock: neither its caches nor Numba are tested "
        "there. Use the standard build, such as python3.13 in place of python3.13t"
    )

if TYPE_CHECKING:
    from woodlot.connected import connect
    from woodlot.estimators.complete import CompleteForest
    from woodlot.estimators.federated_extra_trees import FederatedExtraTreesClassifier, FederatedExtraTreesRegressor
    from woodlot.estimators.federated_forest import (
        FederatedForestClassifier,
        FederatedForestRegressor,
        UncertainPredictionWarning,
    )
    from woodlot.estimators.horizontal_forest import HorizontalForestClassifier, HorizontalForestRegressor
    from woodlot.estimators.linear_models import FederatedLinearRegression, FederatedLogisticRegression
    from woodlot.estimators.loading import load
    from woodlot.estimators.origin import TrainingRowsWarning
    from woodlot.estimators.private_forest import PrivateForestClassifier, PrivateForestRegressor
    from woodlot.estimators.revocable_forest import RevocableForestClassifier, RevocableForestRegressor
    from woodlot.estimators.row_forests import (
        CollaborativeForestClassifier,
        CollaborativeForestRegressor,
        LocalForestsClassifier,
        LocalForestsRegressor,
    )
    from woodlot.evaluation.validation import cross_validate, search
    from woodlot.federation import Federation
    from woodlot.plots import plot_cost, plot_importance, plot_oob_curve, plot_tree
    from woodlot.privacy.settings import GlobalDP, LocalDP

__version__ = "0.1.0"

# imported on first use: `import woodlot` must not wait for scikit-learn and numba
_HOMES = {
    "CollaborativeForestClassifier": "woodlot.estimators.row_forests",
    "CollaborativeForestRegressor": "woodlot.estimators.row_forests",
    "CompleteForest": "woodlot.estimators.complete",
    "FederatedExtraTreesClassifier": "woodlot.estimators.federated_extra_trees",
    "FederatedExtraTreesRegressor": "woodlot.estimators.federated_extra_trees",
    "FederatedForestClassifier": "woodlot.estimators.federated_forest",
    "FederatedForestRegressor": "woodlot.estimators.federated_forest",
    "FederatedLinearRegression": "woodlot.estimators.linear_models",
    "FederatedLogisticRegression": "woodlot.estimators.linear_models",
    "Federation": "woodlot.federation",
    "GlobalDP": "woodlot.privacy.settings",
    "LocalDP": "woodlot.privacy.settings",
    "HorizontalForestClassifier": "woodlot.estimators.horizontal_forest",
    "HorizontalForestRegressor": "woodlot.estimators.horizontal_forest",
    "LocalForestsClassifier": "woodlot.estimators.row_forests",
    "LocalForestsRegressor": "woodlot.estimators.row_forests",
    "PrivateForestClassifier": "woodlot.estimators.private_forest",
    "PrivateForestRegressor": "woodlot.estimators.private_forest",
    "RevocableForestClassifier": "woodlot.estimators.revocable_forest",
    "RevocableForestRegressor": "woodlot.estimators.revocable_forest",
    "TrainingRowsWarning": "woodlot.estimators.origin",
    "UncertainPredictionWarning": "woodlot.estimators.federated_forest",
    "connect": "woodlot.connected",
    "contributions": "woodlot.evaluation.contributions",
    "cross_validate": "woodlot.evaluation.validation",
    "grow_enough": "woodlot.evaluation.early_stopping",
    "load": "woodlot.estimators.loading",
    "plot_cost": "woodlot.plots",
    "plot_importance": "woodlot.plots",
    "plot_oob_curve": "woodlot.plots",
    "plot_tree": "woodlot.plots",
    "search": "woodlot.evaluation.validation",
}

__all__ = [
    "CollaborativeForestClassifier",
    "CollaborativeForestRegressor",
    "CompleteForest",
    "FederatedExtraTreesClassifier",
    "FederatedExtraTreesRegressor",
    "FederatedForestClassifier",
    "FederatedForestRegressor",
    "FederatedLinearRegression",
    "FederatedLogisticRegression",
    "Federation",
    "GlobalDP",
    "HorizontalForestClassifier",
    "HorizontalForestRegressor",
    "LocalDP",
    "LocalForestsClassifier",
    "LocalForestsRegressor",
    "PrivateForestClassifier",
    "PrivateForestRegressor",
    "RevocableForestClassifier",
    "RevocableForestRegressor",
    "TrainingRowsWarning",
    "UncertainPredictionWarning",
    "connect",
    "contributions",
    "cross_validate",
    "grow_enough",
    "load",
    "plot_cost",
    "plot_importance",
    "plot_oob_curve",
    "plot_tree",
    "search",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'woodlot' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
