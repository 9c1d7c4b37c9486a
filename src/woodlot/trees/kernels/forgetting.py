"""Taking rows out of grown trees: where they were, which splits stand, and how far each split is ahead.

The trees stand in preorder, as in ``trees.forest``, but a node tells how far its right child is (``jump``), so that a
branch can be replaced without touching the others::

    rows, weights   all rows of all trees; the rows of a node stand together, those of its left child first.
                    A row that is gone has weight 0 and is passed over
    touched         the nodes that a row was taken from, in the order in which they were met
    slot            a large node has a record of what its split's score is made of, and of the best score that any
                    other partition can have (``upper``). While the split is above that it stands, unsearched

Which rows go left is decided by the value of a code: ``values[first_value[f] + code]``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from woodlot.trees.kernels._jit import kernel
from woodlot.trees.kernels.bounds import ROUNDING, entropy_rise, error_rise, gini_rise
from woodlot.trees.kernels.hashing import BUCKET_SIZE, child_key, mix, nth_place, place
from woodlot.trees.kernels.targets import sort_column
from woodlot.trees.kernels.wide import fixed_xlogx

I64: Any = np.int64
U64: Any = np.uint64
F64: Any = np.float64
GINI, ENTROPY, ERROR = 0, 1, 2
LEAF, STANDS, SEARCH = 0, 1, 2


class Trees(NamedTuple):
    """Nodes of all trees in preorder."""

    jump: Any
    """int32: how far the right child is, 0 at a leaf; the left child is the next node."""
    start: Any
    """int64"""
    end: Any
    count: Any
    """int32: rows that are left."""
    feature: Any
    """int32: over all parties, -1 at a leaf."""
    threshold: Any
    """float64: NaN for categories."""
    missing_left: Any
    """uint8"""
    gain: Any
    """float64: score of the split less that of the node, in the code of the labels."""
    slot: Any
    """int32: record of a large node, -1 without."""
    set_at: Any
    """int64: where the set of categories begins, -1 for numbers."""


class Slots(NamedTuple):
    """Records of large nodes."""

    totals: Any
    """int64 (slots, classes): weight of each class; of targets (slots, 2): weight and weighted sum."""
    left: Any
    """The same of the left side."""
    upper: Any
    """float64: no partition but that of the split and the rivals scores more. Of targets: gains more."""
    n_rivals: Any
    """int32: the next best partitions, with what is on their left: these scores are known to the bit."""
    rival: Any
    """int32 (slots, rivals, 3): feature, last code on the left, and 1 where missing values go left."""
    rival_left: Any
    """int64 (slots, rivals, classes or 2)"""
    low: Any
    """int64: the largest code on the left, ..."""
    high: Any
    """... and the smallest on the right, -1 where all rows there are missing values."""
    at_low: Any
    """int32: rows of these codes, ..."""
    at_high: Any
    missing: Any
    """... and rows without a value."""
    least: Any
    """int64: range of the node's targets."""
    most: Any


class CodeTable(NamedTuple):
    """Codes of all columns, and their values."""

    fine: Any
    n_codes: Any
    categorical: Any
    values: Any
    """float32: the smallest value of each code."""
    highest: Any
    """float32: the largest."""
    first_value: Any


@kernel
def goes_left(table: Any, f: Any, row: Any, threshold: Any, missing_left: Any, set_at: Any, sets: Any) -> Any:
    """Whether a row goes left at a split."""
    code = I64(table.fine[f, row])
    if table.categorical[f]:
        return (sets[set_at + (code >> 3)] >> np.uint8(code & 7)) & 1 == 1
    if code == table.n_codes[f]:
        return missing_left == 1
    return F64(table.values[table.first_value[f] + code]) <= threshold


@kernel
def draw_matrix(tree_keys: Any, row_keys: Any, level: Any, first: Any, thresholds: Any, drawn: Any) -> None:
    """How often each tree has drawn each of some rows, as `hashing.draw_by_row` does."""
    for t in range(len(tree_keys)):
        for i in range(len(row_keys)):
            u = mix(mix(tree_keys[t] ^ row_keys[i]) + U64(0x9E3779B97F4A7C15))
            low = first[level[i]]
            while low < first[level[i] + 1] and thresholds[low] <= u:
                low += 1
            drawn[t, i] = low - first[level[i]]


