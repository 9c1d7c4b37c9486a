"""Which rows can reach which nodes, 64 rows in one word.

A party sees only its own nodes. Between them the tree is transparent: a row that went left at an owned node
is at every foreign node there, down to the next owned ones. So the party's view of a tree is a smaller tree::

    owned node      k                    (k-th of this tree, in preorder)
    its regions     2k + 1   2k + 2      (rows that went left, right; region 0 is the whole tree)
    up[k]           the region in which k stands; rows at k = rows in that region
    skip[k]         the first owned node after that region: where to go on when no row is there

``masks[region]`` is a word: the rows of the block in that region. Owned nodes come in preorder, so a region is filled
before it is read. What a party sends (`encode_decisions`) are the bits of the rows that can be at a node, packed
without gaps; the coordinator (`decode_decisions`) follows the same path over its copy of the view, so that it knows
from the bits read so far how many come next. No lengths are sent.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from woodlot.trees.kernels._bits import at_least, count_ones, gather_bits, lowest_one, scatter_bits
from woodlot.trees.kernels._jit import kernel
from woodlot.trees.kernels.settle import TreesShape, settle
from woodlot.trees.kernels.walk import MAX_SLOTS, SHIFT_BIT, SLOT_BIT, LeafAnswers, in_set


class Views(NamedTuple):
    """What several parties see of the trees: party p owns ``first[p, t] : first[p, t + 1]`` in tree t."""

    first: NDArray[np.int64]
    node: NDArray[np.int32]
    """Node of the forest behind each owned node."""
    up: NDArray[np.int32]
    """Region in which it stands, numbered within its tree."""
    skip: NDArray[np.int32]
    """Where to go on if no row is there, as an index into these arrays."""


class Tests(NamedTuple):
    """Questions as ``kernels.walk`` packs them, aligned with the owned nodes of a view."""

    word: NDArray[np.int64]
    set_start: NDArray[np.int64]
    sets: NDArray[np.uint8]
    n_numeric: int


@kernel
def most_decided(offset: NDArray[np.int64], right: NDArray[np.int32], owned: NDArray[np.bool_]) -> int:
    """How many owned nodes of all trees one row can reach at most, whatever its values are.

    At an owned node a row goes one way, at any other both.
    """
    most = np.zeros(len(right), np.int64)
    total = 0
    for tree in range(len(offset) - 1):
        for i in range(offset[tree + 1] - 1, offset[tree] - 1, -1):
            if right[i] < 0:
                continue
            if owned[i]:
                most[i] = 1 + max(most[i + 1], most[right[i]])
            else:
                most[i] = most[i + 1] + most[right[i]]
        total += most[offset[tree]]
    return total


@kernel
def find_regions(
    offset: NDArray[np.int64],
    right: NDArray[np.int32],
    owned: NDArray[np.bool_],
    region: NDArray[np.int32],
    until: NDArray[np.int64],
) -> None:
    """Write for one party the region of every node and the first node after that region.

    ``end[i]`` is the node after the last one below i. A child of an owned node begins a region of its own; a child of
    any other node is in its parent's.
    """
    end = np.empty(len(right), np.int64)
    for tree in range(len(offset) - 1):
        root = offset[tree]
        k = 0
        region[root] = 0
        until[root] = offset[tree + 1]
        end[root] = offset[tree + 1]
        for i in range(root, offset[tree + 1]):
            if right[i] < 0:
                continue
            end[i + 1] = right[i]
            end[right[i]] = end[i]
            region[i + 1] = 2 * k + 1 if owned[i] else region[i]
            region[right[i]] = 2 * k + 2 if owned[i] else region[i]
            until[i + 1] = right[i] if owned[i] else until[i]
            until[right[i]] = end[i] if owned[i] else until[i]
            k += owned[i]


@kernel
def goes_right(tests: Tests, question: Any, rows: np.uint64, codes: NDArray[Any], base: Any) -> Any:
    """Bits of the rows that a question sends right; only those of ``rows`` mean something.

    Numbers are compared 64 at a time; sets are looked up row by row. ``base`` is block * n_slots.
    """
    word = tests.word[question]
    slot = (word >> SLOT_BIT) & (MAX_SLOTS - 1)
    shift = (word >> SHIFT_BIT) & 1
    start = (base + slot) * 64
    if slot < tests.n_numeric:
        return at_least(codes, start, shift, word & 0xFFFF)
    right = np.uint64(0)
    while rows != np.uint64(0):
        row = lowest_one(rows)
        bit = rows & (~rows + np.uint64(1))
        code = np.int64(codes[start + row])
        if not in_set(code, shift, tests.set_start[question], tests.set_start[question + 1], tests.sets):
            right |= bit
        rows ^= bit
    return right


@kernel
def encode_decisions(
    views: Views,
    tests: Tests,
    codes: NDArray[Any],
    n_slots: int,
    known: NDArray[np.uint64],
    masks: NDArray[np.uint64],
    state: NDArray[np.int64],
    out: NDArray[np.uint64],
) -> bool:
    """Write one bit per known row at each owned node that the row can reach as far as this party knows.

    The order is tree, block, node in preorder, row. ``out`` starts as zeros. Where it could become too small
    the kernel returns False; called again with more room it goes on at ``state``: tree, block, bits written. ``masks``
    has a word per region of the largest tree. A row that the party does not know is at none of its nodes.
    """
    tree, block, at = state[0], state[1], state[2]
    while tree < views.first.shape[1] - 1:
        first, last = views.first[0, tree], views.first[0, tree + 1]
        while block < len(known):
            if at + 64 * (last - first) > 64 * len(out):
                state[0], state[1], state[2] = tree, block, at
                return False
            masks[0] = known[block]
            k = first
            while k < last:
                rows = masks[views.up[k]]
                if rows == np.uint64(0):
                    k = views.skip[k]
                    continue
                right = goes_right(tests, k, rows, codes, block * n_slots)
                masks[2 * (k - first) + 1] = rows & ~right
                masks[2 * (k - first) + 2] = rows & right
                packed = gather_bits(right, rows)
                count = count_ones(rows)
                used = at & 63
                out[at >> 6] |= packed << np.uint64(used)
                if used + count > 64:
                    out[(at >> 6) + 1] = packed >> np.uint64(64 - used)
                at += count
                k += 1
            block += 1
        block = 0
        tree += 1
    state[0], state[1], state[2] = tree, block, at
    return True


@kernel
def encode_leaves(
    views: Views,
    tests: Tests,
    leaf_region: NDArray[np.int32],
    first_leaf: NDArray[np.int64],
    codes: NDArray[Any],
    n_slots: int,
    known: NDArray[np.uint64],
    valid: NDArray[np.uint64],
    masks: NDArray[np.uint64],
    out: NDArray[np.uint64],
) -> None:
    """Write to ``out[block, leaf]`` the rows that can reach the leaf as far as this party knows.

    Rows that the party does not know can be anywhere.
    """
    for tree in range(views.first.shape[1] - 1):
        first, last = views.first[0, tree], views.first[0, tree + 1]
        for block in range(len(known)):
            masks[0] = valid[block]
            for k in range(first, last):
                rows = masks[views.up[k]]
                right = np.uint64(0)
                if rows != np.uint64(0):
                    right = goes_right(tests, k, rows, codes, block * n_slots)
                masks[2 * (k - first) + 1] = rows & ~(right & known[block])
                masks[2 * (k - first) + 2] = rows & (right | ~known[block])
            for leaf in range(first_leaf[tree], first_leaf[tree + 1]):
                out[block, leaf] = masks[leaf_region[leaf]]


@kernel
def decode_decisions(
    shape: TreesShape,
    answers: LeafAnswers,
    views: Views,
    stream: NDArray[np.uint64],
    start: NDArray[np.int64],
    stop: NDArray[np.int64],
    known: NDArray[np.uint64],
    valid: NDArray[np.uint64],
    leaf: NDArray[np.int32],
    out: NDArray[np.float64],
    uncertain: NDArray[np.bool_] | None,
) -> int:
    """Settle every row from the streams of all parties; returns the first party whose stream is wrong, or -1.

    The stream of party p is ``stream[start[p] : stop[p]]``. Each party's own bits tell where its next ones stand, so
    one pass per party suffices; the bits of all parties together lead every row to its leaf. A stream is wrong if it
    ends too early, if a whole word is left over, or if the unused bits of its last word are not 0. Nothing is read
    beyond ``stop``. ``right`` is not cleared between blocks: at nodes that no row of this block can reach it holds old
    bits, which no row ever looks at.
    """
    n_parties = len(start)
    right = np.zeros(shape.max_nodes, np.uint64)
    masks = np.zeros(shape.max_nodes + 2, np.uint64)
    at = np.empty(n_parties, np.int64)
    for party in range(n_parties):
        at[party] = start[party] * 64
    for tree in range(len(shape.offset) - 1):
        root = shape.offset[tree]
        for block in range(len(valid)):
            for party in range(n_parties):
                if known[party, block] == np.uint64(0):
                    continue
                position = at[party]
                limit = stop[party] * 64
                masks[0] = known[party, block]
                first, last = views.first[party, tree], views.first[party, tree + 1]
                k = first
                while k < last:
                    rows = masks[views.up[k]]
                    if rows == np.uint64(0):
                        k = views.skip[k]
                        continue
                    count = count_ones(rows)
                    if position + count > limit:
                        return party
                    used = position & 63
                    packed = stream[position >> 6] >> np.uint64(used)
                    if used + count > 64:
                        packed |= stream[(position >> 6) + 1] << np.uint64(64 - used)
                    position += count
                    bits = scatter_bits(packed, rows)
                    masks[2 * (k - first) + 1] = rows & ~bits
                    masks[2 * (k - first) + 2] = bits
                    right[views.node[k] - root] = bits
                    k += 1
                at[party] = position
            settle(shape, answers, tree, right, known, valid, block, leaf, out, uncertain)
    for party in range(n_parties):
        rest = stop[party] * 64 - at[party]
        if rest >= 64 or (rest > 0 and stream[stop[party] - 1] >> np.uint64(64 - rest) != np.uint64(0)):
            return party
    return -1


@kernel
def decode_leaves(
    shape: TreesShape,
    answers: LeafAnswers,
    reachable: NDArray[np.uint64],
    known: NDArray[np.uint64],
    valid: NDArray[np.uint64],
    leaf: NDArray[np.int32],
    out: NDArray[np.float64],
    uncertain: NDArray[np.bool_] | None,
) -> bool:
    """Settle every row from ``reachable[block, leaf]``, the rows that all parties left there (Proposition 1).

    Returns False if no honest replies could have left them: a row must be able to reach something, one side
    of every node whose owner knows it, and both or neither of the others.
    """
    below = np.empty(shape.max_nodes, np.uint64)
    right = np.zeros(shape.max_nodes, np.uint64)
    wrong = np.uint64(0)
    for tree in range(len(shape.offset) - 1):
        root = shape.offset[tree]
        for block in range(len(valid)):
            for i in range(shape.offset[tree + 1] - 1, root - 1, -1):
                jump = shape.jump[i]
                if jump == 0:
                    below[i - root] = reachable[block, shape.leaf[i]] & valid[block]
                    continue
                go_left = below[i - root + 1]
                go_right = below[i - root + jump]
                below[i - root] = go_left | go_right
                right[i - root] = go_right
                decided = known[shape.owner[i], block]
                wrong |= (go_left & go_right & decided) | ((go_left ^ go_right) & ~decided)
            wrong |= below[0] ^ valid[block]
            settle(shape, answers, tree, right, known, valid, block, leaf, out, uncertain)
    return bool(wrong == np.uint64(0))


@kernel
def decode_ranks(
    shape: TreesShape,
    answers: LeafAnswers,
    node: NDArray[np.int32],
    first: NDArray[np.int64],
    tests: Tests,
    codes: NDArray[Any],
    n_slots: int,
    known: NDArray[np.uint64],
    valid: NDArray[np.uint64],
    leaf: NDArray[np.int32],
    out: NDArray[np.float64],
    uncertain: NDArray[np.bool_] | None,
) -> None:
    """Settle every row from codes; the questions of tree t are ``first[t] : first[t + 1]``."""
    right = np.zeros(shape.max_nodes, np.uint64)
    for tree in range(len(shape.offset) - 1):
        root = shape.offset[tree]
        for block in range(len(valid)):
            for k in range(first[tree], first[tree + 1]):
                right[node[k] - root] = goes_right(tests, k, valid[block], codes, block * n_slots)
            settle(shape, answers, tree, right, known, valid, block, leaf, out, uncertain)
