"""What is to be grown: the estimator's parameters, and what they come to once rows and columns are known."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2, sqrt
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from woodlot.crypto.paillier import DEFAULT_BITS
from woodlot.exceptions import DataError
from woodlot.trees.predict import Vote
from woodlot.trees.rules import GrowthRules
from woodlot.trees.sampling import WEIGHT_BITS, Bootstrap, derive_seed

UNLIMITED_DEPTH = 2**31 - 1
BYTES_PER_ROW = 8
"""Upper estimate of what a party holds per drawn row and tree: row number, weight, and a flag per level."""
DEFAULT_MEMORY = 2 * 1024**3

BLIND_BINS = 32
"""Bins of a numeric column where nothing else is said and labels are encrypted: every cut costs as many squarings of
ciphertexts as its sum has bits."""

HIDDEN_BINS = 32
"""Bins of a numeric column where nothing else is said and the training is hidden."""
HIDDEN_MIN_LEAF = 20
"""The fewest rows of a leaf of a hidden training: counts of fewer rows could be solved for single rows."""

Task = Literal["classes", "targets"]
Protection = Literal["open", "hidden"]
LabelSharing = Literal["shared", "encrypted"]


@dataclass(frozen=True)
class ForestPlan:
    """Parameters of a training in scikit-learn's terms.

    ``out_of_bag``: how trees vote on rows they have not seen. ``labels`` and ``key_bits``: whether labels leave their
    holder under a code, or encrypted under a key of this length. ``protection``: whether parties learn which row goes
    where.
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
    labels: LabelSharing = "shared"
    key_bits: int = DEFAULT_BITS
    protection: Protection = "open"

    def __post_init__(self) -> None:
        if self.protection == "hidden":
            if self.labels == "encrypted":
                raise DataError(
                    "protection='hidden' keeps labels from everybody by itself; use it with labels='shared'"
                )
            if self.max_bins is None:
                raise DataError(f"protection='hidden' needs bins; use max_bins={HIDDEN_BINS}, or protection='open'")
        if self.labels == "encrypted":
            if self.class_weight is not None:
                raise DataError(
                    "class_weight gives rows weights that tell their classes, and weights go to every party; use "
                    "class_weight=None with labels='encrypted', or labels='shared'"
                )
            if self.max_bins is None:
                raise DataError(
                    f"labels='encrypted' needs bins, for every cut costs a sum under encryption; use "
                    f"max_bins={BLIND_BINS}, or labels='shared'"
                )

    def rules(self, n_rows: int, total_weight: int) -> GrowthRules:
        """Rules of growth for a table of ``n_rows``, each tree of which weighs ``total_weight``."""
        split = self.min_samples_split
        leaf = self.min_samples_leaf
        fewest = leaf if isinstance(leaf, int) else ceil(leaf * n_rows)
        return GrowthRules(
            entropy=self.entropy,
            max_depth=UNLIMITED_DEPTH if self.max_depth is None else self.max_depth,
            min_samples_split=max(2, split if isinstance(split, int) else ceil(split * n_rows)),
            min_samples_leaf=max(fewest, HIDDEN_MIN_LEAF) if self.protection == "hidden" else fewest,
            min_weight=max(1, ceil(self.min_weight_fraction_leaf * total_weight)),
            whole_tree=self.feature_sampling == "tree",
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
            "max_leaf_nodes": self.max_leaf_nodes,
            "min_impurity_decrease": self.min_impurity_decrease,
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
