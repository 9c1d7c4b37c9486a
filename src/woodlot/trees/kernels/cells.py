"""Histograms of nodes whose rows lie at several holders: counted by each, added by all, searched in the sum.

The numbers of a node stand packed in 64-bit words, so that adding words adds all numbers in them at once. No number of
the sum needs more bits than the node's weight, which is known before the histograms are::

    node        | pair 0: a feature          | pair 1             |
    cells       | code 2 | code 3 | missing  | code 0 | code 1 .. |
    counts      each cell: weight of class a, of class b, ... [, rows]             ``width`` bits each
    sums        of targets, one for each cell, in words behind the counts          ``width + target_bits`` bits each

A number does not cross the end of a word: a word holds ``word_bits // width`` of them, lowest bits first. ``width``
bits hold the weight of the node over all holders, and no count is larger, so that no sum runs over into the next
number.

A cell is one code of a pair's feature. Codes that no row of the node can have, by the splits above it, have no cell
(`narrow_pairs`).

Scores are those of ``classes.py``, ``wide.py`` and ``targets.py``: functions of exact integers only. The naive twin is
``tests/trees/naive_splits.py``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from woodlot.trees.kernels._jit import kernel
from woodlot.trees.kernels.hashing import mix, place
from woodlot.trees.kernels.wide import fixed_xlogx

I64: Any = np.int64
U64: Any = np.uint64
F64: Any = np.float64


class Shape(NamedTuple):
    """Which numbers are asked of some nodes (see ``trees.cells.Cells``)."""

    width: Any
    """uint8 (nodes,): bits of a count."""
    class_start: Any
    """int64 (nodes + 1,): classes of a node are ``classes[class_start[node] : class_start[node + 1]]``."""
    classes: Any
    """int32: classes that occur; a regression has one."""
    pair_start: Any
    """int64 (nodes + 1,): pairs of a node, in its order of candidates; the next four arrays count by pair."""
    feature: Any
    """int32"""
    first: Any
    """int32: first code that has a cell."""
    codes: Any
    """int32: codes that have a cell, from there on."""
    missing: Any
    """uint8: 1 where a last cell is for missing values."""
    word_start: Any
    """int64 (nodes + 1,): words of a node."""
    with_rows: Any
    """int64: 1 where cells count rows beside weights."""
    target_bits: Any
    """int64: bits of a target; 0 for classes."""
    word_bits: Any
    """int64: bits of a word that are used."""


class Found(NamedTuple):
    """The best split of each node."""

    score: Any
    """float64 (nodes,)"""
    whole: Any
    """float64 (nodes,): score of the node without a split."""
    feature: Any
    """int32 (nodes,): -1 where no split is allowed."""
    low: Any
    """int64 (nodes,): largest code on the left, ..."""
    high: Any
    """int64 (nodes,): ... smallest code on the right; -1 where only missing values are on the right."""
    missing_left: Any
    """uint8 (nodes,)"""
    improves: Any
    """uint8 (nodes,): 0 where the mean target is the same on both sides."""
    left: Any
    """int64, beside ``Shape.classes``: weight of each class on the left."""
    left_rows: Any
    """int64 (nodes,)"""
    left_sum: Any
    """int64 (nodes,): sum of targets on the left."""
    total: Any
    """int64, beside ``Shape.classes``: weight of each class in the node."""
    rows: Any
    """int64 (nodes,)"""
    sums: Any
    """int64 (nodes,)"""
    goes_left: Any
    """uint8 (nodes, codes): for a split by categories, which codes go left."""


@kernel
def count_cells(
    codes: Any,
    missing_code: Any,
    labels: Any,
    targets: Any,
    rows: Any,
    weights: Any,
    start: Any,
    end: Any,
    shape: Any,
    n_classes: Any,
    words: Any,
) -> None:
    """Holder: add its rows of the nodes to ``words``; one without a place among the cells of a pair is left out there.

    ``codes`` (features, rows) and ``missing_code`` (features,) are the holder's table; ``words`` (uint64) comes as
    zeros. ``targets`` (int64) is None for classes; a regression has one class. ``position`` is the place of a class
    among those of the node, -1 for others, before and after each node.
    """
    position = np.full(n_classes, -1, np.int64)
    for node in range(len(start)):
        width = U64(shape.width[node])
        per_word = U64(shape.word_bits) // width
        base = U64(shape.word_start[node])
        c0 = shape.class_start[node]
        n_here = shape.class_start[node + 1] - c0
        for j in range(n_here):
            position[shape.classes[c0 + j]] = j
        per_cell = U64(n_here + shape.with_rows)
        n_cells = I64(0)
        for q in range(shape.pair_start[node], shape.pair_start[node + 1]):
            n_cells += I64(shape.codes[q]) + I64(shape.missing[q])
        sum_width = width + U64(shape.target_bits)
        sums_per_word = U64(shape.word_bits) // sum_width
        sum_base = base + (U64(n_cells) * per_cell + per_word - U64(1)) // per_word
        before = I64(0)
        for q in range(shape.pair_start[node], shape.pair_start[node + 1]):
            f = shape.feature[q]
            first = I64(shape.first[q])
            n_codes = I64(shape.codes[q])
            unknown = I64(missing_code[f])
            for i in range(start[node], end[node]):
                row = rows[i]
                code = I64(codes[f, row])
                cell = code - first
                if code == unknown:
                    cell = n_codes if shape.missing[q] else I64(-1)
                elif cell >= n_codes:
                    cell = I64(-1)
                at_class = position[labels[row]]
                if cell < 0 or at_class < 0:
                    continue
                at = U64(before + cell) * per_cell
                d = U64(weights[i])
                field = at + U64(at_class)
                words[base + field // per_word] += d << ((field % per_word) * width)
                if shape.with_rows:
                    field = at + U64(n_here)
                    words[base + field // per_word] += U64(1) << ((field % per_word) * width)
                if targets is not None:
                    field = U64(before + cell)
                    words[sum_base + field // sums_per_word] += (d * U64(targets[row])) << (
                        (field % sums_per_word) * sum_width
                    )
            before += n_codes + I64(shape.missing[q])
        for j in range(n_here):
            position[shape.classes[c0 + j]] = -1


@kernel
def _field(words: Any, base: Any, field: Any, width: Any, per_word: Any) -> Any:
    """One of the packed numbers."""
    word = U64(words[base + field // per_word])
    return I64((word >> ((field % per_word) * width)) & ((U64(1) << width) - U64(1)))


@kernel
def _unpack(
    words: Any, shape: Any, node: Any, before: Any, n_node_cells: Any, n_cells: Any, hist: Any, rows: Any, sums: Any
) -> None:
    """The numbers of one pair's cells: weights of the classes, rows, sums of targets."""
    width = U64(shape.width[node])
    per_word = U64(shape.word_bits) // width
    base = U64(shape.word_start[node])
    n_here = shape.class_start[node + 1] - shape.class_start[node]
    per_cell = U64(n_here + shape.with_rows)
    sum_width = width + U64(shape.target_bits)
    sums_per_word = U64(shape.word_bits) // sum_width
    sum_base = base + (U64(n_node_cells) * per_cell + per_word - U64(1)) // per_word
    for cell in range(n_cells):
        at = U64(before + cell) * per_cell
        w = I64(0)
        for j in range(n_here):
            hist[cell, j] = _field(words, base, at + U64(j), width, per_word)
            w += hist[cell, j]
        rows[cell] = _field(words, base, at + U64(n_here), width, per_word) if shape.with_rows else w
        sums[cell] = I64(0)
        if shape.target_bits > 0:
            sums[cell] = _field(words, sum_base, U64(before + cell), sum_width, sums_per_word)


