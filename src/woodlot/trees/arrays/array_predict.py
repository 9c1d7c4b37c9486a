"""Prediction with a complete forest on arrays: a thread is a row, and walks down tree after tree.

The answers of the trees are added in tree order, as ``trees.predict`` adds them: the sums are the same to the bit.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from woodlot.trees.arrays.array_module import SHARE, ArrayModule
from woodlot.trees.forest import Leaves, Splits, Structure
from woodlot.trees.ranks import Columns, round_down

SOURCE = r"""
// A node is four numbers: threshold, column << 2 | missing left << 1 | by set, right child or -1, and set or leaf.
__device__ inline int leaf_of(
    const int4* nodes, const long long* set_start, const unsigned char* sets, const unsigned int* values, long long n,
    long long row, long long node) {
  while (true) {
    int4 here = nodes[node];
    if (here.z < 0) return here.w;
    unsigned int bits = values[(here.y >> 2) * n + row];
    bool left;
    if (here.y & 1) {
      long long code = bits, at = set_start[here.w] + (code >> 3);
      left = at >= set_start[here.w + 1] ? (here.y >> 1) & 1 : (sets[at] >> (code & 7)) & 1;
    } else {
      float value = __uint_as_float(bits);
      left = isnan(value) ? (here.y >> 1) & 1 : value <= __int_as_float(here.x);
    }
    node = left ? node + 1 : here.z;
  }
}

extern "C" __global__ void find_leaves(
    const int4* nodes, const long long* set_start, const unsigned char* sets, const long long* roots, int n_trees,
    const unsigned int* values, long long n, int* leaf) {
  long long row = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (row >= n) return;
  for (int tree = 0; tree < n_trees; tree++)
    leaf[row * n_trees + tree] = leaf_of(nodes, set_start, sets, values, n, row, roots[tree]);
}

