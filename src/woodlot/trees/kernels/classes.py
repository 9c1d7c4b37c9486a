"""Split search for classification with at most 256 classes and weights up to 255: the payload fits into the keys.

Payload of a row: ``class << 8 | weight``. Key: ``code << 16 | payload``. Gini scores are sums of squares per child
divided by its weight; entropy scores are sums from a table of fixed-point x*log2(x): integers both, to the last step.

Indices into rows and payload are unsigned: a signed one is tested for counting from the end each time it is used.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from woodlot.trees.kernels._jit import kernel
from woodlot.trees.kernels.search import COARSE_FROM, RANKED, SMALL, offer, order_categories
from woodlot.trees.kernels.sorting import sort_keys

I64: Any = np.int64
U64: Any = np.uint64
F64: Any = np.float64
SHIFT = U64(16)
SLACK = 1.0 - 1e-12
"""The tests without division may only err on the side of computing a score for nothing."""
GROUP_WORK = 32
"""Many classes: what a code costs in a histogram, besides 1 per class; ..."""
ROW_BY_SORTING = 56
"""... and what each row costs more when the rows are sorted instead: roughly, from timings with 26 classes."""


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
    """Gather the payload of a chunk of nodes, and each node's class weights, weight, sum and unsplit score."""
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
def _score2(a: Any, w: Any, A: Any, W: Any, rules: Any) -> Any:
    b = w - a
    wr = W - w
    ar = A - a
    br = wr - ar
    if rules.entropy:
        x = rules.xlogx
        return F64(x[a] + x[b] - x[w] + x[ar] + x[br] - x[wr])
    return F64(a * a + b * b) / F64(w) + F64(ar * ar + br * br) / F64(wr)


@kernel
def _may_reach2(a: Any, w: Any, A: Any, W: Any, best: Any, rules: Any) -> Any:
    """Could the score reach ``best``? Never false when it does; without division for gini."""
    if rules.entropy:
        return _score2(a, w, A, W, rules) >= best
    b = w - a
    wr = W - w
    ar = A - a
    br = wr - ar
    fw = F64(w)
    fr = F64(wr)
    return F64(a * a + b * b) * fr + F64(ar * ar + br * br) * fw >= best * (fw * fr) * SLACK


@kernel
def _scan2(
    keys: Any, m: Any, a: Any, w: Any, c: Any, A: Any, W: Any, n: Any, best: Any, strict: Any, rules: Any
) -> Any:
    """Two classes: all cuts between the sorted keys, starting with (a, w, c) already on the left."""
    cut = I64(-1)
    key = U64(keys[0])
    for i in range(m - 1):
        follower = U64(keys[i + 1])
        d = I64(key & U64(0xFF))
        w += d
        a += d * I64((key >> U64(8)) & U64(1))
        if (key ^ follower) > U64(0xFFFF) and _may_reach2(a, w, A, W, best, rules):
            left = c + i + 1
            if (
                left >= rules.min_leaf
                and n - left >= rules.min_leaf
                and w >= rules.min_weight
                and W - w >= rules.min_weight
            ):
                score = _score2(a, w, A, W, rules)
                if score > best or (score == best and cut < 0 and not strict):
                    best = score
                    cut = I64(key >> SHIFT)
        key = follower
    return best, cut


@kernel
def _scan_k(
    keys: Any,
    m: Any,
    w: Any,
    c: Any,
    sl: Any,
    sr: Any,
    totals: Any,
    node: Any,
    W: Any,
    n: Any,
    best: Any,
    strict: Any,
    rules: Any,
    left_of: Any,
) -> Any:
    """Many classes: the sums over classes are updated with each row, whatever the number of classes."""
    cut = I64(-1)
    key = U64(keys[0])
    for i in range(m - 1):
        follower = U64(keys[i + 1])
        d = I64(key & U64(0xFF))
        k = I64((key >> U64(8)) & U64(0xFF))
        lk = I64(left_of[k])
        rk = I64(totals[node, k]) - lk
        if rules.entropy:
            x = rules.xlogx
            sl += x[lk + d] - x[lk]
            sr += x[rk - d] - x[rk]
        else:
            sl += d * (2 * lk + d)
            sr -= d * (2 * rk - d)
        left_of[k] = lk + d
        w += d
        if (key ^ follower) > U64(0xFFFF):
            left = c + i + 1
            if (
                left >= rules.min_leaf
                and n - left >= rules.min_leaf
                and w >= rules.min_weight
                and W - w >= rules.min_weight
            ):
                if rules.entropy:
                    score = F64(sl - rules.xlogx[w] + sr - rules.xlogx[W - w])
                else:
                    fw = F64(w)
                    fr = F64(W - w)
                    if F64(sl) * fr + F64(sr) * fw < best * (fw * fr) * SLACK:
                        key = follower
                        continue
                    score = F64(sl) / fw + F64(sr) / fr
                if score > best or (score == best and cut < 0 and not strict):
                    best = score
                    cut = I64(key >> SHIFT)
        key = follower
    return best, cut