@kernel
def _xlogx(x: Any, table: Any, scale: Any) -> Any:
    return table[x] if len(table) > 1 else fixed_xlogx(x, scale)


@kernel
def score_of_split(
    left: Any, total: Any, n: Any, w: Any, W: Any, s: Any, S: Any, kind: Any, table: Any, scale: Any
) -> Any:
    """Score of a split with ``left`` of ``total`` on the left; kind 0: gini, 1: entropy, 2: targets."""
    if kind == 2:
        a = F64(s)
        b = F64(S) - a
        return a * a / F64(w) + b * b / F64(W - w)
    sl = I64(0)
    sr = I64(0)
    if kind == 1:
        for j in range(n):
            sl += _xlogx(left[j], table, scale)
            sr += _xlogx(total[j] - left[j], table, scale)
        return F64(sl - _xlogx(w, table, scale) + sr - _xlogx(W - w, table, scale))
    for j in range(n):
        sl += left[j] * left[j]
        sr += (total[j] - left[j]) * (total[j] - left[j])
    return F64(sl) / F64(w) + F64(sr) / F64(W - w)


@kernel
def score_of_whole(total: Any, n: Any, W: Any, S: Any, kind: Any, table: Any, scale: Any) -> Any:
    """Score of a node left whole."""
    if kind == 2:
        return F64(S) * F64(S) / F64(W)
    sq = I64(0)
    for j in range(n):
        sq += _xlogx(total[j], table, scale) if kind == 1 else total[j] * total[j]
    return F64(sq - _xlogx(W, table, scale)) if kind == 1 else F64(sq) / F64(W)


