"""How far the split of a large node is ahead of every other partition: see `forgetting` for the arguments.

The best rivals are kept with what is on their left, so that their scores stay known to the bit while rows go. Of
classes, all other cuts of a column are in groups that stand next to each other, each below a bound of its own; the rest
is below one bound.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from woodlot.trees.kernels._jit import kernel
from woodlot.trees.kernels.forgetting import ENTROPY, ERROR, add_label, scores_of
from woodlot.trees.kernels.hashing import BUCKET_SIZE, nth_place, place
from woodlot.trees.kernels.targets import sort_column
from woodlot.trees.kernels.wide import fixed_xlogx

I64: Any = np.int64
U64: Any = np.uint64
F64: Any = np.float64
LOWEST = -1e300
"""A score that every split exceeds."""


@kernel
def two_numbers(a: Any, w: Any, A: Any, W: Any, criterion: Any, scale: Any) -> Any:
    """Score of a split by two numbers on its left: weight, and that of class 1 or the sum of targets."""
    b = w - a
    wr = W - w
    ar = A - a
    br = wr - ar
    if criterion == ERROR:
        return F64(a) * F64(a) / F64(w) + F64(ar) * F64(ar) / F64(wr)
    if criterion == ENTROPY:
        sl = fixed_xlogx(a, scale) + fixed_xlogx(b, scale) - fixed_xlogx(w, scale)
        return F64(sl + fixed_xlogx(ar, scale) + fixed_xlogx(br, scale) - fixed_xlogx(wr, scale))
    return F64(a * a + b * b) / F64(w) + F64(ar * ar + br * br) / F64(wr)


@kernel
def _best_set(
    weight: Any, amount: Any, m: Any, a: Any, w: Any, A: Any, W: Any, skip: Any, skip2: Any, criterion: Any, scale: Any
) -> Any:
    """The best score of any set of categories that goes left, with (a, w) there already.

    ``weight`` and ``amount`` are in the order of their means. Scores are convex in what is on the left, so the best set
    is the first ones or the last ones in this order. Two categories may be left out, being on their side already.
    """
    best = -np.inf
    for backwards in range(2):
        left, heavy = a, w
        if backwards == 0 and 0 < heavy < W:
            best = max(best, two_numbers(left, heavy, A, W, criterion, scale))
        for i in range(m):
            c = m - 1 - i if backwards else i
            if c in (skip, skip2):
                continue
            left += amount[c]
            heavy += weight[c]
            if 0 < heavy < W:
                best = max(best, two_numbers(left, heavy, A, W, criterion, scale))
    return best


@kernel
def best_categories(
    fine: Any, f: Any, rows: Any, s: Any, e: Any, middle: Any, weights: Any, labels: Any, n_codes: Any, totals: Any,
    is_split: Any, criterion: Any, scale: Any,
) -> Any:  # fmt: skip
    """No set of categories of a column scores more than this; at the column that splits the node, no other set.

    For two classes and for targets. Any other partition than that of the split has some category c on the other side
    than the split has it, when both have the first category on the same side. So the best of all sets is looked for
    once for each c, with both of them fixed.
    """
    weight = np.zeros(n_codes + 1, np.int64)
    amount = np.zeros(n_codes + 1, np.int64)
    side = np.zeros(n_codes + 1, np.int64)
    for i in range(s, e):
        c = I64(fine[f, rows[i]])
        w = I64(weights[i])
        weight[c] += w
        amount[c] += w * I64(labels[rows[i]])
        side[c] = i < middle
    present = np.flatnonzero(weight)
    m = len(present)
    if m < 2:
        return -np.inf
    mean = amount[present] / weight[present]
    order = present[np.argsort(mean)]
    ow, oa, os = weight[order], amount[order], side[order]
    A = I64(0)
    W = I64(0)
    for k in range(m):
        A += oa[k]
        W += ow[k]
    if not is_split:
        return _best_set(ow, oa, m, I64(0), I64(0), A, W, -1, -1, criterion, scale)
    best = -np.inf
    for c in range(1, m):
        a = oa[0] if os[0] else I64(0)
        w = ow[0] if os[0] else I64(0)
        if not os[c]:
            a += oa[c]
            w += ow[c]
        best = max(best, _best_set(ow, oa, m, a, w, A, W, 0, c, criterion, scale))
    return best


@kernel
def _challenge(
    slots: Any, q: Any, scores: Any, score: Any, f: Any, cut: Any, missing_left: Any, left: Any, group: Any
) -> Any:
    """Keep a partition among the best that are known; returns score and group of the one that is not kept."""
    n = slots.n_rivals[q]
    most = slots.rival.shape[1]
    at = n
    out = -np.inf
    out_of = group
    if n == most:
        if score <= scores[most]:  # the place of the lowest, and its score, stand behind the others
            return score, group
        at = I64(scores[most + 1])
        out = scores[at]
        out_of = I64(slots.rival[q, at, 3])
    else:
        slots.n_rivals[q] = n + 1
    scores[at] = score
    slots.rival[q, at, 0] = f
    slots.rival[q, at, 1] = cut
    slots.rival[q, at, 2] = missing_left
    slots.rival[q, at, 3] = group
    for k in range(len(left)):
        slots.rival_left[q, at, k] = left[k]
    if slots.n_rivals[q] == most:
        lowest = 0
        for j in range(1, most):
            if scores[j] < scores[lowest]:
                lowest = j
        scores[most] = scores[lowest]
        scores[most + 1] = lowest
    return out, out_of


@kernel
def _begin_group(slots: Any, q: Any, group: Any, f: Any, missing_left: Any, cut: Any, left: Any) -> None:
    """Have a group begin with a cut."""
    slots.group_upper[q, group] = LOWEST
    slots.group[q, group, 0] = f
    slots.group[q, group, 1] = missing_left
    slots.group[q, group, 2] = cut
    for k in range(len(left)):
        slots.group_left[q, group, 0, k] = left[k]
    slots.n_groups[q] = group + 1


@kernel
def _end_group(slots: Any, q: Any, group: Any, cut: Any, left: Any) -> None:
    """Have a group end with a cut."""
    slots.group[q, group, 3] = cut
    for k in range(len(left)):
        slots.group_left[q, group, 1, k] = left[k]


@kernel
def challenge_by_cuts(
    table: Any, f: Any, ordered: Any, rows: Any, s: Any, n: Any, weights: Any, labels: Any, min_leaf: Any,
    min_weight: Any, missing_left: Any, own_score: Any, criterion: Any, scale: Any, left: Any, found: Any, near: Any,
    slots: Any, q: Any, scores: Any, n_parts: Any,
) -> Any:  # fmt: skip
    """Let all cuts of a column of numbers challenge the split, with missing values on the right or on the left.

    ``ordered`` are the node's rows as keys ``code << 32 | position``, ascending. ``own_score`` is the split's where
    this is its column, and infinite otherwise: the first cut of this score is the split. ``n_parts``: among how many
    columns and sides of missing values the groups are divided. Returns the best score that
    is not kept and in no group, and the score that may still be the split's own. ``left`` (int64), ``found``, ``near``
    and ``scores`` (float64) are work space. First all scores are computed, then cuts are kept or put into groups.
    """
    in_column = slots.group.shape[1] // n_parts
    first_group = I64(slots.n_groups[q])
    shift = U64(32)
    n_codes = I64(table.n_codes[f])
    totals = slots.totals[q]
    first = n
    while first > 0 and I64(ordered[first - 1] >> shift) == n_codes:
        first -= 1
    n_missing = n - first
    if missing_left and (n_missing == 0 or n_missing == n):
        return -np.inf, own_score
    most = slots.rival.shape[1]
    upper = -np.inf
    lowest = -np.inf
    n_cuts = 0
    group = I64(-1)
    n_groups = 0
    next_group = 0
    for again in range(2):
        sl = I64(0)
        sr = I64(0)
        w = I64(0)
        W = I64(0)
        for k in range(len(totals)):
            left[k] = 0
            if criterion != ERROR:
                W += totals[k]
                sr += fixed_xlogx(totals[k], scale) if criterion == ENTROPY else totals[k] * totals[k]
        if criterion == ERROR:
            W = totals[0]
        m = 0
        for p in range(n - 1):
            # the p-th row in the order of this search
            key = ordered[(first + p if p < n_missing else p - n_missing) if missing_left else p]
            i = s + I64(key & U64(0xFFFFFFFF))
            d = I64(weights[i])
            label = I64(labels[rows[i]])
            if criterion == ERROR:
                left[0] += d
                left[1] += d * label
                w = left[0]
            else:
                lk = left[label]
                if not again:
                    rk = totals[label] - lk
                    if criterion == ENTROPY:
                        sl += fixed_xlogx(lk + d, scale) - fixed_xlogx(lk, scale)
                        sr += fixed_xlogx(rk - d, scale) - fixed_xlogx(rk, scale)
                    else:
                        sl += d * (2 * lk + d)
                        sr -= d * (2 * rk - d)
                left[label] = lk + d
                w += d
            if missing_left and p < n_missing:  # a cut lies between two values
                continue
            follower = ordered[(first + p + 1 if p + 1 < n_missing else p + 1 - n_missing) if missing_left else p + 1]
            if key >> shift == follower >> shift:
                continue
            # what is too small stays so
            if p + 1 < min_leaf or n - p - 1 < min_leaf or w < min_weight or W - w < min_weight:
                continue
            if again:
                score = found[m]
                cut = I64(key >> shift)
                if m == next_group and n_groups > 0:  # cut m is in group m * n_groups // n_cuts of the column
                    group += 1
                    _begin_group(slots, q, group, f, missing_left, cut, left)
                    next_group = ((group - first_group + 1) * n_cuts + n_groups - 1) // n_groups
                m += 1
                if m == next_group and n_groups > 0:
                    _end_group(slots, q, group, cut, left)
                if score == own_score:
                    own_score = np.inf
                    continue
                out_of = group
                if score >= lowest:
                    score, out_of = _challenge(slots, q, scores, score, f, cut, missing_left, left, group)
                if out_of >= 0:
                    slots.group_upper[q, out_of] = max(slots.group_upper[q, out_of], score)
                else:
                    upper = max(upper, score)
                continue
            if criterion == ERROR:
                t, r = F64(left[1]), F64(totals[1] - left[1])
                found[m] = t * t / F64(w) + r * r / F64(W - w)
            elif criterion == ENTROPY:
                found[m] = F64(sl - fixed_xlogx(w, scale) + sr - fixed_xlogx(W - w, scale))
            else:
                found[m] = F64(sl) / F64(w) + F64(sr) / F64(W - w)
            m += 1
        if not again:
            best = -np.inf
            for c in range(m):
                best = max(best, found[c])
            n_cuts = m
            full = slots.n_rivals[q] == most
            if full and best <= scores[most] and own_score == np.inf and in_column == 0:
                return best, own_score
            n_groups = min(in_column, m)
            group = first_group - 1
            if full:
                lowest = scores[most]
            # only as many as are kept come near the lowest that is kept
            n_near = 0
            for c in range(m):
                if found[c] >= lowest:
                    near[n_near] = found[c]
                    n_near += 1
            if n_near > most:
                lowest = max(lowest, np.partition(near[:n_near], n_near - most)[n_near - most])
    return upper, own_score


@kernel
def _corner(a: Any, w: Any, A: Any, W: Any, whole: Any, criterion: Any, scale: Any) -> Any:
    """Score of a corner of two classes; one with nothing on a side scores as the node left whole."""
    return two_numbers(a, w, A, W, criterion, scale) if 0 < w < W else whole


@kernel
def group_by_histogram(
    columns: Any, f: Any, rows: Any, s: Any, e: Any, weights: Any, labels: Any, whole: Any, far_below: Any,
    criterion: Any, scale: Any, hist: Any, slots: Any, q: Any, n_parts: Any,
) -> Any:  # fmt: skip
    """Two classes: bound the cuts of a column of numbers without sorting it; False where one may reach ``far_below``.

    Inside a group of codes the score is largest at a corner of the parallelogram between "all of class 1 first" and
    "all of class 0 first", as in `two_classes.two_by_groups`. The record's groups are made of groups of codes.
    """
    in_column = I64(slots.group.shape[1] // n_parts)
    n = I64(columns.n_coarse[f])
    n_groups = min(in_column, n)
    if n_groups == 0:
        return False
    for b in range(n):
        hist[b] = 0
    for i in range(s, e):
        row = rows[i]
        hist[columns.coarse[f, row]] += I64(weights[i]) * (1 | (I64(labels[row]) << 32))
    W = slots.totals[q, 0] + slots.totals[q, 1]
    A = slots.totals[q, 1]
    w = I64(0)
    a = I64(0)
    new = I64(slots.n_groups[q])
    for g in range(n_groups):
        # from the cut before the group, which is -1 in front of all codes, to the cut behind it
        first = g * n // n_groups
        upper = _corner(a, w, A, W, whole, criterion, scale)
        slots.group[q, new + g, 0] = f
        slots.group[q, new + g, 1] = 0
        slots.group[q, new + g, 2] = columns.last_fine[f, first - 1] if first > 0 else -1
        slots.group_left[q, new + g, 0, 0] = w - a
        slots.group_left[q, new + g, 0, 1] = a
        last = (g + 1) * n // n_groups
        for b in range(first, last):
            hw = hist[b] & 0xFFFFFFFF
            if hw == 0:
                continue
            ha = hist[b] >> 32
            if columns.refine[f]:
                upper = max(upper, _corner(a + ha, w + ha, A, W, whole, criterion, scale))
                upper = max(upper, _corner(a, w + hw - ha, A, W, whole, criterion, scale))
            w += hw
            a += ha
            upper = max(upper, _corner(a, w, A, W, whole, criterion, scale))
        if upper >= far_below:
            return False
        slots.group[q, new + g, 3] = columns.last_fine[f, last - 1]
        slots.group_left[q, new + g, 1, 0] = w - a
        slots.group_left[q, new + g, 1, 1] = a
        slots.group_upper[q, new + g] = upper + (12.0 if criterion == ENTROPY else 0.0)
    slots.n_groups[q] = new + n_groups
    return True


@kernel
def measure(
    table: Any,
    columns: Any,
    feature_keys: Any,
    n_candidates: Any,
    rows: Any,
    weights: Any,
    labels: Any,
    min_leaf: Any,
    min_weight: Any,
    criterion: Any,
    scale: Any,
    start: Any,
    middle: Any,
    end: Any,
    select_key: Any,
    feature: Any,
    at: Any,
    slots: Any,
    keys: Any,
    spare: Any,
    count: Any,
    found: Any,
    far: Any,
) -> None:
    """Make the records of large nodes whose best split is known, but for the codes next to the cut.

    ``rows`` are partitioned: those of a node that go left stand first, up to ``middle``. ``at`` are their slots. Of two
    classes, a column of which no cut can come nearer to the split than ``far`` is bounded without sorting it.
    ``columns`` are the table's (`search.Columns`).
    """
    p = len(feature_keys)
    places = np.empty(p, np.uint64)
    members = np.empty(p, np.uint64)
    work = np.empty(BUCKET_SIZE, np.int32)
    n_sums = slots.totals.shape[1]
    left = np.zeros(n_sums, np.int64)
    scores = np.empty(slots.rival.shape[1] + 2, np.float64)
    near = np.empty(len(found), np.float64)
    hist = np.empty(257, np.int64)
    two = criterion != ERROR and n_sums == 2
    n_parts = min(n_candidates, p)
    for f in range(p):
        if columns.has_missing[f]:
            n_parts = 2 * min(n_candidates, p)
            break
    for k in range(len(start)):
        q = at[k]
        s, e = start[k], end[k]
        slots.n_rivals[q] = 0
        slots.n_groups[q] = 0
        for j in range(n_sums):
            slots.totals[q, j] = 0
            slots.left[q, j] = 0
        slots.least[q] = I64(labels[rows[s]])
        slots.most[q] = slots.least[q]
        for i in range(s, e):
            label = labels[rows[i]]
            add_label(slots.totals, q, label, I64(weights[i]), criterion)
            if i < middle[k]:
                add_label(slots.left, q, label, I64(weights[i]), criterion)
            slots.least[q] = min(slots.least[q], I64(label))
            slots.most[q] = max(slots.most[q], I64(label))
        totals = slots.totals[q]
        score, whole = scores_of(totals, slots.left[q], criterion, scale)
        for f in range(p):
            places[f] = place(select_key[k], feature_keys[f])
        limit = U64(0xFFFFFFFFFFFFFFFF) if n_candidates >= p else nth_place(places, n_candidates, work, members)
        upper = -np.inf
        if places[feature[k]] > limit:  # no candidate could split the node, which a lost row may change
            upper = np.inf
        for f in range(p):
            if places[f] > limit or upper == np.inf:
                continue
            is_own = f == feature[k]
            if table.categorical[f]:
                if criterion != ERROR and n_sums > 2:
                    upper = np.inf
                    continue
                n_codes = I64(table.n_codes[f])
                best = best_categories(
                    table.fine, f, rows, s, e, middle[k], weights, labels, n_codes, totals, is_own, criterion, scale
                )
                upper = max(upper, best)
                continue
            if (
                two
                and not is_own
                and not columns.has_missing[f]
                and group_by_histogram(
                    columns,
                    f,
                    rows,
                    s,
                    e,
                    weights,
                    labels,
                    whole,
                    score - far,
                    criterion,
                    scale,
                    hist,
                    slots,
                    q,
                    n_parts,
                )
            ):
                continue
            own = score if is_own else np.inf
            where = sort_column(table.fine, f, rows[s:e], 0, e - s, U64(32), keys, spare, count)
            if where == 0:
                continue
            ordered = keys if where == 1 else spare
            for missing_left in range(2 if columns.has_missing[f] else 1):
                rest, own = challenge_by_cuts(
                    table, f, ordered, rows, s, e - s, weights, labels, min_leaf, min_weight, missing_left, own,
                    criterion, scale, left, found, near, slots, q, scores, n_parts,
                )  # fmt: skip
                upper = max(upper, rest)
        if criterion == ERROR and upper < np.inf:
            upper -= F64(totals[1]) * F64(totals[1]) / F64(totals[0])
        slots.upper[q] = upper
