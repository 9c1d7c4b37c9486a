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
    const unsigned int* rows, const LABEL* labels, const long long* first, const long long* start, long long n_nodes,
    long long n, unsigned char* is_mixed) {
  long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i >= n) return;
  long long low = 0, high = n_nodes - 1;
  while (low < high) { long long mid = (low + high + 1) >> 1; if (first[mid] <= i) low = mid; else high = mid - 1; }
  long long at = start[low];  // all writers write the same
  if (labels[rows[at + i - first[low]]] != labels[rows[at]]) is_mixed[low] = 1;
}

extern "C" __global__ void join_bits(
    const unsigned char* own, const unsigned char* others, const long long* place, const int* node_of,
    const long long* first, long long n, unsigned char* flags) {
  long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i >= n) return;
  int node = node_of[i];
  long long at = place[node];
  if (at == -1) { flags[i] = 1; return; }
  const unsigned char* bits = at < 0 ? own : others;
  at = (at < 0 ? -2 - at : at) + i - first[node];
  flags[i] = (bits[at >> 3] >> (at & 7)) & 1;
}

// `left` is the running sum of the flags.
extern "C" __global__ void move(
    const unsigned int* row, const WEIGHT* weight, const int* node_of, const long long* first, const long long* start,
    const unsigned char* flags, const long long* left, long long n, unsigned int* rows, WEIGHT* weights) {
  long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i >= n) return;
  int node = node_of[i];
  long long begin = first[node], base = begin ? left[begin - 1] : 0, before = left[i] - base;
  long long to = start[node] + (flags[i] ? before - 1 : left[first[node + 1] - 1] - base + (i - begin) - before);
  rows[to] = row[i]; weights[to] = weight[i];
}

