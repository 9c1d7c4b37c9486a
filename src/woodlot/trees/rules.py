"""When a node may be split, and how splits are judged: the same at every role."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from woodlot.trees.sampling import Bootstrap

XLOGX_BITS = 42
"""Entropy scores are integers below 2**42: exact, and with room for the last bit of another machine's log2."""
XLOGX_SIZE = 1 << 22
"""Rows that weigh more than this together, and more than one each, get no table of x*log2(x): it would be too large."""


class SplitSides(NamedTuple):
    """Both sides of some splits, shape (splits, 2), left first."""

    rows: NDArray[np.int64]
    """Different rows, however often each was drawn."""
    weight: NDArray[np.int64] | None
    """What they weigh; None where no rule asks for it."""


@dataclass(frozen=True)
class GrowthRules:
    """When a node may be split, and how splits are judged.

    ``min_weight`` counts in integer weights; ``whole_tree`` draws the candidate features once per tree, as in the
    Federated Forest paper, and not at every node. ``min_cell``: see ``trees.coarsening``; 0 for exact codes.
    """

    entropy: bool
    max_depth: int
    min_samples_split: int
    min_samples_leaf: int
    min_weight: int
    whole_tree: bool
    min_cell: int = 0

    @property
    def splits_two_rows_by_order(self) -> bool:
        """Whether at a node of two rows every split is allowed and as good as any: the first feature in order wins."""
        return self.min_samples_leaf == 1 and self.min_weight == 1 and not self.whole_tree and self.min_cell == 0

    def allow(self, sides: SplitSides) -> bool:
        """Whether both sides of every split are large and heavy enough: what a search offers always is."""
        enough = sides.rows.min(initial=self.min_samples_leaf) >= self.min_samples_leaf
        return bool(enough and (sides.weight is None or sides.weight.min(initial=self.min_weight) >= self.min_weight))

    def may_split(self, sides: SplitSides, depth: int) -> NDArray[np.bool_]:
        """Which of the new nodes, left and right of each split, are not leaves by size, weight or depth alone."""
        may = (sides.rows >= max(self.min_samples_split, 2 * self.min_samples_leaf)) & (depth < self.max_depth)
        if sides.weight is not None:
            may &= sides.weight >= 2 * self.min_weight
        return may.ravel()


def entropy_scale(bootstrap: Bootstrap, n_rows: int) -> int:
    """Factor of the fixed-point entropy scores: one for the whole job, so that all kernels and batches agree."""
    heaviest = max(bootstrap.tree_weight(n_rows), 2)
    return int(2.0 ** max(0.0, np.floor(XLOGX_BITS - np.log2(heaviest * max(np.log2(heaviest), 1.0)))))
