"""What a client adds up for private forests: whole numbers, of which each row's part has a length that is known.

Every bound that the noise relies on is enforced here, by arithmetic on whole numbers, whatever the coordinator sends.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from woodlot.data.columns import NumericColumn
from woodlot.protocols.rows.private.private_plan import CELLS, SKEW, Terms
from woodlot.trees.predict import softmax

Ends = tuple[float, float]


def residuals(
    scores: NDArray[np.float64], labels: NDArray[np.int64] | None, targets: NDArray[np.float64]
) -> NDArray[np.float64]:
    """How far the answers are from the truth, by score.

    Parameters
    ----------
    scores : float64 array (rows, scores)
        Of the trees so far.
    labels : int64 array or None
        Classes by number; None for targets.
    targets : float64 array
        From -1 to 1.
    """
    if labels is None:
        return np.clip(targets[:, None] - scores, -1.0, 1.0)
    if scores.shape[1] == 1:
        return labels[:, None] - 1 / (1 + np.exp(-scores))
    rest = -softmax(scores.copy())
    rest[np.arange(len(labels)), labels] += 1
    return rest


def in_steps(gradients: NDArray[np.float64], terms: Terms) -> NDArray[np.int64]:
    """Gradients as whole numbers, none of them longer than ``clip_steps``."""
    length = np.sqrt((gradients**2).sum(axis=1, keepdims=True))
    shortened = gradients * (terms.gradient_steps * np.minimum(1.0, terms.plan.clip / np.maximum(length, 1e-300)))
    steps: NDArray[np.int64] = np.rint(shortened).astype(np.int64)
    # rounding keeps to the bound, but for errors of floating point: these are made shorter until they do
    limit = int(terms.clip_steps**2)
    longer = np.flatnonzero((steps**2).sum(axis=1) > limit)
    while len(longer):
        steps[longer] -= np.sign(steps[longer])
        longer = longer[(steps[longer] ** 2).sum(axis=1) > limit]
    return steps


def sum_by_leaf(
    leaf: NDArray[np.int64], n_leaves: int, gradients: NDArray[np.int64], terms: Terms
) -> NDArray[np.int64]:
    """The sums of the leaves: gradients by score, then rows."""
    columns = [np.bincount(leaf, weights=column, minlength=n_leaves) for column in gradients.T]
    rows = terms.row_steps * np.bincount(leaf, minlength=n_leaves)
    return np.column_stack([*columns, rows]).astype(np.int64)


def sum_totals(
    labels: NDArray[np.int64] | None,
    targets: NDArray[np.float64],
    n_classes: int,
    histograms: list[NDArray[np.int64]],
    terms: Terms,
) -> NDArray[np.int64]:
    """The totals: rows of each class, or rows and the sum of targets; then the histograms."""
    if labels is None:
        steps = np.clip(np.rint(terms.total_steps * targets), -terms.total_steps, terms.total_steps)
        first = np.array([terms.total_steps * len(targets), int(steps.sum())], np.int64)
    else:
        first = terms.total_steps * np.bincount(labels, minlength=n_classes)
    return np.concatenate([first, *(terms.cell_steps * one for one in histograms)]).astype(np.int64)


def edges_of(ends: Ends) -> NDArray[np.float64]:
    """The edges of the cells of a column, narrower towards its low end."""
    low, high = ends
    return np.asarray(low + (high - low) * np.linspace(0, 1, CELLS + 1) ** SKEW)


def histogram(column: NumericColumn, ends: Ends) -> NDArray[np.int64]:
    """Rows in each cell; values outside count at the ends, missing ones nowhere."""
    values = column.values[~np.isnan(column.values)].astype(np.float64)
    cell = np.searchsorted(edges_of(ends)[1:-1], values, side="left")  # as thresholds do: an edge belongs to the left
    return np.bincount(cell, minlength=CELLS).astype(np.int64)
