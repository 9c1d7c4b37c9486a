"""Rows of some nodes, gathered one node after the other; and the stable partition that splits them.

The rows of all trees in flight lie as ``kernels.rows`` draws them. A `RowBatch` is a copy of the rows of some nodes.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from woodlot.trees.arrays.array_module import ArrayModule

SOURCE = r"""
// The node of a row is found by bisection: neighbours take the same way, so that it stays in the cache.
extern "C" __global__ void gather(
    const unsigned int* rows, const WEIGHT* weights, const LABEL* labels, const long long* first,
    const long long* start, long long n_nodes, long long n, int* node_of, unsigned int* row, WEIGHT* weight,
    LABEL* label) {
  long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i >= n) return;
  long long low = 0, high = n_nodes - 1;
  while (low < high) { long long mid = (low + high + 1) >> 1; if (first[mid] <= i) low = mid; else high = mid - 1; }
  long long at = i - first[low] + start[low];
  unsigned int r = rows[at];
  node_of[i] = (int)low; row[i] = r; weight[i] = weights[at]; label[i] = labels[r];
}

extern "C" __global__ void ends(const long long* run, const long long* first, long long n, long long* sums) {
  long long k = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (k >= n) return;
  long long begin = first[k], end = first[k + 1];
  sums[k] = (end ? run[end - 1] : 0) - (begin ? run[begin - 1] : 0);
}

extern "C" __global__ void mixed(
    const LABEL* label, const int* node_of, const long long* first, long long n, unsigned char* is_mixed) {
  long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i >= n) return;
  int node = node_of[i];
  if (label[i] != label[first[node]]) is_mixed[node] = 1;  // all writers write the same
}

// Flags of this party's splits are one to a byte, those of others one to a bit.
extern "C" __global__ void join_flags(
    const unsigned char* own, const unsigned char* bits, const long long* before, const int* node_of,
    const long long* first, long long n, unsigned char* flags) {
  long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i >= n) return;
  int node = node_of[i];
  long long at = before[node], position = i - first[node];
  if (at < 0) flags[i] = own[position - at - 1];  // -1 less the place: of this party
  else { at += position; flags[i] = (bits[at >> 3] >> (at & 7)) & 1; }
}

// `left` is the running sum of the flags, `left_of` that of each node.
extern "C" __global__ void move(
    const unsigned int* row, const WEIGHT* weight, const int* node_of, const long long* first, const long long* start,
    const unsigned char* flags, const long long* left, const long long* left_of, long long n, unsigned int* rows,
    WEIGHT* weights) {
  long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i >= n) return;
  int node = node_of[i];
  long long begin = first[node], before = left[i] - (begin ? left[begin - 1] : 0);
  long long to = start[node] + (flags[i] ? before - 1 : left_of[node] + (i - begin) - before);
  rows[to] = row[i]; weights[to] = weight[i];
}

extern "C" __global__ void sides(
    const CODE* fine, long long n_table, const unsigned int* row, const int* node_of, const int* feature,
    const long long* cut, const long long* missing, const unsigned char* missing_left, const long long* set_start,
    const unsigned char* sets, long long n, unsigned char* flags) {
  long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i >= n) return;
  int node = node_of[i];
  long long code = fine[feature[node] * n_table + row[i]], at = set_start[node];
  if (at >= 0) flags[i] = (sets[at + (code >> 3)] >> (code & 7)) & 1;
  else flags[i] = code <= cut[node] || (code == missing[node] && missing_left[node]);
}

