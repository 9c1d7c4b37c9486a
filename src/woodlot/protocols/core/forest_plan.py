"""What is to be grown: the estimator's parameters, and what they come to once rows and columns are known."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2, sqrt
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from woodlot.exceptions import DataError
from woodlot.trees.coarsening import LEAST_CELL, cell_for
from woodlot.trees.predict import Vote
from woodlot.trees.rules import GrowthRules
from woodlot.trees.sampling import WEIGHT_BITS, Bootstrap, derive_seed

UNLIMITED_DEPTH = 2**31 - 1
BYTES_PER_ROW = 8
"""Upper estimate of what a party holds per drawn row and tree: row number, weight, and a flag per level."""
DEFAULT_MEMORY = 2 * 1024**3

HIDDEN_BINS = 32
"""Bins of a numeric column where nothing else is said and the training is hidden."""
HIDDEN_MIN_LEAF = 20
"""The fewest rows of a leaf of a hidden training: counts of fewer rows could be solved for single rows."""

HIDDEN_WEIGHTS = (
    "with protection='hidden' the dealer draws the rows of each tree and must not know their weights; use "
    "bootstrap=False with sample_weight or class_weight, or protection='open'"
)

Task = Literal["classes", "targets"]
Protection = Literal["open", "hidden"]


@dataclass(frozen=True)
class ForestPlan:
    """Parameters of a training in scikit-learn's terms.

    ``out_of_bag``: how trees vote on rows they have not seen. ``protection``: whether parties learn which row goes
    where. ``min_cell``: a node of m rows shows at most m // min_cell cells of a column (`woodlot.trees.coarsening`); 0
    for any number, "auto" for what `cell_for` makes of the number of rows. ``ccp_alpha``: what a split must gain on
    average in its branch, or the branch is pruned; unset for no pruning, as in orders from before.
    """

    task: Task
    n_estimators: int
    entropy: bool
    max_depth: int | None
    min_samples_split: int | float
    min_samples_leaf: int | float
    min_weight_fraction_leaf: float
    max_features: int | float | str | None
    max_leaf_nodes: int | None
    min_impurity_decrease: float
    bootstrap: bool
    max_samples: int | float | None
    class_weight: Literal["balanced", "balanced_subsample"] | tuple[tuple[str, float], ...] | None
    feature_sampling: Literal["node", "tree"]
    max_bins: int | None
    out_of_bag: Vote | None
    seed: int
    memory_limit: int = DEFAULT_MEMORY
    protection: Protection = "open"
    min_cell: int | Literal["auto"] = 0
    ccp_alpha: float | msgspec.UnsetType = msgspec.UNSET

    @property
    def pruning(self) -> float:
        """``ccp_alpha`` as a number; 0: trees are not pruned."""
        return 0.0 if isinstance(self.ccp_alpha, msgspec.UnsetType) else self.ccp_alpha

    @property
    def nodes_compete(self) -> bool:
        """Whether a node's split depends on other branches of its tree."""
        return self.max_leaf_nodes is not None or self.pruning > 0

    @property
    def measures_gains(self) -> bool:
        """Whether a rule compares gains with a number, so that the unit of targets is needed."""
        return self.min_impurity_decrease > 0 or self.pruning > 0

    def __post_init__(self) -> None:
        self._check_cells()
        if self.protection == "hidden" and self.max_bins is None:
            raise DataError(f"protection='hidden' needs bins; use max_bins={HIDDEN_BINS}, or protection='open'")

    def check_hidden(self) -> None:
        """Refuse what a hidden training cannot do, with what to do instead; weights are for the holder to check."""
        if self.out_of_bag is not None:
            raise DataError(
                "out-of-bag scores need each tree's rows, which stay secret with protection='hidden'; use "
                "oob_score=False and score a test table, or use protection='open'"
            )
        if self.bootstrap and self.class_weight is not None:
            raise DataError(HIDDEN_WEIGHTS)

    def _check_cells(self) -> None:
        if self.min_cell == 0:
            return
        if self.min_cell != "auto" and self.min_cell < 0:
            raise DataError(f"min_cell must be 0 or a positive number of rows, not {self.min_cell}")
        if self.max_bins is None:
            raise DataError(f"min_cell makes bins coarser and needs some; use max_bins={HIDDEN_BINS}, or min_cell=0")

    @property
    def fewest_in_cell(self) -> int:
        """The smallest ``min_cell`` that any policy of a party can allow."""
        return LEAST_CELL if self.protection == "hidden" else 0

    def usual_in_cell(self, n_rows: int) -> int:
        """The smallest ``min_cell`` that a party allows whose policy does not name one."""
        return cell_for(n_rows) if self.protection == "hidden" else 0

    def cell(self, n_rows: int) -> int:
        """``min_cell`` as a number."""
        return cell_for(n_rows) if self.min_cell == "auto" else self.min_cell

    def smallest_leaf(self, n_rows: int) -> int:
        """The fewest rows of a leaf."""
        leaf = self.min_samples_leaf
        fewest = leaf if isinstance(leaf, int) else ceil(leaf * n_rows)
        return max(fewest, HIDDEN_MIN_LEAF) if self.protection == "hidden" else fewest

    def rules(self, n_rows: int, total_weight: int) -> GrowthRules:
        """Rules of growth for a table of ``n_rows``, each tree of which weighs ``total_weight``."""
        split, cell = self.min_samples_split, self.cell(n_rows)
        return GrowthRules(
            entropy=self.entropy,
            max_depth=UNLIMITED_DEPTH if self.max_depth is None else self.max_depth,
            min_samples_split=max(2, split if isinstance(split, int) else ceil(split * n_rows), 2 * cell),
            min_samples_leaf=self.smallest_leaf(n_rows),
            min_weight=max(1, ceil(self.min_weight_fraction_leaf * total_weight)),
            whole_tree=self.feature_sampling == "tree",
            min_cell=cell,
        )

    def n_candidates(self, n_features: int) -> int:
        """``max_features`` as a number."""
        m = self.max_features
        if m is None:
            wanted: float = n_features
        elif m == "sqrt":
            wanted = sqrt(n_features)
        elif m == "log2":
            wanted = log2(n_features) if n_features > 0 else 1
        elif isinstance(m, int):
            wanted = m
        else:
            wanted = float(m) * n_features
        return max(1, min(n_features, int(wanted)))

    def may_try(self, candidates: NDArray[np.unsignedinteger[Any]]) -> bool:
        """Party: whether so many of its own features can be candidates at each of some nodes.

        Shares of all features mean nothing to a party: it does not know how many the others have.
        """
        m = self.max_features
        most = m if isinstance(m, int) and not isinstance(m, bool) else None
        return most is None or int(candidates.max(initial=0)) <= max(1, most)

    def n_draws(self, n_rows: int, weights: NDArray[np.int64] | None, factor: float) -> int:
        """Rows drawn for each tree."""
        return n_draws(self.max_samples if self.bootstrap else None, n_rows, weights, factor)

    def sampling(self, n_rows: int, weights: NDArray[np.int64] | None, factor: float) -> Bootstrap:
        """How the rows of each tree are drawn."""
        return Bootstrap(
            seed=derive_seed(self.seed, "bootstrap") if self.bootstrap else None,
            n_draws=self.n_draws(n_rows, weights, factor),
            weights=weights,
            balance=self.class_weight == "balanced_subsample",
        )

    def batches(self, n_rows: int, at_most: int | None = None) -> list[range]:
        """Trees that grow together: as many as the memory limit, and the memory of every party, allows."""
        together = max(1, min(self.n_estimators, self.memory_limit // (BYTES_PER_ROW * n_rows)))
        if at_most is not None:
            together = max(1, min(together, at_most))
        return [range(t, min(t + together, self.n_estimators)) for t in range(0, self.n_estimators, together)]

    def growth(self, n_rows: int, sampling: Bootstrap) -> dict[str, Any]:
        """What a start tells that follows from the plan."""
        rules = self.rules(n_rows, sampling.tree_weight(n_rows))
        return {
            "entropy": rules.entropy,
            "max_depth": rules.max_depth,
            "min_samples_split": rules.min_samples_split,
            "min_samples_leaf": rules.min_samples_leaf,
            "min_weight": rules.min_weight,
            "whole_tree": rules.whole_tree,
            "min_cell": rules.min_cell,
            "max_leaf_nodes": self.max_leaf_nodes,
            "min_impurity_decrease": self.min_impurity_decrease,
            "ccp_alpha": self.pruning or None,
            "order_seed": derive_seed(self.seed, "order"),
            "bootstrap_seed": sampling.seed,
            "n_draws": sampling.n_draws,
            "balance": sampling.balance,
        }


def n_draws(max_samples: int | float | None, n_rows: int, weights: NDArray[np.int64] | None, factor: float) -> int:
    """Rows drawn for each tree: scikit-learn's meaning of ``max_samples``."""
    if max_samples is None:
        return n_rows
    if isinstance(max_samples, int):
        return max_samples
    total = float(n_rows) if weights is None else float(weights.sum()) / factor
    draws = max(1, int(max_samples * total))
    if draws >= 2**WEIGHT_BITS:
        raise DataError(
            f"max_samples={max_samples} of {total:,.0f} rows would draw {draws:,} rows for each tree, and at most "
            f"{2**WEIGHT_BITS - 1:,} can be drawn; lower max_samples"
        )
    return draws


def check_summaries(n_rows: dict[str, int]) -> int:
    """The number of rows, which must be the same at every party and not zero."""
    if len(set(n_rows.values())) != 1:
        raise DataError(f"parties have different numbers of rows: {n_rows}; align their tables by id before training")
    rows = next(iter(n_rows.values()))
    if rows == 0:
        raise DataError("no rows to train on: the parties' tables are empty or have no id in common")
    return rows
