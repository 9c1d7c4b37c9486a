"""A holder's questions on rank codes: what a value is does not matter, only which thresholds lie below it.

A *slot* is one column as the questions see it. The code of a number is the count of the slot's thresholds
below it, so ``value <= thresholds[j]`` if and only if ``code <= j``; the code of a category is the category.
Codes have 16 bits: a column with more thresholds has several slots, each with its own stretch of the sorted
thresholds, and only columns of very many categories need 32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from woodlot.trees.forest import Splits
from woodlot.trees.kernels.ranks import MISSING, rank_slots, rank_values
from woodlot.trees.kernels.walk import MAX_SLOTS, SHIFT_BIT, SLOT_BIT

MAX_THRESHOLDS = MISSING - 1
"""Thresholds in one slot: ``code + 1`` of every number must stay below 2**16."""

_SLOTS_AT_ONCE = 64
"""Columns that are ranked in one call: a call for each would cost more than the ranking of a few hundred rows."""

Columns = Sequence[NDArray[np.float32] | NDArray[np.int32]]
"""A holder's table: per column float32 (NaN is missing) or int32 category codes."""
Scalar = TypeVar("Scalar", bound=np.generic)
Codes = NDArray[np.uint16 | np.uint32]


@dataclass(frozen=True, eq=False)
class RankedQuestions:
    """Questions in the form that the kernels use; numeric slots come before those of categories."""

    node: NDArray[np.int32]
    word: NDArray[np.int64]
    """Slot, shift and cut of each question, packed as ``kernels.walk`` describes, without the jump."""
    set_start: NDArray[np.int64]
    sets: NDArray[np.uint8]
    n_numeric: int
    n_codes: NDArray[np.int64]
    """Per slot of categories how many its sets cover; that number itself is the code of all others."""

    @property
    def n_slots(self) -> int:
        return self.n_numeric + len(self.n_codes)

    @property
    def code_dtype(self) -> type[np.uint16] | type[np.uint32]:
        return np.uint32 if self.n_codes.max(initial=0) > MISSING else np.uint16

    def new_blocks(self, n_rows: int) -> Codes:
        """Zeros in the layout of ``kernels.walk``: codes[block, slot, row in block]."""
        return np.zeros((n_blocks(n_rows), self.n_slots, 64), self.code_dtype)


