"""The rows of all trees, drawn where they are used: the same draws as ``trees.sampling``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.trees.arrays.array_module import ArrayModule
from woodlot.trees.sampling import COMPACT_WEIGHT, Bootstrap, derive_seed, draw_rows

CELLS = 1 << 28
"""At most this many (tree, row) counters are filled at a time."""

SOURCE = r"""
// As kernels.hashing.draw_counts and draw_weighted_counts: a thread is a draw of a tree.
extern "C" __global__ void draw(
    const unsigned long long* keys, long long n_trees, long long n_draws, unsigned long long n,
    const long long* cumulated, unsigned int* counts) {
  long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i >= n_trees * n_draws) return;
  long long tree = i / n_draws;
  unsigned long long z = keys[tree] + (unsigned long long)(i % n_draws + 1) * 0x9E3779B97F4A7C15ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  z = (z ^ (z >> 31)) >> 32;
  unsigned long long at;
  if (!cumulated) at = (z * n) >> 32;
  else {
    long long r = (long long)((z * (unsigned long long)cumulated[n - 1]) >> 32), low = 0, high = n - 1;
    while (low < high) { long long mid = (low + high) >> 1; if (cumulated[mid] > r) high = mid; else low = mid + 1; }
    at = low;
  }
  atomicAdd(&counts[tree * n + at], 1u);
}
"""


def draw(
    arrays: ArrayModule,
    bootstrap: Bootstrap,
    trees: Sequence[int],
    labels: NDArray[np.generic],
    n_classes: int,
    n_jobs: int,
) -> tuple[Any, Any, NDArray[np.int64]]:
    """Row numbers and weights of all trees, tree after tree, and where each tree begins: as ``sampling.draw_rows``."""
    xp, n = arrays.xp, len(labels)
    if not arrays.on_card or bootstrap.seed is None or (bootstrap.balance and n_classes > 0):
        rows, weights, bounds = draw_rows(bootstrap, trees, labels, n_classes, n_jobs)
        return arrays.put(rows), arrays.put(weights), bounds
    cumulated = np.uint64(0) if bootstrap.weights is None else arrays.put(np.cumsum(bootstrap.weights))
    step = max(1, CELLS // n)
    parts: list[tuple[Any, Any]] = []
    sizes: list[NDArray[np.int64]] = []
    for k in range(0, len(trees), step):
        some = trees[k : k + step]
        keys = np.array([derive_seed(bootstrap.seed, "bootstrap", tree) for tree in some], np.uint64)
        counts = xp.zeros((len(some), n), xp.uint32)
        n_draws = len(some) * bootstrap.n_draws
        arrays.launch(
            SOURCE, "draw", n_draws, arrays.put(keys), np.int64(len(some)), np.int64(bootstrap.n_draws), np.uint64(n),
            cumulated, counts,
        )  # fmt: skip
        at = xp.flatnonzero(counts)
        sizes.append(arrays.get(xp.count_nonzero(counts, axis=1)).astype(np.int64))
        parts.append(((at % n).astype(xp.uint32), counts.ravel()[at]))
    drawn = [part[1] for part in parts]
    narrow = max(int(part.max()) for part in drawn) <= COMPACT_WEIGHT
    bounds = np.concatenate([[0], np.cumsum(np.concatenate(sizes))]).astype(np.int64)
    return (
        xp.concatenate([part[0] for part in parts]),
        xp.concatenate([part.astype(xp.uint8) if narrow else part for part in drawn]),
        bounds,
    )
