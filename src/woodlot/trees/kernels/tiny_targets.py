"""Split search for regression in the smallest nodes: of so few rows that all splits into two sets can be scored.

Payload and score are those of `targets`. A set of rows is a number: bit i stands for row i of the node.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from woodlot.trees.kernels._jit import kernel
from woodlot.trees.kernels.hashing import place
from woodlot.trees.kernels.search import TINY
from woodlot.trees.kernels.targets import score_of

I64: Any = np.int64
U64: Any = np.uint64
F64: Any = np.float64


@kernel
def _subset_scores(
    weights: Any, s: Any, payload: Any, o: Any, n: Any, subset_weight: Any, subset_sum: Any, subset_score: Any
) -> Any:
    """Scores of all splits of a tiny node into two sets of rows; returns the best of them.

    The weight of a set is that of the set without its highest row, plus that row.
    """
    subset_weight[0] = 0.0
    subset_sum[0] = 0.0
    for i in range(n):
        half = 1 << i
        for q in range(half):
            subset_weight[half + q] = subset_weight[q] + F64(weights[s + i])
            subset_sum[half + q] = subset_sum[q] + payload[o + i]
    full = (1 << n) - 1
    W = subset_weight[full]
    total = subset_sum[full]
    best = -np.inf
    for q in range(1, full):
        score = score_of(subset_sum[q], subset_weight[q], total, W)
        subset_score[q] = score
        best = max(best, score)
    return best


@kernel
def search_tiny(
    columns: Any,
    rows: Any,
    weights: Any,
    start: Any,
    end: Any,
    payload: Any,
    first: Any,
    counts: Any,
    order_key: Any,
    feature_keys: Any,
    ws: Any,
    best: Any,
    best_feature: Any,
    best_place: Any,
    best_cut: Any,
) -> None:
    """Search the nodes of at most TINY rows by columns without categories and missing values.

    The score of every split into two sets is computed once per node; then its candidates are taken in the node's order
    until one reaches the best score of all, after which none can do better. Where no candidate splits the node the
    search goes on in the same order. As in ``search.search_twos`` all splits must be allowed, and candidates drawn per
    node.
    """
    fine = columns.fine
    p = len(feature_keys)
    keys = ws.sorting.keys
    shift = U64(keys.itemsize * 4)
    position = (U64(1) << shift) - U64(1)
    subset_score = ws.subset_score
    places = np.empty(p, np.uint64)
    for node in range(len(start)):
        s = start[node]
        n = end[node] - s
        if n > TINY:
            continue
        perfect = _subset_scores(weights, s, payload, first[node], n, ws.subset_weight, ws.subset_sum, subset_score)
        for f in range(p):
            places[f] = place(order_key[node], feature_keys[f])
        for tried in range(p):
            if tried >= counts[node] and best_feature[node] >= 0:
                break
            at = U64(0xFFFFFFFFFFFFFFFF)
            f = I64(0)
            for g in range(p):
                if places[g] < at:
                    at = places[g]
                    f = g
            places[f] = U64(0xFFFFFFFFFFFFFFFF)  # taken
            for i in range(n):
                key = (U64(fine[f, rows[s + i]]) << shift) | U64(i)
                j = i
                while j > 0 and U64(keys[j - 1]) > key:
                    keys[j] = keys[j - 1]
                    j -= 1
                keys[j] = key
            subset = 0
            for i in range(n - 1):
                key = U64(keys[i])
                subset |= 1 << I64(key & position)
                if (key ^ U64(keys[i + 1])) > position and subset_score[subset] > best[node]:
                    best[node] = subset_score[subset]
                    best_feature[node] = f
                    best_place[node] = at
                    best_cut[node] = I64(key >> shift)
            if best[node] >= perfect:
                break
