"""From noisy sums in the leaves of a tree to its answers.

Noise in a leaf can be larger than its gradients, while that of all leaves below a node is smaller beside their sum. So
answers are found from the root down: a node answers as its parent, and as much more or less as can be told from noise.
The difference D between the sum of gradients at a node and what its parent's answer makes of it has noise of a known
variance v; it is shortened by the factor max(0, 1 - k v / |D|^2) (James and Stein, k scores).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from woodlot.protocols.rows.private.private_plan import Terms
from woodlot.trees.fill import Levels
from woodlot.trees.forest import Structure

LARGEST_STEP = 4.0
"""The largest answer of a leaf, before the learning rate."""
_RIDGE = 1.0


@dataclass(frozen=True, eq=False)
class Answers:
    """What a tree answers.

    Attributes
    ----------
    leaf : float64 array (leaves, scores)
        What is added to the scores, the learning rate included.
    rows : float64 array
        About how many rows are in each leaf.
    gain : float64 array
        Of each node of the tree: how much its split changes the answers of its rows; 0 at leaves.
    """

    leaf: NDArray[np.float64]
    rows: NDArray[np.float64]
    gain: NDArray[np.float64]


def answers_of(structure: Structure, sums: NDArray[np.int64], terms: Terms, n_summed: int) -> Answers:
    """The answers of one tree.

    Parameters
    ----------
    structure : Structure
        The tree.
    sums : int64 array (leaves, scores + 1)
        Gradients by score, and rows, in steps and with noise.
    terms : Terms
        The training's numbers.
    n_summed : int
        How many clients the sums are of.
    """
    plan, n_scores = terms.plan, sums.shape[1] - 1
    noise = terms.deviation(n_summed) / terms.gradient_steps
    is_leaf, levels = structure.right < 0, Levels(structure)
    node = np.zeros((structure.n_nodes, n_scores + 2))
    node[is_leaf, :n_scores] = sums[:, :n_scores] / terms.gradient_steps
    node[is_leaf, n_scores] = sums[:, n_scores] / terms.row_steps
    node[is_leaf, n_scores + 1] = noise**2
    total = levels.add_up(node)
    gradient, rows, variance = total[:, :n_scores], np.maximum(total[:, n_scores], 0.0), total[:, n_scores + 1]
    steepness = rows * curvature(plan.task == "targets", n_scores) + _RIDGE + np.sqrt(variance)
    answer = np.zeros((structure.n_nodes, n_scores))
    _shrink(answer, structure.offset[:1], gradient, steepness, variance, n_scores)
    gain = np.zeros(structure.n_nodes)
    for nodes in levels.inner:
        for children in (nodes + 1, structure.right[nodes].astype(np.int64)):
            answer[children] = answer[nodes]
            _shrink(answer, children, gradient, steepness, variance, n_scores)
            gain[nodes] += rows[children] * ((answer[children] - answer[nodes]) ** 2).sum(axis=1)
    step = plan.learning_rate * np.clip(answer[is_leaf], -LARGEST_STEP, LARGEST_STEP)
    return Answers(step, rows[is_leaf], gain / max(1.0, float(rows[0])))


def curvature(targets: bool, n_scores: int) -> float:
    """How fast a gradient falls as the score rises, for a row of which nothing is known."""
    if targets:
        return 1.0
    return 0.25 if n_scores == 1 else (1 / n_scores) * (1 - 1 / n_scores)


def _shrink(
    answer: NDArray[np.float64],
    nodes: NDArray[np.int64],
    gradient: NDArray[np.float64],
    steepness: NDArray[np.float64],
    variance: NDArray[np.float64],
    n_scores: int,
) -> None:
    """Move the answers of some nodes, which are their parents', towards their own gradients; in place."""
    scale = steepness[nodes][:, None]
    difference = gradient[nodes] - answer[nodes] * scale
    length = (difference**2).sum(axis=1)
    k = n_scores if n_scores > 2 else 1
    kept = np.maximum(0.0, 1 - k * variance[nodes] / np.maximum(length, math.ulp(1.0)))
    answer[nodes] += kept[:, None] * difference / scale
