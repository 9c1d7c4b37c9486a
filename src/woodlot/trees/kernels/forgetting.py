"""Taking rows out of grown trees: where they were, and what is known of the nodes that lose them.

Which splits stand is decided in `forget_judging`; how far each is ahead is found in `forget_measuring`.

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
from woodlot.trees.kernels.bounds import entropy_rise, error_rise, gini_rise, group_rise, two_class_rise
from woodlot.trees.kernels.hashing import child_key, mix
from woodlot.trees.kernels.wide import fixed_xlogx

I64: Any = np.int64
U64: Any = np.uint64
F64: Any = np.float64
GINI, ENTROPY, ERROR = 0, 1, 2


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
    """int32: record of a large node, below 0 without."""
    set_at: Any
    """int64: where the set of categories begins, -1 for numbers."""


class Slots(NamedTuple):
    """Records of large nodes."""

    totals: Any
    """int64 (slots, classes): weight of each class; of targets (slots, 2): weight and weighted sum."""
    left: Any
    """The same of the left side."""
    upper: Any
    """float64: no partition but that of the split, the rivals and the groups scores more. Of targets: gains more."""
    n_rivals: Any
    """int32: the next best partitions, with what is on their left: these scores are known to the bit."""
    rival: Any
    """int32 (slots, rivals, 4): feature, last code on the left, 1 where missing values go left, and its group."""
    rival_left: Any
    """int64 (slots, rivals, classes or 2)"""
    n_groups: Any
    """int32: cuts of a column that stand next to each other, of classes only."""
    group: Any
    """int32 (slots, groups, 4): feature, 1 where missing values go left, first and last cut."""
    group_upper: Any
    """float64 (slots, groups): no cut of the group scores more, but the split and the rivals."""
    group_left: Any
    """int64 (slots, groups, 2, classes): what is on the left of the first cut and of the last."""
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
    if criterion == GINI and len(totals) == 2:
        a, b = left[0], left[1]
        c, d = totals[0] - a, totals[1] - b
        whole = F64(totals[0] * totals[0] + totals[1] * totals[1]) / F64(totals[0] + totals[1])
        return F64(a * a + b * b) / F64(a + b) + F64(c * c + d * d) / F64(c + d), whole
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
def add_label(sums: Any, at: Any, label: Any, w: Any, criterion: Any) -> None:
    """Add a label of some weight to the sums at a place."""
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
            is_number = not table.categorical[f]
            n_codes = I64(table.n_codes[f])
            cut = I64(-1) if is_number else n_codes
            step = n_codes
            while is_number and step > 0:  # the last code that goes left: codes stand nearer than their values
                values = table.first_value[f] + cut
                if cut + step < n_codes and F64(table.values[values + step]) <= trees.threshold[node]:
                    cut += step
                else:
                    step >>= 1
            for i in range(s, e):
                row = rows[i]
                w = weights[i]
                add_label(sums, 0, labels[row], I64(w), criterion)
                code = I64(table.fine[f, row])
                if is_number:
                    left = code <= cut or (code == n_codes and trees.missing_left[node] == 1)
                else:
                    left = (sets[trees.set_at[node] + (code >> 3)] >> np.uint8(code & 7)) & 1 == 1
                if left:
                    add_label(sums, 1, labels[row], I64(w), criterion)
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
def look_ahead(
    gone: Any, drawn: Any, offset: Any, trees: Any, sets: Any, table: Any, most: Any, lost: Any
) -> Any:  # fmt: skip
    """Count the rows that each node would lose; returns the rows of all that would have to be looked into.

    These are the inner nodes without a record, and those that lose more than ``most`` rows.
    """
    work = I64(0)
    for t in range(len(offset) - 1):
        for j in range(len(gone)):
            if drawn[t, j] == 0:
                continue
            node = offset[t]
            while True:
                lost[node] += 1
                if trees.jump[node] == 0:
                    break
                if trees.slot[node] < 0:
                    if lost[node] == 1:
                        work += trees.count[node]
                elif lost[node] == most + 1:
                    work += trees.count[node]
                left = goes_left(
                    table, trees.feature[node], gone[j], trees.threshold[node], trees.missing_left[node],
                    trees.set_at[node], sets,
                )  # fmt: skip
                node = node + 1 if left else node + trees.jump[node]
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
            add_label(slots.rival_left[q], j, label, -w, criterion)
    if slots.n_groups[q] > 0:
        _let_groups_go(slots, q, table, row, I64(label), w, criterion, scale)
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
    add_label(slots.totals, q, label, -w, criterion)
    if left:
        add_label(slots.left, q, label, -w, criterion)
    if code == table.n_codes[f]:
        slots.missing[q] -= 1
    elif code == slots.low[q]:
        slots.at_low[q] -= 1
    elif code == slots.high[q]:
        slots.at_high[q] -= 1


@kernel
def _let_groups_go(slots: Any, q: Any, table: Any, row: Any, label: Any, w: Any, criterion: Any, scale: Any) -> None:
    """Take a row out of the groups of a record, and change the bound of each by what that can do to its cuts."""
    n_sums = slots.totals.shape[1]
    low = np.empty(n_sums, np.int64)
    high = np.empty(n_sums, np.int64)
    f = I64(-1)
    c = I64(0)
    unit = 1.0
    most = gini_rise(w)
    if criterion == ENTROPY:
        W = I64(0)
        for k in range(n_sums):
            W += slots.totals[q, k]
        unit = scale
        most = entropy_rise(W, w)
    for g in range(slots.n_groups[q]):
        if slots.group[q, g, 0] != f:
            f = I64(slots.group[q, g, 0])
            c = I64(table.fine[f, row])
        is_missing_left = c == table.n_codes[f] and slots.group[q, g, 1] == 1
        at_first = is_missing_left or c <= slots.group[q, g, 2]
        at_last = is_missing_left or c <= slots.group[q, g, 3]
        first = slots.group_left[q, g, 0]
        last = slots.group_left[q, g, 1]
        if at_first:
            first[label] -= w
        if at_last:
            last[label] -= w
        rise = -np.inf
        if n_sums == 2:
            if at_last:
                rise = two_class_rise(first[label], last[1 - label], w, criterion == ENTROPY)
            if not at_first:
                kept = max(slots.totals[q, label] - last[label] - w, 0)
                others = slots.totals[q, 1 - label] - first[1 - label]
                rise = max(rise, two_class_rise(kept, others, w, criterion == ENTROPY))
            upper = slots.group_upper[q, g]
            slots.group_upper[q, g] = upper + unit * min(rise, most) + 4e-16 * abs(upper)
            continue
        if at_last:  # some cuts of the group have the row on their left
            for k in range(n_sums):
                low[k] = first[k]
                high[k] = last[k]
            rise = max(rise, group_rise(label, low, high, w, criterion == ENTROPY))
        if not at_first:  # some have it on their right; the totals are still with the row
            for k in range(n_sums):
                low[k] = slots.totals[q, k] - last[k]
                high[k] = slots.totals[q, k] - first[k]
            low[label] = max(low[label] - w, 0)
            rise = max(rise, group_rise(label, low, high, w, criterion == ENTROPY))
        # a little more than that: sums of floats are rounded
        upper = slots.group_upper[q, g]
        slots.group_upper[q, g] = upper + unit * min(rise, most) + 4e-16 * abs(upper)


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