@dataclass(frozen=True, eq=False)
class Ranker:
    """Turns a holder's columns into codes for its questions."""

    questions: RankedQuestions
    column: NDArray[np.int32]
    """Column of the holder's table behind each slot."""
    threshold_start: NDArray[np.int64]
    thresholds: NDArray[np.float32]
    """Those of numeric slot s are ``threshold_start[s] : threshold_start[s + 1]``, ascending and distinct."""

    @classmethod
    def of(cls, splits: Splits) -> Ranker:
        """Sort the thresholds of each column and express every question by its rank among them."""
        categorical = splits.categorical
        numeric = np.flatnonzero(~categorical)
        by_set = np.flatnonzero(categorical)
        numbers, sets = np.bincount(splits.feature[numeric]), np.bincount(splits.feature[by_set])
        both = min(len(numbers), len(sets))
        if ((numbers[:both] > 0) & (sets[:both] > 0)).any():
            raise ValueError("A column has questions on numbers and on categories.")
        if np.isnan(splits.threshold[numeric]).any():
            raise ValueError("A question has neither a threshold nor a set of categories.")

        feature = splits.feature[numeric]
        threshold = round_down(splits.threshold[numeric])
        order = np.argsort(feature.astype(np.uint64) << np.uint64(32) | in_order(threshold))
        feature, threshold = feature[order], threshold[order]
        new_feature = np.ones(len(order), np.bool_)
        new_feature[1:] = feature[1:] != feature[:-1]
        new_threshold = new_feature.copy()
        new_threshold[1:] |= threshold[1:] != threshold[:-1]
        distinct = np.cumsum(new_threshold) - 1
        rank = distinct - distinct[new_feature][np.cumsum(new_feature) - 1]
        new_slot = new_threshold & (rank % MAX_THRESHOLDS == 0)
        n_numeric = int(np.count_nonzero(new_slot))

        set_columns, set_slot = np.unique(splits.feature[by_set], return_inverse=True)
        n_codes = np.zeros(len(set_columns), np.int64)
        np.maximum.at(n_codes, set_slot, 8 * np.diff(splits.set_start)[by_set])

        slot = np.empty(len(splits.node), np.int64)
        slot[numeric[order]] = np.cumsum(new_slot) - 1
        slot[by_set] = n_numeric + set_slot
        cut = np.ones(len(splits.node), np.int64)
        cut[numeric[order]] = rank % MAX_THRESHOLDS + 1
        questions = RankedQuestions(
            node=writable(splits.node),
            word=pack_words(slot, cut, splits.missing_left, n_numeric),
            set_start=writable(splits.set_start),
            sets=writable(splits.sets),
            n_numeric=n_numeric,
            n_codes=n_codes,
        )
        return cls(
            questions=questions,
            column=np.concatenate([feature[new_slot], set_columns]).astype(np.int32),
            threshold_start=np.append(distinct[new_slot], np.count_nonzero(new_threshold)).astype(np.int64),
            thresholds=threshold[new_threshold],
        )

    def check(self, columns: Columns, n_rows: int) -> None:
        """Refuse a table that these questions were not made for."""
        for slot, column in enumerate(self.column.tolist()):
            if not 0 <= column < len(columns):
                raise ValueError(f"The forest asks about column {column}, the table has {len(columns)} columns.")
            expected = np.float32 if slot < self.questions.n_numeric else np.int32
            if columns[column].dtype != expected:
                raise TypeError(f"Column {column} must be {expected.__name__}, not {columns[column].dtype}.")
            if columns[column].shape != (n_rows,):
                raise ValueError(f"Column {column} has shape {columns[column].shape}, not ({n_rows},).")

    def slot_codes(self, columns: Columns, slot: int, rows: slice) -> Codes:
        """Codes of some rows in one slot."""
        values = columns[self.column[slot]][rows].copy()
        if slot < self.questions.n_numeric:
            codes = np.empty(len(values), np.uint16)
            thresholds = self.thresholds[self.threshold_start[slot] : self.threshold_start[slot + 1]]
            rank_values(values, thresholds, codes)
            return codes
        # as unsigned numbers negative codes are beyond every set too
        beyond = np.uint32(self.questions.n_codes[slot - self.questions.n_numeric])
        categories: NDArray[np.uint32] = np.minimum(values.view(np.uint32), beyond)
        return categories

    def block_codes(self, columns: Columns, rows: slice) -> Codes:
        """Codes of some rows in the layout of ``kernels.walk``, the last block filled up with zeros."""
        n_rows, n_numeric = rows.stop - rows.start, self.questions.n_numeric
        codes = self.questions.new_blocks(n_rows)
        values = np.empty((min(n_numeric, _SLOTS_AT_ONCE), n_rows), np.float32)
        column = self.column.tolist()
        for first in range(0, n_numeric, _SLOTS_AT_ONCE):
            some = column[first : min(first + _SLOTS_AT_ONCE, n_numeric)]
            for k, number in enumerate(some):
                values[k] = columns[number][rows]
            starts = self.threshold_start[first : first + len(some) + 1]
            rank_slots(values[: len(some)], self.thresholds, starts, first, codes)
        for slot in range(n_numeric, self.questions.n_slots):
            fill_slot(codes, slot, self.slot_codes(columns, slot, rows))
        return codes.reshape(-1)


def fill_slot(codes: Codes, slot: int, values: Codes) -> None:
    """Spread the codes of one slot over the blocks."""
    full = len(values) // 64
    codes[:full, slot] = values[: full * 64].reshape(full, 64)
    if len(values) % 64:
        codes[full, slot, : len(values) % 64] = values[full * 64 :]


def writable(array: NDArray[Scalar]) -> NDArray[Scalar]:
    """Kernels are compiled for writable arrays in C order; any other would make Numba compile them again."""
    return np.require(array, requirements=["C", "W"])


def n_blocks(n_rows: int) -> int:
    return -(-n_rows // 64)


def round_down(thresholds: NDArray[np.float64]) -> NDArray[np.float32]:
    """Largest float32 not above each threshold: no float32 lies between the two, so no answer changes."""
    with np.errstate(over="ignore"):
        near = thresholds.astype(np.float32)
        below = np.nextafter(near, np.float32(-np.inf))
    return np.where(near > thresholds, below, near)


def in_order(thresholds: NDArray[np.float32]) -> NDArray[np.uint64]:
    """Whole numbers in the order of the thresholds: one sort of these is faster than one by column and threshold.

    As bits, floats of one sign are in order; negative ones are turned around and come first. -0.0 is 0.0.
    """
    bits = (thresholds + np.float32(0.0)).view(np.uint32)
    negative = bits >> np.uint32(31) == 1
    return np.where(negative, ~bits, bits | np.uint32(1 << 31)).astype(np.uint64)


def pack_words(
    slot: NDArray[np.int64], cut: NDArray[np.int64], missing_left: NDArray[np.bool_], n_numeric: int
) -> NDArray[np.int64]:
    """Pack questions into words; the cut of a question on categories only says that this is no leaf."""
    if slot.max(initial=0) >= MAX_SLOTS:
        raise ValueError(f"A forest can ask about at most {MAX_SLOTS} columns.")
    shift = missing_left.astype(np.int64)
    cut = cut + np.where(slot < n_numeric, shift, 0)
    return cut | shift << SHIFT_BIT | slot << SLOT_BIT
