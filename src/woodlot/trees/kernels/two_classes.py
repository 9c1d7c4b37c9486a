"""The best split of a node for two classes, from its weight on the left and that of class 1 there.

The keys are those of `class_keys`. Two numbers describe a cut: w, the weight on the left, and a, the weight of class 1
on the left. W and A are the same of the whole node. Weights of a node stay below 2**31, so that two of them fit one
int64 (``w | a << 32``) and squares are exact.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from woodlot.trees.kernels._jit import kernel
from woodlot.trees.kernels.class_keys import SHIFT, count_categories
from woodlot.trees.kernels.search import SLACK, sort_present_categories
from woodlot.trees.kernels.sorting import sort_keys

I64: Any = np.int64
U64: Any = np.uint64
F64: Any = np.float64


@kernel
def _score(a: Any, w: Any, A: Any, W: Any, rules: Any) -> Any:
    """Score of a cut; the order of the floating-point operations is that of all other searches, to the bit."""
    b = w - a
    wr = W - w
    ar = A - a
    br = wr - ar
    if rules.entropy:
        x = rules.xlogx
        return F64(x[a] + x[b] - x[w] + x[ar] + x[br] - x[wr])
    return F64(a * a + b * b) / F64(w) + F64(ar * ar + br * br) / F64(wr)


@kernel
def _may_reach(a: Any, w: Any, A: Any, W: Any, best: Any, rules: Any) -> Any:
    """Could the score reach ``best``? Never false when it does; without division for gini."""
    if rules.entropy:
        return _score(a, w, A, W, rules) >= best
    b = w - a
    wr = W - w
    ar = A - a
    br = wr - ar
    fw = F64(w)
    fr = F64(wr)
    return F64(a * a + b * b) * fr + F64(ar * ar + br * br) * fw >= best * (fw * fr) * SLACK


@kernel
def scan_two(
    keys: Any, m: Any, a: Any, w: Any, c: Any, A: Any, W: Any, n: Any, best: Any, strict: Any, rules: Any
) -> Any:
    """Two classes: all cuts between the sorted keys, starting with (a, w) of c rows already on the left.

    The class bit of the key times its weight is what the row adds to a. The code of the last key on the left is the
    cut.
    """
    cut = I64(-1)
    key = U64(keys[0])
    for i in range(m - 1):
        follower = U64(keys[i + 1])
        d = I64(key & U64(0xFF))
        w += d
        a += d * I64((key >> U64(8)) & U64(1))
        if (key ^ follower) > U64(0xFFFF) and _may_reach(a, w, A, W, best, rules):
            left = c + i + 1
            if (
                left >= rules.min_leaf
                and n - left >= rules.min_leaf
                and w >= rules.min_weight
                and W - w >= rules.min_weight
            ):
                score = _score(a, w, A, W, rules)
                if score > best or (score == best and cut < 0 and not strict):
                    best = score
                    cut = I64(key >> SHIFT)
        key = follower
    return best, cut


@kernel
def two_by_groups(
    coarse: Any,
    fine: Any,
    f: Any,
    last_fine: Any,
    n_groups: Any,
    refine: Any,
    rows: Any,
    s: Any,
    payload: Any,
    o: Any,
    n: Any,
    A: Any,
    W: Any,
    square: Any,
    best: Any,
    rules: Any,
    sorting: Any,
    groups: Any,
) -> Any:
    """Two classes, many rows: a histogram over groups of codes, then a look inside the groups that may hide better.

    First the cuts between groups, from the histogram: their best is a lower bound. Then the cuts inside groups. The
    score is convex in (weight, weight of class 1) on the left, so inside a group it is largest at a corner of the
    parallelogram between "all of class 1 first" and "all of class 0 first". Groups whose corners stay below the best
    are never sorted, and the answer still is the best of all cuts. Where ``refine`` is 0 a group is one code, and there
    is nothing inside.

    In ``groups``: ``group`` has the group of each row, ``hist`` packs the weight of each group and that of class 1 in
    it (``w | a << 32``), ``hist_sum`` the same of all groups before it, ``hist_count`` counts rows where a rule asks
    for them, ``flag`` marks the groups to look into and ``chosen`` lists their rows.
    """
    hist = groups.hist
    for g in range(n_groups):
        hist[g] = 0
    for i in range(U64(n)):
        g = coarse[f, rows[s + i]]
        groups.group[i] = g
        p = I64(payload[o + i])
        d = p & 0xFF
        hist[g] += d | ((d * (p >> 8)) << 32)
    counted = rules.min_leaf > 1
    if counted:
        for g in range(n_groups):
            groups.hist_count[g] = 0
        for i in range(U64(n)):
            groups.hist_count[groups.group[i]] += 1
    cut = I64(-1)
    w = I64(0)
    a = I64(0)
    left = I64(0)
    for g in range(n_groups - 1):
        if counted:
            left += groups.hist_count[g]
        h = hist[g]
        if h == 0:
            continue
        w += h & 0xFFFFFFFF
        a += h >> 32
        if w == W:
            break
        if counted and (left < rules.min_leaf or n - left < rules.min_leaf):
            continue
        if w < rules.min_weight or W - w < rules.min_weight:
            continue
        if _may_reach(a, w, A, W, best, rules):
            score = _score(a, w, A, W, rules)
            if score > best or (score == best and cut < 0):
                best = score
                cut = I64(last_fine[f, g])
    if refine == 0:
        return best, cut

    # where a corner has nothing on one side the score is not defined; its limit is the parent's own, the least of all
    parent = F64(square - rules.xlogx[W]) if rules.entropy else F64(square) / F64(W)
    parent_may_reach = parent >= best * SLACK if best > 0.0 else parent >= best
    before = groups.hist_sum
    inside = I64(0)
    w = I64(0)
    a = I64(0)
    for g in range(n_groups):
        h = hist[g]
        hw = h & 0xFFFFFFFF
        ha = h >> 32
        before[g] = w | (a << 32)
        groups.flag[g] = 0
        if hw > 1:
            promising = False
            # corners: class 1 first, class 0 first, the whole group, nothing of it
            for corner in range(4):
                cw = w
                ca = a
                if corner == 0:
                    cw += ha
                    ca += ha
                elif corner == 1:
                    cw += hw - ha
                elif corner == 2:
                    cw += hw
                    ca += ha
                if cw == 0 or cw == W:
                    promising = promising or parent_may_reach
                else:
                    promising = promising or _may_reach(ca, cw, A, W, best, rules)
            if promising:
                groups.flag[g] = 1
                inside += hw
        w += hw
        a += ha
    if inside == 0:
        return best, cut
    m = I64(0)
    for i in range(U64(n)):
        # written always; the next row overwrites it unless its group is promising
        groups.chosen[m] = i
        m += I64(groups.flag[groups.group[i]])
    keys = sorting.keys
    low = I64(1) << 40
    high = I64(-1)
    for q in range(m):
        i = U64(groups.chosen[q])
        c = I64(fine[f, rows[s + i]])
        low = min(low, c)
        high = max(high, c)
        keys[q] = (U64(c) << SHIFT) | U64(payload[o + i])
    if low == high:
        return best, cut
    ordered = sorting.spare if sort_keys(keys, sorting.spare, sorting.count, m, SHIFT, low, high) else keys
    g = I64(-1)
    end = I64(-1)
    for i in range(m - 1):
        key = U64(ordered[i])
        c = I64(key >> SHIFT)
        if c > end:  # the next promising group: what lies before it is known from the histogram
            while c > end:
                g += 1
                end = I64(last_fine[f, g])
            w = before[g] & 0xFFFFFFFF
            a = before[g] >> 32
            left = I64(0)
            if counted:
                for b in range(g):
                    left += groups.hist_count[b]
        d = I64(key & U64(0xFF))
        w += d
        a += d * I64((key >> U64(8)) & U64(1))
        left += 1
        follower = I64(U64(ordered[i + 1]) >> SHIFT)
        # a follower beyond the group's end is a cut between groups, known already
        if follower != c and follower <= end and _may_reach(a, w, A, W, best, rules):
            if counted and (left < rules.min_leaf or n - left < rules.min_leaf):
                continue
            if w < rules.min_weight or W - w < rules.min_weight:
                continue
            score = _score(a, w, A, W, rules)
            # of equal cuts the lowest: here cuts between groups came first, so the order must be compared
            if score > best or (score == best and (cut < 0 or c < cut)):
                best = score
                cut = c
    return best, cut


@kernel
def two_by_categories(
    fine: Any,
    f: Any,
    rows: Any,
    s: Any,
    payload: Any,
    o: Any,
    n: Any,
    totals: Any,
    node: Any,
    W: Any,
    best: Any,
    rules: Any,
    categories: Any,
) -> Any:
    """Two classes, a column of categories: all cuts between the categories in the order of their means.

    The weights of the categories are all that a score needs, so no row is sorted. The cut is the last rank that goes
    left. ``categories.rank`` is lent to count the rows of each category where a rule asks for them.
    """
    m, top = count_categories(fine, f, rows, s, payload, o, n, totals, node, categories)
    present, weight, total, count = categories.present, categories.weight, categories.total, categories.rank
    cut = I64(-1)
    if m > 1:
        sort_present_categories(m, categories)
        counted = rules.min_leaf > 1
        if counted:
            for r in range(m):
                count[present[r]] = 0
            for i in range(U64(n)):
                count[fine[f, rows[s + i]]] += 1
        A = I64(totals[node, 1])
        w = I64(0)
        a = I64(0)
        left = I64(0)
        for r in range(m - 1):
            c = present[r]
            w += weight[c]
            a += total[c] if top == 1 else weight[c] - total[c]
            if counted:
                left += count[c]
                if left < rules.min_leaf or n - left < rules.min_leaf:
                    continue
            if w < rules.min_weight or W - w < rules.min_weight:
                continue
            if _may_reach(a, w, A, W, best, rules):
                score = _score(a, w, A, W, rules)
                if score > best or (score == best and cut < 0):
                    best = score
                    cut = I64(r)
    for r in range(m):
        weight[present[r]] = 0
    return best, cut
