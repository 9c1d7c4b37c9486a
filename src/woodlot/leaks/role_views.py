"""What a role knows of a training, rebuilt from the messages that it gets and sends, and from nothing else.

Every role keeps the same list of open nodes, so a few packed bits per level are enough to follow every row of every
tree to its leaf. `coordinator_view` and `party_view` do what a curious coordinator or party would do with its own
messages: no party's table, model file or private state is read here. Row numbers are positions among the common rows,
which is how all roles know them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.exceptions import LocalProtocolError
from woodlot.leaks.case import Told
from woodlot.protocols.core.bits import unpack
from woodlot.protocols.core.part_files import COORDINATOR
from woodlot.protocols.vertical.forest_messages import (
    ApplySplits,
    FinishTrees,
    GrowLevel,
    GrowthStart,
    HolderOffers,
    LeafTotals,
    Offers,
    Partition,
    PlantTrees,
    StartForest,
)
from woodlot.protocols.vertical.start import sampling_of
from woodlot.trees.sampling import tree_keys
from woodlot.trees.skeleton import Skeleton

OTHERS = ""
"""Owner of a split of which a party only knows that it is not its own."""


@dataclass(frozen=True, eq=False)
class SplitRows:
    """Splits of all trees: node ``k`` has ``rows[start[k]:start[k + 1]]``, and ``left`` says which of them go left.

    ``owner`` is a place in ``owners``. ``feature`` is the number of the column at its owner, from 1; 0: not known.
    """

    owners: tuple[str, ...]
    owner: NDArray[np.int64]
    feature: NDArray[np.int64]
    start: NDArray[np.int64]
    rows: NDArray[np.uint32]
    left: NDArray[np.bool_]

    def select(self, chosen: NDArray[np.bool_]) -> SplitRows:
        """Some of the splits."""
        inside = np.repeat(chosen, np.diff(self.start))
        start = np.append(0, np.cumsum(np.diff(self.start)[chosen]))
        return SplitRows(
            self.owners, self.owner[chosen], self.feature[chosen], start, self.rows[inside], self.left[inside]
        )


@dataclass(frozen=True, eq=False)
class LeafRows:
    """Leaves of all trees: leaf ``k`` has ``rows[start[k]:start[k + 1]]``, drawn ``weight`` times each.

    ``pure`` marks leaves of which the role can tell that all their rows have one label.
    """

    start: NDArray[np.int64]
    rows: NDArray[np.uint32]
    weight: NDArray[np.int64]
    pure: NDArray[np.bool_]

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Rows of each leaf."""
        return np.diff(self.start)

    @property
    def of_entry(self) -> NDArray[np.int64]:
        """Leaf of each entry of ``rows``."""
        return np.repeat(np.arange(len(self.start) - 1), self.sizes)


@dataclass(frozen=True, eq=False)
class View:
    """A role's knowledge of one training."""

    n_rows: int
    splits: SplitRows
    leaves: LeafRows
    totals: NDArray[np.float64] | None
    """Weight of each class in each leaf, or of a regression the sum of targets; only the coordinator is told."""


