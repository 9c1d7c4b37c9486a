"""Walking complete trees, 64 rows side by side.

Rows come in blocks of 64 and their codes slot by slot, so that a block stays in the nearest cache::

    codes[(block * n_slots + slot) * 64 + row]

A question is one word of 64 bits, and so is a leaf (cut 0 and jump 0: all go "right", to the leaf itself)::

    bits   63 .. 37          36 .. 17   16      15 .. 0
           jump to the right    slot    shift   cut         right  <=>  uint16(code + shift) >= cut
           child

The shift is 1 where missing values go left: it turns their code, the largest, into 0. The left child is the next node,
so only the distance to the right child is stored. A row at a leaf stays there (jump 0), so that a group of rows can
go on until the last one has arrived, without a test per row.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from woodlot.trees.kernels._jit import kernel

SHIFT_BIT = 16
SLOT_BIT = 17
JUMP_BIT = 37
MAX_SLOTS = 1 << (JUMP_BIT - SLOT_BIT)
MAX_JUMP = 1 << (63 - JUMP_BIT)

GROUP = 16
"""Rows that go down a tree together: enough to hide the loads, few enough not to wait for the deepest."""


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
    leaf. Rows are padded to blocks of 64: ``out`` is as wide, and what it gets for the padding is to be ignored. Groups
    of rows go down level by level, so that their loads overlap, until all have arrived.
    """
    at = np.empty(GROUP, np.int64)
    for tree in range(len(roots)):
        for first in range(0, out.shape[1], GROUP):
            base = (first >> 6) * n_slots * 64 + (first & 63)
            for row in range(GROUP):
                at[row] = roots[tree]
            moving = True
            while moving:
                cuts = 0
                for row in range(GROUP):
                    word = words[at[row]]
                    cut = word & 0xFFFF
                    cuts |= cut
                    slot = (word >> SLOT_BIT) & (MAX_SLOTS - 1)
                    shift = (word >> SHIFT_BIT) & 1
                    code = (np.int64(codes[base + slot * 64 + row]) + shift) & 0xFFFF
                    at[row] += (word >> JUMP_BIT) if code >= cut else 1
                moving = cuts != 0
            for row in range(GROUP):
                out[tree, first + row] = leaf[at[row]]


@kernel
def walk(
    words: NDArray[np.int64],
    roots: NDArray[np.int64],
    n_numeric: int,
    set_start: NDArray[np.int64],
    sets: NDArray[np.uint8],
    codes: NDArray[Any],
    n_slots: int,
    leaf: NDArray[np.int32],
    out: NDArray[np.int32],
) -> None:
    """As ``walk_numbers``, for questions of both kinds; ``set_start`` here counts by nodes."""
    at = np.empty(GROUP, np.int64)
    for tree in range(len(roots)):
        for first in range(0, out.shape[1], GROUP):
            base = (first >> 6) * n_slots * 64 + (first & 63)
            for row in range(GROUP):
                at[row] = roots[tree]
            moving = True
            while moving:
                cuts = 0
                for row in range(GROUP):
                    node = at[row]
                    word = words[node]
                    cut = word & 0xFFFF
                    cuts |= cut
                    slot = (word >> SLOT_BIT) & (MAX_SLOTS - 1)
                    shift = (word >> SHIFT_BIT) & 1
                    code = np.int64(codes[base + slot * 64 + row])
                    if slot < n_numeric or cut == 0:
                        right = ((code + shift) & 0xFFFF) >= cut
                    else:
                        right = not in_set(code, shift, set_start[node], set_start[node + 1], sets)
                    at[row] += (word >> JUMP_BIT) if right else 1
                moving = cuts != 0
            for row in range(GROUP):
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
    """Add to ``out[row]`` what the row's leaves ``leaf[tree, row]`` answer, tree after tree."""
    for tree in range(leaf.shape[0]):
        add_tree(answers, leaf, tree, np.int64(0), out.shape[0], out)


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
