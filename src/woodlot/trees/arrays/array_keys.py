"""Keys: every row of every pair as one 64-bit number that sorts by pair, then by code.

::

    key       pair | code | payload
    payload   class | weight where both fit a few bits, else the position of the row in its node

Sorted keys hold all that a search for classes needs. A cut lies behind a key whose follower has another code.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from woodlot.trees.arrays.array_module import ArrayModule
from woodlot.trees.arrays.array_pairs import Pairs
from woodlot.trees.arrays.array_rows import RowBatch, typed

COMPACT_BITS = 16
"""Class and weight of a row stand in its key if they take at most this many bits."""

SOURCE = r"""
// A thread is a row: it writes its key into every pair of its node.
extern "C" __global__ void make_keys(
    const CODE* fine, long long n_table, const unsigned int* row, const LABEL* label, const WEIGHT* weight,
    const int* node_of, const long long* first, const long long* of_node, const int* feature,
    const unsigned char* turned, const int* shift, const long long* pair_first, const long long* n_codes,
    int weight_bits, int payload_bits, int code_bits, long long n, unsigned long long* keys) {
  long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i >= n) return;
  int node = node_of[i];
  unsigned long long r = row[i], position = i - first[node];
  unsigned long long payload =
      weight_bits ? ((unsigned long long)label[i] << weight_bits) | (unsigned long long)weight[i] : position;
  for (long long q = of_node[node]; q < of_node[node + 1]; q++) {
    long long f = feature[q], code = fine[f * n_table + r], missing = n_codes[f];
    if (shift && shift[q]) code = code == missing ? ((missing - 1) >> shift[q]) + 1 : code >> shift[q];
    if (turned[q]) {
      long long last = shift && shift[q] ? ((missing - 1) >> shift[q]) + 1 : missing;
      code = code == last ? 0 : code + 1;
    }
    keys[pair_first[q] + position] =
        ((((unsigned long long)q << code_bits) | (unsigned long long)code) << payload_bits) | payload;
  }
}

