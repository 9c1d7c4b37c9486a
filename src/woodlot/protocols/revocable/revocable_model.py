"""The parts of a revocable forest, by who holds them.

The coordinator (CS in the paper) keeps the structure, whose coded feature splits each node, the answers of the leaves,
every split as a ciphertext under its provider's key, and what it needs to grow a node again. A participant keeps its
own splits in clear (a `PartyForest`), as in the vertical forest.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from woodlot.protocols.core.forest_parts import CoordinatorForest
from woodlot.protocols.revocable.split_list import SplitList
from woodlot.trees.forest import Structure


@dataclass(frozen=True, eq=False)
class EncryptedSplits:
    """The thresholds of all splits, each encrypted under the key of the participant that provided it.

    Attributes
    ----------
    epoch : int
        Of the keys; ciphertexts of another epoch are refused.
    node : int32 array
        Where the splits stand, ascending: every inner node of the forest.
    data : uint8 array of shape (n_splits, width)
        The ciphertexts, as `woodlot.crypto` writes them.
    feature : int32 array
        The number of each split's column among its provider's own.
    tag : uint8 array of shape (n_splits, 32)
        By these a provider knows the splits again that it has made.
    forest : str
        Fingerprint of the forest.
    listed : SplitList
        The same splits as the helper has registered them: it compares with nothing else.
    """

    epoch: int
    node: NDArray[np.int32]
    data: NDArray[np.uint8]
    feature: NDArray[np.int32]
    tag: NDArray[np.uint8]
    forest: str
    listed: SplitList

    @cached_property
    def registered(self) -> bytes:
        """The hash of the list, which requesters sign."""
        return self.listed.digest(self.epoch, self.forest)

    def of(self, nodes: NDArray[np.int32]) -> NDArray[np.uint8]:
        """The ciphertexts at some inner nodes."""
        return self.data[np.searchsorted(self.node, nodes)]


@dataclass(frozen=True, eq=False)
class Rebuilding:
    """What the coordinator needs to grow a node again: its samples. Depth and features used above are in the trees.

    Attributes
    ----------
    rows : uint32 array
        The rows drawn for each tree, tree after tree, in the order of the tree's leaves: the rows of a node stand
        together.
    start : int64 array
        The rows of leaf l are ``rows[start[l] : start[l + 1]]``.
    """

    rows: NDArray[np.uint32]
    start: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class CoordinatorRevocable:
    """What the coordinator keeps of a revocable forest.

    Attributes
    ----------
    forest : CoordinatorForest
        Structure, provider (``owner``) and coded feature of each split, answers of the leaves.
    splits : EncryptedSplits
        The splits, which only their providers can open.
    rebuilding : Rebuilding or None
        What revocation needs; None where the model is only to be used.
    """

    forest: CoordinatorForest
    splits: EncryptedSplits
    rebuilding: Rebuilding | None = None

    @property
    def epoch(self) -> int:
        return self.splits.epoch


def most_on_paths(structure: Structure, nodes: NDArray[np.int32]) -> int:
    """How many of some inner nodes a row comes by at most: on the worst path of each tree, added up."""
    count = np.zeros(structure.n_nodes, np.int64)
    count[nodes] = 1
    level = structure.offset[:-1]
    tree = np.arange(structure.n_trees)
    most = count[level].copy()
    while len(level):
        inner = structure.right[level] >= 0
        above, tree = level[inner], np.concatenate([tree[inner], tree[inner]])
        level = np.concatenate([above + 1, structure.right[above]])
        count[level] += np.concatenate([count[above], count[above]])
        np.maximum.at(most, tree, count[level])
    return int(most.sum())


def depths(structure: Structure) -> NDArray[np.int32]:
    """Depth of every node, 0 at the roots."""
    depth = np.zeros(structure.n_nodes, np.int32)
    level = structure.offset[:-1]
    below = 0
    while len(level):
        depth[level] = below
        inner = level[structure.right[level] >= 0]
        level = np.concatenate([inner + 1, structure.right[inner]])
        below += 1
    return depth
