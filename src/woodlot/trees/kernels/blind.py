"""Label holder: scores of splits of which another party has told the sums on one side, and nothing else.

A score is the same whichever side the sums are of, to the last bit: it is the sum of the two sides' parts. So the other
party need not tell which side it has summed.

The splits of a node are ``first[node] : first[node + 1]`` (first: int64, one more than nodes); ``side_weight`` and
``sums`` count by split and come from the other party. They are checked here as far as the labels allow.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from woodlot.trees.kernels._jit import kernel
from woodlot.trees.kernels.wide import fixed_xlogx

I64: Any = np.int64
F64: Any = np.float64


@kernel
def score_class_sums(
    rows: Any,
    weights: Any,
    labels: Any,
    start: Any,
    end: Any,
    first: Any,
    side_weight: Any,
    sums: Any,
    totals: Any,
    entropy: Any,
    scale: Any,
    score: Any,
) -> int:
    """Score of every split, node after node; ``sums`` (splits, K) has the class weights on one side, but the last's.

    The last column of ``sums`` is filled here, ``totals`` (K,) is work space. Returns the first split whose sums cannot
    be those of some rows of the node, -1 if there is none.
    """
    K = len(totals)
    for node in range(len(start)):
        if first[node] == first[node + 1]:
            continue
        for k in range(K):
            totals[k] = 0
        W = I64(0)
        for i in range(start[node], end[node]):
            totals[labels[rows[i]]] += I64(weights[i])
            W += I64(weights[i])
        for q in range(first[node], first[node + 1]):
            w = I64(side_weight[q])
            rest = w
            sl = I64(0)
            sr = I64(0)
            for k in range(K):
                if k < K - 1:
                    rest -= sums[q, k]
                else:
                    sums[q, k] = rest
                x = sums[q, k]
                y = totals[k] - x
                if x < 0 or y < 0:
                    return q
                sl += fixed_xlogx(x, scale) if entropy else x * x
                sr += fixed_xlogx(y, scale) if entropy else y * y
            if w <= 0 or w >= W:
                return q
            if entropy:
                score[q] = F64(sl - fixed_xlogx(w, scale) + sr - fixed_xlogx(W - w, scale))
            else:
                score[q] = F64(sl) / F64(w) + F64(sr) / F64(W - w)
    return -1


@kernel
def score_target_sums(
    rows: Any,
    weights: Any,
    labels: Any,
    start: Any,
    end: Any,
    first: Any,
    side_weight: Any,
    sums: Any,
    score: Any,
) -> int:
    """As ``score_class_sums``; ``sums`` (splits,) has the weighted sum of the targets on one side."""
    for node in range(len(start)):
        if first[node] == first[node + 1]:
            continue
        W = 0.0
        total = 0.0
        for i in range(start[node], end[node]):
            W += F64(weights[i])
            total += F64(weights[i]) * F64(labels[rows[i]])
        for q in range(first[node], first[node + 1]):
            w = F64(side_weight[q])
            if w <= 0.0 or w >= W:
                return q
            one = F64(sums[q])
            other = total - one
            score[q] = one * one / w + other * other / (W - w)
    return -1
