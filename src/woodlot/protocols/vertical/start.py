"""How a training begins: what the label holder is asked, what every party is told, and whether the plan says so."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.exceptions import RemoteProtocolError
from woodlot.protocols.core.forest_plan import ForestPlan
from woodlot.protocols.vertical.forest_messages import EncodedLabels, GrowthStart, ShareLabels, StartForest
from woodlot.trees.rules import GrowthRules, entropy_scale
from woodlot.trees.sampling import WEIGHT_BITS, Bootstrap, DrawsByRow, derive_seed

EPSILON = float(np.finfo(np.float64).eps)
"""By how much a gain may fall short of ``min_impurity_decrease``: as in scikit-learn."""


def share_message(plan: ForestPlan) -> ShareLabels:
    """What the label holder is asked: everybody gets the labels under a code."""
    return ShareLabels(
        task=plan.task,
        seed=derive_seed(plan.seed, "labels"),
        balanced=plan.class_weight == "balanced",
        class_weight=plan.class_weight if isinstance(plan.class_weight, tuple) else (),
        reveal_unit=plan.measures_gains,
        bootstrap=plan.bootstrap,
        max_samples=plan.max_samples,
    )


def start_message(plan: ForestPlan, n_rows: int, answer: EncodedLabels) -> StartForest:
    """What every party is told: the encoded labels, the rules and the seeds."""
    labels = answer.labels if plan.task == "classes" else answer.targets
    if labels is None or len(labels) != n_rows:
        raise RemoteProtocolError("the label holder did not send one label per row")
    if answer.weights is not None and len(answer.weights) != n_rows:
        raise RemoteProtocolError("the label holder did not send one weight per row")
    weights = None if answer.weights is None else answer.weights.astype(np.int64)
    sampling = plan.sampling(n_rows, weights, answer.weight_factor)
    return StartForest(
        labels=answer.labels,
        targets=answer.targets,
        weights=answer.weights,
        n_classes=len(answer.classes) if plan.task == "classes" else 0,
        late_scores=_may_be_late(plan, sampling, n_rows),
        **plan.growth(n_rows, sampling),
    )


def _may_be_late(plan: ForestPlan, sampling: Bootstrap, n_rows: int) -> bool:
    """Whether a node can be split before its gain is known, by any feature that is not the same in all its rows."""
    by_gain = plan.min_impurity_decrease > 0 or plan.max_leaf_nodes is not None
    return not by_gain and plan.rules(n_rows, sampling.tree_weight(n_rows)).splits_two_rows_by_order


def is_start_of(plan: ForestPlan, start: GrowthStart, n_rows: int) -> bool:
    """Party: whether a start is one of this plan; weights are the label holder's, and so is their factor."""
    weights = None if start.weights is None else start.weights.astype(np.int64)
    sampling = plan.sampling(n_rows, weights, 1.0)
    if weights is not None and isinstance(plan.max_samples, float):
        sampling = replace(sampling, n_draws=start.n_draws)
    told = all(getattr(start, name) == value for name, value in plan.growth(n_rows, sampling).items())
    return told and (start.n_classes == 0) == (plan.task == "targets")


def check_start(start: StartForest, n_rows: int) -> NDArray[Any]:
    """Party: the labels of a start whose parts go together. The kernels trust it: they look at nothing twice."""
    labels = start.targets if start.n_classes == 0 else start.labels
    if labels is None or len(labels) != n_rows:
        raise RemoteProtocolError("StartForest must carry one label per row")
    if start.n_classes != 0 and not int(labels.max(initial=0)) < start.n_classes <= n_rows:
        raise RemoteProtocolError("StartForest carries class codes that do not fit the number of classes")
    check_growth(start, n_rows)
    by_gain = start.min_impurity_decrease > 0 or start.max_leaf_nodes is not None
    if start.late_scores and (by_gain or not rules_of(start).splits_two_rows_by_order):
        raise RemoteProtocolError("StartForest wants scores late under rules that need them early")
    return labels


def check_growth(start: GrowthStart, n_rows: int) -> None:
    """Party: rules, draws and weights that go together, whether labels come with them or not."""
    what, weights = type(start).__name__, start.weights
    if weights is not None:
        heaviest = int(weights.max(initial=0))
        if len(weights) != n_rows or not 0 < heaviest < 2**WEIGHT_BITS or int(weights.sum()) >= 2**WEIGHT_BITS:
            raise RemoteProtocolError(f"{what} must carry one weight per row, together less than 2**31 and not 0")
    if not 0 < start.n_draws < 2**WEIGHT_BITS or start.max_depth < 1:
        raise RemoteProtocolError(f"{what} carries a number of draws or a depth out of range")
    if start.min_samples_split < 2 or start.min_samples_leaf < 1 or start.min_weight < 1:
        raise RemoteProtocolError(f"{what} carries rules under which a node could lose its rows")
    if start.min_cell < 0 or start.min_samples_split < 2 * start.min_cell:
        raise RemoteProtocolError(f"{what} carries nodes that have fewer rows than two cells")
    if start.max_leaf_nodes is not None and start.max_leaf_nodes < 2:
        raise RemoteProtocolError(f"{what} carries trees of fewer than two leaves")
    if not 0 <= start.min_impurity_decrease < float("inf"):
        raise RemoteProtocolError(f"{what} carries a min_impurity_decrease out of range")
    if start.ccp_alpha is not None and not 0 < start.ccp_alpha < float("inf"):
        raise RemoteProtocolError(f"{what} carries a ccp_alpha out of range")


def gain_unit(start: GrowthStart, n_rows: int, unit: float) -> float:
    """What turns gains in the labels' own code into impurity decreases weighted by the share of the tree.

    ``unit`` is that of targets, 1 for classes.
    """
    sampling = sampling_of(start)
    return 1.0 / (sampling.tree_weight(n_rows) * (entropy_scale(sampling, n_rows) if start.entropy else unit))


def rules_of(start: GrowthStart) -> GrowthRules:
    """The rules of growth that a training was started with."""
    return GrowthRules(
        entropy=start.entropy,
        max_depth=start.max_depth,
        min_samples_split=start.min_samples_split,
        min_samples_leaf=start.min_samples_leaf,
        min_weight=start.min_weight,
        whole_tree=start.whole_tree,
        min_cell=start.min_cell,
    )


def sampling_of(start: GrowthStart, by_row: DrawsByRow | None = None) -> Bootstrap:
    """How the rows of the trees are drawn in a training; ``by_row``: as who runs it knows from the rows' keys."""
    return Bootstrap(
        seed=start.bootstrap_seed,
        n_draws=start.n_draws,
        weights=None if start.weights is None else start.weights.astype(np.int64),
        balance=start.balance,
        by_row=by_row,
    )
