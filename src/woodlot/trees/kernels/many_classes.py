"""The best split of a node for more than two classes: the sums over classes on both sides are carried along.

The keys are those of `class_keys`. With l of a class on the left, r on the right and a row of weight d that moves to
the left, the sums of squares change by ``(l + d)**2 - l**2 = d * (2 * l + d)`` and
``(r - d)**2 - r**2 = -d * (2 * r - d)``: whole numbers, and constant time per row for any number of classes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from woodlot.trees.kernels._jit import kernel
from woodlot.trees.kernels.class_keys import SHIFT
from woodlot.trees.kernels.search import SLACK

I64: Any = np.int64
U64: Any = np.uint64
F64: Any = np.float64


@kernel
def scan_many(
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
    """Many classes: all cuts between the sorted keys, with sums over classes that are updated row by row.

    ``w``, ``c``, ``sl``, ``sr`` and ``left_of`` are the weight, the rows, the sums on both sides and the class weights
    that are on the left before the first key. ``left_of`` is work space, changed by the call.
    """
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
def scan_many_after_missing(
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
    return scan_many(keys, m, w, I64(n - m), sl, sr, totals, node, W, n, best, strict, rules, left_of)


@kernel
def many_by_groups(
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

    Only where each group is one code (``refine`` 0). ``hist[group * K + class]`` (int32) are class weights; ``sizes``
    packs the weight and the rows of a group, ``weight | rows << 32``. With l of a class on the left and t in all, the
    squares on the right are those of t - l: the sums of l*l and of t*l give both sides, by a loop over classes without
    branches, which the processor runs many classes at a time.
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