// A thread is a row of a node that is cut, found by bisection as in `gather`; a warp writes 32 sides as one number.
extern "C" __global__ void side_bits(
    const CODE* fine, long long n_table, const unsigned int* row, const long long* first, const long long* nodes,
    const long long* bounds, long long n_nodes, const int* feature, const long long* cut,
    const unsigned char* missing_left, const long long* n_codes, const long long* set_start, const unsigned char* sets,
    long long n, unsigned int* bits) {
  long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  bool goes = false;
  if (i < n) {
    long long low = 0, high = n_nodes - 1;
    while (low < high) { long long mid = (low + high + 1) >> 1; if (bounds[mid] <= i) low = mid; else high = mid - 1; }
    long long node = nodes[low], f = feature[node];
    long long code = fine[f * n_table + row[first[node] + i - bounds[low]]], at = set_start ? set_start[low] : -1;
    if (at >= 0) goes = (sets[at + (code >> 3)] >> (code & 7)) & 1;
    else goes = code <= cut[node] || (code == n_codes[f] && missing_left[node]);
  }
  unsigned int word = __ballot_sync(0xffffffffu, goes);
  if ((threadIdx.x & 31) == 0 && i < n) bits[i >> 5] = word;
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
    xp, k, known = arrays.xp, len(start), _bounds_and_start(start, end)
    given = arrays.put(known)
    n, first, begin = int(known[k]), given[: k + 1], given[k + 1 :]
    if arrays.on_card:
        node_of = xp.empty(n, xp.int32)
        row, weight, label = (xp.empty(n, a.dtype) for a in (rows, weights, labels))
        source = typed(SOURCE, WEIGHT=weights, LABEL=labels, CODE=rows)
        arrays.launch(
            source, "gather", n, rows, weights, labels, first, begin, np.int64(k), np.int64(n), node_of, row, weight,
            label,
        )  # fmt: skip
    else:
        node_of = np.repeat(np.arange(k, dtype=np.int32), end - start)
        at = np.arange(n) + (start - known[:k])[node_of]
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


def mixed(arrays: ArrayModule, rows: Any, labels: Any, start: NDArray[np.int64], end: NDArray[np.int64]) -> Any:
    """Which of some nodes, none of them empty, have rows of different labels (uint8)."""
    xp, k = arrays.xp, len(start)
    known = _bounds_and_start(start, end)
    n = int(known[k])
    if arrays.on_card:
        is_mixed, given = xp.zeros(k, xp.uint8), arrays.put(known)
        source = typed(SOURCE, WEIGHT=rows, LABEL=labels, CODE=rows)
        arrays.launch(source, "mixed", n, rows, labels, given, given[k + 1 :], np.int64(k), np.int64(n), is_mixed)
        return is_mixed
    node_of = np.repeat(np.arange(k), end - start)
    other = labels[rows[np.arange(n) + (start - known[:k])[node_of]]] != labels[rows[start]][node_of]
    return (np.bincount(node_of[other], minlength=k) > 0).astype(np.uint8)


def _bounds_and_start(start: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where the rows of k nodes begin one after the other, k + 1 numbers; then where they begin now. In one array."""
    k = len(start)
    known = np.zeros(2 * k + 1, np.int64)
    np.cumsum(end - start, out=known[1 : k + 1])
    known[k + 1 :] = start
    return known


def join_bits(
    arrays: ArrayModule, batch: RowBatch, own: Any, others: NDArray[np.uint8], place: NDArray[np.int64]
) -> Any:
    """Which rows of a batch go left (uint8).

    Parameters
    ----------
    own, others : uint8 arrays
        Sides of rows that this party has split, and of those that others have: packed eight to a byte.
    place : int64 array
        By node: where its bits begin among the others', or -2 less the place among this party's; -1 for a node that
        stays as it is, all of whose rows go left.
    """
    xp, n = arrays.xp, batch.n_rows
    if arrays.on_card:
        flags = xp.empty(n, xp.uint8)
        source = typed(SOURCE, WEIGHT=batch.weight, LABEL=batch.label, CODE=batch.row)
        arrays.launch(
            source, "join_bits", n, own, arrays.put(others), arrays.put(place), batch.node_of, batch.first,
            np.int64(n), flags,
        )  # fmt: skip
        return flags
    begin = place[batch.node_of]
    at = np.where(begin < 0, -2 - begin, begin) + np.arange(n) - batch.first[batch.node_of]
    flags = np.ones(n, np.uint8)
    for some, bits in ((begin < -1, own), (begin >= 0, others)):
        flags[some] = np.unpackbits(bits, bitorder="little")[at[some]]
    return flags


def move(arrays: ArrayModule, batch: RowBatch, flags: Any, rows: Any, weights: Any) -> None:
    """Stable partition of each node by its flags (1: left), into ``rows`` and ``weights``."""
    xp, n = arrays.xp, batch.n_rows
    left = xp.cumsum(flags, dtype=xp.int64)
    if arrays.on_card:
        source = typed(SOURCE, WEIGHT=weights, LABEL=weights, CODE=rows)
        arrays.launch(
            source, "move", n, batch.row, batch.weight, batch.node_of, batch.first, batch.start, flags, left,
            np.int64(n), rows, weights,
        )  # fmt: skip
        return
    left_of = ends_by_node(arrays, left, batch.first)
    before = left - (left - flags)[batch.first[:-1]][batch.node_of]
    place = np.arange(n) - batch.first[batch.node_of]
    to = np.where(flags > 0, before - 1, left_of[batch.node_of] + place - before) + batch.start[batch.node_of]
    rows[to], weights[to] = batch.row, batch.weight


class Cuts(NamedTuple):
    """The split of each node of a batch; of those that are carried out the sets of categories."""

    feature: Any
    """int32"""
    cut: Any
    """int64: last code on the left."""
    missing_left: Any
    """uint8"""
    n_codes: Any
    """int64, by feature: code of missing values."""
    set_start: Any
    """int64, by node that is cut: where the categories on the left begin in ``sets``; -1 for a number. None: all -1."""
    sets: Any
    """uint8: one bit per category."""


def side_bits(
    arrays: ArrayModule, fine: Any, batch: RowBatch, cuts: Cuts, nodes: NDArray[np.int64], sizes: NDArray[np.int64]
) -> tuple[Any, int, Any]:
    """Which rows of some nodes of a batch go left, node after node: packed eight to a byte.

    Also returns how many of the bytes count, and the nodes where the batch is. ``sizes`` says how many rows each of
    these nodes has.
    """
    xp, k = arrays.xp, len(nodes)
    known = _bounds_and_start(nodes, nodes + sizes)
    n = int(known[k])
    n_bytes = (n + 7) >> 3
    if arrays.on_card:
        bits, given, null = xp.empty((n + 31) >> 5, xp.uint32), arrays.put(known), np.uint64(0)
        source = typed(SOURCE, WEIGHT=batch.weight, LABEL=batch.label, CODE=fine)
        arrays.launch(
            source, "side_bits", n, fine, np.int64(fine.shape[1]), batch.row, batch.first, given[k + 1 :], given,
            np.int64(k), cuts.feature, cuts.cut, cuts.missing_left, cuts.n_codes,
            null if cuts.set_start is None else cuts.set_start, cuts.sets, np.int64(n), bits,
        )  # fmt: skip
        return bits.view(xp.uint8), n_bytes, given[k + 1 :]
    which = np.repeat(np.arange(k), sizes)
    node = nodes[which]
    feature = cuts.feature[node]
    code = fine[feature, batch.row[batch.first[node] + np.arange(n) - known[which]]].astype(np.int64)
    at = np.full(n, -1) if cuts.set_start is None else cuts.set_start[which]
    byte = np.append(cuts.sets, np.uint8(0))[np.where(at >= 0, at + (code >> 3), len(cuts.sets))]
    under = (code <= cuts.cut[node]) | ((code == cuts.n_codes[feature]) & (cuts.missing_left[node] > 0))
    goes = np.where(at >= 0, (byte >> (code & 7)) & 1, under).astype(np.uint8)
    return np.packbits(goes, bitorder="little"), n_bytes, nodes
