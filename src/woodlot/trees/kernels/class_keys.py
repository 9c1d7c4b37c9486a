"""Rows of a node as keys that can be sorted: classification with at most 256 classes and weights up to 255.

::

    payload, uint16     class << 8 | weight
    key                 code << 16 | class << 8 | weight        uint32 where codes fit 16 bits, else uint64

Sorted keys are in the order of the codes, and a scan needs nothing but the keys. Two neighbours have different codes if
and only if ``key ^ follower > 0xFFFF``. Larger classes or weights are for `wide`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from woodlot.trees.kernels._jit import kernel
from woodlot.trees.kernels.cut import cut_by_rank
from woodlot.trees.kernels.search import order_categories
from woodlot.trees.kernels.sorting import sort_keys

I64: Any = np.int64
U64: Any = np.uint64
F64: Any = np.float64
SHIFT = U64(16)
"""Bits of the payload in a key."""


@kernel
def prepare(
    rows: Any,
    weights: Any,
    labels: Any,
    start: Any,
    end: Any,
    payload: Any,
    first: Any,
    totals: Any,
    weight: Any,
    square: Any,
    whole: Any,
    rules: Any,
) -> None:
    """Gather the payload of a chunk of nodes, and each node's class weights, weight, sum of squares and unsplit score.

    ``rules.xlogx`` has an entry for every weight that a node can have.
    """
    o = U64(0)
    for node in range(len(start)):
        first[node] = o
        for k in range(totals.shape[1]):
            totals[node, k] = 0
        w = I64(0)
        sq = I64(0)
        for i in range(U64(start[node]), U64(end[node])):
            c = I64(labels[rows[i]])
            d = I64(weights[i])
            payload[o] = np.uint16((c << 8) | d)
            o += U64(1)
            totals[node, c] += np.int32(d)
            w += d
        for k in range(totals.shape[1]):
            t = I64(totals[node, k])
            sq += rules.xlogx[t] if rules.entropy else t * t
        weight[node] = w
        square[node] = sq
        whole[node] = F64(sq - rules.xlogx[w]) if rules.entropy else F64(sq) / F64(w)


@kernel
def count_categories(
    fine: Any, f: Any, rows: Any, s: Any, payload: Any, o: Any, n: Any, totals: Any, node: Any, categories: Any
) -> Any:
    """Weigh each category of the node, in all and in the node's largest class.

    Returns how many categories there are and which class is the largest.
    """
    s, o = U64(s), U64(o)
    # of equally large classes the one that comes first among the rows: it does not depend on the classes' codes
    top = I64(payload[o] >> 8)
    if totals.shape[1] == 2:
        if totals[node, 1 - top] > totals[node, top]:
            top = 1 - top
    else:
        for i in range(U64(n)):
            if totals[node, payload[o + i] >> 8] > totals[node, top]:
                top = I64(payload[o + i] >> 8)
    weight, total, present = categories.weight, categories.total, categories.present
    m = I64(0)
    for i in range(U64(n)):
        c = I64(fine[f, rows[s + i]])
        p = I64(payload[o + i])
        d = p & 0xFF
        if weight[c] == 0:
            present[m] = c
            m += 1
            total[c] = 0
        weight[c] += d
        total[c] += d * I64((p >> 8) == top)
    return m, top


@kernel
def rank_categories(
    fine: Any, f: Any, rows: Any, s: Any, payload: Any, o: Any, n: Any, totals: Any, node: Any, categories: Any
) -> Any:
    """Order the node's categories by the share of the node's largest class in them; returns how many there are.

    For two classes the best of all subsets of categories is a prefix of this order (Breiman et al. 1984, chapter 4);
    for more it is a heuristic that keeps the search linear. ``categories.rank`` holds the order afterwards.
    """
    m, _ = count_categories(fine, f, rows, s, payload, o, n, totals, node, categories)
    order_categories(m, categories)
    return m


@kernel
def cut_categories(
    columns: Any,
    nodes: Any,
    feature: Any,
    cut: Any,
    rows: Any,
    weights: Any,
    start: Any,
    end: Any,
    payload: Any,
    first: Any,
    totals: Any,
    flags: Any,
    flag_start: Any,
    sets: Any,
    set_start: Any,
    categories: Any,
    spare_rows: Any,
    spare_weights: Any,
    middle: Any,
) -> None:
    """Carry out the splits by categories at ``nodes``, as `cut.cut_nodes` does those by numbers.

    ``nodes`` (int64) are open nodes that this party has won by a column of categories, whose order is found again from
    ``payload``, ``first`` and ``totals``: what `prepare` has gathered of these nodes, counted by place in ``nodes`` as
    ``flag_start`` and ``set_start`` are.
    """
    for k in range(len(nodes)):
        node = nodes[k]
        f = I64(feature[node])
        s = start[node]
        e = end[node]
        m = rank_categories(columns.fine, f, rows, s, payload, first[k], e - s, totals, k, categories)
        middle[node] = cut_by_rank(
            columns.fine, f, I64(columns.n_codes[f]), categories, m, I64(cut[node]), rows, weights, s, e,
            flags, flag_start[k], sets, set_start[k], spare_rows, spare_weights,
        )  # fmt: skip


@kernel
def sort_codes(
    fine: Any, f: Any, rows: Any, s: Any, payload: Any, o: Any, n: Any, keys: Any, spare: Any, count: Any
) -> int:
    """Sort a node by a column: 0 when it is constant there, 1 when the result is in ``keys``, 2 in ``spare``."""
    low = I64(1) << 40
    high = I64(-1)
    for i in range(U64(n)):
        c = I64(fine[f, rows[s + i]])
        low = min(low, c)
        high = max(high, c)
        keys[i] = (U64(c) << SHIFT) | U64(payload[o + i])
    if low == high:
        return 0
    return 2 if sort_keys(keys, spare, count, n, SHIFT, low, high) else 1


@kernel
def sort_categories(
    fine: Any,
    f: Any,
    rows: Any,
    s: Any,
    payload: Any,
    o: Any,
    n: Any,
    totals: Any,
    node: Any,
    sorting: Any,
    categories: Any,
) -> int:
    """As ``sort_codes``, by the rank of each category in this node: a cut between ranks is a set of categories."""
    m = rank_categories(fine, f, rows, s, payload, o, n, totals, node, categories)
    if m < 2:
        return 0
    for i in range(U64(n)):
        sorting.keys[i] = (U64(categories.rank[fine[f, rows[s + i]]]) << SHIFT) | U64(payload[o + i])
    return 2 if sort_keys(sorting.keys, sorting.spare, sorting.count, n, SHIFT, I64(0), I64(m - 1)) else 1


@kernel
def sort_present(
    fine: Any, f: Any, missing: Any, rows: Any, s: Any, payload: Any, o: Any, n: Any, sorting: Any, left_of: Any
) -> Any:
    """Sort the rows of a node whose value is not missing, and put the others' class weights into ``left_of``.

    For the second search of a column, with missing values on the left. ``missing`` is the column's code for them. In
    the first search they have the largest code, and so are on the right of every cut.

    Returns how many rows are sorted (0: nothing to split between) and whether they stand in ``spare``.
    """
    keys = sorting.keys
    for k in range(len(left_of)):
        left_of[k] = 0
    low = I64(1) << 40
    high = I64(-1)
    m = I64(0)
    for i in range(U64(n)):
        c = I64(fine[f, rows[s + i]])
        p = I64(payload[o + i])
        if c == missing:
            left_of[p >> 8] += p & 0xFF
        else:
            low = min(low, c)
            high = max(high, c)
            keys[m] = (U64(c) << SHIFT) | U64(p)
            m += 1
    if m == n or m == 0 or low == high:
        return I64(0), False
    return m, sort_keys(keys, sorting.spare, sorting.count, m, SHIFT, low, high)
