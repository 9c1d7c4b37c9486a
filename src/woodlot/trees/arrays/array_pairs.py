"""The (node, candidate feature) pairs of a level.

A pair is listed twice where the column has missing values: once with them on the right, as the largest code, and once
*turned*, with them on the left, before all codes. A turned pair is searched like any other; a cut right behind the
missing values is not one of its cuts, because the other pair has it already.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from woodlot.trees.arrays.array_module import ArrayModule
from woodlot.trees.arrays.array_rows import bounds_of

MANY_PLACES = 1 << 14
"""Nodes that select so many candidates out of so many features are sorted; for fewer the kernel looks for each."""

SOURCE = r"""
__device__ inline unsigned long long mix(unsigned long long z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

// A thread is a node: it finds the next smallest place again and again, and writes those from `low` on.
extern "C" __global__ void list_pairs(
    const unsigned long long* select_key, const unsigned long long* order_key, const long long* low,
    const long long* of_node, const long long* first, const long long* first_key,
    const unsigned long long* feature_keys, int p, long long n, int* pair_node, int* pair_feature,
    unsigned long long* pair_place, long long* pair_first) {
  long long node = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (node >= n) return;
  long long from = low ? low[node] : 0, at = of_node[node], to = from + of_node[node + 1] - at;
  unsigned long long select = select_key[node], order = order_key[node], last = 0;
  if (pair_first) {
    long long size = first[node + 1] - first[node], key = first_key[node];
    for (long long q = at; q < of_node[node + 1]; q++, key += size) pair_first[q] = key;
    if (node == n - 1) pair_first[of_node[n]] = key;
  }
  if (from == 0 && to == p) {
    for (int f = 0; f < p; f++, at++) {
      pair_node[at] = (int)node; pair_feature[at] = f; pair_place[at] = mix(order ^ feature_keys[f]);
    }
    return;
  }
  for (long long rank = 0; rank < to; rank++) {
    unsigned long long least = ~0ull;
    int chosen = -1;
    for (int f = 0; f < p; f++) {
      unsigned long long place = mix(select ^ feature_keys[f]);
      if ((rank == 0 || place > last) && (chosen < 0 || place < least)) { least = place; chosen = f; }
    }
    last = least;
    if (rank >= from) {
      pair_node[at] = (int)node; pair_feature[at] = chosen; pair_place[at] = mix(order ^ feature_keys[chosen]);
      at++;
    }
  }
}
"""


class Pairs(NamedTuple):
    """Pairs in the order of their nodes; a turned pair follows the one that it belongs to."""

    node: Any
    """int32: place of the node in the batch."""
    feature: Any
    """int32"""
    place: Any
    """uint64: place of the feature in the node's order."""
    turned: Any
    """uint8"""
    of_node: Any
    """int64 (nodes + 1,): where the pairs of each node begin."""
    first: Any
    """int64 (pairs + 1,): where the keys of each pair begin."""
    n_keys: int
    """Keys of all pairs."""


def mix(z: Any, xp: Any) -> Any:
    """As ``kernels.hashing.mix``."""
    u = xp.uint64
    z = (z ^ (z >> u(30))) * u(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> u(27))) * u(0x94D049BB133111EB)
    return z ^ (z >> u(31))


def _ranked(arrays: ArrayModule, select_key: Any, order_key: Any, low: Any, high: Any, keys: Any) -> list[Any]:
    """Twin of the kernel ``list_pairs``: places of all features, ranked; those from ``low`` up to ``high``."""
    xp = arrays.xp
    places = mix(select_key[:, None] ^ keys[None, :], xp)
    order = xp.argsort(places, axis=1)
    rank = xp.empty(order.shape, xp.int64)
    row = xp.arange(len(select_key), dtype=xp.int64)[:, None]
    rank[row, order] = xp.arange(len(keys), dtype=xp.int64)[None, :]
    node, feature = xp.nonzero((rank >= low[:, None]) & (rank < high[:, None]))
    return [node.astype(xp.int32), feature.astype(xp.int32), mix(order_key[node] ^ keys[feature], xp)]


def list_pairs(
    arrays: ArrayModule,
    select_key: Any,
    order_key: Any,
    low: Any,
    of_node: Any,
    size: tuple[int, int],
    feature_keys: Any,
    keys: tuple[Any, Any] | None,
) -> tuple[Any, Any, Any, Any]:
    """Node, feature and place of some of the features of each node; and where the keys of each pair begin.

    Parameters
    ----------
    select_key, order_key : uint64 arrays
        The first draws the features, the second says their places; both are one where candidates are drawn at every
        node.
    low : int64 array, optional
        From where on in the order of its node a feature is listed; by default from the first on.
    of_node : int64 array (nodes + 1,)
        Where the pairs of each node begin.
    size : (int, int)
        How many pairs there are, and how far in the order of any node they reach.
    feature_keys : uint64 array
        The party's.
    keys : two int64 arrays, optional
        Where the rows of each node begin (nodes + 1), and its keys. Without it pairs are not told where theirs begin.
    """
    xp, p, n = arrays.xp, len(feature_keys), len(select_key)
    total, most = size
    if arrays.on_card and (most * p <= MANY_PLACES or total == n * p):
        node, feature, place = xp.empty(total, xp.int32), xp.empty(total, xp.int32), xp.empty(total, xp.uint64)
        null = np.uint64(0)
        first = None if keys is None else xp.empty(total + 1, xp.int64)
        arrays.launch(
            SOURCE, "list_pairs", n, select_key, order_key, null if low is None else low, of_node,
            *((null, null) if keys is None else keys), feature_keys, np.int32(p), np.int64(n), node, feature, place,
            null if first is None else first,
        )  # fmt: skip
        return node, feature, place, first
    low = xp.zeros(n, xp.int64) if low is None else low
    high = low + of_node[1:] - of_node[:-1]
    step = max(1, (1 << 22) // max(p, 1))
    parts = []
    for k in range(0, n, step):
        part = slice(k, k + step)
        parts.append(_ranked(arrays, select_key[part], order_key[part], low[part], high[part], feature_keys))
        parts[-1][0] += xp.int32(k)
    if not parts:
        return xp.empty(0, xp.int32), xp.empty(0, xp.int32), xp.empty(0, xp.uint64), xp.zeros(1, xp.int64)
    node, feature, place = (xp.concatenate(column) for column in zip(*parts, strict=True))
    return node, feature, place, None if keys is None else bounds_of(arrays, xp.diff(keys[0])[node])


def turn_pairs(arrays: ArrayModule, listed: tuple[Any, Any, Any], may_turn: Any, sizes: Any) -> Pairs:
    """Add the turned pairs; ``may_turn`` (uint8, by feature) says where values are missing."""
    xp = arrays.xp
    node, feature, place = listed
    twice = may_turn[feature]
    last = xp.cumsum(twice.astype(xp.int64) + 1) - 1
    first = last - twice
    total = int(last[-1]) + 1

    def spread(values: Any) -> Any:
        out = xp.empty(total, values.dtype)
        out[first] = values
        out[last] = values
        return out

    node, feature, place = spread(node), spread(feature), spread(place)
    turned = xp.zeros(total, xp.uint8)
    turned[last] = twice
    of_node = xp.searchsorted(node, xp.arange(len(sizes) + 1, dtype=xp.int32))
    first_key = bounds_of(arrays, sizes[node])
    return Pairs(node, feature, place, turned, of_node, first_key, int(first_key[-1]))
