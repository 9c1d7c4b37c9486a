"""Split search for classification with any number of classes and any integer weights: payloads looked up by position.

::

    payload, int64     class << 32 | weight
    key                code << shift | position in the node        shift: half the bits of the key, 16 or 32

Slower than `classes`, which serves the usual case; the answers are the same. Logarithms are computed when they are
needed and not looked up: weights are too many for a table. ``rules.xlogx`` then has one entry, the scale of the fixed
point.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from woodlot.trees.kernels._jit import kernel
from woodlot.trees.kernels.cut import cut_by_rank
from woodlot.trees.kernels.search import offer, order_categories
from woodlot.trees.kernels.sorting import sort_keys

I64: Any = np.int64
U64: Any = np.uint64
F64: Any = np.float64
WEIGHT = I64(0xFFFFFFFF)


@kernel
def fixed_xlogx(x: Any, scale: Any) -> Any:
    """x * log2(x) in fixed point: a whole number, so that sums of it do not depend on their order.

    The scale makes the largest score about 2**42 (``trees.rules.XLOGX_BITS``), which leaves room for the last bits of
    another machine's ``log2``.
    """
    return I64(np.rint(F64(x) * np.log2(F64(x)) * scale)) if x > 1 else I64(0)


@kernel
def fill_xlogx(table: Any, scale: Any) -> None:
    """Table of ``fixed_xlogx`` for the compact kernels: the same numbers, looked up."""
    for x in range(len(table)):
        table[x] = fixed_xlogx(x, scale)


@kernel
def xlogx_numbers(numbers: Any, scale: Any) -> Any:
    """``fixed_xlogx`` of some whole numbers."""
    out = np.empty(len(numbers), np.int64)
    for i in range(len(numbers)):
        out[i] = fixed_xlogx(numbers[i], scale)
    return out


@kernel
def prepare_wide(
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
    """As ``class_keys.prepare``, with the wide payload."""
    scale = F64(rules.xlogx[0])
    o = I64(0)
    for node in range(len(start)):
        first[node] = o
        for k in range(totals.shape[1]):
            totals[node, k] = 0
        w = I64(0)
        for i in range(start[node], end[node]):
            c = I64(labels[rows[i]])
            d = I64(weights[i])
            payload[o] = (c << 32) | d
            o += 1
            totals[node, c] += d
            w += d
        sq = I64(0)
        for k in range(totals.shape[1]):
            t = totals[node, k]
            sq += fixed_xlogx(t, scale) if rules.entropy else t * t
        weight[node] = w
        square[node] = sq
        whole[node] = F64(sq - fixed_xlogx(w, scale)) if rules.entropy else F64(sq) / F64(w)


@kernel
def rank_categories_wide(
    fine: Any, f: Any, rows: Any, s: Any, payload: Any, o: Any, n: Any, totals: Any, node: Any, categories: Any
) -> int:
    """As ``class_keys.rank_categories``."""
    top = payload[o] >> 32
    for i in range(n):
        if totals[node, payload[o + i] >> 32] > totals[node, top]:
            top = payload[o + i] >> 32
    m = 0
    for i in range(n):
        c = I64(fine[f, rows[s + i]])
        p = payload[o + i]
        if categories.weight[c] == 0:
            categories.present[m] = c
            m += 1
            categories.total[c] = 0
        categories.weight[c] += p & WEIGHT
        if (p >> 32) == top:
            categories.total[c] += p & WEIGHT
    order_categories(m, categories)
    return m


@kernel
def cut_categories_wide(
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
    """As ``class_keys.cut_categories``."""
    for k in range(len(nodes)):
        node = nodes[k]
        f = I64(feature[node])
        s = start[node]
        e = end[node]
        m = rank_categories_wide(columns.fine, f, rows, s, payload, first[k], e - s, totals, k, categories)
        middle[node] = cut_by_rank(
            columns.fine, f, I64(columns.n_codes[f]), categories, m, I64(cut[node]), rows, weights, s, e,
            flags, flag_start[k], sets, set_start[k], spare_rows, spare_weights,
        )  # fmt: skip


@kernel
def _search_one(
    fine: Any,
    f: Any,
    missing: Any,
    categorical: Any,
    rows: Any,
    s: Any,
    payload: Any,
    o: Any,
    n: Any,
    totals: Any,
    node: Any,
    W: Any,
    square: Any,
    best: Any,
    strict: Any,
    missing_first: Any,
    rules: Any,
    sorting: Any,
    categories: Any,
    left_of: Any,
) -> Any:
    """Sort and scan one column; with ``missing_first`` the missing values stand on the left from the start.

    ``left_of`` is work space. Loop and scores are those of ``many_classes.scan_many``.
    """
    shift = U64(sorting.keys.itemsize * 4)
    position = (U64(1) << shift) - U64(1)
    scale = F64(rules.xlogx[0])
    keys = sorting.keys
    for k in range(totals.shape[1]):
        left_of[k] = 0
    low = I64(1) << 40
    high = I64(-1)
    if categorical:
        rank_categories_wide(fine, f, rows, s, payload, o, n, totals, node, categories)
    m = 0
    w = I64(0)
    for i in range(n):
        c = I64(fine[f, rows[s + i]])
        if missing_first and c == missing:
            left_of[payload[o + i] >> 32] += payload[o + i] & WEIGHT
            w += payload[o + i] & WEIGHT
            continue
        if categorical:
            c = categories.rank[c]
        low = min(low, c)
        high = max(high, c)
        keys[m] = (U64(c) << shift) | U64(i)
        m += 1
    cut = I64(-1)
    if m == 0 or low == high or (missing_first and m == n):
        return best, cut
    sl = I64(0)
    sr = I64(square)
    if missing_first:
        for k in range(totals.shape[1]):
            lk = left_of[k]
            t = totals[node, k]
            if rules.entropy:
                sl += fixed_xlogx(lk, scale)
                sr += fixed_xlogx(t - lk, scale) - fixed_xlogx(t, scale)
            else:
                sl += lk * lk
                sr += (t - lk) * (t - lk) - t * t
    ordered = sorting.spare if sort_keys(keys, sorting.spare, sorting.count, m, shift, low, high) else keys
    left = I64(n - m)
    for i in range(m - 1):
        key = U64(ordered[i])
        p = payload[o + I64(key & position)]
        d = p & WEIGHT
        k = p >> 32
        lk = left_of[k]
        rk = totals[node, k] - lk
        if rules.entropy:
            sl += fixed_xlogx(lk + d, scale) - fixed_xlogx(lk, scale)
            sr += fixed_xlogx(rk - d, scale) - fixed_xlogx(rk, scale)
        else:
            sl += d * (2 * lk + d)
            sr -= d * (2 * rk - d)
        left_of[k] = lk + d
        w += d
        left += 1
        c = key >> shift
        if (U64(ordered[i + 1]) >> shift) == c or left < rules.min_leaf or n - left < rules.min_leaf:
            continue
        if w < rules.min_weight or W - w < rules.min_weight:
            continue
        if rules.entropy:
            score = F64(sl - fixed_xlogx(w, scale) + sr - fixed_xlogx(W - w, scale))
        else:
            score = F64(sl) / F64(w) + F64(sr) / F64(W - w)
        if score > best or (score == best and cut < 0 and not strict):
            best = score
            cut = I64(c)
    return best, cut


@kernel
def search_wide(
    columns: Any,
    rows: Any,
    start: Any,
    end: Any,
    payload: Any,
    first: Any,
    totals: Any,
    weight: Any,
    square: Any,
    pair_node: Any,
    pair_feature: Any,
    pair_place: Any,
    n_pairs: Any,
    rules: Any,
    ws: Any,
    best: Any,
    best_feature: Any,
    best_place: Any,
    best_cut: Any,
    best_missing: Any,
) -> None:
    """Search every pair; the best of each node is kept. ``ws`` is the thread's `search.Scratch`."""
    fine = columns.fine
    for q in range(n_pairs):
        node = pair_node[q]
        f = pair_feature[q]
        s = start[node]
        n = end[node] - s
        o = first[node]
        W = weight[node]
        sq = square[node]
        b = best[node]
        categorical = columns.categorical[f] != 0
        missing = I64(columns.n_codes[f])
        score, cut = _search_one(
            fine,
            f,
            missing,
            categorical,
            rows,
            s,
            payload,
            o,
            n,
            totals,
            node,
            W,
            sq,
            b,
            False,
            False,
            rules,
            ws.sorting,
            ws.categories,
            ws.left,
        )
        to_left = np.uint8(0)
        if columns.has_missing[f] and not categorical:
            score2, cut2 = _search_one(
                fine,
                f,
                missing,
                categorical,
                rows,
                s,
                payload,
                o,
                n,
                totals,
                node,
                W,
                sq,
                max(b, score),
                cut >= 0,
                True,
                rules,
                ws.sorting,
                ws.categories,
                ws.left,
            )
            if cut2 >= 0:
                score = score2
                cut = cut2
                to_left = np.uint8(1)
        offer(
            node,
            f,
            pair_place[q],
            score,
            cut,
            to_left,
            best,
            best_feature,
            best_place,
            best_cut,
            best_missing,
        )
