"""Federated Forest, revocation at the coordinator: the forest without one of its parties.

Level 1 destroys the nodes that the leaver has split, with everything under them, and grows them again without it; other
trees and branches are not touched. Level 3 is exact: the result equals, bit for bit, the forest grown from scratch
on the same rows without the leaver; rows that only the leaver lacked stay out. Both run the training's own rounds
(`train.Batch`) on the trees that change, where most nodes are not searched: splits that stay are carried out again by
their owners, down to the nodes that change, and branches in which nothing changes are left out and grafted back at the
end.

Which nodes level 3 must search again follows from the order of candidates alone (decision 0002). Let C be the first
``max_features`` of all features in a node's order, and C' those of a forest without the leaver. If C' lies within C and
the feature that won is in C' (or was found behind C, where no candidate could split the node), then the search among C'
would find the same split again: the node stays. Otherwise it is searched; if the same feature wins, the split is the
same and its children are looked at in turn, else everything below is new.

This takes for granted that the former forest is one grown from scratch. After a revocation at level 1 it is not: nodes
have stayed whose candidates were drawn among the features of who had left. There level 3 searches every node.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.exceptions import DataError
from woodlot.protocols.core.forest_parts import CoordinatorForest
from woodlot.protocols.core.forest_plan import ForestPlan
from woodlot.protocols.core.leavers import Level, check_leaver
from woodlot.protocols.core.message import Message, Progress, Round
from woodlot.protocols.vertical.forest_messages import RegrowLevel, ReplantTrees
from woodlot.protocols.vertical.start import sampling_of
from woodlot.protocols.vertical.train import CHUNK_NODES, Batch, FinishedTrees, PreparedTraining, prepare
from woodlot.trees.forest import Leaves, Structure, join_leaves, subtree_ends, take_leaves
from woodlot.trees.graft import Graft, Sketch, graft, join_sketches
from woodlot.trees.kernels.hashing import candidate_limits, places
from woodlot.trees.node_keys import node_keys
from woodlot.trees.parallel import run_chunks
from woodlot.trees.sampling import DrawsByRow, derive_seed, tree_keys

SEARCHED, KEPT, SETTLED = 0, 1, 2
"""What becomes of a node: it is searched; its split stays and is carried out again; it stays with all below it."""


@dataclass(frozen=True, eq=False)
class Regrown:
    """A forest without the leaver.

    Attributes
    ----------
    forest : CoordinatorForest
        The coordinator's part.
    removed, regrown : int64 array
        Nodes of each tree that were destroyed, and that were made in their place.
    searched : int
        Nodes that were searched for a split.
    """

    forest: CoordinatorForest
    removed: NDArray[np.int64]
    regrown: NDArray[np.int64]
    searched: int


def regrow(
    plan: ForestPlan,
    former: CoordinatorForest,
    leaver: str,
    level: Level,
    holder: str,
    n_jobs: int = 1,
    patched: bool = False,
    by_row: DrawsByRow | None = None,
) -> Generator[Round, dict[str, Message], Regrown]:
    """Take a party out of a forest; returns the coordinator's part of the new one.

    Parameters
    ----------
    plan : ForestPlan
        What the former forest was grown by.
    former : CoordinatorForest
        The forest that the party is to leave; it is not changed.
    leaver : str
        The party that leaves. It is not asked anything.
    level : {1, 3}
        Its nodes only, or exact.
    holder : str
        The party that has the labels.
    n_jobs : int
        Threads of the coordinator.
    patched : bool
        Whether the last revocation from the former forest was not exact.
    by_row : DrawsByRow, optional
        As for `train`.
    """
    check_leaver(former.parties, holder, leaver)
    parties = tuple(p for p in former.parties if p != leaver)
    ready = yield from prepare(plan, parties, holder)
    check_same_data(former, leaver, ready.n_rows, ready.features.keys)
    change = _Change.of(plan, former, leaver, level, n_jobs, patched)
    sketches, grown, searched = [], [], 0
    trees = np.flatnonzero(np.add.reduceat(change.searched, former.structure.offset[:-1]) > 0)
    for batch in plan.batches(ready.n_rows, ready.together):
        chosen = trees[(trees >= batch.start) & (trees < batch.stop)]
        if len(chosen):
            growing = _Regrowth(plan, ready, holder, n_jobs, former, change, chosen)
            part = yield from growing.grow(chosen.tolist())
            grown.append(part)
            sketches.append(growing.sketch)
            searched += growing.n_searched
    sketch = join_sketches(sketches)
    grafted = graft(former.structure, sketch)
    forest = _assemble(former, change, ready, parties, sketch, grown, grafted, by_row)
    survived = np.zeros(former.structure.n_nodes, np.int64)
    survived[grafted.of_former >= 0] = 1
    survivors = np.add.reduceat(survived, former.structure.offset[:-1])
    return Regrown(
        forest,
        removed=np.diff(former.structure.offset) - survivors,
        regrown=np.diff(grafted.structure.offset) - survivors,
        searched=searched,
    )


def grown_again(former: CoordinatorForest, forest: CoordinatorForest, leaver: str) -> Regrown:
    """A forest of which every node was grown again without the leaver, as it is on secret shares."""
    check_same_data(former, leaver, forest.n_rows, forest.feature_keys)
    return Regrown(
        forest,
        removed=np.diff(former.structure.offset),
        regrown=np.diff(forest.structure.offset),
        searched=forest.structure.n_nodes,
    )


def check_same_data(former: CoordinatorForest, leaver: str, n_rows: int, keys: NDArray[np.uint64]) -> None:
    """Refuse rows or columns of those who stay that are not those of the former forest."""
    stays = former.feature_party != former.parties.index(leaver)
    if n_rows != former.n_rows or not np.array_equal(keys, former.feature_keys[stays]):
        raise DataError(
            "the parties' rows or columns are not those that the forest was grown on; give the training's tables"
        )


@dataclass(frozen=True, eq=False)
class _Change:
    """What a revocation does to each node of the former forest.

    ``party`` and ``feature`` are the new numbers of the former parties and features, -1 for the leaver's.
    """

    searched: NDArray[np.bool_]
    mark: NDArray[np.uint8]
    party: NDArray[np.int64]
    feature: NDArray[np.int64]
    inherits: bool

    @classmethod
    def of(
        cls, plan: ForestPlan, former: CoordinatorForest, leaver: str, level: Level, n_jobs: int, patched: bool
    ) -> _Change:
        number = former.parties.index(leaver)
        structure = former.structure
        gone = former.owner == number
        searched = gone
        if level == 3:
            searched = np.ones_like(gone) if patched else gone | _touched(plan, former, number, n_jobs)
        if plan.nodes_compete:
            # what one branch may have depends on all others: a tree is grown again as a whole
            roots = structure.offset[:-1]
            changes = np.add.reduceat(searched, roots) > 0 if level == 1 else np.ones(len(roots), bool)
            searched = np.zeros(structure.n_nodes, bool)
            searched[roots[changes]] = True
        below = np.concatenate([[0], np.cumsum(searched)])
        has_change = below[subtree_ends(structure.right)] > below[:-1]
        mark = np.where(searched, SEARCHED, np.where(has_change, KEPT, SETTLED)).astype(np.uint8)
        return cls(
            searched,
            mark,
            party=_renumbered(np.arange(len(former.parties)) != number),
            feature=_renumbered(former.feature_party != number),
            inherits=not plan.nodes_compete,
        )


def _renumbered(stays: NDArray[np.bool_]) -> NDArray[np.int64]:
    return np.where(stays, np.cumsum(stays) - 1, -1)


def _touched(plan: ForestPlan, former: CoordinatorForest, leaver: int, n_jobs: int) -> NDArray[np.bool_]:
    """Nodes whose search could end otherwise without the leaver's features; see the head of this module."""
    by_tree = plan.feature_sampling == "tree"
    keys = node_keys(former.structure, tree_keys(derive_seed(plan.seed, "order"), range(former.structure.n_trees)))
    if by_tree:
        keys = np.repeat(keys[former.structure.offset[:-1]], np.diff(former.structure.offset))
    stays = former.feature_party != leaver
    before = _limits(keys, former.feature_keys, plan.n_candidates(len(stays)), n_jobs)
    after = _limits(keys, former.feature_keys[stays], plan.n_candidates(int(stays.sum())), n_jobs)
    inner = former.feature >= 0
    place = np.zeros(len(keys), np.uint64)
    found = np.empty(int(inner.sum()), np.uint64)
    places(keys[inner], former.feature_keys[former.feature[inner]], found)
    place[inner] = found
    within = after <= before
    touched: NDArray[np.bool_] = inner & ~(within & ((place <= after) | (place > before)))
    if by_tree:  # nobody goes on behind the candidates: with other candidates a leaf may be split after all
        touched |= ~inner & ~within
    if plan.min_impurity_decrease > 0:  # a better split may be among them, or the first that can split another one
        touched |= ~inner
    return touched


