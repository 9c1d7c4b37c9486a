"""Which numbers of a node are summed over all holders of rows, and the search for splits in the sums.

The layout of the numbers is drawn in ``kernels/cells.py``. Coordinator and holders make the same `Cells` of the same
message, so that only the numbers travel back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.trees.kernels import cells as kernels
from woodlot.trees.kernels.cells import Found, Shape
from woodlot.trees.parallel import run_chunks

GINI, ENTROPY, TARGETS = 0, 1, 2
"""How splits are scored, as the kernels know it."""
NODES_AT_ONCE = 1 << 12
"""Nodes of one piece of a thread's work."""


@dataclass(frozen=True, eq=False)
class Cells:
    """The numbers of some nodes.

    Attributes
    ----------
    width : uint8 array
        Bits that the weight of each node needs.
    n_classes, classes : arrays
        How many classes occur in each node, and which, node after node; a regression has one.
    n_pairs : array
        Candidate features of each node.
    feature, first, codes, missing : arrays
        Of each pair: the feature, its first code, how many codes from there on, and whether missing values are counted.
    with_rows : bool
        Whether rows are counted beside weights.
    target_bits : int
        Bits of a target in fixed point; 0 for classes.
    word_bits : int
        Bits of a word that are used.
    """

    width: NDArray[np.uint8]
    n_classes: NDArray[Any]
    classes: NDArray[Any]
    n_pairs: NDArray[Any]
    feature: NDArray[Any]
    first: NDArray[Any]
    codes: NDArray[Any]
    missing: NDArray[np.uint8]
    with_rows: bool
    target_bits: int
    word_bits: int

    @cached_property
    def pair_start(self) -> NDArray[np.int64]:
        return _starts(self.n_pairs)

    @cached_property
    def class_start(self) -> NDArray[np.int64]:
        return _starts(self.n_classes)

    @cached_property
    def cells(self) -> NDArray[np.int64]:
        """Cells of each node."""
        upto = _starts(self.codes.astype(np.int64) + self.missing)
        return np.diff(upto[self.pair_start])

    @cached_property
    def words(self) -> NDArray[np.int64]:
        """Words of each node."""
        width = self.width.astype(np.int64)
        counts = self.cells * (self.n_classes.astype(np.int64) + self.with_rows)
        words = -(-counts // (self.word_bits // width))
        if self.target_bits:
            words += -(-self.cells // (self.word_bits // (width + self.target_bits)))
        return words

    @property
    def length(self) -> int:
        """Words of all nodes."""
        return int(self.words.sum())

    @cached_property
    def shape(self) -> Shape:
        """What the kernels take."""
        return Shape(
            self.width.astype(np.uint8),
            self.class_start,
            self.classes.astype(np.int32),
            self.pair_start,
            self.feature.astype(np.int32),
            self.first.astype(np.int32),
            self.codes.astype(np.int32),
            self.missing,
            _starts(self.words),
            np.int64(self.with_rows),
            np.int64(self.target_bits),
            np.int64(self.word_bits),
        )

    def check(self, n_classes: int, n_codes: NDArray[np.int64]) -> None:
        """Raise ``ValueError`` unless the kernels can work on these arrays without looking."""
        n, q = len(self.width), len(self.feature)
        fits = (
            self.n_pairs.shape == self.n_classes.shape == (n,)
            and int(self.n_pairs.sum()) == q == len(self.first) == len(self.codes) == len(self.missing)
            and int(self.n_classes.sum()) == len(self.classes)
        )
        if not fits:
            raise ValueError("nodes, pairs and classes do not go together")
        if not 1 <= self.word_bits <= 63 or not 0 <= self.target_bits < self.word_bits:
            raise ValueError("words have the wrong size")
        if n and (
            int(self.width.min()) < 1
            or int(self.width.max()) + self.target_bits > self.word_bits
            or int(self.n_pairs.min()) < 1
            or int(self.n_classes.min()) < 1
        ):
            raise ValueError("a node asks for nothing, or for numbers that no word holds")
        if int(self.classes.max(initial=0)) >= n_classes or int(self.feature.max(initial=0)) >= len(n_codes):
            raise ValueError("there is no such class or feature")
        last = self.first.astype(np.int64) + self.codes
        if (last > n_codes[self.feature.astype(np.int64)]).any() or int(self.missing.max(initial=0)) > 1:
            raise ValueError("there are no such codes")

    def take(self, nodes: slice) -> Cells:
        """Some nodes that stand together."""
        pairs = slice(*self.pair_start[[nodes.start, nodes.stop]].tolist())
        classes = slice(*self.class_start[[nodes.start, nodes.stop]].tolist())
        return Cells(
            self.width[nodes],
            self.n_classes[nodes],
            self.classes[classes],
            self.n_pairs[nodes],
            self.feature[pairs],
            self.first[pairs],
            self.codes[pairs],
            self.missing[pairs],
            self.with_rows,
            self.target_bits,
            self.word_bits,
        )

    def pieces(self) -> list[slice]:
        """Neighbouring nodes, some at a time."""
        n = len(self.width)
        return [slice(a, min(a + NODES_AT_ONCE, n)) for a in range(0, n, NODES_AT_ONCE)]

    def batches(self, limit: int) -> list[slice]:
        """Neighbouring nodes whose words stay below a limit, or single nodes."""
        ends = np.cumsum(self.words)
        bounds = [0]
        while bounds[-1] < len(ends):
            before = int(ends[bounds[-1] - 1]) if bounds[-1] else 0
            bounds.append(max(bounds[-1] + 1, int(np.searchsorted(ends, before + limit, side="right"))))
        return [slice(a, b) for a, b in pairwise(bounds)]

    # --- holders ---

    def count(
        self,
        codes: NDArray[Any],
        n_codes: NDArray[np.int64],
        labels: NDArray[Any],
        targets: NDArray[np.int64] | None,
        n_classes: int,
        rows: NDArray[np.uint32],
        weights: NDArray[Any],
        start: NDArray[np.int64],
        end: NDArray[np.int64],
        n_jobs: int,
    ) -> NDArray[np.int64]:
        """The numbers of one holder's rows of the nodes, which stand in ``rows[start:end]``.

        A row whose code or class is not among those asked for is not counted: were it refused, whoever asks would learn
        by it what a single holder has. In the sum it is missed (`search`).
        """
        words = np.zeros(self.length, np.uint64)
        offset = _starts(self.words)

        def work(nodes: slice) -> None:
            part = words[offset[nodes.start] : offset[nodes.stop]]
            kernels.count_cells(
                codes, n_codes, labels, targets, rows, weights, start[nodes], end[nodes], self.take(nodes).shape,
                n_classes, part,
            )  # fmt: skip

        run_chunks(work, self.pieces(), n_jobs)
        return words.view(np.int64)

    # --- the coordinator ---

    def search(
        self,
        sums: NDArray[np.int64],
        *,
        categorical: NDArray[np.uint8],
        n_codes: NDArray[np.int64],
        min_leaf: int,
        kind: int,
        first_wins: bool,
        xlogx: NDArray[np.int64],
        scale: int,
        n_jobs: int,
    ) -> Found:
        """The best split of each node, from the sums over all holders.

        Raises
        ------
        ValueError
            If the candidates of a node do not add up to the same rows.
        """
        n = len(self.width)
        of_sets = np.flatnonzero(categorical)
        room = int(n_codes[of_sets].max(initial=-1)) + 1
        found = Found(
            score=np.full(n, -np.inf),
            whole=np.zeros(n),
            feature=np.full(n, -1, np.int32),
            low=np.zeros(n, np.int64),
            high=np.zeros(n, np.int64),
            missing_left=np.zeros(n, np.uint8),
            improves=np.zeros(n, np.uint8),
            left=np.zeros(len(self.classes), np.int64),
            left_rows=np.zeros(n, np.int64),
            left_sum=np.zeros(n, np.int64),
            total=np.zeros(len(self.classes), np.int64),
            rows=np.zeros(n, np.int64),
            sums=np.zeros(n, np.int64),
            goes_left=np.zeros((n, room), np.uint8),
        )
        offset = _starts(self.words)
        words = sums.view(np.uint64)

        def work(nodes: slice) -> None:
            some = self.take(nodes)
            wide = int((some.codes.astype(np.int64) + some.missing).max(initial=1)), int(some.n_classes.max(initial=1))
            classes = slice(int(self.class_start[nodes.start]), int(self.class_start[nodes.stop]))
            part = Found(
                *(array[classes if name in ("left", "total") else nodes] for name, array in found._asdict().items())
            )
            agree = kernels.search_cells(
                words[offset[nodes.start] : offset[nodes.stop]], some.shape, categorical, min_leaf, kind, first_wins,
                xlogx, float(scale), wide, part,
            )  # fmt: skip
            if not agree:
                raise ValueError("the histograms of a node's features are not of the same rows")

        run_chunks(work, self.pieces(), n_jobs)
        return found


def _starts(lengths: NDArray[Any] | Sequence[int]) -> NDArray[np.int64]:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])
