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
def flags_by_rank(fine: Any, f: Any, rank: Any, cut: Any, rows: Any, s: Any, n: Any, goes_left: Any, o: Any) -> None:
    """Flags of one node of a categorical column by the ranks of its categories (int64, from ``search.Categories``)."""
    for i in range(n):
        goes_left[o + i] = 1 if rank[fine[f, rows[s + i]]] <= cut else 0


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
    categories are left to `flags_by_rank`; their ``middle`` stays -1.

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