def _limits(
    keys: NDArray[np.uint64], feature_keys: NDArray[np.uint64], n_candidates: int, n_jobs: int
) -> NDArray[np.uint64]:
    """Place of the last candidate at each node."""
    limits = np.empty(len(keys), np.uint64)
    owners = np.zeros(len(feature_keys), np.int64)
    wanted = np.ones(len(keys), bool)

    def work(first: int) -> None:
        part = slice(first, first + CHUNK_NODES)
        counts = np.zeros((1, len(keys[part])), np.uint32)
        candidate_limits(keys[part], wanted[part] * n_candidates, feature_keys, owners, limits[part], counts)

    run_chunks(work, range(0, len(keys), CHUNK_NODES), n_jobs)
    return limits


class _Regrowth(Batch):
    """Trees that change, at the coordinator: every open node knows what it was in the former forest, if anything."""

    def __init__(
        self,
        plan: ForestPlan,
        ready: PreparedTraining,
        holder: str,
        n_jobs: int,
        former: CoordinatorForest,
        change: _Change,
        trees: NDArray[np.int64],
    ) -> None:
        super().__init__(plan, ready, holder, n_jobs)
        self.former = former
        self.change = change
        self.trees = trees
        self.n_searched = 0
        self._new = former.structure.offset[trees]
        self._known: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]] = []
        self._note(np.arange(len(trees)), self._new)

    def _marks(self, origin: NDArray[np.int64]) -> NDArray[np.uint8]:
        return np.where(origin >= 0, self.change.mark[origin], np.uint8(SEARCHED))

    def _note(self, numbers: NDArray[np.int64], origin: NDArray[np.int64]) -> None:
        """Remember which of the new nodes stay, for the graft."""
        marks = self._marks(origin)
        stays = marks != SEARCHED
        self._known.append((numbers[stays], origin[stays], marks[stays] == SETTLED))

    def _tell(self) -> dict[str, NDArray[Any]]:
        marks = self._marks(self._new)
        return {"marks": marks, "former": self._new[marks != SEARCHED].astype(np.uint32)}

    def _plant(self, trees: Sequence[int], candidates: NDArray[Any]) -> Message:
        return ReplantTrees(trees=np.array(trees, np.uint32), candidates=candidates, **self._tell())

    def _next_level(self, is_split: NDArray[np.uint8], flags: NDArray[np.uint8], candidates: NDArray[Any]) -> Message:
        return RegrowLevel(is_split=is_split, flags=flags, candidates=candidates, **self._tell())

    def _searched(self) -> NDArray[np.bool_]:
        return np.asarray(self._marks(self._new) == SEARCHED)

    def _keep(self, kept: NDArray[np.int64]) -> None:
        self._origin, self._open = self._new[kept], self.skeleton.frontier
        self._stays = self._marks(self._origin) == KEPT
        self.n_searched += int((~self._stays).sum())

    def _winners(
        self, replies: dict[str, Message], limits: NDArray[np.uint64]
    ) -> tuple[NDArray[np.int16], NDArray[np.int32], NDArray[np.float64]]:
        winner, feature, gain = super()._winners(replies, limits)
        stays = self._stays
        at = self._origin[stays]
        winner[stays] = self.change.party[self.former.owner[at]]
        feature[stays] = self.change.feature[self.former.feature[at]]
        gain[stays] = self.former.gain[at]
        return winner, feature, gain

    def _descend(self, is_split: NDArray[np.bool_], winner: NDArray[np.int16], feature: NDArray[np.int32]) -> None:
        origin = self._origin[is_split]
        before = self.former.feature[origin]
        # on the same rows the same feature is cut in the same place
        same = (origin >= 0) & (before >= 0) & (self.change.feature[before] == feature[is_split])
        if not self.change.inherits:
            same[:] = False
        again = same & ~self._stays[is_split]
        self._known.append((self._open[is_split][again], origin[again], np.zeros(int(again.sum()), bool)))
        left = np.where(same, origin + 1, -1)
        right = np.where(same, self.former.structure.right[origin], -1)
        self._new = np.column_stack([left, right]).ravel().astype(np.int64)
        if self.skeleton.depth < self.start.max_depth:
            self._note(self.skeleton.frontier, self._new)

    def _n_new_leaves(self, structure: Structure, position: NDArray[np.int64]) -> int:
        numbers, origin, settled = (np.concatenate(parts) for parts in zip(*self._known, strict=True))
        at = position[numbers]
        former = np.full(structure.n_nodes, -1, np.int64)
        former[at[at >= 0]] = origin[at >= 0]
        is_settled = np.zeros(structure.n_nodes, bool)
        is_settled[at[settled]] = True
        self.sketch = Sketch(self.trees, structure, former, is_settled)
        return structure.n_leaves - int(settled.sum())

    def _progress(self, trees: Sequence[int], settled: int, of: int) -> Progress:
        told = super()._progress(trees, settled, of)
        return replace(told, done=min(told.done, self.plan.n_estimators))