@kernel
def scores_of(totals: Any, left: Any, criterion: Any, scale: Any) -> Any:
    """Score of a split and of the node left whole, to the bit as the searches compute them."""
    if criterion == ERROR:
        W, T = F64(totals[0]), F64(totals[1])
        w, t = F64(left[0]), F64(left[1])
        r = T - t
        return t * t / w + r * r / (W - w), T * T / W
    sl = I64(0)
    sr = I64(0)
    sq = I64(0)
    w = I64(0)
    W = I64(0)
    for k in range(len(totals)):
        a = left[k]
        b = totals[k] - a
        w += a
        W += totals[k]
        if criterion == ENTROPY:
            sl += fixed_xlogx(a, scale)
            sr += fixed_xlogx(b, scale)
            sq += fixed_xlogx(totals[k], scale)
        else:
            sl += a * a
            sr += b * b
            sq += totals[k] * totals[k]
    if criterion == ENTROPY:
        score = F64(sl - fixed_xlogx(w, scale) + sr - fixed_xlogx(W - w, scale))
        return score, F64(sq - fixed_xlogx(W, scale))
    return F64(sl) / F64(w) + F64(sr) / F64(W - w), F64(sq) / F64(W)


@kernel
def _add(sums: Any, at: Any, label: Any, w: Any, criterion: Any) -> None:
    if criterion == ERROR:
        sums[at, 0] += w
        sums[at, 1] += w * I64(label)
    else:
        sums[at, I64(label)] += w


@kernel
def replay(
    offset: Any,
    trees: Any,
    sets: Any,
    table: Any,
    rows: Any,
    weights: Any,
    labels: Any,
    n_sums: Any,
    criterion: Any,
    scale: Any,
    spare_rows: Any,
    spare_weights: Any,
) -> Any:
    """Send the rows of all trees down them: the place of every node's rows, their number, and the gains.

    ``start`` and ``end`` of the roots are given. Returns the rows of all inner nodes together.
    """
    sums = np.zeros((2, n_sums), np.int64)
    work = I64(0)
    for t in range(len(offset) - 1):
        for node in range(offset[t], offset[t + 1]):
            s = trees.start[node]
            e = trees.end[node]
            trees.count[node] = e - s
            if trees.jump[node] == 0:
                continue
            work += e - s
            f = trees.feature[node]
            for side in range(2):
                for k in range(n_sums):
                    sums[side, k] = 0
            at = s
            right = 0
            for i in range(s, e):
                row = rows[i]
                w = weights[i]
                _add(sums, 0, labels[row], I64(w), criterion)
                if goes_left(table, f, row, trees.threshold[node], trees.missing_left[node], trees.set_at[node], sets):
                    _add(sums, 1, labels[row], I64(w), criterion)
                    rows[at] = row
                    weights[at] = w
                    at += 1
                else:
                    spare_rows[right] = row
                    spare_weights[right] = w
                    right += 1
            for i in range(right):
                rows[at + i] = spare_rows[i]
                weights[at + i] = spare_weights[i]
            child = node + 1
            other = node + trees.jump[node]
            trees.start[child] = s
            trees.end[child] = at
            trees.start[other] = at
            trees.end[other] = e
            score, whole = scores_of(sums[0], sums[1], criterion, scale)
            trees.gain[node] = score - whole
    return work


