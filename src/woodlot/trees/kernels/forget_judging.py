"""Which splits stand after rows were taken out of grown trees, unsearched: see `forgetting` for the arguments."""

from __future__ import annotations

from typing import Any

import numpy as np

from woodlot.trees.kernels._jit import kernel
from woodlot.trees.kernels.bounds import ROUNDING
from woodlot.trees.kernels.forgetting import ENTROPY, ERROR, scores_of

I64: Any = np.int64
F64: Any = np.float64
LEAF, STANDS, SEARCH = 0, 1, 2
"""What `judge` finds of a node."""


@kernel
def find_edges(trees: Any, node: Any, table: Any, rows: Any, weights: Any, slots: Any, q: Any) -> None:
    """The codes next to a split and how many rows have them, for a node that is split by a number."""
    f = trees.feature[node]
    missing = I64(table.n_codes[f])
    middle = trees.start[node + trees.jump[node]]
    low = I64(-1)
    high = I64(1) << 40
    at_low = 0
    at_high = 0
    n_missing = 0
    for i in range(trees.start[node], trees.end[node]):
        if weights[i] == 0:
            continue
        c = I64(table.fine[f, rows[i]])
        if c == missing:
            n_missing += 1
        elif i < middle:
            if c > low:
                low = c
                at_low = 0
            at_low += c == low
        else:
            if c < high:
                high = c
                at_high = 0
            at_high += c == high
    slots.low[q] = low
    slots.high[q] = high if at_high > 0 else I64(-1)
    slots.at_low[q] = at_low
    slots.at_high[q] = at_high
    slots.missing[q] = n_missing


@kernel
def find_all_edges(nodes: Any, trees: Any, table: Any, rows: Any, weights: Any, slots: Any) -> None:
    """`find_edges` of all nodes that are split by a number."""
    for k in range(len(nodes)):
        if not table.categorical[trees.feature[nodes[k]]]:
            find_edges(trees, nodes[k], table, rows, weights, slots, trees.slot[nodes[k]])


@kernel
def _is_rivalled(slots: Any, q: Any, score: Any, w: Any, W: Any, criterion: Any, scale: Any) -> Any:
    """Whether one of the next best partitions scores as much as the split, or more."""
    totals = slots.totals[q]
    for j in range(slots.n_rivals[q]):
        left = slots.rival_left[q, j]
        heavy = left[0]
        if criterion != ERROR:
            for k in range(1, len(left)):
                heavy += left[k]
        if 0 < heavy < W and scores_of(totals, left, criterion, scale)[0] >= score:
            return True
    return False


@kernel
def _is_low_side(totals: Any, left: Any, criterion: Any) -> Any:
    """Whether the categories on the left are still those of the low means, by which a search puts them there."""
    if criterion == ERROR:
        return F64(left[1]) / F64(left[0]) < F64(totals[1] - left[1]) / F64(totals[0] - left[0])
    if totals[0] == totals[1]:  # which class is the largest is then decided by the order of rows
        return False
    top = 1 if totals[1] > totals[0] else 0
    w = left[0] + left[1]
    W = totals[0] + totals[1]
    return F64(left[top]) / F64(w) < F64(totals[top] - left[top]) / F64(W - w)


@kernel
def renew_set(trees: Any, node: Any, table: Any, rows: Any, weights: Any, sets: Any) -> None:
    """Write the set of a split by categories from the rows that are left, as `cut.cut_by_rank` does."""
    f = trees.feature[node]
    other = node + trees.jump[node]
    at = trees.set_at[node]
    n_codes = I64(table.n_codes[f])
    n_bytes = (n_codes + 8) >> 3
    most = trees.count[node + 1] > trees.count[other]
    for b in range(n_bytes):
        sets[at + b] = 255 if most else 0
    if most:
        sets[at + n_bytes - 1] = (1 << (n_codes % 8 + 1)) - 1
    middle = trees.start[other]
    for i in range(trees.start[node], trees.end[node]):
        if weights[i] > 0:
            c = I64(table.fine[f, rows[i]])
            bit = 1 << (c & 7)
            if i < middle:
                sets[at + (c >> 3)] |= bit
            else:
                sets[at + (c >> 3)] &= 255 - bit


@kernel
def judge(
    touched: Any,
    trees: Any,
    sets: Any,
    table: Any,
    rows: Any,
    weights: Any,
    slots: Any,
    criterion: Any,
    scale: Any,
    min_split: Any,
    min_leaf: Any,
    min_weight: Any,
    status: Any,
) -> None:
    """Which of the touched nodes are leaves, which splits stand without a search, and which nodes must be searched.

    Where a split stands its gain, its threshold and the side of missing values become those of the rows that are left.
    """
    for n in range(len(touched)):
        node = touched[n]
        if trees.jump[node] == 0:
            status[n] = LEAF
            continue
        status[n] = SEARCH
        q = trees.slot[node]
        child = node + 1
        other = node + trees.jump[node]
        if q < 0 or trees.count[node] < min_split or min(trees.count[child], trees.count[other]) < min_leaf:
            continue
        w = slots.left[q, 0]
        W = slots.totals[q, 0]
        if criterion != ERROR:
            for k in range(1, slots.totals.shape[1]):
                w += slots.left[q, k]
                W += slots.totals[q, k]
        if w < min_weight or W - w < min_weight:
            continue
        score, whole = scores_of(slots.totals[q], slots.left[q], criterion, scale)
        upper = slots.upper[q]
        for g in range(slots.n_groups[q]):
            upper = max(upper, slots.group_upper[q, g])
        slack = ROUNDING * (abs(score) + abs(whole) + abs(upper))
        reached = score
        if criterion == ERROR:
            reached = score - whole
        elif criterion == ENTROPY:  # every number of the fixed point is rounded, before and after
            slack += 2.0 * (slots.totals.shape[1] + 1)
        if not reached > upper + slack or _is_rivalled(slots, q, score, w, W, criterion, scale):
            continue
        f = trees.feature[node]
        if table.categorical[f]:
            if not _is_low_side(slots.totals[q], slots.left[q], criterion):
                continue
            renew_set(trees, node, table, rows, weights, sets)
            status[n] = STANDS
            trees.gain[node] = score - whole
            continue
        status[n] = STANDS
        trees.gain[node] = score - whole
        if slots.at_low[q] == 0 or (slots.high[q] >= 0 and slots.at_high[q] == 0):
            find_edges(trees, node, table, rows, weights, slots, q)
            first = table.first_value[f]
            trees.threshold[node] = np.inf
            if slots.high[q] >= 0:
                below = F64(table.highest[first + slots.low[q]])
                trees.threshold[node] = below / 2 + F64(table.values[first + slots.high[q]]) / 2
        if slots.missing[q] == 0:
            trees.missing_left[node] = trees.count[child] > trees.count[other]
