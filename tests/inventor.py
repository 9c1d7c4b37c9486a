"""A coordinator that invents splits: at every open node it says that somebody has split off one row.

Each such row ends in a leaf of its own, and the label holder tells what the leaf answers: the row's label. To be run in
a coordinator's process first (`processes.Processes.scripts`), or as a `Batch` of a test's own.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.protocols.core.bits import pack
from woodlot.protocols.core.forest_parts import CoordinatorForest
from woodlot.protocols.core.forest_plan import ForestPlan
from woodlot.protocols.core.message import Message, Round
from woodlot.protocols.vertical import train


class Inventor(train.Batch):
    """Trees of invented splits: of every open node, the first row goes left."""

    def _winners(
        self, replies: dict[str, Message], limits: NDArray[np.uint64]
    ) -> tuple[NDArray[np.int16], NDArray[np.int32], NDArray[np.float64]]:
        n_open = len(limits)
        return np.zeros(n_open, np.int16), np.zeros(n_open, np.int32), np.ones(n_open)

    def _partitions(
        self,
        trees: Sequence[int],
        winner: NDArray[np.int16],
        gain: NDArray[np.float64],
        sizes: NDArray[np.int64],
        total_rows: int,
    ) -> Generator[Round, dict[str, Message], tuple[dict[str, NDArray[np.uint8]], NDArray[np.int64]]]:
        """Nobody is asked to split anything: everybody is told that somebody else has."""
        yield from ()
        flags = np.zeros(int(sizes.sum()), np.uint8)
        flags[np.cumsum(sizes) - sizes] = 1
        return dict.fromkeys(self.parties, pack(flags)), np.ones(len(sizes), np.int64)


def labels_read(forest: CoordinatorForest, plan: ForestPlan) -> dict[int, Any]:
    """What the coordinator has read: the label of each row that is alone in a leaf."""
    sampling = plan.sampling(forest.n_rows, None, 1.0)
    read: dict[int, Any] = {}
    structure, leaves = forest.structure, forest.leaves
    for tree in range(structure.n_trees):
        drawn = np.flatnonzero(sampling.counts(tree, forest.n_rows))
        nodes = slice(structure.offset[tree], structure.offset[tree + 1])
        of_tree = structure.leaf[nodes][structure.right[nodes] < 0]
        for row, leaf in zip(drawn[: len(of_tree) - 1].tolist(), of_tree.tolist(), strict=False):
            first, end = leaves.start[leaf : leaf + 2]
            assert end == first + 1
            read[row] = forest.classes[int(leaves.output[first])]
    return read


if __name__ == "service":
    train.Batch = Inventor  # type: ignore[misc]