@kernel
def touch(
    gone: Any,
    drawn: Any,
    offset: Any,
    root_keys: Any,
    trees: Any,
    sets: Any,
    table: Any,
    rows: Any,
    weights: Any,
    labels: Any,
    criterion: Any,
    scale: Any,
    slots: Any,
    lost: Any,
    touched: Any,
    key: Any,
    depth: Any,
    leaf: Any,
    tree: Any,
) -> int:
    """Take rows out of the trees that drew them; returns how many nodes were touched, -1 where a row is not found.

    ``lost`` (int32, a zero per node) counts the rows that a node loses. ``key``, ``depth``, ``leaf`` (the leaf's number
    in the forest) and ``tree`` are of the touched nodes.
    """
    n = 0
    for t in range(len(root_keys)):
        for j in range(len(gone)):
            w = I64(drawn[t, j])
            if w == 0:
                continue
            row = gone[j]
            label = labels[row]
            node = offset[t]
            node_key = root_keys[t]
            level = 0
            lefts = 0
            while True:
                if lost[node] == 0:
                    touched[n] = node
                    key[n] = node_key
                    depth[n] = level
                    tree[n] = t
                    # of the nodes before this one in its tree, `lefts` more are inner nodes than leaves
                    leaf[n] = ((offset[t] + t) >> 1) + ((node - offset[t] - lefts) >> 1)
                    n += 1
                lost[node] += 1
                trees.count[node] -= 1
                if trees.jump[node] == 0:
                    break
                f = trees.feature[node]
                left = goes_left(
                    table, f, row, trees.threshold[node], trees.missing_left[node], trees.set_at[node], sets
                )
                q = trees.slot[node]
                if q >= 0:
                    _let_go(slots, q, table, f, row, label, w, left, criterion, scale)
                node_key = child_key(node_key, 0 if left else 1)
                lefts += left
                level += 1
                node = node + 1 if left else node + trees.jump[node]
            found = False
            for i in range(trees.start[node], trees.end[node]):
                if rows[i] == row and weights[i] > 0:
                    weights[i] = 0
                    found = True
                    break
            if not found:
                return -1
    return n


@kernel
def _let_go(
    slots: Any, q: Any, table: Any, f: Any, row: Any, label: Any, w: Any, left: Any, criterion: Any, scale: Any
) -> None:
    """Take a row out of a large node's record, and raise the bound on all other partitions by what that can do."""
    code = I64(table.fine[f, row])
    for j in range(slots.n_rivals[q]):
        g = slots.rival[q, j, 0]
        c = I64(table.fine[g, row])
        if c <= slots.rival[q, j, 1] or (c == table.n_codes[g] and slots.rival[q, j, 2] == 1):
            _add(slots.rival_left[q], j, label, -w, criterion)
    W = I64(0)
    if criterion == ERROR:
        y = I64(label)
        W = slots.totals[q, 0]
        far = F64(max(slots.most[q] - y, y - slots.least[q]))
        centred = F64(slots.totals[q, 1] - y * W)
        slots.upper[q] += error_rise(w, far)
        if w < W:  # the score of the whole node, with the same centre, rises too, and gains are above that
            slots.upper[q] -= centred * centred / F64(W - w) - centred * centred / F64(W)
    elif criterion == ENTROPY:
        for k in range(slots.totals.shape[1]):
            W += slots.totals[q, k]
        slots.upper[q] += scale * entropy_rise(W, w)
    else:
        slots.upper[q] += gini_rise(w)
    _add(slots.totals, q, label, -w, criterion)
    if left:
        _add(slots.left, q, label, -w, criterion)
    if code == table.n_codes[f]:
        slots.missing[q] -= 1
    elif code == slots.low[q]:
        slots.at_low[q] -= 1
    elif code == slots.high[q]:
        slots.at_high[q] -= 1


@kernel
def find_edges(trees: Any, node: Any, table: Any, rows: Any, weights: Any, slots: Any, q: Any) -> None:
    """The codes next to a split and how many rows have them, for a node that is split by a number."""
    f = trees.feature[node]
    missing = I64(table.n_codes[f])
    middle = trees.start[node + trees.jump[node]]
    low = I64(-1)
    high = I64(1) << 40
    at_low = 0
    at_high = 0
    n_missing = 0
    for i in range(trees.start[node], trees.end[node]):
        if weights[i] == 0:
            continue
        c = I64(table.fine[f, rows[i]])
        if c == missing:
            n_missing += 1
        elif i < middle:
            if c > low:
                low = c
                at_low = 0
            at_low += c == low
        else:
            if c < high:
                high = c
                at_high = 0
            at_high += c == high
    slots.low[q] = low
    slots.high[q] = high if at_high > 0 else I64(-1)
    slots.at_low[q] = at_low
    slots.at_high[q] = at_high
    slots.missing[q] = n_missing


@kernel
def find_all_edges(nodes: Any, trees: Any, table: Any, rows: Any, weights: Any, slots: Any) -> None:
    """`find_edges` of all nodes that are split by a number."""
    for k in range(len(nodes)):
        if not table.categorical[trees.feature[nodes[k]]]:
            find_edges(trees, nodes[k], table, rows, weights, slots, trees.slot[nodes[k]])