@kernel
def order_cells(n_cells: Any, n: Any, hist: Any, sums: Any, total: Any, kind: Any, order: Any, mean: Any) -> Any:
    """Occupied cells of a column of categories by their mean: of targets, or of the largest class.

    Of equally large classes the first counts, and equal means stand in the order of their codes.
    """
    top = 0
    for j in range(n):
        if total[j] > total[top]:
            top = j
    m = 0
    for cell in range(n_cells):
        w = I64(0)
        for j in range(n):
            w += hist[cell, j]
        if w == 0:
            continue
        value = F64(sums[cell] if kind == 2 else hist[cell, top]) / F64(w)
        j = m
        while j > 0 and mean[j - 1] > value:
            mean[j] = mean[j - 1]
            order[j] = order[j - 1]
            j -= 1
        mean[j] = value
        order[j] = cell
        m += 1
    return m


@kernel
def search_cells(
    words: Any,
    shape: Any,
    categorical: Any,
    min_leaf: Any,
    kind: Any,
    first_wins: Any,
    table: Any,
    scale: Any,
    room: Any,
    found: Any,
) -> bool:
    """Coordinator: the best split of each node among its pairs, which stand in the node's order of candidates.

    Equal scores go to the earlier pair, then to the lower cut, then to missing values on the right. With ``first_wins``
    the first pair that can split the node has it. ``room`` is the most cells of a pair and the most classes of a node.
    A node without rows is not split. False where the pairs of a node do not add up to the same: every pair counts the
    same rows, so a holder has left some out or made some up. ``kind`` is that of `score_of_split`; ``table`` is
    x*log2(x) in fixed point, or one entry where it is computed with ``scale``.
    """
    hist = np.zeros((room[0], room[1]), np.int64)
    rows = np.zeros(room[0], np.int64)
    sums = np.zeros(room[0], np.int64)
    order = np.zeros(room[0], np.int64)
    mean = np.zeros(room[0], np.float64)
    total = np.zeros(room[1], np.int64)
    check = np.zeros(room[1], np.int64)
    left = np.zeros(room[1], np.int64)
    for node in range(len(shape.width)):
        c0 = shape.class_start[node]
        n = shape.class_start[node + 1] - c0
        n_node_cells = I64(0)
        for q in range(shape.pair_start[node], shape.pair_start[node + 1]):
            n_node_cells += I64(shape.codes[q]) + I64(shape.missing[q])
        before = I64(0)
        W = I64(0)
        R = I64(0)
        S = I64(0)
        best = -np.inf
        found.feature[node] = -1
        found.improves[node] = 0
        for q in range(shape.pair_start[node], shape.pair_start[node + 1]):
            f = shape.feature[q]
            n_codes = I64(shape.codes[q])
            n_cells = n_codes + I64(shape.missing[q])
            _unpack(words, shape, node, before, n_node_cells, n_cells, hist, rows, sums)
            before += n_cells
            w = I64(0)
            r = I64(0)
            s = I64(0)
            for j in range(n):
                check[j] = 0
                for cell in range(n_cells):
                    check[j] += hist[cell, j]
                w += check[j]
            for cell in range(n_cells):
                r += rows[cell]
                s += sums[cell]
            if q == shape.pair_start[node]:
                W, R, S = w, r, s
                found.rows[node] = R
                found.sums[node] = S
                for j in range(n):
                    total[j] = check[j]
                    found.total[c0 + j] = check[j]
                if W == 0:
                    break
                found.whole[node] = score_of_whole(total, n, W, S, kind, table, scale)
            elif w != W or r != R or s != S:
                return False
            else:
                for j in range(n):
                    if check[j] != total[j]:
                        return False
            if first_wins and found.feature[node] >= 0:
                continue

            by_set = categorical[f] == 1
            m = 0
            if by_set:
                m = order_cells(n_cells, n, hist, sums, total, kind, order, mean)
            else:
                for cell in range(n_codes):
                    if rows[cell] > 0:
                        order[m] = cell
                        m += 1
            has_missing = not by_set and shape.missing[q] == 1 and rows[n_codes] > 0
            # first with missing values on the right, then on the left
            for side in range(2 if has_missing else 1):
                w, r, s = I64(0), I64(0), I64(0)
                for j in range(n):
                    left[j] = hist[n_codes, j] if side == 1 else I64(0)
                    w += left[j]
                if side == 1:
                    r = rows[n_codes]
                    s = sums[n_codes]
                last = m if has_missing and side == 0 else m - 1
                for i in range(last):
                    cell = order[i]
                    for j in range(n):
                        left[j] += hist[cell, j]
                        w += hist[cell, j]
                    r += rows[cell]
                    s += sums[cell]
                    if r < min_leaf or R - r < min_leaf:
                        continue
                    score = score_of_split(left, total, n, w, W, s, S, kind, table, scale)
                    if score <= best:
                        continue
                    best = score
                    found.score[node] = score
                    found.feature[node] = f
                    found.low[node] = I64(shape.first[q]) + cell
                    found.high[node] = I64(shape.first[q]) + order[i + 1] if i + 1 < m else I64(-1)
                    # where no value is missing in the node, later missing values go where most of the weight went
                    found.missing_left[node] = side == 1 if has_missing else 2 * w > W
                    # products modulo 2^64: means that differ are taken for equal next to never
                    found.improves[node] = kind != 2 or s * W != S * w
                    found.left_rows[node] = r
                    found.left_sum[node] = s
                    for j in range(n):
                        found.left[c0 + j] = left[j]
                    if by_set:
                        for code in range(found.goes_left.shape[1]):
                            found.goes_left[node, code] = 2 * w > W
                        for k in range(m):
                            found.goes_left[node, order[k]] = k <= i
    return True


