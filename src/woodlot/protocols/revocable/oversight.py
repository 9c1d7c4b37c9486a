"""What a participant holds a construction to: the plan that the user has signed.

The coordinator of a revocable forest has the labels and judges all candidates, so it could say anything of the trees:
nodes of any few rows, about which a participant would tell its split vectors. But the plan has the seed. From it follow
the rows that each tree draws, and the key of every node by its way from the root; so a participant knows which nodes
there can be, and how large and how deep they must be to be open.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from woodlot.exceptions import RemoteProtocolError
from woodlot.protocols.core.forest_parts import PartyForest
from woodlot.protocols.revocable.revocable_plan import RevocablePlan
from woodlot.trees.forest import Structure, depth_of
from woodlot.trees.kernels.hashing import child_keys
from woodlot.trees.node_keys import node_keys
from woodlot.trees.sampling import derive_seed, tree_keys


class Opened(NamedTuple):
    """The nodes that are open now: their keys and depths, and where in the former trees those stood that were begun.

    ``n_split``: how many of those before were split.
    """

    key: NDArray[np.uint64]
    depth: NDArray[np.int64]
    begun: NDArray[np.int64]
    n_split: int = 0


class Oversight:
    """What there can be in one construction, at a participant.

    Parameters
    ----------
    plan : RevocablePlan
        What was ordered.
    values : float32 array (columns, rows)
        The participant's columns.
    former : PartyForest, optional
        Its part of the forest that is grown again in part; without it growing begins at the roots.
    """

    def __init__(self, plan: RevocablePlan, values: NDArray[np.float32], former: PartyForest | None) -> None:
        self._plan, self._values, self._former = plan, values, former
        self._n_rows = values.shape[1]
        self._leaf = plan.min_samples_leaf(self._n_rows)
        self._least = max(plan.min_samples_split(self._n_rows), 2 * self._leaf)
        n_trees = plan.n_estimators if former is None else former.structure.n_trees
        roots = Structure(np.arange(n_trees + 1, dtype=np.int64), np.full(n_trees, -1, np.int32))
        self._trees = roots if former is None else former.structure
        keys = node_keys(self._trees, tree_keys(derive_seed(plan.seed, "order"), range(n_trees)))
        self._by_key = np.argsort(keys)
        self._keys = keys[self._by_key]
        self._parent = np.full(self._trees.n_nodes, -1, np.int64)
        inner = np.flatnonzero(self._trees.right >= 0)
        self._parent[inner + 1] = self._parent[self._trees.right[inner]] = inner
        self._sampling = plan.sampling(self._n_rows)
        self._begun: set[int] = set()
        self._n_split = 0  # of all levels that were told
        self._open = Opened(np.empty(0, np.uint64), np.empty(0, np.int64), np.empty(0, np.int64))

    def check_candidates(self, selected: NDArray[np.uint8], keys: NDArray[np.uint64], own: NDArray[np.uint64]) -> None:
        """Refuse other features, or more of them, than the order of a node puts first.

        Parameters
        ----------
        selected : uint8 array (nodes, own features)
            Which are to be candidates.
        keys, own : uint64 arrays
            Of the nodes, and of this participant's features.
        """
        most = self._plan.forest.max_features
        if isinstance(most, int) and not isinstance(most, bool) and int(selected.sum(axis=1).max(initial=0)) > most:
            raise RemoteProtocolError(f"ExpandLeaves selects more features than max_features={most}")
        if selected.shape[1] and self._plan.reuse_features:
            place = mixed(keys[:, None] ^ own[None, :])
            chosen = selected.astype(bool)
            last = np.where(chosen, place, 0).max(axis=1)
            if (place[~chosen] < np.broadcast_to(last[:, None], place.shape)[~chosen]).any():
                raise RemoteProtocolError("ExpandLeaves passes over a feature that comes first in the order of a node")

    def check_level(
        self,
        is_split: NDArray[np.bool_],
        is_open: NDArray[np.bool_],
        sides: NDArray[np.int64],
        keys: NDArray[np.uint64],
        rows: NDArray[np.uint32],
        sizes: NDArray[np.int64],
    ) -> Opened:
        """The nodes that are open next, or a refusal.

        Parameters
        ----------
        is_split : bool array
            Which open nodes are split.
        is_open : bool array
            Which of their children are open, left and right of each.
        sides : int64 array (splits, 2)
            Rows of these children.
        keys : uint64 array
            Of all nodes that are open next: these children, then nodes at which growing begins.
        rows, sizes
            Rows of the latter, node after node, and how many each has.
        """
        if int(sides.min(initial=self._leaf)) < self._leaf:
            raise RemoteProtocolError(
                f"ExpandLeaves carries a split that leaves {int(sides.min())} rows on one side; the plan asks for "
                f"min_samples_leaf={self._leaf}"
            )
        below = np.empty(2 * int(is_split.sum()), np.uint64)
        child_keys(np.ascontiguousarray(self._open.key[is_split]), below)
        depth = np.repeat(self._open.depth[is_split] + 1, 2)[is_open]
        n = int(is_open.sum())
        if not np.array_equal(keys[:n], below[is_open]):
            raise RemoteProtocolError("ExpandLeaves carries other keys than those of the nodes' ways from the root")
        begun = self._begin(keys[n:], rows, sizes)
        depths = np.concatenate([depth, [self._depth(int(node)) for node in begun]]).astype(np.int64)
        all_sizes = np.concatenate([sides.ravel()[is_open], sizes])
        if (all_sizes < self._least).any() or (depths >= self._plan.max_depth).any():
            raise RemoteProtocolError(
                "ExpandLeaves opens a node that the plan makes a leaf: it is too small or too deep"
            )
        return Opened(keys.copy(), depths, begun, int(is_split.sum()))

    def _begin(self, keys: NDArray[np.uint64], rows: NDArray[np.uint32], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where the nodes stand at which growing begins: each once, with rows that can have come there."""
        at = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        begun = self._by_key[at].astype(np.int64)
        known = np.array_equal(self._keys[at], keys)
        if not known or len(set(begun.tolist()) | self._begun) != len(begun) + len(self._begun):
            raise RemoteProtocolError("ExpandLeaves begins at a node that there is not, or for the second time")
        if self._former is None and len(begun) and len(self._open.key):
            raise RemoteProtocolError("ExpandLeaves begins a tree after the others have grown")
        draws: dict[int, NDArray[np.bool_]] = {}  # of this message only: a refused one leaves nothing behind
        for node, own in zip(begun.tolist(), np.split(rows, np.cumsum(sizes)[:-1]), strict=False):
            if not self._can_be_at(node, own, draws):
                raise RemoteProtocolError("ExpandLeaves carries rows of a node that its tree does not bring there")
        return begun

    def _can_be_at(self, node: int, rows: NDArray[np.uint32], draws: dict[int, NDArray[np.bool_]]) -> bool:
        """Whether a tree draws these rows, all of them at its root, and own splits above lead them to the node."""
        tree = int(np.searchsorted(self._trees.offset, node, side="right")) - 1
        if tree not in draws:
            draws[tree] = self._sampling.counts(tree, self._n_rows) > 0
        drawn = draws[tree]
        at_root = node == self._trees.offset[tree]
        if not drawn[rows].all() or (at_root and len(rows) != int(drawn.sum())):
            return False
        return all(np.array_equal(self._goes_left(above, rows), left) for above, left in self._own_way(node, len(rows)))

    def _own_way(self, node: int, n: int) -> list[tuple[int, NDArray[np.bool_]]]:
        """This participant's splits above a node, by their numbers, and the side that is on the way."""
        if self._former is None:
            return []
        found, own = [], self._former.splits.node
        while (above := int(self._parent[node])) >= 0:
            at = int(np.searchsorted(own, above))
            if at < len(own) and own[at] == above:
                found.append((at, np.full(n, node == above + 1)))
            node = above
        return found

    def _goes_left(self, split: int, rows: NDArray[np.uint32]) -> NDArray[np.bool_]:
        if self._former is None:
            return np.zeros(len(rows), bool)
        splits = self._former.splits
        return np.asarray(self._values[splits.feature[split], rows].astype(np.float64) <= splits.threshold[split])

    def _depth(self, node: int) -> int:
        depth = 0
        while (node := int(self._parent[node])) >= 0:
            depth += 1
        return depth

    def note(self, opened: Opened) -> None:
        """A level was answered."""
        self._open = opened
        self._begun |= set(opened.begun.tolist())
        self._n_split += opened.n_split

    def check_trees(self, structure: Structure) -> None:
        """Refuse finished trees that the plan does not ask for."""
        if structure.n_trees != self._trees.n_trees or depth_of(structure) > self._plan.max_depth:
            raise RemoteProtocolError("FinishConstruction carries other trees, or deeper ones, than were ordered")
        # of the last level it is not told which nodes are split; in a revocation not which of the former ones stay
        most = self._n_split + len(self._open.key)
        if self._former is None and int((structure.right >= 0).sum()) > most:
            raise RemoteProtocolError(f"FinishConstruction carries more splits than the {most} that there can be")


def mixed(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """`kernels.hashing.mix` of many numbers."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