@kernel
def _is_rivalled(slots: Any, q: Any, score: Any, w: Any, W: Any, criterion: Any, scale: Any) -> Any:
    """Whether one of the next best partitions scores as much as the split, or more."""
    totals = slots.totals[q]
    for j in range(slots.n_rivals[q]):
        left = slots.rival_left[q, j]
        heavy = left[0]
        if criterion != ERROR:
            for k in range(1, len(left)):
                heavy += left[k]
        if 0 < heavy < W and scores_of(totals, left, criterion, scale)[0] >= score:
            return True
    return False


@kernel
def _is_low_side(totals: Any, left: Any, criterion: Any) -> Any:
    """Whether the categories on the left are still those of the low means, by which a search puts them there."""
    if criterion == ERROR:
        return F64(left[1]) / F64(left[0]) < F64(totals[1] - left[1]) / F64(totals[0] - left[0])
    if totals[0] == totals[1]:  # which class is the largest is then decided by the order of rows
        return False
    top = 1 if totals[1] > totals[0] else 0
    w = left[0] + left[1]
    W = totals[0] + totals[1]
    return F64(left[top]) / F64(w) < F64(totals[top] - left[top]) / F64(W - w)


@kernel
def renew_set(trees: Any, node: Any, table: Any, rows: Any, weights: Any, sets: Any) -> None:
    """Write the set of a split by categories from the rows that are left, as `cut.cut_by_rank` does."""
    f = trees.feature[node]
    other = node + trees.jump[node]
    at = trees.set_at[node]
    n_codes = I64(table.n_codes[f])
    n_bytes = (n_codes + 8) >> 3
    most = trees.count[node + 1] > trees.count[other]
    for b in range(n_bytes):
        sets[at + b] = 255 if most else 0
    if most:
        sets[at + n_bytes - 1] = (1 << (n_codes % 8 + 1)) - 1
    middle = trees.start[other]
    for i in range(trees.start[node], trees.end[node]):
        if weights[i] > 0:
            c = I64(table.fine[f, rows[i]])
            bit = 1 << (c & 7)
            if i < middle:
                sets[at + (c >> 3)] |= bit
            else:
                sets[at + (c >> 3)] &= 255 - bit


@kernel
def edit_leaves(
    first: Any,
    stop: Any,
    n_new: Any,
    at_leaf: Any,
    at_entry: Any,
    new_entries: Any,
    new_weight: Any,
    new_output: Any,
    new_value: Any,
    old_start: Any,
    old_weight: Any,
    old_output: Any,
    old_value: Any,
    start: Any,
    weight: Any,
    output: Any,
    value: Any,
) -> None:
    """Put new leaves in the place of old ones, in stretches that ascend.

    Stretch k replaces the leaves ``first[k] : stop[k]`` by ``n_new[k]`` others: their weights and numbers of entries
    begin at ``at_leaf[k]``, their entries at ``at_entry[k]`` of the new arrays.
    """
    leaf = I64(0)
    o = I64(0)
    done = I64(0)
    start[0] = 0
    for k in range(len(first) + 1):
        upto = first[k] if k < len(first) else len(old_weight)
        for i in range(done, upto):
            weight[leaf] = old_weight[i]
            leaf += 1
            start[leaf] = start[leaf - 1] + old_start[i + 1] - old_start[i]
        for i in range(old_start[done], old_start[upto]):
            output[o] = old_output[i]
            value[o] = old_value[i]
            o += 1
        if k == len(first):
            break
        e = at_entry[k]
        for i in range(at_leaf[k], at_leaf[k] + n_new[k]):
            weight[leaf] = new_weight[i]
            leaf += 1
            start[leaf] = start[leaf - 1] + new_entries[i]
            for _ in range(new_entries[i]):
                output[o] = new_output[e]
                value[o] = new_value[e]
                o += 1
                e += 1
        done = stop[k]