@kernel
def rank_categories(
    fine: Any, f: Any, rows: Any, s: Any, payload: Any, o: Any, n: Any, totals: Any, node: Any, categories: Any
) -> int:
    """Order the node's categories by the share of its largest class."""
    s, o = U64(s), U64(o)
    # of equally large classes the one that comes first among the rows: it does not depend on the classes' codes
    top = I64(payload[o] >> 8)
    for i in range(U64(n)):
        if totals[node, payload[o + i] >> 8] > totals[node, top]:
            top = I64(payload[o + i] >> 8)
    m = 0
    for i in range(U64(n)):
        c = I64(fine[f, rows[s + i]])
        p = I64(payload[o + i])
        d = p & 0xFF
        if categories.weight[c] == 0:
            categories.present[m] = c
            m += 1
            categories.total[c] = 0
        categories.weight[c] += d
        if (p >> 8) == top:
            categories.total[c] += d
    order_categories(m, categories)
    return m


@kernel
def _sort_codes(
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
def _sort_categories(
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
    """As ``_sort_codes``, by the rank of each category in this node."""
    m = rank_categories(fine, f, rows, s, payload, o, n, totals, node, categories)
    if m < 2:
        return 0
    for i in range(U64(n)):
        sorting.keys[i] = (U64(categories.rank[fine[f, rows[s + i]]]) << SHIFT) | U64(payload[o + i])
    return 2 if sort_keys(sorting.keys, sorting.spare, sorting.count, n, SHIFT, I64(0), I64(m - 1)) else 1


@kernel
def _sort_present(
    fine: Any, f: Any, missing: Any, rows: Any, s: Any, payload: Any, o: Any, n: Any, sorting: Any, left_of: Any
) -> Any:
    """Sort the rows of a node whose value is not missing, and put the others' class weights into ``left_of``.

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


@kernel
def _scan_after_missing(
    keys: Any,
    m: Any,
    totals: Any,
    node: Any,
    W: Any,
    square: Any,
    n: Any,
    best: Any,
    strict: Any,
    rules: Any,
    left_of: Any,
) -> Any:
    """Many classes: scan with the missing rows, whose class weights are in ``left_of``, on the left from the start."""
    w = I64(0)
    sl = I64(0)
    sr = I64(square)
    for k in range(totals.shape[1]):
        lk = I64(left_of[k])
        t = I64(totals[node, k])
        w += lk
        if rules.entropy:
            sl += rules.xlogx[lk]
            sr += rules.xlogx[t - lk] - rules.xlogx[t]
        else:
            sl += lk * lk
            sr += (t - lk) * (t - lk) - t * t
    return _scan_k(keys, m, w, I64(n - m), sl, sr, totals, node, W, n, best, strict, rules, left_of)


@kernel
def _many_by_groups(
    coarse: Any,
    f: Any,
    last_fine: Any,
    n_groups: Any,
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
    rules: Any,
    hist: Any,
    sizes: Any,
    left_of: Any,
) -> Any:
    """Many classes and few codes: a histogram of classes per code, summed up from code to code.

    With l of a class on the left and t in all, the squares on the right are those of t - l: the sums of l*l and of t*l
    give both sides, by a loop over classes without branches, which the processor runs many classes at a time.
    """
    K = totals.shape[1]
    for b in range(n_groups * K):
        hist[b] = 0
    for g in range(n_groups):
        sizes[g] = 0
    for i in range(U64(n)):
        g = coarse[f, rows[s + i]]
        p = payload[o + i]
        d = p & 0xFF
        hist[U64(g) * U64(K) + U64(p >> 8)] += np.int32(d)
        sizes[g] += I64(d) | (I64(1) << 32)
    cut = I64(-1)
    w = I64(0)
    left = I64(0)
    for k in range(K):
        left_of[k] = 0
    for g in range(n_groups - 1):
        w += sizes[g] & 0xFFFFFFFF
        left += sizes[g] >> 32
        if sizes[g] == 0 or left == n:  # no cut behind a code without rows, nor behind the last row
            continue
        row = U64(g * K)
        for k in range(K):
            left_of[k] += hist[row + U64(k)]
        sl = I64(0)
        sr = I64(0)
        if rules.entropy:
            for k in range(K):
                sl += rules.xlogx[left_of[k]]
                sr += rules.xlogx[totals[node, k] - left_of[k]]
        else:
            cross = I64(0)
            for k in range(K):
                sl += I64(left_of[k]) * I64(left_of[k])
                cross += I64(left_of[k]) * I64(totals[node, k])
            sr = square - 2 * cross + sl
        if (
            left >= rules.min_leaf
            and n - left >= rules.min_leaf
            and w >= rules.min_weight
            and W - w >= rules.min_weight
        ):
            if rules.entropy:
                score = F64(sl - rules.xlogx[w] + sr - rules.xlogx[W - w])
            else:
                fw = F64(w)
                fr = F64(W - w)
                if F64(sl) * fr + F64(sr) * fw < best * (fw * fr) * SLACK:
                    continue
                score = F64(sl) / fw + F64(sr) / fr
            if score > best or (score == best and cut < 0):
                best = score
                cut = I64(last_fine[f, g])
    return best, cut


@kernel
def _two_by_groups(
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

    The score is convex in (weight, weight of class 1) on the left, so inside a group it is largest at a corner of the
    box between "all of class 1 first" and "all of class 0 first". Groups whose corners stay below the best are never
    sorted, and the answer still is the best of all cuts.
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
        if _may_reach2(a, w, A, W, best, rules):
            score = _score2(a, w, A, W, rules)
            if score > best or (score == best and cut < 0):
                best = score
                cut = I64(last_fine[f, g])
    if refine == 0:
        return best, cut

    # with nothing on one side the score is the parent's own, the least of all
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
                    promising = promising or _may_reach2(ca, cw, A, W, best, rules)
            if promising:
                groups.flag[g] = 1
                inside += hw
        w += hw
        a += ha
    if inside == 0:
        return best, cut
    m = I64(0)
    for i in range(U64(n)):
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
        if follower != c and follower <= end and _may_reach2(a, w, A, W, best, rules):
            if counted and (left < rules.min_leaf or n - left < rules.min_leaf):
                continue
            if w < rules.min_weight or W - w < rules.min_weight:
                continue
            score = _score2(a, w, A, W, rules)
            if score > best or (score == best and (cut < 0 or c < cut)):
                best = score
                cut = c
    return best, cut


@kernel
def search_classes(
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
    sorting: Any,
    rank: Any,
    left_of: Any,
    groups: Any,
    hist_class: Any,
    hist_count: Any,
    categories: Any,
    has_missing: Any,
    best: Any,
    best_feature: Any,
    best_place: Any,
    best_cut: Any,
    best_missing: Any,
) -> None:
    """Search every pair; the best of each node is kept.

    What the table does not need is None, and its code is then not even compiled: ``groups`` serves two classes,
    ``hist_class`` more than two, ``categories`` categorical columns, ``has_missing`` columns with missing values.
    """
    K = totals.shape[1]
    # taken out of their tuples once: inside the loop each would be counted as one more reference, and let go again
    keys, spare, count = sorting.keys, sorting.spare, sorting.count
    fine, coarse, last_fine, n_coarse = columns.fine, columns.coarse, columns.last_fine, columns.n_coarse
    refine, n_codes, categorical = columns.refine, columns.n_codes, columns.categorical
    # a logarithm per class must be looked up one by one, squares are computed many at a time
    group_work = GROUP_WORK + (5 * K if rules.entropy else K)
    for q in range(n_pairs):
        node = pair_node[q]
        f = pair_feature[q]
        s = U64(start[node])
        n = end[node] - start[node]
        o = U64(first[node])
        W = weight[node]
        sq = square[node]
        b = best[node]
        perfect = 0.0 if rules.entropy else F64(W)
        if b >= perfect and best_place[node] < pair_place[q]:
            continue
        plain = categorical[f] == 0
        n_groups = n_coarse[f]
        score = b
        cut = I64(-1)
        searched = False
        if groups is not None:
            if plain and n > SMALL and (n > COARSE_FROM or (refine[f] == 0 and n > 2 * n_groups)):
                searched = True
                A = I64(totals[node, 1])
                score, cut = _two_by_groups(
                    coarse,
                    fine,
                    f,
                    last_fine,
                    n_groups,
                    refine[f],
                    rows,
                    s,
                    payload,
                    o,
                    n,
                    A,
                    W,
                    sq,
                    b,
                    rules,
                    sorting,
                    groups,
                )
        if hist_class is not None:
            if plain and n > SMALL and refine[f] == 0 and n * ROW_BY_SORTING > n_groups * group_work:
                searched = True
                score, cut = _many_by_groups(
                    coarse,
                    f,
                    last_fine,
                    n_groups,
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
                    rules,
                    hist_class,
                    hist_count,
                    left_of,
                )
        if not searched:
            where = 0
            if plain and (n <= SMALL or (n <= RANKED and n_codes[f] > RANKED)):
                for i in range(U64(n)):
                    spare[i] = (U64(fine[f, rows[s + i]]) << SHIFT) | U64(payload[o + i])
                for i in range(U64(n)):
                    key = U64(spare[i])
                    smaller = 0
                    for j in range(i):
                        larger = I64(U64(spare[j]) > key)
                        rank[j] += larger
                        smaller += 1 - larger
                    rank[i] = smaller
                for i in range(U64(n)):
                    keys[U64(rank[i])] = spare[i]
                if (U64(keys[0]) ^ U64(keys[n - 1])) > U64(0xFFFF):
                    where = 1
            elif plain:
                where = _sort_codes(fine, f, rows, s, payload, o, n, keys, spare, count)
            if categories is not None:
                if not plain:
                    where = _sort_categories(fine, f, rows, s, payload, o, n, totals, node, sorting, categories)
            if where > 0:
                ordered = keys if where == 1 else spare
                if groups is not None:
                    A = I64(totals[node, 1])
                    score, cut = _scan2(ordered, n, I64(0), I64(0), I64(0), A, W, n, b, False, rules)
                if hist_class is not None:
                    if n < K:
                        for i in range(U64(n)):
                            left_of[payload[o + i] >> 8] = 0
                    else:
                        for k in range(K):
                            left_of[k] = 0
                    score, cut = _scan_k(
                        ordered, n, I64(0), I64(0), I64(0), sq, totals, node, W, n, b, False, rules, left_of
                    )
        to_left = np.uint8(0)
        if has_missing is not None:
            if plain and has_missing[f]:
                m, in_spare = _sort_present(fine, f, I64(n_codes[f]), rows, s, payload, o, n, sorting, left_of)
                if m > 0:
                    ordered = spare if in_spare else keys
                    reached = max(b, score)
                    strict = cut >= 0
                    cut2 = I64(-1)
                    score2 = reached
                    if groups is not None:
                        a = left_of[1]
                        w = left_of[0] + left_of[1]
                        A = I64(totals[node, 1])
                        score2, cut2 = _scan2(ordered, m, a, w, n - m, A, W, n, reached, strict, rules)
                    if hist_class is not None:
                        score2, cut2 = _scan_after_missing(
                            ordered, m, totals, node, W, sq, n, reached, strict, rules, left_of
                        )
                    if cut2 >= 0:
                        score = score2
                        cut = cut2
                        to_left = np.uint8(1)
        offer(node, f, pair_place[q], score, cut, to_left, best, best_feature, best_place, best_cut, best_missing)