extern "C" __global__ void add_answers(
    const int4* nodes, const long long* set_start, const unsigned char* sets, const long long* roots, int n_trees,
    const unsigned int* values, long long n, const long long* start, const int* output, const double* value,
    const int* top, int n_outputs, double* out) {
  long long row = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (row >= n) return;
  double* sums = out + row * n_outputs;
  for (int tree = 0; tree < n_trees; tree++) {
    int leaf = leaf_of(nodes, set_start, sets, values, n, row, roots[tree]);
    if (top) sums[top[leaf]] += 1.0;
    else for (long long j = start[leaf]; j < start[leaf + 1]; j++) sums[output[j]] += value[j];
  }
  for (int j = 0; j < n_outputs; j++) sums[j] /= n_trees;
}
"""
ROW_BYTES = 64
"""Card memory for each row beside its values and answers."""


class PackedForest(NamedTuple):
    """A complete forest as the kernels walk it."""

    nodes: NDArray[np.int32]
    """(nodes, 4)"""
    set_start: NDArray[np.int64]
    sets: NDArray[np.uint8]
    roots: NDArray[np.int64]
    columns: NDArray[np.int64]
    """Columns of the table that are asked about; nodes count among them."""
    leaves: Leaves

    @classmethod
    def of(cls, structure: Structure, splits: Splits, leaves: Leaves) -> PackedForest:
        """Pack a forest; ``splits`` has the questions of all inner nodes."""
        by_set = splits.categorical
        columns, column = np.unique(splits.feature, return_inverse=True)
        nodes = np.full((structure.n_nodes, 4), -1, np.int32)
        nodes[:, 2], nodes[:, 3] = structure.right, structure.leaf
        threshold = round_down(np.where(by_set, 0.0, splits.threshold))
        nodes[splits.node, 0] = threshold.view(np.int32)
        nodes[splits.node, 1] = (column << 2) | (splits.missing_left.astype(np.int64) << 1) | by_set
        nodes[splits.node, 3] = np.arange(len(splits.node))
        return cls(nodes, splits.set_start, splits.sets, structure.offset[:-1], columns.astype(np.int64), leaves)


class ArrayPredictor:
    """A forest where it is walked: on NumPy, or in the memory of a card."""

    def __init__(self, arrays: ArrayModule, forest: PackedForest) -> None:
        self._arrays = arrays
        self._forest = forest
        with arrays.guard():
            shape = forest.nodes, forest.set_start, np.append(forest.sets, np.uint8(0)), forest.roots
            self._here = [arrays.put(np.ascontiguousarray(a)) for a in shape]

    def apply(self, columns: Columns, n_rows: int) -> NDArray[np.int32]:
        """Leaf of every row in every tree; as ``Predictor.apply``."""
        leaf = np.empty((n_rows, len(self._forest.roots)), np.int32)
        with self._arrays.guard():
            for rows in self._parts(n_rows, 4 * leaf.shape[1]):
                leaf[rows] = self._arrays.get(self._leaves(columns, rows))
        return leaf

    def predict_outputs(self, columns: Columns, n_rows: int, *, majority: bool) -> NDArray[np.float64]:
        """Mean answer of the trees for every row; as ``Predictor.predict_outputs``."""
        arrays, xp, leaves = self._arrays, self._arrays.xp, self._forest.leaves
        outputs = np.empty((n_rows, leaves.n_outputs))
        with arrays.guard():
            kinds = (leaves.start, np.int64), (leaves.output, np.int32), (leaves.value, np.float64)
            start, output, value = (arrays.put(np.ascontiguousarray(a, kind)) for a, kind in kinds)
            top = arrays.put(np.ascontiguousarray(leaves.top, np.int32)) if majority else None
            for rows in self._parts(n_rows, 8 * leaves.n_outputs):
                n = rows.stop - rows.start
                sums = xp.zeros((n, leaves.n_outputs))
                if arrays.on_card:
                    arrays.launch(
                        SOURCE, "add_answers", n, *self._here, np.int32(len(self._forest.roots)),
                        self._values(columns, rows), np.int64(n), start, output, value,
                        np.uint64(0) if top is None else top, np.int32(leaves.n_outputs), sums,
                    )  # fmt: skip
                else:
                    _add(sums, self._leaves(columns, rows), start, output, value, top)
                outputs[rows] = arrays.get(sums)
        return outputs

    def _parts(self, n_rows: int, answer_bytes: int) -> list[slice]:
        """Rows that are in the card's memory at a time."""
        width = 4 * max(len(self._forest.columns), 1) + answer_bytes + ROW_BYTES
        step = max(1, int(self._arrays.memory * SHARE) // (2 * width)) if self._arrays.on_card else max(n_rows, 1)
        return [slice(first, min(first + step, n_rows)) for first in range(0, n_rows, step)]

    def _values(self, columns: Columns, rows: slice) -> Any:
        """The columns that are asked about, one after the other: bits of numbers, and codes of categories."""
        asked = self._forest.columns.tolist()
        values = self._arrays.xp.empty((max(len(asked), 1), rows.stop - rows.start), self._arrays.xp.uint32)
        for k, column in enumerate(asked):
            values[k] = self._arrays.put(np.ascontiguousarray(columns[column][rows])).view(self._arrays.xp.uint32)
        return values

    def _leaves(self, columns: Columns, rows: slice) -> Any:
        arrays, xp, n, n_trees = self._arrays, self._arrays.xp, rows.stop - rows.start, len(self._forest.roots)
        values = self._values(columns, rows)
        if arrays.on_card:
            leaf = xp.empty((n, n_trees), xp.int32)
            arrays.launch(SOURCE, "find_leaves", n, *self._here, np.int32(n_trees), values, np.int64(n), leaf)
            return leaf
        nodes, set_start, sets, roots = self._here
        node = np.tile(roots, (n, 1))
        while True:
            row, tree = np.nonzero(nodes[node, 2] >= 0)
            if len(row) == 0:
                return nodes[node, 3]
            at = node[row, tree]
            threshold, question, right, by_set = nodes[at].T
            bits = values[question >> 2, row]
            missing_left = (question >> 1) & 1
            with np.errstate(invalid="ignore"):
                value = bits.view(np.float32)
                left = np.where(
                    np.isnan(value), missing_left, value <= np.ascontiguousarray(threshold).view(np.float32)
                )
            begin, end = set_start[by_set], set_start[by_set + 1]
            byte = begin + (bits >> np.uint32(3))
            inside = byte < end
            bit = (sets[np.where(inside, byte, 0)] >> (bits & np.uint32(7))) & 1
            left = np.where(question & 1 == 1, np.where(inside, bit, missing_left), left)
            node[row, tree] = np.where(left > 0, at + 1, right)


def _add(sums: Any, leaf: Any, start: Any, output: Any, value: Any, top: Any) -> None:
    """Twin of the kernel ``add_answers``, with the leaves known."""
    rows = np.arange(len(leaf))
    for of_tree in leaf.T:
        if top is not None:
            sums[rows, top[of_tree]] += 1.0
            continue
        lengths = start[of_tree + 1] - start[of_tree]
        for j in range(int(lengths.max(initial=0))):
            some = np.flatnonzero(lengths > j)
            at = start[of_tree[some]] + j
            sums[some, output[at]] += value[at]
    sums /= leaf.shape[1]
