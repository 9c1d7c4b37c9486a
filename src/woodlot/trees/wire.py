"""One-round prediction, the party's side: what it can say about rows without knowing the others' questions.

A party knows the shape of all trees and its own questions. It answers once for the whole forest, in one of
three forms; together the replies of all parties lead every row to its leaf (``collect``).

============= ========================================================= ===============================
form          the reply                                                 what it tells the coordinator
============= ========================================================= ===============================
``decisions`` one bit per row and owned node that the row can reach as  the leaves that a row can reach,
              far as this party knows                                   no more than the next form
``leaves``    one bit per row and leaf: can the row reach it as far as  the leaves that a row can reach
              this party knows (Algorithm 3 of Federated Forest)
``ranks``     the rows' values as ranks among the forest's thresholds,  also which nodes share a column,
              and the questions on them                                 and the order of rows in it
============= ========================================================= ===============================
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from woodlot.trees.forest import Splits, Structure
from woodlot.trees.kernels.ranks import MISSING
from woodlot.trees.kernels.reach import Tests, Views, encode_decisions, encode_leaves, find_regions, most_decided
from woodlot.trees.kernels.walk import MAX_SLOTS, SHIFT_BIT, SLOT_BIT
from woodlot.trees.parallel import effective_jobs, run_chunks
from woodlot.trees.ranks import Codes, Columns, Ranker, n_blocks, writable

Wire = Literal["decisions", "leaves", "ranks"]

CHUNK_ROWS = 1024
"""Rows that ``DecisionBits`` packs together; part of the format, a multiple of 64."""


@dataclass(frozen=True, eq=False)
class DecisionBits:
    """Bits of reachable owned nodes, 1 for right.

    Chunk after chunk of ``CHUNK_ROWS`` rows, each from a new word on: tree, block of 64 rows, owned node in
    preorder, and there one bit for every known row that can be at the node, from the low end of the words.
    """

    stream: NDArray[np.uint64]
    lengths: NDArray[np.uint32]
    """Words of each chunk."""


@dataclass(frozen=True, eq=False)
class LeafBits:
    """Bit r of ``words[b, l]``: row 64 b + r can reach leaf l."""

    words: NDArray[np.uint64]


@dataclass(frozen=True, eq=False)
class RankCodes:
    """A party's questions and the codes of the rows.

    A numeric question sends right what has a code of at least ``cut``; slots of numbers come first. The
    largest number of a slot's type stands for a missing number.
    """

    node: NDArray[np.int32]
    slot: NDArray[np.int32]
    cut: NDArray[np.uint16]
    missing_left: NDArray[np.bool_]
    set_start: NDArray[np.int64]
    sets: NDArray[np.uint8]
    n_thresholds: NDArray[np.int32]
    """Per slot of numbers."""
    n_codes: NDArray[np.int64]
    """Per slot of categories; the code of unseen categories."""
    codes: tuple[NDArray[Any], ...]
    """Per slot one code per row, 0 for rows that the party does not know."""


Reply = DecisionBits | LeafBits | RankCodes


class PartyPredictor:
    """A party's part in one-round prediction, prepared once for any number of rounds.

    Parameters
    ----------
    structure : Structure
        The shape of the trees.
    splits : Splits
        The party's own questions.

    """

    def __init__(self, structure: Structure, splits: Splits) -> None:
        self._structure = structure
        self._ranker = Ranker.of(splits)
        owned = np.zeros(structure.n_nodes, np.bool_)
        owned[splits.node] = True
        if (structure.right[splits.node] < 0).any() or np.count_nonzero(owned) != len(splits.node):
            raise ValueError("Every question must stand at an inner node of its own.")
        self._views, self._region = view_trees(structure, [owned])
        questions = self._ranker.questions
        self._tests = Tests(questions.word, questions.set_start, questions.sets, questions.n_numeric)
        self._most_owned = int(np.diff(self._views.first[0]).max(initial=0))
        self._owned = owned

    def most_bytes(self, n_rows: int) -> int:
        """Bytes of `DecisionBits` for so many rows at most, whatever the rows are."""
        bits = most_decided(self._structure.offset, self._structure.right, self._owned)
        return sum(8 * n_blocks((rows.stop - rows.start) * bits) + 4 for rows in chunks_of(n_rows))

    def answer(
        self,
        wire: Wire,
        columns: Columns,
        n_rows: int,
        known: NDArray[np.bool_] | None = None,
        n_jobs: int | None = None,
    ) -> Reply:
        """Answer for all rows in one of the three forms.

        Parameters
        ----------
        wire : {"decisions", "leaves", "ranks"}
            The form; "ranks" tells more than the others and is for parties that trust the coordinator.
        columns : sequence of arrays
            The party's table: float32 columns of numbers, int32 columns of category codes.
        n_rows : int
            Length of the columns.
        known : array of bool or None
            Rows that the party has; whatever stands in the columns for others is not used. None: all.
        n_jobs : int or None
            Threads, as in scikit-learn.

        Returns
        -------
        DecisionBits, LeafBits or RankCodes

        """
        self._ranker.check(columns, n_rows)
        valid = row_words(n_rows, None)
        known_words = row_words(n_rows, known)
        if wire == "decisions":
            return self._decisions(columns, n_rows, known_words, n_jobs)
        if wire == "leaves":
            return self._leaves(columns, n_rows, known_words, valid, n_jobs)
        if wire == "ranks":
            return self._ranks(columns, n_rows, known)
        raise ValueError(f"wire must be 'decisions', 'leaves' or 'ranks', not {wire!r}.")

    def _decisions(self, columns: Columns, n_rows: int, known: NDArray[np.uint64], n_jobs: int | None) -> DecisionBits:
        chunks = chunks_of(n_rows)
        streams: list[NDArray[np.uint64]] = [np.zeros(0, np.uint64)] * len(chunks)

        def one(chunk: int) -> None:
            rows = chunks[chunk]
            codes = self._ranker.block_codes(columns, rows)
            streams[chunk] = self._encode(codes, known[blocks_of(rows)])

        run_chunks(one, range(len(chunks)), effective_jobs(n_jobs))
        lengths = np.array([len(stream) for stream in streams], np.uint32)
        return DecisionBits(np.concatenate([np.zeros(0, np.uint64), *streams]), lengths)

    def _encode(self, codes: Codes, known: NDArray[np.uint64]) -> NDArray[np.uint64]:
        masks = np.zeros(2 * self._most_owned + 1, np.uint64)
        state = np.zeros(3, np.int64)
        n_slots = self._ranker.questions.n_slots
        out = np.zeros(self._most_owned + 8 * len(known) * self._structure.n_trees, np.uint64)
        while not encode_decisions(self._views, self._tests, codes, n_slots, known, masks, state, out):
            more = np.zeros(2 * len(out) + self._most_owned, np.uint64)
            more[: len(out)] = out
            out = more
        return out[: n_blocks(int(state[2]))].copy()

    def _leaves(
        self,
        columns: Columns,
        n_rows: int,
        known: NDArray[np.uint64],
        valid: NDArray[np.uint64],
        n_jobs: int | None,
    ) -> LeafBits:
        structure = self._structure
        is_leaf = structure.right < 0
        first_leaf = np.append(0, np.cumsum(is_leaf))[structure.offset]
        leaf_region = self._region[is_leaf]
        words = np.empty((n_blocks(n_rows), len(leaf_region)), np.uint64)

        def one(rows: slice) -> None:
            codes = self._ranker.block_codes(columns, rows)
            blocks = blocks_of(rows)
            encode_leaves(
                self._views,
                self._tests,
                leaf_region,
                first_leaf,
                codes,
                self._ranker.questions.n_slots,
                known[blocks],
                valid[blocks],
                np.zeros(2 * self._most_owned + 1, np.uint64),
                words[blocks],
            )

        run_chunks(one, chunks_of(n_rows), effective_jobs(n_jobs))
        return LeafBits(words)

    def _ranks(self, columns: Columns, n_rows: int, known: NDArray[np.bool_] | None) -> RankCodes:
        questions = self._ranker.questions
        slot = (questions.word >> SLOT_BIT) & (MAX_SLOTS - 1)
        missing_left = (questions.word >> SHIFT_BIT) & 1
        shift = np.where(slot < questions.n_numeric, missing_left, 0)
        n_thresholds = np.diff(self._ranker.threshold_start).astype(np.int32)
        codes: list[NDArray[Any]] = []
        for s, dtype in enumerate(wire_dtypes(n_thresholds, questions.n_codes)):
            # the missing number 0xFFFF becomes the narrow type's largest number too
            narrow = self._ranker.slot_codes(columns, s, slice(0, n_rows)).astype(dtype)
            codes.append(narrow if known is None else np.where(known, narrow, dtype(0)))
        return RankCodes(
            node=questions.node,
            slot=slot.astype(np.int32),
            cut=((questions.word & MISSING) - shift).astype(np.uint16),
            missing_left=missing_left.astype(np.bool_),
            set_start=questions.set_start,
            sets=questions.sets,
            n_thresholds=n_thresholds,
            n_codes=questions.n_codes,
            codes=tuple(codes),
        )


def wire_dtypes(
    n_thresholds: NDArray[np.int32], n_codes: NDArray[np.int64]
) -> list[type[np.uint8] | type[np.uint16] | type[np.uint32]]:
    """Smallest type per slot; one code must be left for missing numbers."""
    largest = [int(n) + 1 for n in n_thresholds] + [int(n) for n in n_codes]
    return [np.uint8 if n <= 0xFF else np.uint16 if n <= 0xFFFF else np.uint32 for n in largest]


def view_trees(structure: Structure, owned: Sequence[NDArray[np.bool_]]) -> tuple[Views, NDArray[np.int32]]:
    """How parties that own these nodes see the trees, and the region of every node for the last of them."""
    first = np.empty((len(owned), structure.n_trees + 1), np.int64)
    node: list[NDArray[np.int64]] = []
    up: list[NDArray[np.int32]] = []
    skip: list[NDArray[np.int64]] = []
    region = np.empty(structure.n_nodes, np.int32)
    until = np.empty(structure.n_nodes, np.int64)
    offset, right = writable(structure.offset), writable(structure.right)
    base = 0
    for party, mine in enumerate(owned):
        find_regions(offset, right, mine, region, until)
        before = base + np.append(0, np.cumsum(mine))
        node.append(np.flatnonzero(mine))
        up.append(region[node[-1]])
        skip.append(before[until[node[-1]]])
        first[party] = before[structure.offset]
        base = int(before[-1])
    views = Views(
        first,
        np.concatenate(node).astype(np.int32),
        np.concatenate(up),
        np.concatenate(skip).astype(np.int32),
    )
    return views, region


def row_words(n_rows: int, mask: NDArray[np.bool_] | None) -> NDArray[np.uint64]:
    """One bit per row, 64 rows in a word; bits beyond the last row are 0."""
    if mask is not None and (mask.dtype != np.bool_ or mask.shape != (n_rows,)):
        raise ValueError(f"The mask of known rows must be {n_rows} booleans.")
    padded = np.zeros(64 * n_blocks(n_rows), np.bool_)
    padded[:n_rows] = True if mask is None else mask
    return np.packbits(padded, bitorder="little").view("<u8").astype(np.uint64)


def chunks_of(n_rows: int) -> list[slice]:
    return [slice(first, min(first + CHUNK_ROWS, n_rows)) for first in range(0, n_rows, CHUNK_ROWS)]


def blocks_of(rows: slice) -> slice:
    return slice(rows.start // 64, n_blocks(rows.stop))
