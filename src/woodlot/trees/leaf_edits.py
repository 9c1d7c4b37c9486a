"""What leaves hold, and putting other leaves in the place of some."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.trees.branch_growing import Ground
from woodlot.trees.forest import Leaves
from woodlot.trees.kernels import rows as row_kernels
from woodlot.trees.kernels.forgetting import edit_leaves

Held = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]
"""What leaves hold: entries of each, their outputs and weights, and for targets their means."""


def held_by(
    ground: Ground,
    rows: NDArray[np.uint32],
    weights: NDArray[Any],
    start: NDArray[np.int64],
    end: NDArray[np.int64],
) -> Held:
    """What leaves hold whose rows stand from ``start`` to ``end``."""
    if ground.n_classes == 0:
        totals = np.zeros((len(start), 2))
        row_kernels.target_totals(rows, weights, ground.values, start, end, totals)
        ones = np.ones(len(start), np.int64)
        return ones, ones - 1, totals[:, 0].astype(np.int64), totals[:, 1] / totals[:, 0]
    room = int(np.minimum(end - start, ground.n_classes).sum())
    entries, label, weight = np.empty(len(start), np.int64), np.empty(room, np.int64), np.empty(room, np.int64)
    seen = np.zeros(ground.n_classes, np.int64)
    n = row_kernels.class_entries(rows, weights, ground.labels, start, end, seen, entries, label, weight)
    return entries, label[:n], weight[:n], np.empty(0)


class LeafEdits:
    """Leaves that become others, in stretches; put into the forest at once."""

    def __init__(self, leaves: Leaves) -> None:
        self._leaves = leaves
        self._first: list[NDArray[np.int64]] = []
        self._stop: list[NDArray[np.int64]] = []
        self._n_new: list[NDArray[np.int64]] = []
        self._held: list[Held] = []

    def add(self, first: NDArray[np.int64], stop: NDArray[np.int64], n_new: NDArray[np.int64], held: Held) -> None:
        """Stretches of leaves, by how many others each is replaced, and what these hold."""
        self._first.append(first)
        self._stop.append(stop)
        self._n_new.append(n_new)
        self._held.append(held)

    def done(self, unit: float) -> Leaves:
        """The leaves with all edits."""
        old = self._leaves
        first, stop, n_new = (np.concatenate(parts) for parts in (self._first, self._stop, self._n_new))
        if len(first) == 0:
            return old
        entries, output, weight, value = (np.concatenate(parts) for parts in zip(*self._held, strict=True))
        heavy = weight.astype(np.float64)
        ends = np.cumsum(entries)
        leaf_weight = np.add.reduceat(heavy, ends - entries)
        if len(value) == 0:
            value = heavy / np.repeat(leaf_weight, entries)
        at_leaf = np.cumsum(n_new) - n_new
        order = np.argsort(first)
        n_leaves = len(old.weight) + int(n_new.sum() - (stop - first).sum())
        n_entries = len(old.output) + int(ends[-1] - (old.start[stop] - old.start[first]).sum())
        start, weights = np.empty(n_leaves + 1, np.int64), np.empty(n_leaves)
        outputs, values = np.empty(n_entries, np.int32), np.empty(n_entries)
        edit_leaves(
            first[order], stop[order], n_new[order], at_leaf[order], (ends - entries)[at_leaf[order]], entries,
            leaf_weight / unit, output, value, old.start, old.weight, old.output, old.value, start, weights, outputs,
            values,
        )  # fmt: skip
        return Leaves(weights, start, outputs, values, old.n_outputs)
