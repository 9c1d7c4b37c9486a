"""The trees of a revocable forest while they grow, at the coordinator: level by level, from wherever growing begins."""

from __future__ import annotations

from collections.abc import Generator
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.exceptions import DataError, RemoteProtocolError
from woodlot.protocols.core.bits import pack
from woodlot.protocols.core.forest_parts import CoordinatorForest
from woodlot.protocols.core.leavers import Level
from woodlot.protocols.core.message import Message, Progress, Round
from woodlot.protocols.core.replies import reply_of
from woodlot.protocols.core.target import Target
from woodlot.protocols.revocable import growth_messages as msg
from woodlot.protocols.revocable.outcome import Outcome
from woodlot.protocols.revocable.oversight import mixed
from woodlot.protocols.revocable.participant import segments, unpack_bins, write_samples
from woodlot.protocols.revocable.revocable_model import Rebuilding
from woodlot.protocols.revocable.revocable_plan import RevocablePlan
from woodlot.trees.fill import squarable
from woodlot.trees.forest import Structure, subtree_ends
from woodlot.trees.kernels import rows as row_kernels
from woodlot.trees.kernels import samples, spaced
from woodlot.trees.kernels.hashing import child_keys
from woodlot.trees.sampling import Bootstrap, derive_seed, draw_rows, tree_keys

NOWHERE = np.iinfo(np.uint64).max
"""Place of a feature that is no candidate."""


