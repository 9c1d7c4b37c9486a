"""The winner of a node: which rows go left, and between which codes the cut lies.

A search found the best cut; here the party that won carries it out on its own column. Flags go to the other parties,
feature and threshold stay.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from woodlot.trees.kernels._jit import kernel

I64: Any = np.int64
U64: Any = np.uint64


@kernel
def cut_by_rank(
    fine: Any,
    f: Any,
    n_codes: Any,
    categories: Any,
    n_present: Any,
    at_most: Any,
    rows: Any,
    weights: Any,
    s: Any,
    e: Any,
    flags: Any,
    o: Any,
    sets: Any,
    set_start: Any,
    spare_rows: Any,
    spare_weights: Any,
) -> Any:
    """Carry out one split by categories, whose ranks in the node are known; returns where the right child begins.

    ``categories`` is `search.Categories` as ``rank_categories`` leaves it: the codes of the node and their ranks. Ranks
    up to ``at_most`` go left. Flags and rows are written as in `cut_nodes`. ``sets`` gets one bit for each of the
    ``n_codes`` categories and one for missing values, first bit lowest. Those that do not occur in the node go where
    most of its rows went.
    """
    rank = categories.rank
    left = U64(s)
    right = U64(0)
    at = U64(o)
    for i in range(U64(s), U64(e)):
        row = rows[i]
        weight = weights[i]
        go = U64(rank[fine[f, row]] <= at_most)
        flags[at] = go
        at += U64(1)
        rows[left] = row
        weights[left] = weight
        spare_rows[right] = row
        spare_weights[right] = weight
        left += go
        right += U64(1) - go
    for i in range(right):
        rows[left + i] = spare_rows[i]
        weights[left + i] = spare_weights[i]

    most = left - U64(s) > right
    n_bytes = (n_codes + 8) >> 3
    for b in range(n_bytes):
        sets[set_start + b] = 255 if most else 0
    if most:  # no bit stands behind that of missing values
        sets[set_start + n_bytes - 1] = (1 << (n_codes % 8 + 1)) - 1
    for k in range(n_present):
        c = I64(categories.present[k])
        place = set_start + (c >> 3)
        bit = 1 << (c & 7)
        if rank[c] <= at_most:
            sets[place] |= bit
        else:
            sets[place] &= 255 - bit
    return left


@kernel
def cut_nodes(
    columns: Any,
    nodes: Any,
    feature: Any,
    cut: Any,
    missing_left: Any,
    rows: Any,
    weights: Any,
    start: Any,
    end: Any,
    flags: Any,
    flag_start: Any,
    low: Any,
    high: Any,
    spare_rows: Any,
    spare_weights: Any,
    middle: Any,
) -> None:
    """Carry out the numeric splits among ``nodes``: their flags, and the rows partitioned as ``rows.partition`` does.

    ``nodes`` (int64) are the open nodes that this party has won. ``feature``, ``cut``, ``missing_left``, ``start``,
    ``end`` and ``middle`` count by open node; ``flag_start``, ``low`` and ``high`` by place in ``nodes``. Splits by
    categories are left to `cut_by_rank`; their ``middle`` stays -1.

    ``low`` and ``high`` get the largest code on the left and the smallest on the right (of values that are not missing;
    -1 when there is none): the threshold lies between their values. ``missing_left`` is changed where the node has no
    missing value.
    """
    beyond = I64(1) << 40
    for k in range(len(nodes)):
        node = nodes[k]
        f = feature[node]
        if columns.categorical[f]:
            continue
        at_most = cut[node]
        missing = I64(columns.n_codes[f])
        missing_goes = U64(missing_left[node])
        s = U64(start[node])
        e = U64(end[node])
        o = U64(flag_start[k])
        left = s
        right = U64(0)
        below = I64(-1)
        above = beyond
        top = I64(-1)
        # sides look random: choosing by arithmetic is faster than a branch that is mispredicted half the time
        for i in range(s, e):
            row = rows[i]
            weight = weights[i]
            c = I64(columns.fine[f, row])
            under = c <= at_most
            below = max(below, c if under else I64(-1))
            above = min(above, beyond if under or c == missing else c)
            top = max(top, c)
            go = U64(under) | (U64(c == missing) & missing_goes)
            flags[o] = go
            o += U64(1)
            rows[left] = row
            weights[left] = weight
            spare_rows[right] = row
            spare_weights[right] = weight
            left += go
            right += U64(1) - go
        for i in range(right):
            rows[left + i] = spare_rows[i]
            weights[left + i] = spare_weights[i]
        middle[node] = left
        low[k] = below
        high[k] = above if above < beyond else I64(-1)
        if top != missing:
            # no value is missing in this node: missing values at prediction go where most rows went
            missing_left[node] = left - s > e - left
