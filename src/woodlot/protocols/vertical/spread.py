"""A party's columns in blocks on several machines: what the party itself does.

Inside the party the same thing happens as between parties: every block offers its best split at every open node, the
best offer wins by the coordinator's own rules, and the winner's sides go to the other blocks. So the offer that leaves
the party is the one that it would have made on one machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.data.tables import Table
from woodlot.protocols.core.bits import pack
from woodlot.protocols.core.blocks import Blocks
from woodlot.protocols.core.forest_parts import codings_of
from woodlot.protocols.vertical.column_block import Applied, LevelPartition
from woodlot.protocols.vertical.forest_messages import StartForest
from woodlot.protocols.vertical.start import rules_of, sampling_of
from woodlot.trees.encoding import Coding, encode
from woodlot.trees.grow import BestSplits, Grower, Won
from woodlot.trees.kernels.hashing import candidate_limits, choose_offers


class SpreadColumns:
    """The columns of a party whose codes are in blocks elsewhere."""

    def __init__(self, blocks: Blocks) -> None:
        self._blocks = blocks
        self.codings: tuple[Coding, ...] = ()

    def encode(self, max_bins: int | None) -> None:
        """Have every block make its codes."""
        told = self._blocks.set_up("encode", max_bins)
        self.codings = codings_of([categories for _, part in told for categories in part])

    def begin(self, start: StartForest) -> None:
        """Tell every block the labels, rules and seeds, once for all trees."""
        self._blocks.set_up("begin", start)

    def plant(
        self,
        feature_keys: NDArray[np.uint64],
        labels: NDArray[Any],
        start: StartForest,
        trees: Sequence[int],
        n_jobs: int,
    ) -> Grower:
        """Begin trees in every block, and here."""
        return SpreadGrower(self._blocks, feature_keys, labels, start, trees, n_jobs)


class SpreadGrower(Grower):
    """Trees in flight at a party whose columns are in blocks: it has the rows of all nodes, and no column."""

    def __init__(
        self,
        blocks: Blocks,
        feature_keys: NDArray[np.uint64],
        labels: NDArray[Any],
        start: StartForest,
        trees: Sequence[int],
        n_jobs: int,
    ) -> None:
        nothing = encode(Table((), (), len(labels)), max_bins=None, n_jobs=1)
        super().__init__(
            nothing,
            np.empty(0, np.uint64),
            labels,
            start.n_classes,
            rules_of(start),
            sampling_of(start),
            start.order_seed,
            trees,
            n_jobs,
        )
        self._blocks = blocks
        self._all_keys = feature_keys
        self._firsts = blocks.bounds
        self._n_blocks = len(self._firsts) - 1
        self._owners = np.repeat(np.arange(self._n_blocks), np.diff(self._firsts))
        self._trees = tuple(trees)
        self._levels: list[LevelPartition] = []  # all splits so far, from which a block that was lost is brought back
        self._untold: dict[int, LevelPartition] = {}
        self._counts: NDArray[np.int64] = np.empty((self._n_blocks, 0), np.int64)
        self._own_flags: NDArray[np.uint8] = np.empty(0, np.uint8)
        self._ask("plant", dict.fromkeys(range(self._n_blocks), (self._trees, ())))

    def _ask(self, method: str, arguments: Mapping[int, tuple[Any, ...]]) -> dict[int, Any]:
        """Ask some blocks; one that is lost meanwhile is brought to where it was, and asked again."""
        answers: dict[int, Any] = {}
        while arguments:
            told, lost = self._blocks.ask(method, arguments)
            answers |= told
            self._bring_back(lost, for_apply=method == "apply")
            arguments = {k: arguments[k] for k in lost}
            if method == "find":  # the level has been told with all the others
                arguments = {k: (None, counts) for k, (_, counts) in arguments.items()}
        return answers

    def _bring_back(self, lost: set[int], *, for_apply: bool) -> None:
        """Bring blocks that were built again to the level of the others; some may be lost again on the way."""
        while lost:
            planted, lost = self._blocks.ask("plant", dict.fromkeys(lost, (self._trees, self._levels)))
            if for_apply and planted:  # what is applied is what was found last
                _, again = self._blocks.ask("find", {k: (None, self._counts[k]) for k in planted})
                lost |= again

    def find(self, counts: NDArray[np.integer[Any]], searched: NDArray[np.bool_] | None = None) -> BestSplits:
        """The best split of all blocks' candidates at every open node; parameters as for `Grower.find`."""
        n_open = len(self.start)
        whole = super().find(np.zeros(n_open, np.int64), searched).whole
        select = self.skeleton.root_key if self.rules.whole_tree else self.skeleton.key
        limits = np.empty(n_open, np.uint64)
        shares = np.zeros((self._n_blocks, n_open), np.uint32)
        candidate_limits(select, counts.astype(np.int64), self._all_keys, self._owners, limits, shares)
        self._counts = shares.astype(np.int64)
        scores = np.full((self._n_blocks, n_open), -np.inf)
        offered = np.zeros((self._n_blocks, n_open), np.uint32)
        untold, self._untold = self._untold, {}
        found = self._ask("find", {k: (untold.get(k), self._counts[k]) for k in range(self._n_blocks)})
        for k, (score, feature) in found.items():
            scores[k], offered[k] = score, feature + 1
        winner, feature, best = np.empty(n_open, np.int16), np.empty(n_open, np.int32), np.empty(n_open)
        choose_offers(
            select, self.skeleton.key, limits, scores, offered, self._firsts, self._all_keys, winner, feature, best
        )
        self._winner, self._feature = winner, feature
        return BestSplits(np.where(winner >= 0, best, -np.inf), feature, whole)

    def find_candidates(self, counts: NDArray[np.integer[Any]], *, all_whole: bool) -> BestSplits:
        """As `Grower.find_candidates`, with all scores: blocks tell no score later."""
        return self.find(counts)

    def can_apply(self, won: NDArray[np.bool_]) -> bool:
        """Whether a block has offered a split at all these nodes."""
        return bool((self._winner[won] >= 0).all())

    def apply(self, won: NDArray[np.bool_]) -> NDArray[np.uint8]:
        """Have the blocks carry out the splits they have won; returns as `Grower.apply`."""
        nodes = np.flatnonzero(won)
        sizes = (self.end - self.start)[nodes]
        blocks = np.unique(self._winner[nodes]).tolist()
        applied: dict[int, Applied] = self._ask("apply", {k: (won & (self._winner == k),) for k in blocks})
        flags = np.empty(int(sizes.sum()), np.uint8)
        threshold, missing_left = np.empty(len(nodes)), np.empty(len(nodes), bool)
        set_length = np.zeros(len(nodes), np.int64)
        sets: list[NDArray[np.uint8]] = [_NO_FLAGS] * len(nodes)
        for k, made in applied.items():
            at = self._winner[nodes] == k
            here = np.repeat(at, sizes)
            flags[here] = np.unpackbits(made.flags, count=int(here.sum()), bitorder="little")
            threshold[at], missing_left[at], set_length[at] = made.threshold, made.missing_left, made.set_length
            bounds = np.concatenate([[0], np.cumsum(made.set_length)]).tolist()
            for node, (a, b) in zip(np.flatnonzero(at).tolist(), pairwise(bounds), strict=True):
                sets[node] = made.sets[a:b]
        self.repeat(nodes, flags)
        self._won.append(
            Won(
                number=self.skeleton.frontier[nodes],
                feature=self._feature[nodes],
                threshold=threshold,
                missing_left=missing_left,
                set_length=set_length,
                sets=np.concatenate([_NO_FLAGS, *sets]),
            )
        )
        self._own_flags = flags
        return flags

    def split(
        self, is_split: NDArray[np.bool_], other_flags: NDArray[np.uint8], settled: NDArray[np.bool_] | None = None
    ) -> None:
        """Carry out all splits of a level, here and, when they are asked next, in the blocks; see `Grower.split`."""
        nodes = np.flatnonzero(is_split)
        sizes = (self.end - self.start)[nodes]
        own = self._middle[nodes] >= 0
        by = np.repeat(np.where(own, self._winner[nodes], -1), sizes)  # which block has sent these rows down
        flags = np.empty(len(by), np.uint8)
        flags[by >= 0], flags[by < 0] = self._own_flags, other_flags
        bits = pack(is_split)
        self._levels.append(LevelPartition(bits, pack(flags), len(flags)))
        for k in range(self._n_blocks):
            needed = flags[by != k]
            self._untold[k] = LevelPartition(bits, pack(needed), len(needed))
        self._own_flags = _NO_FLAGS
        super().split(is_split, other_flags, settled)


_NO_FLAGS = np.empty(0, np.uint8)