@dataclass
class _Batch:
    """Trees that grow together, followed level by level."""

    start: GrowthStart
    n_rows: int
    labels: NDArray[Any] | None
    trees: range
    skeleton: Skeleton = field(init=False)

    def __post_init__(self) -> None:
        self.skeleton = Skeleton(tree_keys(self.start.order_seed, self.trees))
        sampling, n_classes = sampling_of(self.start), self.start.n_classes
        rows, weights, self.sizes = [], [], np.zeros(len(self.trees), np.int64)
        for place, tree in enumerate(self.trees):
            # the seed of the bootstrap is told to everybody: so is, for every tree, how often it draws each row
            if self.labels is not None and self.start.balance:
                drawn = sampling.tree_weights(tree, self.labels, n_classes)
            else:
                drawn = sampling.counts(tree, self.n_rows)
            rows.append(np.flatnonzero(drawn).astype(np.uint32))
            weights.append(drawn[rows[-1]].astype(np.int64))
            self.sizes[place] = len(rows[-1])
        self.rows, self.weights = np.concatenate(rows), np.concatenate(weights)
        self.split_parts: list[tuple[NDArray[Any], ...]] = []
        self.leaf_parts: list[tuple[NDArray[Any], ...]] = []

    def must_be_open(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Which new nodes are large enough to be split, and which of these have labels that differ (where known)."""
        start, rule = np.cumsum(self.sizes) - self.sizes, self.start
        large = (self.sizes >= rule.min_samples_split) & (self.sizes >= 2 * rule.min_samples_leaf)
        large &= self.skeleton.depth < rule.max_depth
        if rule.min_weight > 1:
            large &= np.add.reduceat(self.weights, start) >= 2 * rule.min_weight
        if self.labels is None:
            return large, large
        labels = self.labels[self.rows]
        return large, large & (np.minimum.reduceat(labels, start) != np.maximum.reduceat(labels, start))

    def close(self, is_open: NDArray[np.bool_]) -> None:
        """Some of the new nodes are leaves: of those that are large enough, everybody knows that they are pure."""
        large, _ = self.must_be_open()
        self._leave(~is_open, large & ~is_open)
        inside = np.repeat(is_open, self.sizes)
        self.rows, self.weights, self.sizes = self.rows[inside], self.weights[inside], self.sizes[is_open]
        self.skeleton.keep_open(is_open)

    def split(
        self,
        is_split: NDArray[np.bool_],
        owner: NDArray[np.int64],
        feature: NDArray[np.int64],
        flags: dict[int, NDArray[np.uint8]],
    ) -> None:
        """Carry out a level: ``owner`` and ``feature`` of every open node, and each owner's packed sides."""
        self._leave(~is_split, np.zeros(len(is_split), bool))
        inside = np.repeat(is_split, self.sizes)
        self.rows, self.weights, self.sizes = self.rows[inside], self.weights[inside], self.sizes[is_split]
        owner, feature = owner[is_split], feature[is_split]
        of_row = np.repeat(owner, self.sizes)
        left = np.zeros(len(self.rows), bool)
        for number, packed in flags.items():
            own = of_row == number
            left[own] = unpack(packed, int(own.sum()), "sides of rows")
        self.split_parts.append((self.skeleton.frontier[is_split], owner, feature, self.sizes, self.rows, left))
        node = np.repeat(np.arange(len(self.sizes)), self.sizes)
        order = np.argsort(2 * node + ~left, kind="stable")
        self.rows, self.weights = self.rows[order], self.weights[order]
        n_left = np.bincount(node[left], minlength=len(self.sizes))
        self.sizes = np.column_stack([n_left, self.sizes - n_left]).ravel()
        self.skeleton.split(is_split)

    def _leave(self, chosen: NDArray[np.bool_], pure: NDArray[np.bool_]) -> None:
        inside = np.repeat(chosen, self.sizes)
        numbers = self.skeleton.frontier[chosen]
        self.leaf_parts.append((numbers, self.sizes[chosen], pure[chosen], self.rows[inside], self.weights[inside]))

    def finish(self, pruned: NDArray[np.int64]) -> tuple[list[NDArray[Any]], list[NDArray[Any]]]:
        """Everything of the finished trees, leaves in the order of the model."""
        self._leave(np.ones(len(self.sizes), bool), np.zeros(len(self.sizes), bool))
        position = self.skeleton.finish(pruned)[1]
        leaves = [np.concatenate(part) for part in zip(*self.leaf_parts, strict=True)]
        if len(pruned):  # leaves below a pruned split are one leaf now
            leaves[0] = self.skeleton.surviving_ancestor(position)[leaves[0]]
            leaves[2] = leaves[2] & ~np.isin(leaves[0], pruned)
        at = position[leaves[0]]
        entry = np.repeat(at, leaves[1])
        order = np.argsort(entry, kind="stable")
        places, first = np.unique(at, return_index=True)
        sizes = np.bincount(entry, minlength=int(at.max()) + 1)[places]
        kept = [sizes, leaves[2][first], leaves[3][order], leaves[4][order]]
        if not self.split_parts:
            return kept, [np.empty(0, kind) for kind in (np.int64, np.int64, np.int64, np.uint32, bool)]
        return kept, [np.concatenate(part) for part in list(zip(*self.split_parts, strict=True))[1:]]


def coordinator_view(told: Iterable[Told], holder: str, parties: tuple[str, ...]) -> View:
    """What the coordinator knows after a training.

    Parameters
    ----------
    told : iterable of (sender, receiver, message)
        All messages of the run: the coordinator sends or gets every one of them.
    holder : str
        The label holder.
    parties : tuple of str
        All parties.

    """
    start: GrowthStart | None = None
    batch: _Batch | None = None
    done: list[tuple[list[NDArray[Any]], list[NDArray[Any]]]] = []
    totals: list[LeafTotals] = []
    features: dict[str, NDArray[Any]] = {}
    won: dict[str, NDArray[np.uint8]] = {}
    flags: dict[str, NDArray[np.uint8]] = {}
    n_rows = 0
    for sender, receiver, message in told:
        if COORDINATOR not in (sender, receiver):
            raise LocalProtocolError("a message that the coordinator does not see is among those it is said to see")
        match message:
            case StartForest():
                start, labels = message, message.labels
            case PlantTrees() if receiver == holder and start is not None:
                batch = _Batch(start, n_rows, labels, range(message.first_tree, message.first_tree + message.n_trees))
            case HolderOffers() if batch is not None:
                batch.close(unpack(message.is_open, len(batch.sizes), "open nodes").astype(bool))
                features = {sender: message.feature}
            case Offers():
                features[sender] = message.feature
            case ApplySplits():
                won[receiver] = message.won
            case Partition():
                flags[sender] = message.flags
            case GrowLevel() | FinishTrees() if receiver == holder and batch is not None:
                if len(message.is_split):
                    _split_by_winners(batch, message.is_split, parties, won, flags, features)
                won, flags = {}, {}
                if isinstance(message, FinishTrees):
                    done.append(batch.finish(message.pruned.astype(np.int64)))
            case LeafTotals():
                totals.append(message)
            case _:
                n_rows = n_rows or int(getattr(message, "n_rows", 0))
    if start is None:
        raise LocalProtocolError("there is no training among these messages")
    view = _joined(n_rows, parties, done)
    n_classes = max(1, start.n_classes)
    return View(n_rows, view.splits, view.leaves, np.concatenate([_totals_of(part, n_classes) for part in totals]))


def _split_by_winners(
    batch: _Batch,
    is_split: NDArray[np.uint8],
    parties: tuple[str, ...],
    won: dict[str, NDArray[np.uint8]],
    flags: dict[str, NDArray[np.uint8]],
    features: dict[str, NDArray[Any]],
) -> None:
    n_open = len(batch.sizes)
    owner, feature = np.full(n_open, -1, np.int64), np.zeros(n_open, np.int64)
    for party, packed in won.items():
        own = unpack(packed, n_open, "won nodes").astype(bool)
        owner[own] = parties.index(party)
        feature[own] = features[party][own]
    split = unpack(is_split, n_open, "split nodes").astype(bool)
    batch.split(split, owner, feature, {parties.index(party): sides for party, sides in flags.items()})


def _totals_of(message: LeafTotals, n_classes: int) -> NDArray[np.float64]:
    """Of each leaf the weight of each class; of a regression, in one column, the sum of its targets."""
    entries = message.entries.astype(np.int64)
    leaf = np.repeat(np.arange(len(entries)), entries)
    totals = np.zeros((len(entries), n_classes))
    if len(message.value):
        totals[leaf, 0] = message.value * message.weight
    else:
        totals[leaf, message.label.astype(np.int64)] = message.weight
    return totals


def party_view(told: Iterable[Told], party: str) -> View:
    """What one party knows after a training.

    Parameters
    ----------
    told : iterable of (sender, receiver, message)
        The messages that it gets and sends.
    party : str
        The party. It works out by itself which nodes are closed, as the protocol has it do.

    """
    start: GrowthStart | None = None
    batch: _Batch | None = None
    done: list[tuple[list[NDArray[Any]], list[NDArray[Any]]]] = []
    own: NDArray[np.uint8] | None = None
    sides: NDArray[np.uint8] = np.empty(0, np.uint8)
    features: NDArray[Any] = np.empty(0, np.uint8)
    n_rows, labels = 0, None
    for sender, receiver, message in told:
        if party not in (sender, receiver):
            raise LocalProtocolError(f"a message that {party} does not see is among those it is said to see")
        match message:
            case StartForest():
                start, labels = message, message.labels if message.targets is None else message.targets
            case PlantTrees() if start is not None:
                batch = _Batch(start, n_rows, labels, range(message.first_tree, message.first_tree + message.n_trees))
                batch.close(batch.must_be_open()[1])
            case Offers() | HolderOffers() if sender == party:
                features = message.feature
            case ApplySplits():
                own = message.won
            case Partition():
                sides = message.flags
            case GrowLevel() | FinishTrees() if batch is not None:
                if len(message.is_split):
                    n_open = len(batch.sizes)
                    split = unpack(message.is_split, n_open, "split nodes").astype(bool)
                    mine = np.zeros(n_open, bool) if own is None else unpack(own, n_open, "won nodes").astype(bool)
                    feature = np.where(mine, features if len(features) else 0, 0).astype(np.int64)
                    told_sides = {1: message.flags} | ({} if own is None else {0: sides})
                    batch.split(split, np.where(mine, 0, 1), feature, told_sides)
                    if not isinstance(message, FinishTrees):
                        batch.close(batch.must_be_open()[1])
                own = None
                if isinstance(message, FinishTrees):
                    done.append(batch.finish(message.pruned.astype(np.int64)))
            case _:
                n_rows = n_rows or int(getattr(message, "n_rows", 0))
    return _joined(n_rows, (party, OTHERS), done)


def _joined(n_rows: int, owners: tuple[str, ...], done: list[tuple[list[NDArray[Any]], list[NDArray[Any]]]]) -> View:
    sizes, pure, rows, weight = (np.concatenate(part) for part in zip(*(leaves for leaves, _ in done), strict=True))
    leaves = LeafRows(np.append(0, np.cumsum(sizes)), rows, weight, pure)
    owner, feature, sizes, rows, left = (
        np.concatenate(part) for part in zip(*(splits for _, splits in done), strict=True)
    )
    splits = SplitRows(owners, owner, feature, np.append(0, np.cumsum(sizes)), rows, left)
    return View(n_rows, splits, leaves, None)
