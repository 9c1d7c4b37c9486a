"""What is to be grown: the estimator's parameters, and what they come to once rows and columns are known."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, log2, sqrt
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from woodlot.crypto.paillier import DEFAULT_BITS
from woodlot.exceptions import DataError, RemoteProtocolError
from woodlot.protocols.vertical.blind_messages import EncryptedLabels, EncryptLabels, StartBlind
from woodlot.protocols.vertical.forest_messages import EncodedLabels, GrowthStart, ShareLabels, StartForest
from woodlot.trees.predict import Vote
from woodlot.trees.rules import GrowthRules, entropy_scale
from woodlot.trees.sampling import WEIGHT_BITS, Bootstrap, derive_seed

UNLIMITED_DEPTH = 2**31 - 1
BYTES_PER_ROW = 8
"""Upper estimate of what a party holds per drawn row and tree: row number, weight, and a flag per level."""
DEFAULT_MEMORY = 2 * 1024**3

EPSILON = float(np.finfo(np.float64).eps)
"""By how much a gain may fall short of ``min_impurity_decrease``: as in scikit-learn."""

BLIND_BINS = 32
"""Bins of a numeric column where nothing else is said and labels are encrypted: every cut costs as many squarings of
ciphertexts as its sum has bits."""

Task = Literal["classes", "targets"]
LabelSharing = Literal["shared", "encrypted"]


@dataclass(frozen=True)
class ForestPlan:
    """Parameters of a training in scikit-learn's terms.

    ``out_of_bag``: how trees vote on rows they have not seen. ``labels`` and ``key_bits``: whether labels leave their
    holder under a code, or encrypted under a key of this length.
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

    def __post_init__(self) -> None:
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
        return GrowthRules(
            entropy=self.entropy,
            max_depth=UNLIMITED_DEPTH if self.max_depth is None else self.max_depth,
            min_samples_split=max(2, split if isinstance(split, int) else ceil(split * n_rows)),
            min_samples_leaf=leaf if isinstance(leaf, int) else ceil(leaf * n_rows),
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

    def share_message(self) -> ShareLabels:
        """What the label holder is asked where everybody gets the labels under a code."""
        return ShareLabels(
            task=self.task,
            seed=derive_seed(self.seed, "labels"),
            balanced=self.class_weight == "balanced",
            class_weight=self.class_weight if isinstance(self.class_weight, tuple) else (),
            reveal_unit=self.min_impurity_decrease > 0,
            bootstrap=self.bootstrap,
            max_samples=self.max_samples,
        )

    def encrypt_message(self, *, others: bool) -> EncryptLabels:
        """What the label holder is asked where labels stay with it; whether others have columns."""
        return EncryptLabels(
            task=self.task,
            seed=derive_seed(self.seed, "labels"),
            reveal_unit=self.min_impurity_decrease > 0,
            key_bits=self.key_bits,
            bootstrap=self.bootstrap,
            max_samples=self.max_samples,
            others=others,
        )

    def start_message(self, n_rows: int, answer: EncodedLabels) -> StartForest:
        """What every party is told: the encoded labels, the rules and the seeds."""
        labels = answer.labels if self.task == "classes" else answer.targets
        if labels is None or len(labels) != n_rows:
            raise RemoteProtocolError("the label holder did not send one label per row")
        return StartForest(labels=answer.labels, targets=answer.targets, **self._start_fields(n_rows, answer))

    def blind_start(self, n_rows: int, answer: EncryptedLabels) -> StartBlind:
        """What every party is told where labels stay with their holder: the rules and the seeds."""
        return StartBlind(**self._start_fields(n_rows, answer))

    def _start_fields(self, n_rows: int, answer: EncodedLabels | EncryptedLabels) -> dict[str, Any]:
        if answer.weights is not None and len(answer.weights) != n_rows:
            raise RemoteProtocolError("the label holder did not send one weight per row")
        weights = None if answer.weights is None else answer.weights.astype(np.int64)
        sampling = self.sampling(n_rows, weights, answer.weight_factor)
        return {
            "weights": answer.weights,
            "n_classes": len(answer.classes) if self.task == "classes" else 0,
            **self._growth(n_rows, sampling),
        }

    def _growth(self, n_rows: int, sampling: Bootstrap) -> dict[str, Any]:
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

    def is_started_by(self, start: GrowthStart, n_rows: int) -> bool:
        """Party: whether a start is one of this plan; weights are the label holder's, and so is their factor."""
        weights = None if start.weights is None else start.weights.astype(np.int64)
        sampling = self.sampling(n_rows, weights, 1.0)
        if weights is not None and isinstance(self.max_samples, float):
            sampling = replace(sampling, n_draws=start.n_draws)
        told = all(getattr(start, name) == value for name, value in self._growth(n_rows, sampling).items())
        return told and (start.n_classes == 0) == (self.task == "targets")


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


def check_start(start: StartForest, n_rows: int) -> NDArray[Any]:
    """Party: the labels of a start whose parts go together. The kernels trust it: they look at nothing twice."""
    labels = start.targets if start.n_classes == 0 else start.labels
    if labels is None or len(labels) != n_rows:
        raise RemoteProtocolError("StartForest must carry one label per row")
    if start.n_classes != 0 and not int(labels.max(initial=0)) < start.n_classes <= n_rows:
        raise RemoteProtocolError("StartForest carries class codes that do not fit the number of classes")
    check_growth(start, n_rows)
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
    if start.max_leaf_nodes is not None and start.max_leaf_nodes < 2:
        raise RemoteProtocolError(f"{what} carries trees of fewer than two leaves")
    if not 0 <= start.min_impurity_decrease < float("inf"):
        raise RemoteProtocolError(f"{what} carries a min_impurity_decrease out of range")


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
    )


def sampling_of(start: GrowthStart) -> Bootstrap:
    """How the rows of the trees are drawn in a training."""
    return Bootstrap(
        seed=start.bootstrap_seed,
        n_draws=start.n_draws,
        weights=None if start.weights is None else start.weights.astype(np.int64),
        balance=start.balance,
    )


def check_summaries(n_rows: dict[str, int]) -> int:
    """The number of rows, which must be the same at every party and not zero."""
    if len(set(n_rows.values())) != 1:
        raise DataError(f"parties have different numbers of rows: {n_rows}; align their tables by id before training")
    rows = next(iter(n_rows.values()))
    if rows == 0:
        raise DataError("no rows to train on: the parties' tables are empty or have no id in common")
    return rows
