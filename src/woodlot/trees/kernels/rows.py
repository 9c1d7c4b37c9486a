"""Rows of all trees in flight: one array of row numbers and one of weights, stably partitioned by node.

::

    tree          |------- 0 -------|------- 1 -------|
    node          |--a--|-----b-----|------ c --------|
    rows   uint32 [ 0 4 7 1 2 3 5 6   0 1 2 4 5 6 7 9 ]     ascending inside a node
    weight uint8  [ 1 2 1 1 1 3 1 2   ...             ]     how often the bootstrap drew the row

A split moves rows only inside their node, so that a closed node stays where it is, and its place is all that must be
kept of a leaf. The partition is stable: rows stay ascending inside a node, and all parties list the rows of a node in
the same order, which is why one bit per row is enough to tell them of a split. Rows that were not drawn are not stored.
Weights above 255 need uint32. Labels are not stored here: they are gathered from the table of labels for a chunk of
nodes at a time.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from woodlot.trees.kernels._bits import count_ones
from woodlot.trees.kernels._jit import kernel

I64: Any = np.int64
U64: Any = np.uint64


@kernel
def keep_drawn(counts: Any, rows: Any, weights: Any) -> int:
    """Write the rows with a positive count and their counts; returns how many. All arrays have the table's length."""
    m = 0
    for i in range(len(counts)):
        # written always, and the index moves on only if the row was drawn: no branch to mispredict
        rows[m] = i
        weights[m] = counts[i]
        m += counts[i] > 0
    return m


@kernel
def partition(
    rows: Any, weights: Any, start: Any, end: Any, flags: Any, spare_rows: Any, spare_weights: Any, middle: Any
) -> None:
    """Stable partition, in place, of the nodes whose ``middle`` is still -1: it gets where the right child begins.

    ``flags`` has one flag (1: left) per row of these nodes, one node after the other. Nodes with a ``middle`` were
    split by this party itself (`cut`) and have no flags here. Writing in place is safe: ``left`` never overtakes the
    row that is read.
    """
    o = U64(0)
    for node in range(len(start)):
        if middle[node] >= 0:
            continue
        left = U64(start[node])
        right = U64(0)
        for i in range(U64(start[node]), U64(end[node])):
            row = rows[i]
            weight = weights[i]
            go = U64(flags[o])
            o += U64(1)
            # both are written always and only one index moves on: no branch to mispredict
            rows[left] = row
            weights[left] = weight
            spare_rows[right] = row
            spare_weights[right] = weight
            left += go
            right += U64(1) - go
        for i in range(right):
            rows[left + i] = spare_rows[i]
            weights[left + i] = spare_weights[i]
        middle[node] = left


@kernel
def close_nodes(
    rows: Any,
    weights: Any,
    labels: Any,
    start: Any,
    end: Any,
    may_split: Any,
    min_split: Any,
    min_leaf: Any,
    min_weight: Any,
    is_open: Any,
) -> None:
    """Write 1 into ``is_open`` (uint8) for nodes that may be split: large enough, and with at least two labels.

    ``may_split`` is False at the maximal depth.
    """
    for node in range(len(start)):
        s = start[node]
        e = end[node]
        is_open[node] = 0
        if not may_split or e - s < min_split or e - s < 2 * min_leaf:
            continue
        if min_weight > 1:
            total = I64(0)
            for i in range(s, e):
                total += weights[i]
            if total < 2 * min_weight:
                continue
        first = labels[rows[s]]
        for i in range(U64(s + 1), U64(e)):
            if labels[rows[i]] != first:
                is_open[node] = 1
                break


@kernel
def class_entries(
    rows: Any, weights: Any, labels: Any, start: Any, end: Any, seen: Any, entries: Any, label: Any, weight: Any
) -> int:
    """Weight of each class that occurs in each node, node after node, classes ascending; returns how many entries.

    ``entries`` gets the number of each node's, ``label`` and ``weight`` the entries; they have room for
    min(rows, classes) of each node. ``seen`` (int64) is one zero per class, before and after.
    """
    m = 0
    for node in range(len(start)):
        waiting = 0
        k = I64(0)
        for i in range(U64(start[node]), U64(end[node])):
            k = I64(labels[rows[i]])
            waiting += seen[k] == 0
            seen[k] += I64(weights[i])
        entries[node] = waiting
        if waiting > 1:  # most leaves of a deep tree know one class only, and need no search for the others
            k = I64(0)
        while waiting > 0:
            if seen[k] > 0:
                label[m] = k
                weight[m] = seen[k]
                seen[k] = 0
                m += 1
                waiting -= 1
            k += 1
    return m