// A thread is a node, and adds in the order of its rows: sums of floats depend on it.
extern "C" __global__ void target_totals(
    const unsigned int* rows, const WEIGHT* weights, const double* values, const long long* start, const long long* end,
    long long n, double* weight, double* total) {
  long long node = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (node >= n) return;
  double w = 0.0, t = 0.0;
  for (long long i = start[node]; i < end[node]; i++) {
    double d = (double)weights[i];
    w += d; t += d * values[rows[i]];
  }
  weight[node] = w; total[node] = t;
}
"""

C_TYPES = {
    "|u1": "unsigned char",
    "<u2": "unsigned short",
    "<u4": "unsigned int",
    "<i8": "long long",
    "<u8": "unsigned long long",
}


def typed(source: str, **types: Any) -> str:
    """CUDA source for arrays of these types."""
    return _typed(source, tuple((name, array.dtype.str) for name, array in types.items()))


@cache
def _typed(source: str, types: tuple[tuple[str, str], ...]) -> str:
    for name, kind in types:
        source = source.replace(name, C_TYPES[kind])
    return source


def put_all(arrays: ArrayModule, *columns: Any) -> Any:
    """Some arrays of int64 or uint64 and of one length, in one copy: it takes as long as a single short one."""
    return arrays.put(np.stack([np.asarray(column).view(np.int64) for column in columns]))


class RowBatch(NamedTuple):
    """Rows of some nodes."""

    node_of: Any
    """int32: place of each row's node in the batch."""
    first: Any
    """int64 (nodes + 1,): where the rows of each node begin in the batch."""
    start: Any
    """int64 (nodes,): where they begin among the rows of all trees."""
    row: Any
    weight: Any
    label: Any

    @property
    def n_rows(self) -> int:
        return int(self.row.shape[0])


def bounds_of(arrays: ArrayModule, sizes: Any) -> Any:
    """Where parts of these sizes begin, and where the last one ends."""
    xp = arrays.xp
    first = xp.zeros(len(sizes) + 1, xp.int64)
    first[1:] = xp.cumsum(sizes)
    return first


def gather(
    arrays: ArrayModule, rows: Any, weights: Any, labels: Any, start: NDArray[np.int64], end: NDArray[np.int64]
) -> RowBatch:
    """The rows from ``start`` to ``end`` of some nodes, none of them empty, with their weights and labels."""
    xp, sizes = arrays.xp, end - start
    k = len(start)
    known = np.zeros(2 * k + 1, np.int64)
    known[:k] = start
    np.cumsum(sizes, out=known[k + 1 :])
    bounds, given = known[k:], arrays.put(known)
    n, first, begin = int(bounds[-1]), given[k:], given[:k]
    if arrays.on_card:
        node_of = xp.empty(n, xp.int32)
        row, weight, label = (xp.empty(n, a.dtype) for a in (rows, weights, labels))
        source = typed(SOURCE, WEIGHT=weights, LABEL=labels, CODE=rows)
        arrays.launch(
            source, "gather", n, rows, weights, labels, first, begin, np.int64(len(start)), np.int64(n), node_of, row,
            weight, label,
        )  # fmt: skip
    else:
        node_of = np.repeat(np.arange(len(start), dtype=np.int32), sizes)
        at = np.arange(n) + (start - bounds[:-1])[node_of]
        row, weight = rows[at], weights[at]
        label = labels[row]
    return RowBatch(node_of, first, begin, row, weight, label)


def sums_by_node(arrays: ArrayModule, values: Any, first: Any) -> Any:
    """Sum of whole numbers of each node (int64)."""
    return ends_by_node(arrays, arrays.xp.cumsum(values, dtype=arrays.xp.int64), first)


def ends_by_node(arrays: ArrayModule, run: Any, first: Any) -> Any:
    """What running sums (int64) gain from the beginning to the end of each node."""
    xp, n = arrays.xp, len(first) - 1
    if arrays.on_card:
        sums = xp.empty(n, xp.int64)
        source = typed(SOURCE, WEIGHT=run, LABEL=run, CODE=run)
        arrays.launch(source, "ends", n, run, first, np.int64(n), sums)
        return sums
    padded = np.concatenate([[0], run])
    return padded[first[1:]] - padded[first[:-1]]


def mixed(arrays: ArrayModule, batch: RowBatch) -> Any:
    """Which nodes have rows of different labels (uint8)."""
    xp, n = arrays.xp, len(batch.first) - 1
    if arrays.on_card:
        is_mixed = xp.zeros(n, xp.uint8)
        source = typed(SOURCE, WEIGHT=batch.weight, LABEL=batch.label, CODE=batch.row)
        arrays.launch(
            source, "mixed", batch.n_rows, batch.label, batch.node_of, batch.first, np.int64(batch.n_rows), is_mixed
        )
        return is_mixed
    other = batch.label != batch.label[batch.first[:-1]][batch.node_of]
    return (sums_by_node(arrays, other, batch.first) > 0).astype(np.uint8)


