"""When a node may be split, and how splits are judged: the same at every role."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from woodlot.trees.sampling import Bootstrap

XLOGX_BITS = 42
"""Entropy scores are integers below 2**42: exact, and with room for the last bit of another machine's log2."""
XLOGX_SIZE = 1 << 22
"""Rows that weigh more than this together, and more than one each, get no table of x*log2(x): it would be too large."""


@dataclass(frozen=True)
class GrowthRules:
    """When a node may be split, and how splits are judged.

    ``min_weight`` counts in integer weights; ``whole_tree`` draws the candidate features once per tree, as in the
    Federated Forest paper, and not at every node.
    """

    entropy: bool
    max_depth: int
    min_samples_split: int
    min_samples_leaf: int
    min_weight: int
    whole_tree: bool

    @property
    def splits_two_rows_by_order(self) -> bool:
        """Whether at a node of two rows every split is allowed and as good as any: the first feature in order wins."""
        return self.min_samples_leaf == 1 and self.min_weight == 1 and not self.whole_tree


def entropy_scale(bootstrap: Bootstrap, n_rows: int) -> int:
    """Factor of the fixed-point entropy scores: one for the whole job, so that all kernels and batches agree."""
    heaviest = max(bootstrap.tree_weight(n_rows), 2)
    return int(2.0 ** max(0.0, np.floor(XLOGX_BITS - np.log2(heaviest * max(np.log2(heaviest), 1.0)))))
