"""Walking complete trees, 64 rows side by side.

Rows come in blocks of 64 and their codes slot by slot, so that a block stays in the nearest cache::

    codes[(block * n_slots + slot) * 64 + row]

A question is one word of 64 bits, and so is a leaf (cut 0 and jump 0: all go "right", to the leaf itself)::

    bits   63 .. 37          36 .. 17   16      15 .. 0
           jump to the right    slot    shift   cut         right  <=>  uint16(code + shift) >= cut
           child

The shift is 1 where missing values go left: it turns their code, the largest, into 0. The left child is the next node,
so only the distance to the right child is stored. A row at a leaf stays there (jump 0) and is then dropped from the
list of rows that move, without a branch.

Where a forest has questions on categories, a second word per node says where its set is, and is 0 elsewhere::

    bits   63                    62 .. 35           34 .. 0
           1: on categories      bytes of the set   first byte        right  <=>  the bit of the code is 0

Behind each set stands one byte more, all ones where missing values go left, for codes that the set does not cover. So
both answers are computed at every node without a branch, and one is taken: which kind of question comes next looks
random, and a branch would be mispredicted half of the time.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from woodlot.trees.kernels._jit import kernel

U64: Any = np.uint64

SHIFT_BIT = 16
SLOT_BIT = 17
JUMP_BIT = 37
MAX_SLOTS = 1 << (JUMP_BIT - SLOT_BIT)
MAX_JUMP = 1 << (63 - JUMP_BIT)
SET_BIT = 35
MAX_SET_BYTES = 1 << SET_BIT
MAX_SET_LENGTH = 1 << (63 - SET_BIT)


class LeafAnswers(NamedTuple):
    """What leaves answer, and whether a tree answers with its leaf's values or with one vote.

    Leaf l answers ``value[j]`` for output ``output[j]``, j in ``start[l] : start[l + 1]``; ``top[l]`` is its vote.
    """

    start: NDArray[np.int64]
    output: NDArray[np.int32]
    value: NDArray[np.float64]
    top: NDArray[np.int32]
    dense: NDArray[np.float64]
    """The same values as ``dense[leaf, output]`` where there are few outputs, else empty: adding a 0 changes
    nothing, and a loop of fixed length is faster."""
    majority: bool


@kernel
def walk_numbers(
    words: NDArray[np.int64],
    roots: NDArray[np.int64],
    codes: NDArray[Any],
    n_slots: int,
    leaf: NDArray[np.int32],
    out: NDArray[np.int32],
) -> None:
    """Write the leaf of every row in every tree to ``out[tree, row]``; no question is on categories.

    ``words`` has a word per node of the forest, ``roots`` the first node of each tree, ``leaf`` the number of each
    leaf. Rows are padded to blocks of 64: ``out`` is as wide, and what it gets for the padding is to be ignored. The
    rows of a block go down level by level, so that their loads overlap. ``active`` lists those that have not arrived:
    every row is written to it again, and only those that move on are counted.
    """
    at = np.empty(64, np.uint64)
    active = np.empty(64, np.uint32)
    for tree in range(len(roots)):
        for first in range(0, out.shape[1], 64):
            base = U64((first >> 6) * n_slots * 64)
            for row in range(64):
                at[row] = roots[tree]
                active[row] = row
            n = U64(64)
            while n > 0:
                moving = U64(0)
                for i in range(n):
                    row = U64(active[i])
                    word = words[at[row]]
                    cut = word & 0xFFFF
                    slot = U64((word >> (SLOT_BIT - 6)) & ((MAX_SLOTS - 1) << 6))
                    shift = (word >> SHIFT_BIT) & 1
                    code = (np.int64(codes[base + slot + row]) + shift) & 0xFFFF
                    at[row] += U64((word >> JUMP_BIT) if code >= cut else 1)
                    active[moving] = row
                    moving += U64(cut != 0)
                n = moving
            for row in range(64):
                out[tree, first + row] = leaf[at[row]]


@kernel
def walk(
    words: NDArray[np.int64],
    roots: NDArray[np.int64],
    where: NDArray[np.int64],
    sets: NDArray[np.uint8],
    codes: NDArray[Any],
    n_slots: int,
    leaf: NDArray[np.int32],
    out: NDArray[np.int32],
) -> None:
    """As ``walk_numbers``, for questions of both kinds; ``where`` has the second word of each node.

    The step is computed, not chosen: the compiler makes a branch of a choice whose condition is this long.
    """
    at = np.empty(64, np.uint64)
    active = np.empty(64, np.uint32)
    for tree in range(len(roots)):
        for first in range(0, out.shape[1], 64):
            base = U64((first >> 6) * n_slots * 64)
            for row in range(64):
                at[row] = roots[tree]
                active[row] = row
            n = U64(64)
            while n > 0:
                moving = U64(0)
                for i in range(n):
                    row = U64(active[i])
                    word = words[at[row]]
                    place = where[at[row]]
                    cut = word & 0xFFFF
                    slot = U64((word >> (SLOT_BIT - 6)) & ((MAX_SLOTS - 1) << 6))
                    shift = (word >> SHIFT_BIT) & 1
                    code = np.int64(codes[base + slot + row])
                    byte = min(code >> 3, (place >> SET_BIT) & (MAX_SET_LENGTH - 1))
                    bit = (np.int64(sets[U64((place & (MAX_SET_BYTES - 1)) + byte)]) >> (code & 7)) & 1
                    by_number = np.int64(((code + shift) & 0xFFFF) >= cut)
                    by_set = place >> 63  # all ones on categories
                    right = (by_set & (bit ^ 1)) | (~by_set & by_number)
                    at[row] += U64(1 + (-right & ((word >> JUMP_BIT) - 1)))
                    active[moving] = row
                    moving += U64(cut != 0)
                n = moving
            for row in range(64):
                out[tree, first + row] = leaf[at[row]]


@kernel
def in_set(code: Any, missing_left: Any, start: Any, stop: Any, sets: NDArray[np.uint8]) -> Any:
    """1 for a category that goes left; one that the set does not cover goes where missing values go."""
    at = start + (code >> 3)
    if at >= stop:
        return missing_left
    return (np.int64(sets[at]) >> (code & 7)) & 1


@kernel
def add_answers(answers: LeafAnswers, leaf: NDArray[np.int32], out: NDArray[np.float64]) -> None:
    """Add to ``out[row]`` what the row's leaves ``leaf[tree, row]`` answer, tree after tree.

    64 rows at a time, so that their sums stay in the nearest cache for all trees.
    """
    for first in range(0, out.shape[0], 64):
        for tree in range(leaf.shape[0]):
            add_tree(answers, leaf, tree, first, min(first + 64, out.shape[0]), out)


@kernel
def add_tree(
    answers: LeafAnswers, leaf: NDArray[np.int32], tree: Any, first: Any, stop: Any, out: NDArray[np.float64]
) -> None:
    """Add the answers or votes of one tree for some rows, except where the leaf is -1.

    The loop over rows is here and not in the callers: a call that passes arrays costs more than one row.
    """
    dense, start, output, value = answers.dense, answers.start, answers.output, answers.value
    for row in range(first, stop):
        i = leaf[tree, row]
        if i < 0:
            continue
        if answers.majority:
            out[row, answers.top[i]] += 1.0
        elif dense.size > 0:
            for j in range(dense.shape[1]):
                out[row, j] += dense[i, j]
        else:
            for j in range(start[i], start[i + 1]):
                out[row, output[j]] += value[j]