def join_flags(
    arrays: ArrayModule,
    batch: RowBatch,
    own: Any,
    bits: NDArray[np.uint8],
    before: NDArray[np.int64],
    is_own: NDArray[np.bool_],
) -> Any:
    """The flags of all nodes of a batch (uint8).

    Parameters
    ----------
    own : uint8 array
        Flags of the nodes that this party has split.
    bits : uint8 array
        Those of the other nodes, packed eight to a byte.
    before, is_own : arrays
        By node: where its flags begin, among those of the others or of this party; and which of both.
    """
    xp, n = arrays.xp, batch.n_rows
    if arrays.on_card:
        flags = xp.empty(n, xp.uint8)
        source = typed(SOURCE, WEIGHT=batch.weight, LABEL=batch.label, CODE=batch.row)
        arrays.launch(
            source, "join_flags", n, own, arrays.put(bits), arrays.put(np.where(is_own, -1 - before, before)),
            batch.node_of, batch.first, np.int64(n), flags,
        )  # fmt: skip
        return flags
    at = before[batch.node_of] + np.arange(n) - batch.first[batch.node_of]
    ours = is_own[batch.node_of]
    flags = np.empty(n, np.uint8)
    flags[ours] = own[at[ours]]
    flags[~ours] = np.unpackbits(bits, bitorder="little")[at[~ours]]
    return flags


def move(arrays: ArrayModule, batch: RowBatch, flags: Any, rows: Any, weights: Any) -> Any:
    """Stable partition of each node by its flags (1: left), into ``rows`` and ``weights``; returns the left sizes."""
    xp, n = arrays.xp, batch.n_rows
    left = xp.cumsum(flags, dtype=xp.int64)
    left_of = ends_by_node(arrays, left, batch.first)
    if arrays.on_card:
        source = typed(SOURCE, WEIGHT=weights, LABEL=weights, CODE=rows)
        arrays.launch(
            source, "move", n, batch.row, batch.weight, batch.node_of, batch.first, batch.start, flags, left, left_of,
            np.int64(n), rows, weights,
        )  # fmt: skip
        return left_of
    before = left - (left - flags)[batch.first[:-1]][batch.node_of]
    place = np.arange(n) - batch.first[batch.node_of]
    to = np.where(flags > 0, before - 1, left_of[batch.node_of] + place - before) + batch.start[batch.node_of]
    rows[to], weights[to] = batch.row, batch.weight
    return left_of


class Cuts(NamedTuple):
    """A split of each node of a batch."""

    feature: Any
    """int32"""
    cut: Any
    """int64: last code on the left."""
    missing: Any
    """int64: code of missing values."""
    missing_left: Any
    """uint8"""
    set_start: Any
    """int64: where the categories on the left begin in ``sets``; -1 for a number."""
    sets: Any
    """uint8: one bit per category."""


def sides(arrays: ArrayModule, fine: Any, batch: RowBatch, cuts: Cuts) -> Any:
    """Which rows go left (uint8)."""
    xp, n = arrays.xp, batch.n_rows
    if arrays.on_card:
        flags = xp.empty(n, xp.uint8)
        source = typed(SOURCE, WEIGHT=batch.weight, LABEL=batch.label, CODE=fine)
        arrays.launch(
            source, "sides", n, fine, np.int64(fine.shape[1]), batch.row, batch.node_of, *cuts, np.int64(n), flags
        )
        return flags
    node = batch.node_of
    code = fine[cuts.feature[node], batch.row].astype(np.int64)
    at = cuts.set_start[node]
    byte = np.append(cuts.sets, np.uint8(0))[np.where(at >= 0, at + (code >> 3), len(cuts.sets))]
    under = (code <= cuts.cut[node]) | ((code == cuts.missing[node]) & (cuts.missing_left[node] > 0))
    return np.where(at >= 0, (byte >> (code & 7)) & 1, under).astype(np.uint8)
