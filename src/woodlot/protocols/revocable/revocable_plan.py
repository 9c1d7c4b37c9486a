"""What is to be grown: a revocable forest's parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from woodlot.protocols.core.forest_plan import ForestPlan
from woodlot.protocols.revocable.split_list import MAX_SPLITS
from woodlot.trees.sampling import Bootstrap

DEFAULT_RHO = 20
DEFAULT_ZETA = 31
DEFAULT_DEPTH = 10
"""The paper's depth."""


Scheme: TypeAlias = Literal["auto", "shares", "paper"]
"""How splits and requests are hidden: split between helper and key service, or encrypted as in the paper; "auto" is
shares."""

DEFAULT_SCHEME: Scheme = "auto"


@dataclass(frozen=True)
class RevocablePlan:
    """Parameters of a construction.

    Attributes
    ----------
    forest : ForestPlan
        Those that every forest has.
    rho : int
        Samples of a node that give the range of its candidates; 0 for all.
    zeta : int
        Candidates per feature, evenly spaced in that range.
    reuse_features : bool
        Whether a feature may be split again below a node that it has split; the paper takes it away.
    """

    forest: ForestPlan
    rho: int = DEFAULT_RHO
    zeta: int = DEFAULT_ZETA
    reuse_features: bool = True

    @property
    def n_estimators(self) -> int:
        return self.forest.n_estimators

    @property
    def seed(self) -> int:
        return self.forest.seed

    @property
    def max_depth(self) -> int:
        return DEFAULT_DEPTH if self.forest.max_depth is None else self.forest.max_depth

    @property
    def most_splits(self) -> int:
        """The most splits that a forest by this plan can have, however many rows there are."""
        whole = (1 << min(self.max_depth, MAX_SPLITS.bit_length())) - 1
        leaves = self.forest.max_leaf_nodes
        return min(MAX_SPLITS, self.n_estimators * (whole if leaves is None else min(whole, leaves - 1)))

    def n_candidates(self, n_features: int) -> int:
        """``max_features`` as a number."""
        return self.forest.n_candidates(n_features)

    def sampling(self, n_rows: int) -> Bootstrap:
        """How the rows of each tree are drawn: by the coordinator alone."""
        return self.forest.sampling(n_rows, None, 1.0)

    def min_samples_split(self, n_rows: int) -> int:
        """Fewest rows of a node that is split."""
        return self.forest.rules(n_rows, n_rows).min_samples_split

    def min_samples_leaf(self, n_rows: int) -> int:
        """Fewest rows of a leaf."""
        return self.forest.rules(n_rows, n_rows).min_samples_leaf
