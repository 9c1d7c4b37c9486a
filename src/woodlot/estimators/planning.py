"""From checked constructor parameters to the plan of a forest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from woodlot.estimators.class_labels import ClassWeights
from woodlot.protocols.core.forest_plan import BLIND_BINS, DEFAULT_MEMORY, ForestPlan, Task


def plan_of(params: Mapping[str, Any], seed: int, class_weights: ClassWeights, task: Task) -> ForestPlan:
    """What is to be grown; numbers of any library become Python's own."""
    p = params
    features = p["max_features"]
    return ForestPlan(
        task=task,
        n_estimators=int(p["n_estimators"]),
        entropy=p["criterion"] in ("entropy", "log_loss"),
        max_depth=None if p["max_depth"] is None else int(p["max_depth"]),
        min_samples_split=_number(p["min_samples_split"]),
        min_samples_leaf=_number(p["min_samples_leaf"]),
        min_weight_fraction_leaf=float(p["min_weight_fraction_leaf"]),
        max_features=features if features is None or isinstance(features, str) else _number(features),
        max_leaf_nodes=None if p["max_leaf_nodes"] is None else int(p["max_leaf_nodes"]),
        min_impurity_decrease=float(p["min_impurity_decrease"]),
        bootstrap=bool(p["bootstrap"]),
        max_samples=None if p["max_samples"] is None else _number(p["max_samples"]),
        class_weight=class_weights,
        feature_sampling=p["feature_sampling"],
        max_bins=_bins(p["max_bins"], p["labels"]),
        out_of_bag=p.get("voting", "soft") if p["oob_score"] else None,
        seed=seed,
        memory_limit=int(p["memory_limit"] or DEFAULT_MEMORY),
        labels=p["labels"],
        key_bits=int(p["key_bits"]),
    )


def _bins(max_bins: Any, labels: str) -> int | None:
    if max_bins is None:
        return BLIND_BINS if labels == "encrypted" else None
    return int(max_bins)


def _number(value: Any) -> int | float:
    return int(value) if isinstance(value, int | np.integer) else float(value)
