"""Growing branches of a forest again from the rows of their roots, as training would."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from woodlot.trees.encoding import EncodedTable
from woodlot.trees.forest import Splits, Structure
from woodlot.trees.grow import Grower, LeafPart, Won
from woodlot.trees.kernels.search import Columns
from woodlot.trees.rules import GrowthRules, entropy_scale
from woodlot.trees.sampling import Bootstrap
from woodlot.trees.search import SplitSearch
from woodlot.trees.skeleton import Skeleton

EPSILON = float(np.finfo(np.float64).eps)


@dataclass(frozen=True, eq=False)
class Ground:
    """What a forest grows on.

    Attributes
    ----------
    table : EncodedTable
        All columns of all parties, in the order of the forest's features.
    feature_keys : uint64 array
        Their stable codes.
    labels : array
        Class numbers, or targets in fixed point.
    values : float64 array
        Targets in clear; empty for classes.
    n_classes : int
        0 for targets.
    rules : GrowthRules
        When a node may be split.
    n_candidates : int
        Features that are tried at a node.
    order_seed : int
        Of the order of candidates.
    """

    table: EncodedTable
    feature_keys: NDArray[np.uint64]
    labels: NDArray[Any]
    values: NDArray[np.float64]
    n_classes: int
    rules: GrowthRules
    n_candidates: int
    order_seed: int


class Branches(NamedTuple):
    """Branches that have grown again, one after the other; places of rows count from the first row of all of them."""

    structure: Structure
    splits: Splits
    gain: NDArray[np.float64]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    rows: NDArray[np.uint32]
    weights: NDArray[Any]


class BranchGrower(Grower):
    """Grows branches from nodes whose rows and keys are known."""

    def __init__(
        self,
        ground: Ground,
        bootstrap: Bootstrap,
        rows: NDArray[np.uint32],
        weights: NDArray[Any],
        bounds: NDArray[np.int64],
        keys: NDArray[np.uint64],
        root_keys: NDArray[np.uint64],
        depth: NDArray[np.integer[Any]],
    ) -> None:
        self.table, self.labels, self.n_classes = ground.table, ground.labels, ground.n_classes
        self.rules, self.n_jobs, self.feature_keys = ground.rules, 1, ground.feature_keys
        self.skeleton = Skeleton(keys)
        self.skeleton.root_key = root_keys
        self._below = ground.rules.max_depth - depth.astype(np.int64)  # levels that each branch may still have
        self.rows, self.weights = rows, weights
        self.start, self.end = bounds[:-1].copy(), bounds[1:].copy()
        self.root_sizes = self.end - self.start
        self._won: list[Won] = []
        self._columns = Columns(*(getattr(ground.table, name) for name in Columns._fields))
        self._largest = int(self.root_sizes.max(initial=0))
        self._search = SplitSearch(
            ground.table, ground.feature_keys, ground.labels, ground.n_classes, ground.rules, bootstrap, rows, weights,
            self._largest,
        )  # fmt: skip
        self._local = threading.local()
        self._leaf_parts: list[LeafPart] = []
        self._close(np.arange(len(keys), dtype=np.int64))

    def _close(self, numbers: NDArray[np.int64], settled: NDArray[np.bool_] | None = None) -> None:
        super()._close(numbers, settled)
        self._below = self._below[self.is_open]

    def _still_open(self) -> NDArray[np.bool_]:
        return super()._still_open() & (self._below > 0)

    def split(
        self,
        is_split: NDArray[np.bool_],
        other_flags: NDArray[np.uint8],
        settled: NDArray[np.bool_] | None = None,
    ) -> None:
        """As for whole trees; the branches may have begun at different depths."""
        self._below = np.repeat(self._below[is_split] - 1, 2)
        super().split(is_split, other_flags, settled)

    @property
    def middle(self) -> NDArray[np.int64]:
        """Where the right side of each open node begins, once it is split."""
        return self._middle


def gain_unit_of(bootstrap: Bootstrap, n_rows: int, rules: GrowthRules) -> float:
    """What turns gains in the labels' code into impurity decreases, as in training."""
    return 1.0 / (bootstrap.tree_weight(n_rows) * (entropy_scale(bootstrap, n_rows) if rules.entropy else 1.0))


def best_splits(
    ground: Ground, grower: Grower, bootstrap: Bootstrap, n_rows: int
) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Which open nodes are split by their best split, and what that gains; ``n_rows`` are left in the forest."""
    offers = grower.find(np.full(len(grower.start), ground.n_candidates, np.int64))
    gain = np.where(offers.feature >= 0, offers.score, np.nan) - offers.whole
    won = (offers.feature >= 0) & ~(gain * gain_unit_of(bootstrap, n_rows, ground.rules) + EPSILON < 0)
    return won, gain


def grow_branches(ground: Ground, grower: BranchGrower, bootstrap: Bootstrap, n_rows: int) -> Branches:
    """Grow branches until no node can be split; arguments as for `best_splits`."""
    number, gains = [], []
    ends = np.cumsum(grower.root_sizes)
    ranges = [(np.arange(len(ends)), ends - grower.root_sizes, ends)]
    while len(grower.start):
        won, gain = best_splits(ground, grower, bootstrap, n_rows)
        if not won.any():
            break
        grower.apply(won)
        number.append(grower.skeleton.frontier[won])
        gains.append(gain[won])
        start, end, middle = grower.start[won], grower.end[won], grower.middle[won]
        base = grower.skeleton.n_nodes
        grower.split(won, _NO_FLAGS)
        ranges.append(
            (
                base + np.arange(2 * len(start)),
                np.column_stack([start, middle]).ravel(),
                np.column_stack([middle, end]).ravel(),
            )
        )
    structure, splits, position = grower.finish(_NONE)
    gain = np.zeros(structure.n_nodes)
    start_of, end_of = np.empty(structure.n_nodes, np.int64), np.empty(structure.n_nodes, np.int64)
    for numbers, starts, ends in ranges:
        start_of[position[numbers]], end_of[position[numbers]] = starts, ends
    if number:
        gain[position[np.concatenate(number)]] = np.concatenate(gains)
    return Branches(structure, splits, gain, start_of, end_of, grower.rows, grower.weights)


_NO_FLAGS = np.empty(0, np.uint8)
_NONE = np.empty(0, np.int64)
