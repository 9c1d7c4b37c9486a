"""Split search for regression on fixed-point targets: sums are whole numbers below 2**53, exact in float64 in any order
of their terms.

::

    payload, float64     weight * target
    totals, float64      (nodes, 2): weight, and weighted sum of targets
    key                  code << shift | position in the node        shift: half the bits of the key, 16 or 32

The score of a split is ``sum_left**2 / weight_left + sum_right**2 / weight_right``: the larger, the smaller the squared
error. ``left`` and ``total`` are the weighted sums on the left and of the node.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from woodlot.trees.kernels._jit import kernel
from woodlot.trees.kernels.cut import cut_by_rank
from woodlot.trees.kernels.search import COARSE_FROM, RANKED, SLACK, SMALL, offer, order_categories
from woodlot.trees.kernels.sorting import sort_keys

I64: Any = np.int64
U64: Any = np.uint64
F64: Any = np.float64


@kernel
def prepare_targets(
    rows: Any,
    weights: Any,
    labels: Any,
    start: Any,
    end: Any,
    payload: Any,
    first: Any,
    totals: Any,
    whole: Any,
) -> None:
    """Gather weight * target of a chunk of nodes, and each node's weight, sum, and score unsplit."""
    o = I64(0)
    for node in range(len(start)):
        first[node] = o
        w = 0.0
        t = 0.0
        for i in range(start[node], end[node]):
            d = F64(weights[i])
            y = d * F64(labels[rows[i]])
            payload[o] = y
            o += 1
            w += d
            t += y
        totals[node, 0] = w
        totals[node, 1] = t
        whole[node] = t * t / w


@kernel
def score_of(left: Any, w: Any, total: Any, W: Any) -> Any:
    """The score of a split by sum and weight on its left."""
    right = total - left
    return left * left / w + right * right / (W - w)


@kernel
def _may_reach(left: Any, w: Any, total: Any, W: Any, best: Any) -> Any:
    """Could the score reach ``best``? Never false when it does; without division."""
    right = total - left
    wr = W - w
    return left * left * wr + right * right * w >= best * (w * wr) * SLACK


@kernel
def rank_categories_by_target(
    fine: Any, f: Any, rows: Any, s: Any, weights: Any, payload: Any, o: Any, n: Any, categories: Any
) -> int:
    """Order the node's categories by their mean target."""
    m = 0
    for i in range(n):
        c = I64(fine[f, rows[s + i]])
        if categories.weight[c] == 0:
            categories.present[m] = c
            m += 1
            categories.total[c] = 0
        categories.weight[c] += I64(weights[s + i])
        categories.total[c] += I64(payload[o + i])
    order_categories(m, categories)
    return m