// Weight and label of the row behind every sorted key; of two classes as one number, whose sums are two sums.
extern "C" __global__ void read_keys(
    const unsigned long long* keys, const LABEL* label, const WEIGHT* weight, const long long* first,
    const int* pair_node, int weight_bits, int payload_bits, int code_bits, int two, long long n, long long* out,
    long long* labels) {
  long long e = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (e >= n) return;
  unsigned long long key = keys[e], payload = key & ((1ull << payload_bits) - 1);
  long long w, y;
  if (weight_bits) { w = payload & ((1ull << weight_bits) - 1); y = payload >> weight_bits; }
  else {
    long long i = first[pair_node[key >> (payload_bits + code_bits)]] + (long long)payload;
    w = (long long)weight[i]; y = (long long)label[i];
  }
  if (two) out[e] = (w << 32) | (y ? w : 0);
  else { out[e] = w; labels[e] = y; }
}
"""


class KeyLayout(NamedTuple):
    """How many bits of a key are what."""

    code: int
    payload: int
    weight: int
    """0: the payload is a position."""

    def pairs(self) -> int:
        """How many pairs there can be."""
        return 1 << min(62, 64 - self.code - self.payload)


def layout_of(n_codes: int, n_classes: int, max_weight: int, largest: int) -> KeyLayout:
    """The layout for columns of so many codes, missing ones and turned ones included, and nodes of so many rows."""
    code = max(1, (n_codes - 1).bit_length())
    weight = max(1, max_weight.bit_length())
    payload = weight + max(1, (n_classes - 1).bit_length())
    if n_classes and payload <= COMPACT_BITS:
        return KeyLayout(code, payload, weight)
    return KeyLayout(code, max(1, (largest - 1).bit_length()), 0)


def pair_of(arrays: ArrayModule, keys: Any, layout: KeyLayout) -> Any:
    """The pair of each key (int64)."""
    return (keys >> arrays.xp.uint64(layout.code + layout.payload)).astype(arrays.xp.int64)


def code_of(arrays: ArrayModule, keys: Any, layout: KeyLayout) -> Any:
    """The code of each key (int64)."""
    xp = arrays.xp
    return ((keys >> xp.uint64(layout.payload)) & xp.uint64((1 << layout.code) - 1)).astype(xp.int64)


def make_keys(
    arrays: ArrayModule, fine: Any, n_codes: Any, batch: RowBatch, pairs: Pairs, shift: Any, layout: KeyLayout
) -> Any:
    """The keys of all pairs, pair after pair, not sorted.

    ``shift`` (int32, by pair; None for exact codes) is how many low bits of the codes are dropped, see
    ``trees.coarsening``.
    """
    xp, total = arrays.xp, pairs.n_keys
    if arrays.on_card:
        keys = xp.empty(total, xp.uint64)
        source = typed(SOURCE, WEIGHT=batch.weight, LABEL=batch.label, CODE=fine)
        arrays.launch(
            source, "make_keys", batch.n_rows, fine, np.int64(fine.shape[1]), batch.row, batch.label, batch.weight,
            batch.node_of, batch.first, pairs.of_node, pairs.feature, pairs.turned,
            np.uint64(0) if shift is None else shift, pairs.first, n_codes, np.int32(layout.weight),
            np.int32(layout.payload), np.int32(layout.code), np.int64(batch.n_rows), keys,
        )  # fmt: skip
        return keys
    q = np.repeat(np.arange(len(pairs.node)), np.diff(pairs.first))
    position = np.arange(total) - pairs.first[q]
    i = batch.first[pairs.node[q]] + position
    code = fine[pairs.feature[q], batch.row[i]].astype(np.int64)
    missing = n_codes[pairs.feature[q]]
    if shift is not None:
        last = np.where(shift[q] > 0, ((missing - 1) >> shift[q]) + 1, missing)
        code = np.where(code == missing, last, code >> shift[q])
        missing = last
    code = np.where(pairs.turned[q] > 0, np.where(code == missing, 0, code + 1), code)
    payload = (batch.label[i].astype(np.int64) << layout.weight) | batch.weight[i] if layout.weight else position
    return (((q.astype(np.uint64) << np.uint64(layout.code)) | code.astype(np.uint64)) << np.uint64(layout.payload)) | (
        payload.astype(np.uint64)
    )


def read_keys(
    arrays: ArrayModule, keys: Any, batch: RowBatch, pairs: Pairs, layout: KeyLayout, *, two: bool
) -> tuple[Any, Any]:
    """Weight and label of the row of each key (int64).

    With ``two`` there are two classes, and the first array has ``weight << 32 | weight of class 1``, the second is
    None. Weights of a tree sum to less than 2**31, so that a difference of two running sums still holds both.
    """
    xp, n = arrays.xp, len(keys)
    if arrays.on_card:
        out = xp.empty(n, xp.int64)
        labels = None if two else xp.empty(n, xp.int64)
        source = typed(SOURCE, WEIGHT=batch.weight, LABEL=batch.label, CODE=batch.row)
        arrays.launch(
            source, "read_keys", n, keys, batch.label, batch.weight, batch.first, pairs.node, np.int32(layout.weight),
            np.int32(layout.payload), np.int32(layout.code), np.int32(two), np.int64(n), out,
            np.uint64(0) if labels is None else labels,
        )  # fmt: skip
        return out, labels
    payload = (keys & np.uint64((1 << layout.payload) - 1)).astype(np.int64)
    if layout.weight:
        weight, label = payload & ((1 << layout.weight) - 1), payload >> layout.weight
    else:
        i = batch.first[pairs.node[pair_of(arrays, keys, layout)]] + payload
        weight, label = batch.weight[i].astype(np.int64), batch.label[i].astype(np.int64)
    if two:
        return (weight << 32) | np.where(label > 0, weight, 0), None
    return weight, label
