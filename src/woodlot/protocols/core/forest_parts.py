"""The parts of a grown forest, by who holds them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from woodlot.trees.encoding import CategoryCoding, Coding, NumericCoding
from woodlot.trees.forest import Leaves, Splits, Structure, join_splits, join_structures
from woodlot.trees.sampling import Bootstrap

ClassName = str | int | float | bool


@dataclass(frozen=True, eq=False)
class CoordinatorForest:
    """What the coordinator keeps: structure, answers of the leaves, and whose coded feature splits each node."""

    structure: Structure
    owner: NDArray[np.int16]
    """Number of the party that split each node, -1 at leaves."""
    feature: NDArray[np.int32]
    """Number of the feature that split each node (over all parties), -1 at leaves."""
    gain: NDArray[np.float64]
    """Impurity decrease of each split, weighted by the node's share of its tree; 0 at leaves."""
    leaves: Leaves
    parties: tuple[str, ...]
    feature_keys: NDArray[np.uint64]
    feature_party: NDArray[np.int64]
    classes: tuple[ClassName, ...]
    """Names of the classes; empty for regression."""
    n_rows: int
    sampling: Bootstrap | None
    """How training rows were drawn: only while the training's data are at hand."""
    sharing: frozenset[str] = frozenset()
    """Parties that let the coordinator keep the complete model: as they said in the training."""
    outside: dict[str, int] = field(default_factory=dict)
    """How many training values of each column lay outside of the range that was declared, where one was."""
    left: tuple[str, ...] = ()
    """Parties that dropped out of the training, which went on without them."""
    left_at: dict[str, int] = field(default_factory=dict)
    """In how many trees of a private forest each of these was; in how many levels of all trees of a lossless one."""
    oob_score: float | None = None
    """Of a whole forest: accuracy or R2 of the rows that trees have not drawn, where it was asked for; not stored."""
    makers: NDArray[np.int16] | None = None
    """Of a whole forest: number of the client that has grown or split each node, where this is known; not stored."""

    def place_of(self, feature: int) -> tuple[str, int]:
        """The party that has a feature, and the feature's number among its own."""
        party = self.feature_party[feature]
        return self.parties[party], int(feature - np.searchsorted(self.feature_party, party))

    def importances(self) -> NDArray[np.float64]:
        """Mean decrease of impurity per feature, normalised within each tree and over all, as scikit-learn does."""
        n_features, n_trees = len(self.feature_keys), self.structure.n_trees
        # features in the order of their keys: sums then do not depend on who holds which column, to the last bit
        order = np.argsort(self.feature_keys)
        place = np.argsort(order)
        trees = np.repeat(np.arange(n_trees), np.diff(self.structure.offset))
        inner = self.feature >= 0
        flat = trees[inner] * n_features + place[self.feature[inner]]
        by_tree = np.bincount(flat, weights=self.gain[inner], minlength=n_trees * n_features)
        by_tree = by_tree.reshape(n_trees, n_features)[np.diff(self.structure.offset) > 1]
        if len(by_tree) == 0:
            return np.zeros(n_features)
        totals = by_tree.sum(axis=1, keepdims=True)
        mean = np.divide(by_tree, totals, out=np.zeros_like(by_tree), where=totals > 0).mean(axis=0)
        total = mean.sum()
        return np.asarray((mean / total if total > 0 else mean)[place], dtype=np.float64)


@dataclass(frozen=True, eq=False, repr=False)
class PartyForest:
    """What a party keeps: the structure, and the questions on its own columns."""

    structure: Structure
    splits: Splits
    names: tuple[str, ...]
    """The party's columns, in the order that ``splits.feature`` counts them."""
    codings: tuple[Coding, ...]


def join_forests(parts: Sequence[PartyForest]) -> PartyForest:
    """One forest of a party's trees that grew in several batches."""
    if len(parts) == 1:
        return parts[0]
    shifts = np.concatenate([[0], np.cumsum([part.structure.n_nodes for part in parts])])
    return PartyForest(
        structure=join_structures([part.structure for part in parts]),
        splits=join_splits([part.splits for part in parts], [int(shift) for shift in shifts[:-1]]),
        names=parts[0].names,
        codings=parts[0].codings,
    )


_NO_VALUES = np.empty(0, np.float32)


def splitting_parties(forest: CoordinatorForest) -> tuple[str, ...]:
    """The parties that split at least one node: whose parts a complete model needs."""
    splits = np.bincount(forest.owner + 1)[1:]  # leaves have -1
    return tuple(forest.parties[i] for i in np.flatnonzero(splits))


def active_parties(forest: CoordinatorForest, holder: str | None = None) -> list[str]:
    """The parties that have features, and the label holder: those that keep a part of the forest."""
    return [p for i, p in enumerate(forest.parties) if p == holder or (forest.feature_party == i).any()]


def codings_of(categories: Sequence[Sequence[str] | None]) -> tuple[Coding, ...]:
    """What prediction must know of each column: its categories; of numbers the thresholds are enough."""
    return tuple(
        NumericCoding(_NO_VALUES, _NO_VALUES) if names is None else CategoryCoding(tuple(names)) for names in categories
    )


def categories_of(codings: Sequence[Coding]) -> tuple[tuple[str, ...] | None, ...]:
    """The categories of each column, None for numbers."""
    return tuple(coding.categories if isinstance(coding, CategoryCoding) else None for coding in codings)


def forget_values(part: PartyForest) -> PartyForest:
    """A party's part without the training's values: prediction needs the thresholds only."""
    return replace(part, codings=codings_of(categories_of(part.codings)))