@kernel
def place_all(keys: Any, feature_keys: Any, out: Any) -> None:
    """Coordinator: place of every feature in the order of every node; ``out`` is (nodes, features)."""
    for node in range(len(keys)):
        for f in range(len(feature_keys)):
            out[node, f] = place(keys[node], feature_keys[f])


@kernel
def narrow_pairs(
    at: Any,
    feature: Any,
    parent: Any,
    is_right: Any,
    split_feature: Any,
    low: Any,
    high: Any,
    missing_left: Any,
    first: Any,
    last: Any,
    missing: Any,
) -> None:
    """Coordinator: which codes of a feature rows of a node can have, by the splits above it on the same feature.

    Pair q is of node ``at[q]`` and ``feature[q]``. ``parent``, ``is_right`` and the splits (``split_feature`` to
    ``missing_left``) count by node; -1 is no parent. ``first``, ``last`` and ``missing`` come as the whole range of the
    feature and are narrowed on the way up to the root.
    """
    for q in range(len(at)):
        f = feature[q]
        node = at[q]
        while parent[node] >= 0:
            above = parent[node]
            if split_feature[above] == f:
                if is_right[node]:
                    # nothing but missing values on the right
                    first[q] = max(first[q], high[above] if high[above] >= 0 else last[q] + 1)
                else:
                    last[q] = min(last[q], low[above])
                missing[q] &= is_right[node] != missing_left[above]
            node = above


@kernel
def send_down(
    codes: Any,
    missing_code: Any,
    rows: Any,
    weights: Any,
    start: Any,
    end: Any,
    feature: Any,
    cut: Any,
    missing_left: Any,
    set_start: Any,
    sets: Any,
    spare_rows: Any,
    spare_weights: Any,
    middle: Any,
) -> None:
    """Holder: stable partition, in place, of nodes by their splits; ``middle`` gets where the right child begins.

    A question on categories has a set, ``sets[set_start[node] : set_start[node + 1]]``: bit ``c`` sends code ``c``
    left.
    """
    for node in range(len(start)):
        f = feature[node]
        unknown = I64(missing_code[f])
        left = start[node]
        right = 0
        by_set = set_start[node + 1] > set_start[node]
        for i in range(start[node], end[node]):
            row = rows[i]
            weight = weights[i]
            code = I64(codes[f, row])
            if by_set:
                go = (sets[set_start[node] + (code >> 3)] >> np.uint8(code & 7)) & np.uint8(1) == 1
            elif code == unknown:
                go = missing_left[node] == 1
            else:
                go = code <= cut[node]
            if go:
                rows[left] = row
                weights[left] = weight
                left += 1
            else:
                spare_rows[right] = row
                spare_weights[right] = weight
                right += 1
        for i in range(right):
            rows[left + i] = spare_rows[i]
            weights[left + i] = spare_weights[i]
        middle[node] = left


# --- rows and their draws ---


@kernel
def add_to_keys(values: Any, column_key: Any, keys: Any) -> None:
    """Mix one column's values (as unsigned integers) into the keys of the rows; the order of columns does not count."""
    for i in range(len(values)):
        keys[i] += mix(column_key ^ mix(U64(values[i]) + U64(0x9E3779B97F4A7C15)))


@kernel
def draw_poisson(key: Any, row_keys: Any, thresholds: Any, counts: Any) -> None:
    """How often each row is drawn: as many times as there are thresholds up to its random number.

    The number is a hash of tree and row, so that every holder of an equal row draws it alike. The thresholds (uint64,
    ascending) are the Poisson distribution function times 2**64, see ``trees.drawing``.
    """
    for i in range(len(row_keys)):
        u = mix(mix(key ^ row_keys[i]) + U64(0x9E3779B97F4A7C15))
        n = 0
        while n < len(thresholds) and thresholds[n] <= u:
            n += 1
        counts[i] = n
