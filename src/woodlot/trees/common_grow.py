"""Growing for parties of one process: what each of them would do alike is done once.

Every party of a training knows the rows of all nodes, their weights and the shape of the trees: they follow from the
seed and from the sides that the coordinator passes on. Between organisations each keeps them for itself. In one process
they lie here. A winner's `apply` moves the rows of its nodes for all; then nothing is left to do for a level but to
close its nodes, and whoever comes first does it. Each party has searches, splits and thresholds of its own as ever.

Parties are in different levels for a moment: one has advanced to the next level while another still checks the message
that asks for it. So a `CommonLevel` is not changed when the next one is made::

    level 0  --following-->  level 1  --following-->  level 2
    (is_split of level 0)    (is_split of level 1)

Rows and weights have one place, and are moved in `apply` only: when every party has made its offers for a level, and
before any party is asked for the next. The nodes of two winners have no row in common.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.exceptions import RemoteProtocolError
from woodlot.trees.encoding import EncodedTable
from woodlot.trees.forest import Structure
from woodlot.trees.grow import Grower, LeafPart, sums_of
from woodlot.trees.rules import GrowthRules, SplitSides
from woodlot.trees.sampling import Bootstrap, TreeRows
from woodlot.trees.skeleton import Skeleton


@dataclass(eq=False)
class CommonLevel:
    """The nodes of one level that are open, and what came of them."""

    skeleton: Skeleton
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    is_open: NDArray[np.bool_]
    middle: NDArray[np.int64]
    """Where the right child of each node begins, once its winner has moved its rows; -1 before."""
    leaves: list[LeafPart]
    """All nodes closed so far."""
    following: tuple[NDArray[np.bool_], CommonLevel] | None = None
    """Which nodes were split, and the level that this has made."""
    finished: tuple[NDArray[np.int64], Structure, NDArray[np.int64]] | None = None
    """What was pruned at the end, the trees' structure, and where each node stands in it."""


@dataclass(eq=False)
class _Planted:
    """Trees in flight."""

    trees: list[int]
    drawn: TreeRows
    roots: CommonLevel | None = None


class CommonTrees:
    """The trees in flight of all parties of one process, in one training."""

    def __init__(self) -> None:
        self.turn = threading.Lock()
        """Held by the party that does a step for all."""
        self._planted: _Planted | None = None

    def plant(self, trees: Sequence[int], draw: Callable[[], TreeRows]) -> _Planted:
        """The rows of some trees: drawn by the party that plants them first."""
        with self.turn:
            if self._planted is None or self._planted.trees != list(trees):
                self._planted = _Planted(list(trees), draw())
            return self._planted

    def let_go(self) -> None:
        """Trees are finished: their rows are kept by the parties that still need them."""
        self._planted = None