@kernel
def target_totals(rows: Any, weights: Any, values: Any, start: Any, end: Any, totals: Any) -> None:
    """Weight, and weighted sum of values, of each node; ``totals`` is (nodes, 2) of zeros."""
    for node in range(len(start)):
        for i in range(start[node], end[node]):
            totals[node, 0] += np.float64(weights[i])
            totals[node, 1] += np.float64(weights[i]) * values[rows[i]]


@kernel
def ones_by_node(words: Any, sizes: Any, ones: Any) -> None:
    """How many flags of each node are set; ``words`` (uint64) holds them bit by bit, node after node."""
    at = I64(0)
    for node in range(len(sizes)):
        total = I64(0)
        end = at + sizes[node]
        while at < end:
            offset = at & 63
            n = min(end - at, 64 - offset)
            word = words[at >> 6] >> U64(offset)
            if n < 64:
                word &= (U64(1) << U64(n)) - U64(1)
            total += count_ones(word)
            at += n
        ones[node] = total


@kernel
def route_bits(sent: Any, sent_start: Any, winner: Any, sizes: Any, routed: Any, routed_bits: Any, left: Any) -> None:
    """Coordinator: pass each node's bits on from its winner to all others, 64 rows at a time.

    ``sent`` (uint64) holds the winners' words, those of party p from ``sent_start[p]`` on, with a spare word after each
    party's; ``routed`` (parties, words) of zeros gets the bits for each party one after the other, ``routed_bits``
    their number, and ``left`` the ones of each node. ``winner`` and ``sizes`` are of the nodes that are split. Bits are
    not aligned to words: 64 of them are put together from two words on the way in, and taken apart on the way out.
    """
    read = np.zeros(len(sent_start), np.int64)
    for node in range(len(winner)):
        w = winner[node]
        rest = sizes[node]
        ones = I64(0)
        while rest > 0:
            n = min(rest, 64)
            at = sent_start[w] + (read[w] >> 6)
            shift = np.uint64(read[w] & 63)
            word = sent[at] >> shift
            if shift > np.uint64(0):
                word |= sent[at + 1] << (np.uint64(64) - shift)
            if n < 64:
                word &= (np.uint64(1) << np.uint64(n)) - np.uint64(1)
            ones += count_ones(word)
            read[w] += n
            rest -= n
            for p in range(len(routed_bits)):
                if p == w:
                    continue
                to = routed_bits[p] >> 6
                offset = np.uint64(routed_bits[p] & 63)
                routed[p, to] |= word << offset
                if offset > np.uint64(0):
                    routed[p, to + 1] |= word >> (np.uint64(64) - offset)
                routed_bits[p] += n
        left[node] = ones


@kernel
def preorder(left: Any, n_trees: Any, position: Any, offset: Any, right: Any) -> None:
    """From level order (children ``left[i]``, ``left[i] + 1``; -1 at leaves) to preorder, tree after tree.

    ``position`` (filled with -1 before) keeps -1 for nodes that hang below a leaf: those that were pruned. ``right``
    (also of -1) gets each node's right child.
    """
    # a stack of nodes to visit; beside a right child, its parent's new number
    waiting = np.empty(len(left) + 1, np.int64)
    parent = np.empty(len(left) + 1, np.int64)
    q = 0
    for tree in range(n_trees):
        offset[tree] = q
        waiting[0] = tree
        parent[0] = -1
        top = 1
        while top > 0:
            top -= 1
            i = waiting[top]
            position[i] = q
            if parent[top] >= 0:
                right[parent[top]] = q
            if left[i] >= 0:
                waiting[top] = left[i] + 1
                parent[top] = q
                waiting[top + 1] = left[i]
                parent[top + 1] = -1
                top += 2
            q += 1
    offset[n_trees] = q