@kernel
def judge(
    touched: Any,
    trees: Any,
    sets: Any,
    table: Any,
    rows: Any,
    weights: Any,
    slots: Any,
    criterion: Any,
    scale: Any,
    min_split: Any,
    min_leaf: Any,
    min_weight: Any,
    status: Any,
) -> None:
    """Which of the touched nodes are leaves, which splits stand without a search, and which nodes must be searched.

    Where a split stands its gain, its threshold and the side of missing values become those of the rows that are left.
    """
    for n in range(len(touched)):
        node = touched[n]
        if trees.jump[node] == 0:
            status[n] = LEAF
            continue
        status[n] = SEARCH
        q = trees.slot[node]
        child = node + 1
        other = node + trees.jump[node]
        if q < 0 or trees.count[node] < min_split or min(trees.count[child], trees.count[other]) < min_leaf:
            continue
        w = slots.left[q, 0]
        W = slots.totals[q, 0]
        if criterion != ERROR:
            for k in range(1, slots.totals.shape[1]):
                w += slots.left[q, k]
                W += slots.totals[q, k]
        if w < min_weight or W - w < min_weight:
            continue
        score, whole = scores_of(slots.totals[q], slots.left[q], criterion, scale)
        slack = ROUNDING * (abs(score) + abs(whole) + abs(slots.upper[q]))
        reached = score
        if criterion == ERROR:
            reached = score - whole
        elif criterion == ENTROPY:  # every number of the fixed point is rounded, before and after
            slack += 2.0 * (slots.totals.shape[1] + 1)
        if not reached > slots.upper[q] + slack or _is_rivalled(slots, q, score, w, W, criterion, scale):
            continue
        f = trees.feature[node]
        if table.categorical[f]:
            if not _is_low_side(slots.totals[q], slots.left[q], criterion):
                continue
            renew_set(trees, node, table, rows, weights, sets)
            status[n] = STANDS
            trees.gain[node] = score - whole
            continue
        status[n] = STANDS
        trees.gain[node] = score - whole
        if slots.at_low[q] == 0 or (slots.high[q] >= 0 and slots.at_high[q] == 0):
            find_edges(trees, node, table, rows, weights, slots, q)
            first = table.first_value[f]
            trees.threshold[node] = np.inf
            if slots.high[q] >= 0:
                below = F64(table.highest[first + slots.low[q]])
                trees.threshold[node] = below / 2 + F64(table.values[first + slots.high[q]]) / 2
        if slots.missing[q] == 0:
            trees.missing_left[node] = trees.count[child] > trees.count[other]


@kernel
def gather(nodes: Any, trees: Any, rows: Any, weights: Any, bounds: Any, to_rows: Any, to_weights: Any) -> None:
    """The rows that are left in some nodes, node after node."""
    o = I64(0)
    for k in range(len(nodes)):
        bounds[k] = o
        for i in range(trees.start[nodes[k]], trees.end[nodes[k]]):
            if weights[i] > 0:
                to_rows[o] = rows[i]
                to_weights[o] = weights[i]
                o += 1
    bounds[len(nodes)] = o


@kernel
def same_partitions(
    nodes: Any, trees: Any, rows: Any, weights: Any, ordered: Any, flags: Any, first: Any, mark: Any, same: Any
) -> None:
    """Whether new splits send the rows that are left where they are: 1 where they do.

    ``ordered`` and ``flags`` have the rows of each node and whether they go left, from ``first[k]`` on. ``mark``
    (uint8, a zero per row of the table) is work space.
    """
    for k in range(len(nodes)):
        child = nodes[k] + 1
        for i in range(trees.start[child], trees.end[child]):
            if weights[i] > 0:
                mark[rows[i]] = 1
        same[k] = 1
        for i in range(first[k], first[k + 1]):
            if flags[i] != mark[ordered[i]]:
                same[k] = 0
                break
        for i in range(trees.start[child], trees.end[child]):
            mark[rows[i]] = 0


@kernel
def _two_numbers(a: Any, w: Any, A: Any, W: Any, criterion: Any, scale: Any) -> Any:
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
            best = max(best, _two_numbers(left, heavy, A, W, criterion, scale))
        for i in range(m):
            c = m - 1 - i if backwards else i
            if c in (skip, skip2):
                continue
            left += amount[c]
            heavy += weight[c]
            if 0 < heavy < W:
                best = max(best, _two_numbers(left, heavy, A, W, criterion, scale))
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
def _challenge(slots: Any, q: Any, scores: Any, score: Any, f: Any, cut: Any, missing_left: Any, left: Any) -> Any:
    """Keep a partition among the best that are known; returns the score of the one that is not kept."""
    n = slots.n_rivals[q]
    most = slots.rival.shape[1]
    at = n
    out = -np.inf
    if n == most:
        if score <= scores[most]:  # the place of the lowest, and its score, stand behind the others
            return score
        at = I64(scores[most + 1])
        out = scores[at]
    else:
        slots.n_rivals[q] = n + 1
    scores[at] = score
    slots.rival[q, at, 0] = f
    slots.rival[q, at, 1] = cut
    slots.rival[q, at, 2] = missing_left
    for k in range(len(left)):
        slots.rival_left[q, at, k] = left[k]
    if slots.n_rivals[q] == most:
        lowest = 0
        for j in range(1, most):
            if scores[j] < scores[lowest]:
                lowest = j
        scores[most] = scores[lowest]
        scores[most + 1] = lowest
    return out