class CommonGrower(Grower):
    """Trees in flight at one of several parties of a process.

    Parameters
    ----------
    common : CommonTrees
        Where the parties keep what they have in common.
    table, feature_keys, labels, n_classes, rules, bootstrap, seed, trees, n_jobs
        As for `Grower`; all but the first two are the same at every party.
    """

    def __init__(
        self,
        common: CommonTrees,
        table: EncodedTable,
        feature_keys: NDArray[np.uint64],
        labels: NDArray[Any],
        n_classes: int,
        rules: GrowthRules,
        bootstrap: Bootstrap,
        seed: int,
        trees: Sequence[int],
        n_jobs: int,
    ) -> None:
        self._common = common
        super().__init__(table, feature_keys, labels, n_classes, rules, bootstrap, seed, trees, n_jobs)

    def _draw(self, bootstrap: Bootstrap, trees: Sequence[int]) -> TreeRows:
        self._planted = self._common.plant(trees, lambda: super(CommonGrower, self)._draw(bootstrap, trees))
        return self._planted.drawn

    def _open_roots(self) -> None:
        with self._common.turn:
            if self._planted.roots is None:
                super()._open_roots()
                self._planted.roots = self._as_level()
            self._stand_at(self._planted.roots)
        del self._planted

    def _as_level(self) -> CommonLevel:
        return CommonLevel(self.skeleton, self.start, self.end, self.is_open, self._middle, self._leaf_parts)

    def _stand_at(self, level: CommonLevel) -> None:
        self._level = level
        self.skeleton, self.is_open, self._leaf_parts = level.skeleton, level.is_open, level.leaves
        self.start, self.end, self._middle = level.start, level.end, level.middle
        self._own = np.zeros(len(level.start), bool)

    def apply(self, won: NDArray[np.bool_]) -> NDArray[np.uint8]:
        """Carry out the splits this party has won, for all parties; as ``Grower.apply``."""
        flags = super().apply(won)
        self._own |= won
        return flags

    def rows_of_others(self, is_split: NDArray[np.bool_]) -> int:
        """How many flags this party is told; as ``Grower.rows_of_others``."""
        return int((self.end - self.start)[is_split & ~self._own].sum())

    def has_carried_out(self, nodes: NDArray[np.bool_]) -> bool:
        """Whether this party has split all these nodes itself."""
        return bool(self._own[nodes].all())

    def has_won_only(self, is_split: NDArray[np.bool_]) -> bool:
        """Whether all that this party has carried out is among these splits."""
        return not (self._own & ~is_split).any()

    def sides(self, is_split: NDArray[np.bool_], other_bits: NDArray[np.uint8]) -> SplitSides:
        """Rows, and where a rule asks weights, on both sides; as ``Grower.sides``, from where the winners put them."""
        chosen = np.flatnonzero(is_split)
        start, end, middle = self.start[chosen], self.end[chosen], self._middle[chosen]
        if self._is_alone(is_split):
            return super().sides(is_split, other_bits)
        if (middle < 0).any():
            raise RemoteProtocolError("a level has a split that none of the parties in this process has carried out")
        both = np.column_stack([middle - start, end - middle])
        if self.rules.min_weight <= 1:
            return SplitSides(both, None)
        sizes = both.ravel()
        place = np.repeat(np.column_stack([start, middle]).ravel() - (np.cumsum(sizes) - sizes), sizes)
        return SplitSides(both, sums_of(self.weights[place + np.arange(len(place))], sizes).reshape(both.shape))

    def _is_alone(self, is_split: NDArray[np.bool_]) -> bool:
        """Whether no other party has moved a row: messages are played again to this one, which then moves them all."""
        return not (self._middle[is_split & ~self._own] >= 0).any()

    def split_packed(self, is_split: NDArray[np.bool_], other_bits: NDArray[np.uint8], n_flags: int) -> None:
        """Go on to the level that these splits make, whose rows the winners have moved; as ``Grower.split_packed``."""
        with self._common.turn:
            level, made = self._level, self._level.following
            if made is None:
                self.skeleton = level.skeleton.copy()
                alone = self._is_alone(is_split)
                flags = np.unpackbits(other_bits, count=n_flags, bitorder="little") if alone else _NO_FLAGS
                super().split(is_split, flags)
                made = level.following = is_split, self._as_level()
            as_others, following = made
        if not np.array_equal(is_split, as_others):
            raise RemoteProtocolError("parties of one process were told different splits of the same level")
        self._stand_at(following)

    def _finished_shape(self, pruned: NDArray[np.int64]) -> tuple[Structure, NDArray[np.int64]]:
        with self._common.turn:
            self._common.let_go()
            if self._level.finished is None:
                self._level.finished = pruned, *super()._finished_shape(pruned)
            as_others, structure, position = self._level.finished
        if not np.array_equal(pruned, as_others):
            raise RemoteProtocolError("parties of one process were told to prune different splits")
        return structure, position


_NO_FLAGS = np.empty(0, np.uint8)
