"""A party whose forest is grown again in part, because another party has left: it keeps its splits that stay.

States are those of `VerticalParty`, with ReplantTrees and RegrowLevel in place of PlantTrees and GrowLevel. Both mark
what becomes of each node: it is searched, it is kept with the split of the former forest, or it is settled with all
below it. A kept split is repeated by its owner, from its part of the former forest; its flags go to the others like
those of a new split. Where the leaver has split no node no tree is grown, so that messages about the finished forest
are taken in *started* too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.exceptions import RemoteProtocolError
from woodlot.protocols.core.bits import pack, unpack
from woodlot.protocols.core.forest_parts import PartyForest
from woodlot.protocols.core.handling import takes
from woodlot.protocols.core.message import Message
from woodlot.protocols.vertical import forest_messages as msg
from woodlot.protocols.vertical.answers import match_columns
from woodlot.protocols.vertical.party import LEVEL, Level, TrainingState, VerticalParty
from woodlot.protocols.vertical.regrow import KEPT, SEARCHED, SETTLED
from woodlot.trees.forest import Splits, join_splits, move_splits
from woodlot.trees.graft import Sketch, graft, join_sketches
from woodlot.trees.grow import Grower
from woodlot.trees.kernels.branches import answer_numbers, answer_sets
from woodlot.trees.rules import SplitSides

GROWN = (TrainingState.started, TrainingState.trained)
"""Where the leaver has split no node, no tree is grown."""


class RegrowingParty(VerticalParty, refuses=(msg.PlantTrees, msg.GrowLevel)):
    """One party in a revocation.

    Parameters
    ----------
    former : PartyForest
        Its part of the forest that another party leaves.
    name, table, target, key_by_party, secret, shares_model, n_jobs
        As for `VerticalParty`; the table of the training.
    """

    grown_in = frozenset(GROWN)

    def __init__(self, name: str, table: Any, *, former: PartyForest, **options: Any) -> None:
        super().__init__(name, table, **options)
        self._former = former
        self._columns = match_columns(former.names, former.codings, table)
        self._question = np.full(former.structure.n_nodes, -1, np.int64)  # of each node that is this party's
        self._question[former.splits.node] = np.arange(len(former.splits.node))
        self._new_splits: list[Splits] = []
        self._sketches: list[Sketch] = []

    @takes(msg.ReplantTrees, when=GROWN, then=TrainingState.growing)
    def _on_ReplantTrees(self, message: msg.ReplantTrees) -> Message:
        trees = message.trees.astype(np.int64)
        n = len(trees)
        rising = n > 0 and (np.diff(trees) > 0).all() and trees[-1] < self._former.structure.n_trees
        if not rising or len(message.candidates) != n:
            raise RemoteProtocolError("ReplantTrees must carry trees of the forest, and candidates for each of them")
        roots = self._former.structure.offset[trees]
        origin = self._origins(message.marks, message.former, roots)
        grower = self._plant(trees.tolist())
        self._trees = trees
        self._known = [_known(np.arange(n), origin, message.marks)]
        self._take_marks(grower, origin, message.marks, roots)
        return self._offers(message.candidates, grower.root_sizes)

    def _origins(
        self, marks: NDArray[np.uint8], former: NDArray[np.uint32], places: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """The former node of each new one that stays, -1 for the others.

        A node can stay only where it was: ``places`` has the former node that stood in the place of each, -1 where
        none did. Anywhere else this party's former questions would be asked of rows that never came to them.
        """
        stays = marks != SEARCHED
        n = len(places)
        if len(marks) != n or (marks > SETTLED).any() or len(former) != int(stays.sum()):
            raise RemoteProtocolError("every new node must be marked, and every one that stays have its former node")
        if not np.array_equal(former, places[stays]):
            raise RemoteProtocolError("a node stays that stood in another place of the former forest, or nowhere")
        origin = np.full(n, -1, np.int64)
        origin[stays] = former
        if (self._former.structure.right[origin[marks == KEPT]] < 0).any():
            raise RemoteProtocolError("a leaf of the former forest cannot be split again")
        return origin

    def _take_marks(
        self, grower: Grower, origin: NDArray[np.int64], marks: NDArray[np.uint8], places: NDArray[np.int64]
    ) -> None:
        """What the nodes that are open now were before."""
        self._origin, self._places = origin[grower.is_open], places[grower.is_open]
        self._searched: NDArray[np.bool_] | None = marks[grower.is_open] == SEARCHED

    @takes(msg.RegrowLevel, when=LEVEL, then=TrainingState.growing)
    def _on_RegrowLevel(self, message: msg.RegrowLevel) -> Message:
        grower = self._growing()
        is_split, n_flags, _ = self._level(message)
        n = 2 * int(is_split.sum())
        if len(message.candidates) != n:
            raise RemoteProtocolError("RegrowLevel must carry one number of candidates per new node")
        places = self._children(self._places[is_split])
        origin = self._origins(message.marks, message.former, places)
        numbers = grower.skeleton.n_nodes + np.arange(n)
        flags = unpack(message.flags, n_flags, "sides of the others' splits")
        grower.split(is_split, flags, message.marks == SETTLED)
        self._known.append(_known(numbers, origin, message.marks))
        self._take_marks(grower, origin, message.marks, places)
        return self._offers(message.candidates, np.empty(0, np.int64))

    def _children(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """The children that nodes of the former forest had, -1 for those of none and of leaves."""
        right = self._former.structure.right[places]
        inner = (places >= 0) & (right >= 0)
        return np.column_stack([np.where(inner, places + 1, -1), np.where(inner, right, -1)]).ravel()

    def _level(self, message: Level) -> tuple[NDArray[np.bool_], int, SplitSides]:
        """As for any party; and splits that stay are there, this party's own carried out by itself."""
        is_split, n_flags, sides = super()._level(message)
        grower = self._growing()
        stays = ~self._is_searched(grower)
        own = stays & (self._question[self._origin] >= 0)
        if (stays & ~is_split).any() or not grower.has_carried_out(own):
            raise RemoteProtocolError("a split of the former forest that stays is missing from the level")
        return is_split, n_flags, sides

    def _on_ApplySplits(self, message: msg.ApplySplits) -> msg.Partition:
        grower = self._growing()
        won = unpack(message.won, len(grower.start), "ApplySplits").astype(bool)
        stays = won & ~self._is_searched(grower)
        if not grower.can_apply(won & ~stays):
            raise RemoteProtocolError("ApplySplits names a node where this party made no offer")
        if (self._question[self._origin[stays]] < 0).any():
            raise RemoteProtocolError("ApplySplits names a former split that is not this party's")
        self._check_gains(won & ~stays)
        again = self._former_flags(grower, np.flatnonzero(stays))
        if not grower.rules.allow(grower.sides(stays, pack(again))):
            raise RemoteProtocolError("ApplySplits names a former split that leaves too few rows on one side")
        sizes = grower.end - grower.start
        flags = np.empty(int(sizes[won].sum()), np.uint8)
        is_former = np.repeat(stays[won], sizes[won])
        flags[is_former] = again
        grower.repeat(np.flatnonzero(stays), again)
        flags[~is_former] = grower.apply(won & ~stays)
        return msg.Partition(flags=pack(flags))

    def _is_searched(self, grower: Grower) -> NDArray[np.bool_]:
        return np.ones(len(grower.start), bool) if self._searched is None else self._searched

    def _former_flags(self, grower: Grower, nodes: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Which rows this party's former splits send left at some open nodes."""
        splits, question = self._former.splits, self._question[self._origin[nodes]]
        sizes = (grower.end - grower.start)[nodes]
        first = np.cumsum(sizes) - sizes
        flags = np.empty(int(sizes.sum()), np.uint8)
        for column in np.unique(splits.feature[question]).tolist():
            here = splits.feature[question] == column
            asked, at = question[here], nodes[here]
            rows = grower.rows, grower.start[at], grower.end[at], first[here]
            missing_left = splits.missing_left[asked].astype(np.uint8)
            if splits.categorical[asked[0]]:
                sets = splits.set_start[asked], splits.set_start[asked + 1], splits.sets
                answer_sets(self._columns[column], *rows, *sets, missing_left, flags)
            else:
                threshold = splits.threshold[asked].astype(np.float64)
                answer_numbers(self._columns[column], *rows, threshold, missing_left, flags)
        return flags

    def _finished(self, grower: Grower, part: PartyForest, position: NDArray[np.int64]) -> None:
        number, origin, settled = (np.concatenate(parts) for parts in zip(*self._known, strict=True))
        at = position[number]
        former = np.full(part.structure.n_nodes, -1, np.int64)
        former[at] = origin
        is_settled = np.zeros(part.structure.n_nodes, bool)
        is_settled[at[settled]] = True
        self._sketches.append(Sketch(self._trees, part.structure, former, is_settled))
        self._new_splits.append(part.splits)
        self._searched = None

    @takes(msg.RevealSplits, when=GROWN)
    def _on_RevealSplits(self, message: msg.RevealSplits) -> msg.SplitTable:
        return super()._on_RevealSplits(message)

    @takes(msg.OutOfBagAnswers, when=GROWN)
    def _on_OutOfBagAnswers(self, message: msg.OutOfBagAnswers) -> msg.OutOfBagScores:
        return super()._on_OutOfBagAnswers(message)

    @takes(msg.AskDecisions, when=GROWN)
    def _on_AskDecisions(self, message: msg.AskDecisions) -> Message:
        return super()._on_AskDecisions(message)

    def grown_forest(self) -> PartyForest:
        """This party's part of the new forest: the splits that stay, and those that it has won since."""
        if self.forest is None:
            former = self._former
            grafted = graft(former.structure, join_sketches(self._sketches))
            first = np.cumsum([0, *(s.structure.n_nodes for s in self._sketches)])
            parts = [move_splits(former.splits, grafted.of_former)]
            for splits, start in zip(self._new_splits, first, strict=False):
                parts.append(move_splits(splits, grafted.of_sketch[start:]))
            splits = join_splits(parts, [0] * len(parts))
            self.forest = PartyForest(grafted.structure, splits, former.names, former.codings)
        return self.forest


def _known(
    numbers: NDArray[np.int64], origin: NDArray[np.int64], marks: NDArray[np.uint8]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    stays = marks != SEARCHED
    return numbers[stays], origin[stays], marks[stays] == SETTLED