@kernel
def cut_categories_by_target(
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
    """As ``class_keys.cut_categories``; ``totals`` is not read, and there for the same arguments."""
    for k in range(len(nodes)):
        node = nodes[k]
        f = I64(feature[node])
        s = start[node]
        e = end[node]
        m = rank_categories_by_target(columns.fine, f, rows, s, weights, payload, first[k], e - s, categories)
        middle[node] = cut_by_rank(
            columns.fine, f, I64(columns.n_codes[f]), categories, m, I64(cut[node]), rows, weights, s, e,
            flags, flag_start[k], sets, set_start[k], spare_rows, spare_weights,
        )  # fmt: skip


@kernel
def _scan(
    keys: Any,
    m: Any,
    shift: Any,
    weights: Any,
    s: Any,
    payload: Any,
    o: Any,
    left: Any,
    w: Any,
    n: Any,
    total: Any,
    W: Any,
    best: Any,
    strict: Any,
    rules: Any,
) -> Any:
    """All cuts between the sorted keys, starting with (left, w) of n - m rows already on the left.

    ``(key ^ follower) > position`` where the codes differ: their lower halves are positions.
    """
    position = (U64(1) << shift) - U64(1)
    cut = I64(-1)
    key = U64(keys[0])
    for i in range(m - 1):
        follower = U64(keys[i + 1])
        at = I64(key & position)
        w += F64(weights[s + at])
        left += payload[o + at]
        if (key ^ follower) > position and _may_reach(left, w, total, W, best):
            here = n - m + i + 1
            small = here < rules.min_leaf or n - here < rules.min_leaf
            if not small and w >= rules.min_weight and W - w >= rules.min_weight:
                score = score_of(left, w, total, W)
                if score > best or (score == best and cut < 0 and not strict):
                    best = score
                    cut = I64(key >> shift)
        key = follower
    return best, cut


@kernel
def sort_column(fine: Any, f: Any, rows: Any, s: Any, n: Any, shift: Any, keys: Any, spare: Any, count: Any) -> int:
    """Sort a node by a column: 0 when it is constant there, 1 when the result is in ``keys``, 2 in ``spare``."""
    low = I64(1) << 40
    high = I64(-1)
    for i in range(n):
        c = I64(fine[f, rows[s + i]])
        low = min(low, c)
        high = max(high, c)
        keys[i] = (U64(c) << shift) | U64(i)
    if low == high:
        return 0
    return 2 if sort_keys(keys, spare, count, n, shift, low, high) else 1


@kernel
def _by_category(
    fine: Any,
    f: Any,
    rows: Any,
    weights: Any,
    s: Any,
    payload: Any,
    o: Any,
    n: Any,
    total: Any,
    W: Any,
    best: Any,
    rules: Any,
    sorting: Any,
    categories: Any,
) -> Any:
    """Sort and scan a node by the rank of its categories."""
    shift = U64(sorting.keys.itemsize * 4)
    m = rank_categories_by_target(fine, f, rows, s, weights, payload, o, n, categories)
    if m < 2:
        return best, I64(-1)
    for i in range(n):
        sorting.keys[i] = (U64(categories.rank[fine[f, rows[s + i]]]) << shift) | U64(i)
    in_spare = sort_keys(sorting.keys, sorting.spare, sorting.count, n, shift, I64(0), I64(m - 1))
    ordered = sorting.spare if in_spare else sorting.keys
    return _scan(ordered, n, shift, weights, s, payload, o, 0.0, 0.0, n, total, W, best, False, rules)


@kernel
def _missing_left(
    fine: Any,
    f: Any,
    missing: Any,
    rows: Any,
    weights: Any,
    s: Any,
    payload: Any,
    o: Any,
    n: Any,
    total: Any,
    W: Any,
    best: Any,
    strict: Any,
    rules: Any,
    sorting: Any,
) -> Any:
    """Second search of a numeric column with missing values in the node: they stand on the left from the start."""
    shift = U64(sorting.keys.itemsize * 4)
    keys = sorting.keys
    low = I64(1) << 40
    high = I64(-1)
    w = 0.0
    left = 0.0
    m = 0
    for i in range(n):
        c = I64(fine[f, rows[s + i]])
        if c == missing:
            left += payload[o + i]
            w += F64(weights[s + i])
        else:
            low = min(low, c)
            high = max(high, c)
            keys[m] = (U64(c) << shift) | U64(i)
            m += 1
    if m == n or m == 0 or low == high:
        return best, I64(-1)
    ordered = sorting.spare if sort_keys(keys, sorting.spare, sorting.count, m, shift, low, high) else keys
    return _scan(ordered, m, shift, weights, s, payload, o, left, w, n, total, W, best, strict, rules)


@kernel
def _by_groups(
    coarse: Any,
    fine: Any,
    f: Any,
    last_fine: Any,
    n_groups: Any,
    refine: Any,
    rows: Any,
    weights: Any,
    s: Any,
    payload: Any,
    o: Any,
    n: Any,
    total: Any,
    W: Any,
    best: Any,
    rules: Any,
    sorting: Any,
    groups: Any,
) -> Any:
    """Many rows: a histogram over groups of codes, then a look inside the groups that may hide a better cut.

    With c the sum on the left less w times the node's mean, the score is ``total**2 / W + c**2 * W / (w * (W - w))``.
    Inside a group c can at most gain all that lies above the mean (``up``), or lose all below (``down``). Both follow
    from the group's sum of deviations (up - down) and of absolute deviations (``hist_spread``, up + down). The mean is
    no whole number, so the bound is rounded: the factors of 1e-9 keep it an upper bound. What it lets through is scored
    exactly.
    """
    mean = total / W
    for g in range(n_groups):
        groups.hist_weight[g] = 0.0
        groups.hist_target[g] = 0.0
        groups.hist_spread[g] = 0.0
    for i in range(n):
        g = coarse[f, rows[s + i]]
        groups.group[i] = g
        d = F64(weights[s + i])
        y = payload[o + i]
        groups.hist_weight[g] += d
        groups.hist_target[g] += y
        if refine:
            groups.hist_spread[g] += abs(y - d * mean)
    counted = rules.min_leaf > 1
    if counted:
        for g in range(n_groups):
            groups.hist_count[g] = 0
        for i in range(n):
            groups.hist_count[groups.group[i]] += 1
    cut = I64(-1)
    w = 0.0
    left = 0.0
    rows_left = I64(0)
    for g in range(n_groups - 1):
        if counted:
            rows_left += groups.hist_count[g]
        if groups.hist_weight[g] == 0.0:
            continue
        w += groups.hist_weight[g]
        left += groups.hist_target[g]
        if w == W:
            break
        if counted and (rows_left < rules.min_leaf or n - rows_left < rules.min_leaf):
            continue
        if w < rules.min_weight or W - w < rules.min_weight:
            continue
        if _may_reach(left, w, total, W, best):
            score = score_of(left, w, total, W)
            if score > best or (score == best and cut < 0):
                best = score
                cut = I64(last_fine[f, g])
    if not refine:
        return best, cut

    base = total * mean
    needed = (best - base) * (1.0 - 1e-9) - 1e-9 * abs(base)
    fw = 0.0
    centred = 0.0
    inside = I64(0)
    for g in range(n_groups):
        groups.flag[g] = 0
        hw = groups.hist_weight[g]
        if hw == 0.0:
            continue
        shifted = groups.hist_target[g] - hw * mean
        if hw > 1.0:
            up = 0.5 * (groups.hist_spread[g] + shifted)
            down = 0.5 * (groups.hist_spread[g] - shifted)
            reach = max(abs(centred + up), abs(centred - down)) * (1.0 + 1e-9)
            # 1/w + 1/(W-w) is convex, so it is largest at an end of the group; an inner cut has weight on both sides
            w0 = max(fw, 1.0)
            w1 = min(fw + hw, W - 1.0)
            if reach * reach * max(W / (w0 * (W - w0)), W / (w1 * (W - w1))) >= needed:
                groups.flag[g] = 1
                inside += 1
        fw += hw
        centred += shifted
    if inside == 0:
        return best, cut
    shift = U64(sorting.keys.itemsize * 4)
    position = (U64(1) << shift) - U64(1)
    keys = sorting.keys
    low = I64(1) << 40
    high = I64(-1)
    m = I64(0)
    for i in range(n):
        if groups.flag[groups.group[i]]:
            c = I64(fine[f, rows[s + i]])
            low = min(low, c)
            high = max(high, c)
            keys[m] = (U64(c) << shift) | U64(i)
            m += 1
    if low == high:
        return best, cut
    ordered = sorting.spare if sort_keys(keys, sorting.spare, sorting.count, m, shift, low, high) else keys
    g = I64(-1)
    end = I64(-1)
    w = 0.0
    left = 0.0
    for i in range(m - 1):
        key = U64(ordered[i])
        c = I64(key >> shift)
        if c > end:
            while c > end:
                g += 1
                end = I64(last_fine[f, g])
            w = 0.0
            left = 0.0
            rows_left = I64(0)
            for b in range(g):
                w += groups.hist_weight[b]
                left += groups.hist_target[b]
                if counted:
                    rows_left += groups.hist_count[b]
        at = I64(key & position)
        w += F64(weights[s + at])
        left += payload[o + at]
        rows_left += 1
        follower = I64(U64(ordered[i + 1]) >> shift)
        if follower != c and follower <= end and _may_reach(left, w, total, W, best):
            if counted and (rows_left < rules.min_leaf or n - rows_left < rules.min_leaf):
                continue
            if w < rules.min_weight or W - w < rules.min_weight:
                continue
            score = score_of(left, w, total, W)
            if score > best or (score == best and (cut < 0 or c < cut)):
                best = score
                cut = c
    return best, cut


@kernel
def search_targets(
    columns: Any,
    rows: Any,
    weights: Any,
    start: Any,
    end: Any,
    payload: Any,
    first: Any,
    totals: Any,
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
    """Search every pair; the best of each node is kept. The arguments are grouped as in ``classes.search_classes``.

    ``ws`` is the thread's `search.Scratch`.
    """
    sorting = ws.sorting
    keys = sorting.keys
    fine = columns.fine
    spare = sorting.spare
    rank = ws.groups.chosen
    shift = U64(keys.itemsize * 4)
    position = (U64(1) << shift) - U64(1)
    for q in range(n_pairs):
        node = pair_node[q]
        f = pair_feature[q]
        s = start[node]
        n = end[node] - s
        o = first[node]
        b = best[node]
        W = totals[node, 0]
        total = totals[node, 1]
        plain = columns.categorical[f] == 0
        score = b
        cut = I64(-1)
        if not plain:
            score, cut = _by_category(
                fine, f, rows, weights, s, payload, o, n, total, W, b, rules, sorting, ws.categories
            )
        elif n > SMALL and (n > COARSE_FROM or (columns.refine[f] == 0 and n > 2 * columns.n_coarse[f])):
            score, cut = _by_groups(
                columns.coarse,
                fine,
                f,
                columns.last_fine,
                columns.n_coarse[f],
                columns.refine[f] != 0,
                rows,
                weights,
                s,
                payload,
                o,
                n,
                total,
                W,
                b,
                rules,
                sorting,
                ws.groups,
            )
        elif n <= SMALL or (n <= RANKED and columns.n_codes[f] > RANKED):
            # sorted by counting the smaller keys of each, as in `classes`
            for i in range(n):
                spare[i] = (U64(fine[f, rows[s + i]]) << shift) | U64(i)
            for i in range(n):
                key = U64(spare[i])
                smaller = 0
                for j in range(i):
                    larger = I64(U64(spare[j]) > key)
                    rank[j] += larger
                    smaller += 1 - larger
                rank[i] = smaller
            for i in range(n):
                keys[rank[i]] = spare[i]
            if (U64(keys[0]) ^ U64(keys[n - 1])) > position:
                score, cut = _scan(keys, n, shift, weights, s, payload, o, 0.0, 0.0, n, total, W, b, False, rules)
        else:
            where = sort_column(fine, f, rows, s, n, shift, keys, spare, sorting.count)
            if where > 0:
                ordered = keys if where == 1 else spare
                score, cut = _scan(ordered, n, shift, weights, s, payload, o, 0.0, 0.0, n, total, W, b, False, rules)
        to_left = np.uint8(0)
        if plain and columns.has_missing[f]:
            score2, cut2 = _missing_left(
                fine,
                f,
                I64(columns.n_codes[f]),
                rows,
                weights,
                s,
                payload,
                o,
                n,
                total,
                W,
                max(b, score),
                cut >= 0,
                rules,
                sorting,
            )
            if cut2 >= 0:
                score = score2
                cut = cut2
                to_left = np.uint8(1)
        offer(node, f, pair_place[q], score, cut, to_left, best, best_feature, best_place, best_cut, best_missing)