def _assemble(
    former: CoordinatorForest,
    change: _Change,
    ready: PreparedTraining,
    parties: tuple[str, ...],
    sketch: Sketch,
    grown: Sequence[FinishedTrees],
    grafted: Graft,
    by_row: DrawsByRow | None,
) -> CoordinatorForest:
    """The coordinator's part of the grafted forest, from what stays and what is new."""
    structure = grafted.structure
    stays = np.flatnonzero((grafted.of_former >= 0) & (former.structure.right >= 0))
    new = np.flatnonzero(sketch.structure.right >= 0)

    def place(kind: Any, fill: float, old: NDArray[Any], parts: list[NDArray[Any]]) -> NDArray[Any]:
        placed = np.full(structure.n_nodes, fill, kind)
        placed[grafted.of_former[stays]] = old[stays]
        placed[grafted.of_sketch[new]] = np.concatenate([np.empty(0, kind), *parts])[new]
        return placed

    return CoordinatorForest(
        structure=structure,
        owner=place(np.int16, -1, change.party[former.owner], [part.owner for part in grown]),
        feature=place(np.int32, -1, change.feature[former.feature], [part.feature for part in grown]),
        gain=place(np.float64, 0.0, former.gain, [part.gain for part in grown]),
        leaves=_join_leaves(former, sketch, [part.leaves for part in grown], grafted),
        parties=parties,
        feature_keys=ready.features.keys,
        feature_party=ready.features.party,
        classes=ready.answer.classes,
        sampling=sampling_of(ready.start, by_row),
        n_rows=ready.n_rows,
        sharing=ready.sharing,
    )


def _join_leaves(former: CoordinatorForest, sketch: Sketch, new: list[Leaves], grafted: Graft) -> Leaves:
    source = np.empty(grafted.structure.n_leaves, np.int64)
    old_leaf = np.flatnonzero((former.structure.right < 0) & (grafted.of_former >= 0))
    source[grafted.structure.leaf[grafted.of_former[old_leaf]]] = former.structure.leaf[old_leaf]
    new_leaf = np.flatnonzero((sketch.structure.right < 0) & ~sketch.settled)
    first = former.structure.n_leaves
    source[grafted.structure.leaf[grafted.of_sketch[new_leaf]]] = first + np.arange(len(new_leaf))
    return take_leaves(join_leaves([former.leaves, *new]), source)