class RevocableGrowth:
    """All trees.

    Nodes are numbered as they are made: roots first, then two children for each split, so that the right child follows
    the left one. A former forest's nodes come first; those that are destroyed are left out when the trees stand.
    """

    def __init__(
        self,
        plan: RevocablePlan,
        parties: tuple[str, ...],
        keys: NDArray[np.uint64],
        owner: NDArray[np.int64],
        target: Target,
        n_rows: int,
        n_jobs: int,
    ) -> None:
        if max(len(target.numbers), len(target.values)) != n_rows:
            raise DataError(f"there are {n_rows} rows, but another number of labels")
        self.plan, self.parties, self.keys, self.owner = plan, parties, keys, owner
        self.target, self.n_rows, self.n_jobs = target, n_rows, n_jobs
        self.n_candidates = plan.n_candidates(len(keys))
        self.n_classes = len(target.classes)
        self.labels = target.numbers if self.n_classes else squarable(target.values - target.values.mean())
        self.sampling: Bootstrap = plan.sampling(n_rows)
        self.rows, weights, self.bounds = draw_rows(
            self.sampling, range(plan.n_estimators), self.labels, self.n_classes, n_jobs
        )
        self.weights = weights.astype(np.uint32)
        self.root_keys = tree_keys(derive_seed(plan.seed, "order"), range(plan.n_estimators))
        self.max_depth = plan.max_depth
        self.n_searched = 0
        self.won: dict[str, list[NDArray[np.int64]]] = {p: [] for p in parties}

    # --- where growing begins ---

    def plant(self) -> None:
        """All trees from their roots."""
        n = self.plan.n_estimators
        self.n_trees = n
        self.left = np.full(n, -1, np.int64)
        self.start, self.end = self.bounds[:-1].copy(), self.bounds[1:].copy()
        self.key = self.root_keys
        self.depth = np.zeros(n, np.int64)
        self.feature = np.full(n, -1, np.int64)
        self.gain = np.zeros(n)
        self.used = np.zeros((n, len(self.keys)), bool)
        self.searched = np.ones(n, bool)
        self.changed = np.zeros(n, bool)
        self.former = np.empty(0, np.int64)
        self.former_forest: CoordinatorForest | None = None

    def take_over(
        self,
        forest: CoordinatorForest,
        rebuilding: Rebuilding,
        stays: NDArray[np.bool_],
        level: Level,
        patched: bool = False,
    ) -> None:
        """A former forest, with the nodes that must be searched again; ``stays`` tells which of its features do.

        A forest that is ``patched`` may have nodes that one grown from scratch has not: all are searched.
        """
        structure = forest.structure
        self.n_trees = structure.n_trees
        order = _by_level(structure)  # the former node behind each number
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        inner = structure.right >= 0
        self.changed = np.zeros(len(order), bool)
        self.former, self.former_forest = order, forest
        self.place, self.ends = place, subtree_ends(structure.right)
        self.left = np.where(inner[order], place[np.minimum(order + 1, len(order) - 1)], -1)
        first, last = _rows_of_nodes(structure, rebuilding)
        self.start, self.end = first[order], last[order]
        drawn, weights = self.rows, self.weights
        self.rows = rebuilding.rows.copy()
        self.weights, often = np.empty_like(weights), np.zeros(self.n_rows, np.uint32)
        for a, b in pairwise(self.bounds.tolist()):  # the same rows of a tree, in another order
            often[drawn[a:b]] = weights[a:b]
            self.weights[a:b] = often[self.rows[a:b]]
        renumbered = np.where(stays, np.cumsum(stays) - 1, -1)
        old_feature = forest.feature[order].astype(np.int64)
        self.feature = np.where(old_feature >= 0, renumbered[old_feature], -1)
        self.gain = forest.gain[order]
        self.key, self.depth, used = self._paths(old_feature, stays)
        self.used = used[:, stays]
        gone = (old_feature >= 0) & (self.feature < 0)
        self.searched = gone
        if level == 3:
            touched = self._searchable() if patched else self._touched(forest, old_feature, stays, used)
            self.searched = gone | touched

    def _paths(
        self, old_feature: NDArray[np.int64], stays: NDArray[np.bool_]
    ) -> tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.bool_]]:
        """Key, depth and features used above (of the former ones) of every former node."""
        n = len(self.left)
        key, depth = np.empty(n, np.uint64), np.zeros(n, np.int64)
        used = np.zeros((n, len(stays)), bool)
        level = np.arange(self.n_trees)
        key[level] = self.root_keys
        while len(level):
            parents = level[self.left[level] >= 0]
            children = np.column_stack([self.left[parents], self.left[parents] + 1]).ravel()
            keys = np.empty(len(children), np.uint64)
            child_keys(key[parents], keys)
            key[children] = keys
            depth[children] = np.repeat(depth[parents] + 1, 2)
            used[children] = np.repeat(used[parents], 2, axis=0)
            used[children, np.repeat(old_feature[parents], 2)] = True
            level = children
        return key, depth, used

    def _searchable(self) -> NDArray[np.bool_]:
        """Nodes that are not leaves in any case."""
        return np.asarray((self.depth < self.max_depth) & (self.end - self.start > 1))

    def _touched(
        self,
        forest: CoordinatorForest,
        old_feature: NDArray[np.int64],
        stays: NDArray[np.bool_],
        used: NDArray[np.bool_],
    ) -> NDArray[np.bool_]:
        """Nodes whose search could end otherwise without the leaver's features: the candidates are not among the former
        ones, or the one that won is no longer one of them.
        """
        may = np.flatnonzero(self._searchable())
        old = old_feature[may]
        places = self._places(self.key[may], forest.feature_keys, used[may])
        before = _nth(places, self.plan.n_candidates(len(stays)))
        after = _nth(places[:, stays], self.n_candidates)
        within = after <= before
        won = np.where(old >= 0, places[np.arange(len(places)), np.maximum(old, 0)], NOWHERE)
        touched = np.zeros(len(old_feature), bool)
        touched[may] = np.where(old >= 0, ~(within & (won <= after)), ~within)
        return touched

    def _places(
        self, key: NDArray[np.uint64], feature_keys: NDArray[np.uint64], used: NDArray[np.bool_]
    ) -> NDArray[np.uint64]:
        """Place of every feature in the order of some nodes; those that cannot be candidates come last."""
        places = mixed(key[:, None] ^ feature_keys[None, :])
        if not self.plan.reuse_features:
            places[used] = NOWHERE
        return places

    # --- one level after the other ---

    def grow(self) -> Generator[Round, dict[str, Message], Outcome]:
        """Search level by level until no node can be split; returns what was decided last."""
        alive = np.ones(len(self.left), bool)  # a former node that is not below one that has changed
        open_nodes = np.empty(0, np.int64)  # as the participants have them: searched in the last round
        outcome = Outcome.none(self.parties)
        for depth in range(self.max_depth):
            children = self._children(open_nodes[outcome.is_split])
            may_split = self._may_split(children)
            entering = np.flatnonzero(self.searched & alive & (self.depth[: len(alive)] == depth))
            entering = entering[self._may_split(entering)]
            nodes = np.concatenate([children[may_split], entering])
            if len(nodes) == 0:
                if not (self.searched & alive & (self.depth[: len(alive)] > depth)).any():
                    break
                continue  # what was decided last is told with the next question
            selected = self._select(nodes)
            segments = self._sort(entering)  # first of all: sums of targets have one order
            whole = self._whole(nodes)
            messages = self._messages(nodes, entering, outcome, may_split, selected)
            replies = yield Round("grow", messages, Progress(depth, self.max_depth, f"{len(nodes):,} nodes"))
            self.n_searched += len(nodes)
            outcome = self._judge(nodes, selected, whole, replies)
            outcome = self._apply(nodes, entering, segments, outcome, alive)
            alive = np.concatenate([alive, np.zeros(len(self.left) - len(alive), bool)])
            self.searched = np.concatenate([self.searched, np.zeros(len(self.left) - len(self.searched), bool)])
            open_nodes = nodes
        return outcome

    def _sort(self, nodes: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.uint32], NDArray[np.uint32]]:
        """Have the rows of former nodes stand in order, as participants have them; returns where and how they stood."""
        at = segments(self.start[nodes], self.end[nodes])
        rows, weights = self.rows[at], self.weights[at]
        samples.sort_rows(self.rows, self.weights, self.start[nodes], self.end[nodes], self.n_rows)
        return at, rows, weights

    def _children(self, parents: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.column_stack([self.left[parents], self.left[parents] + 1]).ravel()

    def _may_split(self, nodes: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Large and mixed enough, and not too deep."""
        sizes = self.end[nodes] - self.start[nodes]
        may = (sizes >= max(self.plan.min_samples_split(self.n_rows), 2 * self.plan.min_samples_leaf(self.n_rows))) & (
            self.depth[nodes] < self.max_depth
        )
        may[may] = self._whole(nodes[may]) >= 0
        return may

    def _whole(self, nodes: NDArray[np.int64]) -> NDArray[np.float64]:
        whole = np.empty(len(nodes))
        start, end = self.start[nodes], self.end[nodes]
        if self.n_classes:
            spaced.whole_classes(self.rows, self.weights, self.labels, start, end, self.n_classes, whole)
        else:
            spaced.whole_targets(self.rows, self.weights, self.labels, start, end, whole)
        return whole

    def _select(self, nodes: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which features are candidates at each node."""
        places = self._places(self.key[nodes], self.keys, self.used[nodes])
        return np.asarray((places <= _nth(places, self.n_candidates)[:, None]) & (places < NOWHERE))

    def _messages(
        self,
        nodes: NDArray[np.int64],
        entering: NDArray[np.int64],
        outcome: Outcome,
        is_open: NDArray[np.bool_],
        selected: NDArray[np.bool_],
    ) -> dict[str, Message]:
        start, end = self.start[entering], self.end[entering]
        common: dict[str, Any] = {
            "is_split": pack(outcome.is_split),
            "flags": pack(outcome.flags),
            "is_open": pack(is_open),
            **write_samples(self.rows[segments(start, end)], np.cumsum(end - start), self.n_rows),
            "keys": self.key[nodes],
        }
        return {
            p: msg.ExpandLeaves(selected=pack(selected[:, self.owner == i].ravel()), **outcome.told(p), **common)
            for i, p in enumerate(self.parties)
            if (self.owner == i).any()
        }

    def _judge(
        self,
        nodes: NDArray[np.int64],
        selected: NDArray[np.bool_],
        whole: NDArray[np.float64],
        replies: dict[str, Message],
    ) -> Outcome:
        """FOS-Find: the best of all candidates at each node; equal ones go to the feature that comes first there."""
        start, end = self.start[nodes], self.end[nodes]
        sizes, leaf = end - start, self.plan.min_samples_leaf(self.n_rows)
        pairs, all_bins = [], []
        for i, p in enumerate(self.parties):
            own = np.flatnonzero(self.owner == i)
            if len(own) == 0:
                continue
            node, column = np.nonzero(selected[:, own])
            begins = np.concatenate([[0], np.cumsum(sizes[node])]).astype(np.int64)
            bins = unpack_bins(reply_of(replies[p], msg.SplitVectors, p).planes, int(begins[-1]), self.plan.zeta, p)
            score, cut = np.empty(len(node)), np.empty(len(node), np.int64)
            about = (bins, begins, node, self.rows, self.weights, self.labels, start, end)
            if self.n_classes:
                spaced.score_classes(*about, self.n_classes, self.plan.zeta, leaf, score, cut)
            else:
                spaced.score_targets(*about, self.plan.zeta, leaf, score, cut)
            place = mixed(self.key[nodes][node] ^ self.keys[own[column]])
            number = np.arange(len(node))
            pairs.append((node, score, place, cut, np.full(len(node), i), own[column], number, begins[:-1]))
            all_bins.append((i, bins))
        node, score, place, cut, party, feature, pair, begins = (
            np.concatenate(part) for part in zip(*pairs, strict=True)
        )
        can = np.flatnonzero(cut >= 0)
        can = can[np.lexsort((place[can], -score[can], node[can]))]  # at each node the best comes first
        best = can[np.flatnonzero(np.diff(node[can], prepend=-1))]
        room = sizes[node[best]]
        at = np.cumsum(room) - room
        flags = np.empty(int(room.sum()), np.uint8)
        for i, bins in all_bins:
            own = np.flatnonzero(party[best] == i)
            samples.left_rows(bins, begins[best[own]], room[own], cut[best[own]], at[own], flags)
        decided = {}
        for name, values in (("winner", party), ("pair", pair), ("cut", cut), ("feature", feature)):
            decided[name] = np.full(len(nodes), -1, np.int64)
            decided[name][node[best]] = values[best]
        gain = np.zeros(len(nodes))
        gain[node[best]] = score[best]
        return Outcome(
            self.parties,
            is_split=decided["winner"] >= 0,
            flags=flags,
            gain=gain - whole,
            **decided,
        )

    def _apply(
        self,
        nodes: NDArray[np.int64],
        entering: NDArray[np.int64],
        segments: tuple[NDArray[np.int64], NDArray[np.uint32], NDArray[np.uint32]],
        outcome: Outcome,
        alive: NDArray[np.bool_],
    ) -> Outcome:
        """Carry out the splits; a former node whose feature has won again is as it was, and so is what is below it."""
        old = np.arange(len(nodes)) >= len(nodes) - len(entering)
        # on the same rows the same feature is cut in the same place
        same = old & outcome.is_split & (self.left[nodes] >= 0) & (self.feature[nodes] == outcome.feature)
        at, rows, weights = segments
        stays = np.repeat(same[old], self.end[entering] - self.start[entering])
        self.rows[at[stays]], self.weights[at[stays]] = rows[stays], weights[stays]
        for node in entering[~same[old]]:
            self._destroy(int(node), alive)
        outcome = outcome.without(same, self.end[nodes] - self.start[nodes])
        split = nodes[outcome.is_split]
        start, end = self.start[split], self.end[split]
        middle = np.full(len(split), -1, np.int64)
        room = int((end - start).max(initial=0)) + 1
        row_kernels.partition(
            self.rows, self.weights, start, end, outcome.flags, np.empty(room, np.uint32), np.empty(room, np.uint32),
            middle,
        )  # fmt: skip
        if (middle <= start).any() or (middle >= end).any():
            raise RemoteProtocolError("a split has left a side without rows")
        keys = np.empty(2 * len(split), np.uint64)
        child_keys(self.key[split], keys)
        n = len(self.left)
        self.left[split] = n + 2 * np.arange(len(split))
        self.feature[split] = outcome.feature[outcome.is_split]
        tree_weight = self.sampling.tree_weight(self.n_rows)
        self.gain[split] = outcome.gain[outcome.is_split] / tree_weight
        used = self.used[split].copy()
        used[np.arange(len(split)), self.feature[split]] = True
        self.left = np.concatenate([self.left, np.full(2 * len(split), -1, np.int64)])
        self.start = np.concatenate([self.start, np.column_stack([start, middle]).ravel()])
        self.end = np.concatenate([self.end, np.column_stack([middle, end]).ravel()])
        self.key = np.concatenate([self.key, keys])
        self.depth = np.concatenate([self.depth, np.repeat(self.depth[split] + 1, 2)])
        self.feature = np.concatenate([self.feature, np.full(2 * len(split), -1, np.int64)])
        self.gain = np.concatenate([self.gain, np.zeros(2 * len(split))])
        self.used = np.concatenate([self.used, np.repeat(used, 2, axis=0)])
        for i, p in enumerate(self.parties):
            mine = outcome.is_split & (outcome.winner == i)
            self.won[p].append(nodes[mine])
        return outcome

    def _destroy(self, node: int, alive: NDArray[np.bool_]) -> None:
        """A node at which growing begins ends otherwise than before: what was below it is gone."""
        if len(self.former):
            at = int(self.former[node])
            alive[self.place[at + 1 : int(self.ends[at])]] = False
        self.changed[node] = True
        self.left[node], self.feature[node], self.gain[node] = -1, -1, 0.0


def _nth(places: NDArray[np.uint64], n: int) -> NDArray[np.uint64]:
    """The n-th smallest place of each node, the largest where it has no more."""
    if n >= places.shape[1]:
        return np.full(len(places), NOWHERE, np.uint64)
    return np.partition(places, n - 1, axis=1)[:, n - 1]


def _by_level(structure: Structure) -> NDArray[np.int64]:
    """Nodes in the order in which level-wise growth would have made them: roots, then pairs of children."""
    level, order = structure.offset[:-1], [structure.offset[:-1]]
    while len(level):
        inner = level[structure.right[level] >= 0]
        level = np.column_stack([inner + 1, structure.right[inner]]).ravel().astype(np.int64)
        order.append(level)
    return np.concatenate(order)


def _rows_of_nodes(structure: Structure, rebuilding: Rebuilding) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where the rows of each node begin and end: the rows of a branch stand together."""
    leaves_before = np.concatenate([[0], np.cumsum(structure.right < 0)])
    return rebuilding.start[leaves_before[:-1]], rebuilding.start[leaves_before[subtree_ends(structure.right)]]
