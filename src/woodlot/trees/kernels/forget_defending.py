"""Whether splits of two classes by numbers still win once rows are gone, where nothing is remembered of the node.

A search looks for the best split. Here the split that won before is known, and the question is only whether any other
partition reaches its score. A histogram of each candidate answers that for nearly all cuts: the score is convex in
(weight, weight of class 1) on the left, so inside a bucket it is largest at a corner of the parallelogram between "all
of class 1 first" and "all of class 0 first", as in `two_classes.two_by_groups`. Only the rows of buckets whose corners
reach the split are sorted. See `forgetting` for the arguments.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from woodlot.trees.kernels._jit import kernel
from woodlot.trees.kernels.forget_judging import SEARCH, STANDS
from woodlot.trees.kernels.forget_measuring import two_numbers
from woodlot.trees.kernels.forgetting import ENTROPY
from woodlot.trees.kernels.hashing import BUCKET_SIZE, nth_place, place
from woodlot.trees.kernels.sorting import sort_keys
from woodlot.trees.kernels.wide import fixed_xlogx

I64: Any = np.int64
U64: Any = np.uint64
F64: Any = np.float64
MOST_BUCKETS = 256
ROWS_IN_BUCKET = 8
"""Groups of codes are joined to larger ones until there are about so many rows in each."""
SLACK = 1.0 - 1e-12
"""Of what a bucket may reach: in vain costs a sort, in error would lose a split."""


@kernel
def _may_reach(a: Any, w: Any, A: Any, W: Any, own: Any, criterion: Any, scale: Any) -> Any:
    """Whether a cut or a corner may score as much as the split; one with nothing on a side cannot."""
    if w == 0 or w == W:
        return False
    if criterion == ENTROPY:  # every number of the fixed point is rounded
        return two_numbers(a, w, A, W, criterion, scale) + 12.0 >= own
    b = w - a
    wr = W - w
    ar = A - a
    br = wr - ar
    fw = F64(w)
    fr = F64(wr)
    return F64(a * a + b * b) * fr + F64(ar * ar + br * br) * fw >= own * (fw * fr) * SLACK


@kernel
def _is_beaten(
    table: Any, coarse: Any, refine: Any, f: Any, n_groups: Any, live: Any, packed: Any, n: Any, A: Any, W: Any,
    own: Any, own_weight: Any, criterion: Any, scale: Any, hist: Any, before: Any, flag: Any, bucket_of: Any,
    keys: Any, spare: Any, count: Any,
) -> Any:  # fmt: skip
    """Whether a cut of a column scores as much as the split, or more.

    ``own_weight`` is what the split has on its left where this is its column: the cut of that weight is the split.
    ``packed`` are the rows' weights and those of class 1 (``w | a << 32``).
    """
    shift = U64(0)
    while n_groups >> I64(shift) > 16 and (n_groups >> I64(shift)) * ROWS_IN_BUCKET > n:
        shift += U64(1)
    buckets = ((n_groups - 1) >> I64(shift)) + 1
    for b in range(buckets):
        hist[b] = 0
    for i in range(U64(n)):
        b = U64(coarse[f, live[i]]) >> shift
        bucket_of[i] = b
        hist[b] += packed[i]
    exact = refine == 0 and shift == 0
    w = I64(0)
    a = I64(0)
    inside = False
    for b in range(buckets):
        h = hist[b]
        flag[b] = 0
        if h == 0:
            continue
        before[b] = w | (a << 32)
        hw = h & 0xFFFFFFFF
        ha = h >> 32
        if hw == W:  # all rows are in one bucket
            flag[b] = not exact
            inside = not exact
            break
        if not exact and hw > 1:
            # the other two corners are cuts between buckets: they are looked at, but for the split itself
            flag[b] = (
                w == own_weight
                or w + hw == own_weight
                or _may_reach(a + ha, w + ha, A, W, own, criterion, scale)
                or _may_reach(a, w + hw - ha, A, W, own, criterion, scale)
            )
            inside = inside or flag[b] == 1
        w += hw
        a += ha
        if (
            w != own_weight
            and _may_reach(a, w, A, W, own, criterion, scale)
            and two_numbers(a, w, A, W, criterion, scale) >= own
        ):
            return True
    if not inside:
        return False
    m = 0
    for i in range(U64(n)):
        # written always; the next row overwrites it unless its bucket is promising
        keys[m] = U64(i)
        m += I64(flag[bucket_of[i]])
    least = I64(1) << 40
    most = I64(-1)
    for k in range(m):
        i = keys[k]
        c = I64(table.fine[f, live[i]])
        least = min(least, c)
        most = max(most, c)
        keys[k] = (U64(c) << U64(32)) | i
    ordered = spare if sort_keys(keys, spare, count, m, U64(32), least, most) else keys
    at = -1
    follower = U64(ordered[0])
    for k in range(m - 1):
        key = follower
        follower = U64(ordered[k + 1])
        i = key & U64(0xFFFFFFFF)
        if I64(bucket_of[i]) != at:
            at = I64(bucket_of[i])
            w = before[at] & 0xFFFFFFFF
            a = before[at] >> 32
        w += packed[i] & 0xFFFFFFFF
        a += packed[i] >> 32
        if key >> U64(32) == follower >> U64(32) or w == own_weight:
            continue
        # the last cut of a bucket was looked at before
        if (
            _may_reach(a, w, A, W, own, criterion, scale)
            and I64(bucket_of[follower & U64(0xFFFFFFFF)]) == at
            and two_numbers(a, w, A, W, criterion, scale) >= own
        ):
            return True
    return False


@kernel
def defend(
    touched: Any, select_key: Any, trees: Any, table: Any, groups: Any, feature_keys: Any, n_candidates: Any,
    rows: Any, weights: Any, labels: Any, criterion: Any, scale: Any, min_split: Any, min_leaf: Any, min_weight: Any,
    largest: Any, status: Any,
) -> None:  # fmt: skip
    """Of the touched nodes that must be searched, those where the split beats all other partitions stand.

    ``status`` is that of `judge`, ``groups`` are the table's columns (`search.Columns`); ``largest`` is the most rows
    that a node has. A node is left to the search where a candidate has categories or missing values, and where another
    partition scores as much.
    """
    p = len(feature_keys)
    places = np.empty(p, np.uint64)
    members = np.empty(p, np.uint64)
    work = np.empty(BUCKET_SIZE, np.int32)
    hist = np.empty(MOST_BUCKETS + 1, np.int64)
    before = np.empty(MOST_BUCKETS + 1, np.int64)
    flag = np.empty(MOST_BUCKETS + 1, np.uint8)
    live = np.empty(largest, np.uint32)
    packed = np.empty(largest, np.int64)
    bucket_of = np.empty(largest, np.uint8)
    keys = np.empty(largest + 1, np.uint64)
    spare = np.empty(largest + 1, np.uint64)
    count = np.zeros(4096, np.int32)
    for k in range(len(touched)):
        node = touched[k]
        if status[k] != SEARCH or trees.jump[node] == 0:
            continue
        child = node + 1
        other = node + trees.jump[node]
        if trees.count[node] < min_split or min(trees.count[child], trees.count[other]) < min_leaf:
            continue
        own_feature = trees.feature[node]
        for f in range(p):
            places[f] = place(select_key[k], feature_keys[f])
        limit = U64(0xFFFFFFFFFFFFFFFF) if n_candidates >= p else nth_place(places, n_candidates, work, members)
        if places[own_feature] > limit:  # no candidate could split the node, which a lost row may change
            continue
        n = 0
        sums = I64(0)
        left = I64(0)
        middle = trees.start[other]
        for i in range(trees.start[node], trees.end[node]):
            if i == middle:
                left = sums
            if weights[i] > 0:
                live[n] = rows[i]
                both = I64(weights[i]) * (1 | (I64(labels[rows[i]]) << 32))
                packed[n] = both
                sums += both
                n += 1
        W = sums & 0xFFFFFFFF
        A = sums >> 32
        w = left & 0xFFFFFFFF
        a = left >> 32
        if A in (0, W) or w < max(min_weight, 1) or W - w < max(min_weight, 1):
            continue
        own = two_numbers(a, w, A, W, criterion, scale)
        if criterion == ENTROPY:
            whole = F64(fixed_xlogx(A, scale) + fixed_xlogx(W - A, scale) - fixed_xlogx(W, scale))
        else:
            whole = F64(A * A + (W - A) * (W - A)) / F64(W)
        stands = not whole >= own - (1.0 - SLACK) * abs(own) - (12.0 if criterion == ENTROPY else 0.0)
        for f in range(p):
            if places[f] > limit or not stands:
                continue
            if (
                table.categorical[f]
                or groups.has_missing[f]
                or _is_beaten(
                    table,
                    groups.coarse,
                    groups.refine[f],
                    f,
                    I64(groups.n_coarse[f]),
                    live,
                    packed,
                    n,
                    A,
                    W,
                    own,
                    w if f == own_feature else I64(-1),
                    criterion,
                    scale,
                    hist,
                    before,
                    flag,
                    bucket_of,
                    keys,
                    spare,
                    count,
                )
            ):
                stands = False
        if not stands:
            continue
        status[k] = STANDS
        trees.gain[node] = own - whole
        low = I64(-1)
        high = I64(1) << 40
        for i in range(n):
            c = I64(table.fine[own_feature, live[i]])
            if i < trees.count[child]:
                low = max(low, c)
            else:
                high = min(high, c)
        first = table.first_value[own_feature]
        trees.threshold[node] = F64(table.highest[first + low]) / 2 + F64(table.values[first + high]) / 2
        trees.missing_left[node] = trees.count[child] > trees.count[other]
