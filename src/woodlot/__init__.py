"""Woodlot grows random forests across organisations that cannot pool their data."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from woodlot.connected import connect
    from woodlot.estimators.complete import CompleteForest
    from woodlot.estimators.extra_trees import FederatedExtraTreesClassifier, FederatedExtraTreesRegressor
    from woodlot.estimators.forest import (
        FederatedForestClassifier,
        FederatedForestRegressor,
        UncertainPredictionWarning,
    )
    from woodlot.estimators.horizontal import (
        CollaborativeForestClassifier,
        CollaborativeForestRegressor,
        LocalForestsClassifier,
        LocalForestsRegressor,
    )
    from woodlot.estimators.linear import FederatedLinearRegression, FederatedLogisticRegression
    from woodlot.estimators.loading import load
    from woodlot.estimators.lossless import HorizontalForestClassifier, HorizontalForestRegressor
    from woodlot.estimators.revocable import RevocableForestClassifier, RevocableForestRegressor
    from woodlot.estimators.seen_rows import TrainingRowsWarning
    from woodlot.federation import Federation
    from woodlot.plots import plot_cost, plot_importance, plot_oob_curve, plot_tree
    from woodlot.privacy.settings import GlobalDP, LocalDP

__version__ = "0.1.0"

# imported on first use: `import woodlot` must not wait for scikit-learn and numba
_HOMES = {
    "CollaborativeForestClassifier": "woodlot.estimators.horizontal",
    "CollaborativeForestRegressor": "woodlot.estimators.horizontal",
    "CompleteForest": "woodlot.estimators.complete",
    "FederatedExtraTreesClassifier": "woodlot.estimators.extra_trees",
    "FederatedExtraTreesRegressor": "woodlot.estimators.extra_trees",
    "FederatedForestClassifier": "woodlot.estimators.forest",
    "FederatedForestRegressor": "woodlot.estimators.forest",
    "FederatedLinearRegression": "woodlot.estimators.linear",
    "FederatedLogisticRegression": "woodlot.estimators.linear",
    "Federation": "woodlot.federation",
    "GlobalDP": "woodlot.privacy.settings",
    "LocalDP": "woodlot.privacy.settings",
    "HorizontalForestClassifier": "woodlot.estimators.lossless",
    "HorizontalForestRegressor": "woodlot.estimators.lossless",
    "LocalForestsClassifier": "woodlot.estimators.horizontal",
    "LocalForestsRegressor": "woodlot.estimators.horizontal",
    "RevocableForestClassifier": "woodlot.estimators.revocable",
    "RevocableForestRegressor": "woodlot.estimators.revocable",
    "TrainingRowsWarning": "woodlot.estimators.seen_rows",
    "UncertainPredictionWarning": "woodlot.estimators.forest",
    "connect": "woodlot.connected",
    "load": "woodlot.estimators.loading",
    "plot_cost": "woodlot.plots",
    "plot_importance": "woodlot.plots",
    "plot_oob_curve": "woodlot.plots",
    "plot_tree": "woodlot.plots",
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
    "RevocableForestClassifier",
    "RevocableForestRegressor",
    "TrainingRowsWarning",
    "UncertainPredictionWarning",
    "connect",
    "load",
    "plot_cost",
    "plot_importance",
    "plot_oob_curve",
    "plot_tree",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'woodlot' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