@kernel
def challenge_by_cuts(
    table: Any, f: Any, ordered: Any, rows: Any, s: Any, n: Any, weights: Any, labels: Any, min_leaf: Any,
    min_weight: Any, missing_left: Any, own_score: Any, criterion: Any, scale: Any, left: Any, found: Any, slots: Any,
    q: Any, scores: Any,
) -> Any:  # fmt: skip
    """Let all cuts of a column of numbers challenge the split, with missing values on the right or on the left.

    ``ordered`` are the node's rows as keys ``code << 32 | position``, ascending. ``own_score`` is the split's where
    this is its column, and infinite otherwise: the first cut of this score is the split. Returns the best score that
    is not kept, and the score that may still be the split's own. ``left`` (int64), ``found`` and ``scores`` (float64)
    are work space. First all scores are computed; only cuts that may be kept are gone through again.
    """
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
                m += 1
                if score == own_score:
                    own_score = np.inf
                elif score < lowest:
                    upper = max(upper, score)
                else:
                    cut = I64(key >> shift)
                    upper = max(upper, _challenge(slots, q, scores, score, f, cut, missing_left, left))
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
            full = slots.n_rivals[q] == most
            if full and best <= scores[most] and own_score == np.inf:
                return best, own_score
            if m > most:
                lowest = np.partition(found[:m], m - most)[m - most]
            if full:
                lowest = max(lowest, scores[most])
    return upper, own_score


@kernel
def measure(
    table: Any,
    has_missing: Any,
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
) -> None:
    """Make the records of large nodes whose best split is known, but for the codes next to the cut.

    ``rows`` are partitioned: those of a node that go left stand first, up to ``middle``. ``at`` are their slots.
    """
    p = len(feature_keys)
    places = np.empty(p, np.uint64)
    members = np.empty(p, np.uint64)
    work = np.empty(BUCKET_SIZE, np.int32)
    n_sums = slots.totals.shape[1]
    left = np.zeros(n_sums, np.int64)
    scores = np.empty(slots.rival.shape[1] + 2, np.float64)
    for k in range(len(start)):
        q = at[k]
        s, e = start[k], end[k]
        slots.n_rivals[q] = 0
        for j in range(n_sums):
            slots.totals[q, j] = 0
            slots.left[q, j] = 0
        slots.least[q] = I64(labels[rows[s]])
        slots.most[q] = slots.least[q]
        for i in range(s, e):
            label = labels[rows[i]]
            _add(slots.totals, q, label, I64(weights[i]), criterion)
            if i < middle[k]:
                _add(slots.left, q, label, I64(weights[i]), criterion)
            slots.least[q] = min(slots.least[q], I64(label))
            slots.most[q] = max(slots.most[q], I64(label))
        totals = slots.totals[q]
        score = scores_of(totals, slots.left[q], criterion, scale)[0]
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
            own = score if is_own else np.inf
            where = sort_column(table.fine, f, rows[s:e], 0, e - s, U64(32), keys, spare, count)
            if where == 0:
                continue
            ordered = keys if where == 1 else spare
            for missing_left in range(2 if has_missing[f] else 1):
                rest, own = challenge_by_cuts(
                    table, f, ordered, rows, s, e - s, weights, labels, min_leaf, min_weight, missing_left, own,
                    criterion, scale, left, found, slots, q, scores,
                )  # fmt: skip
                upper = max(upper, rest)
        if criterion == ERROR and upper < np.inf:
            upper -= F64(totals[1]) * F64(totals[1]) / F64(totals[0])
        slots.upper[q] = upper
