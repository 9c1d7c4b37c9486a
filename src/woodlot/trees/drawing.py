"""Draws of rows that depend on the rows themselves, not on where they stand or who holds them.

Each tree draws each row a number of times that is Poisson distributed, by a hash of seed, tree and the row's *key*.
The key is a hash of all that the row holds, its label included (docs/decisions/0011-draws-by-content.md), or of its id:
see docs/decisions/0037-forgetting-rows.md.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.trees.kernels.cells import add_to_keys, draw_poisson
from woodlot.trees.kernels.hashing import draw_by_row
from woodlot.trees.kernels.rows import keep_drawn
from woodlot.trees.parallel import run_chunks
from woodlot.trees.sampling import derive_seed

MAX_RATE = 32.0
"""The most times that a row is drawn on average: its number of draws then fits a byte."""
_LABEL = 0x5851F42D4C957F2D


HEAVIEST = 4096.0
"""The most times that a row may be drawn on average where it has a weight."""


def poisson_thresholds(rate: float, most: int = 255) -> NDArray[np.uint64]:
    """A random number of 64 bits that reaches n of the thresholds stands for n draws, at most ``most``.

    In decimals, so that every machine finds the same.
    """
    with localcontext() as context:
        context.prec = 60
        mean = Decimal(rate)
        share = (-mean).exp()
        upto, found, n = share, [], 0
        while (threshold := int(upto * 2**64)) < 2**64 - 1 and n < most:
            found.append(threshold)
            n += 1
            share *= mean / n
            upto += share
    return np.array(found, np.uint64)


@dataclass(frozen=True, eq=False)
class RowDraws:
    """How often each row of a table is drawn, whichever other rows there are.

    Attributes
    ----------
    keys : uint64 array
        Of each row; ascending.
    level : int32 array
        Which of the distributions a row is drawn by: rows of one weight have one.
    first : int64 array
        Where the thresholds of each distribution begin.
    thresholds : uint64 array
        As `poisson_thresholds` has them, one distribution after the other; none for rows of weight 0.
    """

    keys: NDArray[np.uint64]
    level: NDArray[np.int32]
    first: NDArray[np.int64]
    thresholds: NDArray[np.uint64]

    @classmethod
    def of(cls, keys: NDArray[np.uint64], rate: float, weights: NDArray[np.float64] | None) -> RowDraws:
        """Draw each row so many times its weight on average; the heaviest at most `HEAVIEST` times."""
        every = np.ones(len(keys)) if weights is None else weights
        different, level = np.unique(every, return_inverse=True)
        lists = [poisson_thresholds(rate * w, 2**16) if w > 0 else _NO_THRESHOLDS for w in different.tolist()]
        first = np.concatenate([[0], np.cumsum([len(one) for one in lists])]).astype(np.int64)
        return cls(keys, level.astype(np.int32), first, np.concatenate(lists))

    def take(self, rows: NDArray[np.int64]) -> RowDraws:
        """The draws of some of the rows, which are the same without the others."""
        return RowDraws(self.keys[rows], self.level[rows], self.first, self.thresholds)

    def counts(self, seed: int, tree: int) -> NDArray[np.uint32]:
        """How often a tree sees each row; a tree that draws none has every row with a weight once."""
        counts = np.empty(len(self.keys), np.uint32)
        key = np.uint64(derive_seed(seed, "bootstrap", tree))
        if draw_by_row(key, self.keys, self.level, self.first, self.thresholds, counts) == 0:
            counts[:] = np.diff(self.first)[self.level] > 0
        return counts


def id_keys(ids: Sequence[bytes], secret: bytes = b"") -> NDArray[np.uint64]:
    """One key for each row, from its id in canonical form; with a secret only who has it can tell."""
    keys = [hashlib.blake2b(id, digest_size=8, key=secret[:64], person=b"woodlot-row").digest() for id in ids]
    return np.frombuffer(b"".join(keys), "<u8").astype(np.uint64)


def text_keys(texts: Sequence[str]) -> NDArray[np.int64]:
    """Numbers that stand for texts wherever they occur: positions in a list change when the list does."""
    return id_keys([text.encode() for text in texts]).view(np.int64)


def row_keys(columns: Sequence[NDArray[Any]], column_keys: Sequence[int], labels: NDArray[Any]) -> NDArray[np.uint64]:
    """One key for each row: equal rows have equal keys, wherever they lie.

    Parameters
    ----------
    columns : sequence of arrays
        float32 numbers, or int32 codes of categories that all holders have in common.
    column_keys : sequence of int
        What each column is known by; their order does not count.
    labels : array
        Class numbers, or float64 targets.
    """
    keys = np.zeros(len(labels), np.uint64)
    for column, key in zip(columns, column_keys, strict=True):
        add_to_keys(_plain_bits(column), np.uint64(key), keys)
    add_to_keys(_plain_bits(labels), np.uint64(_LABEL), keys)
    return keys


def _plain_bits(values: NDArray[Any]) -> NDArray[np.uint64]:
    """Values as integers: zero has one form, and so has whatever is missing."""
    if values.dtype.kind != "f":
        return values.astype(np.int64).view(np.uint64)
    exact = values.astype(np.float64) + 0.0
    exact[np.isnan(exact)] = np.nan
    return exact.view(np.uint64)


def draw_trees(
    keys: NDArray[np.uint64],
    thresholds: Sequence[NDArray[np.uint64]],
    seed: int,
    n_trees: int,
    n_jobs: int,
    level: NDArray[Any] | None = None,
) -> tuple[NDArray[np.uint32], NDArray[np.uint8], NDArray[np.int64]]:
    """Row numbers and weights of all trees, tree after tree, and where each tree begins.

    Parameters
    ----------
    keys : uint64 array
        Of each row.
    thresholds : sequence of uint64 arrays
        The distributions that rows are drawn by: see `poisson_thresholds`.
    seed, n_trees : int
        Of the forest.
    n_jobs : int
        Threads.
    level : array of int, optional
        Which of the distributions each row is drawn by. None: all by the first one, and without thresholds every tree
        has every row once.
    """
    groups = [] if level is None else [np.flatnonzero(level == k) for k in range(len(thresholds))]
    grouped = [keys[rows] for rows in groups]

    def counts(tree: int) -> NDArray[np.uint8]:
        drawn, key = np.ones(len(keys), np.uint8), np.uint64(derive_seed(seed, "bootstrap", tree))
        if level is None and len(thresholds[0]):
            draw_poisson(key, keys, thresholds[0], drawn)
        for rows_of, own, some in zip(groups, grouped, thresholds, strict=False):
            part = np.empty(len(own), np.uint8)
            draw_poisson(key, own, some, part)
            drawn[rows_of] = part
        return drawn

    return kept_rows(counts, n_trees, n_jobs)


def draw_weighted(
    keys: NDArray[np.uint64], rates: NDArray[np.float64], seed: int, n_trees: int, n_jobs: int
) -> tuple[NDArray[np.uint32], NDArray[np.uint8], NDArray[np.int64]]:
    """As `draw_trees`, each row so many times on average as its rate says; none is above `MAX_RATE`."""
    draws = RowDraws.of(keys, 1.0, rates)

    def counts(tree: int) -> NDArray[np.uint8]:
        drawn = np.empty(len(keys), np.uint32)
        key = np.uint64(derive_seed(seed, "bootstrap", tree))
        draw_by_row(key, keys, draws.level, draws.first, draws.thresholds, drawn)
        return np.minimum(drawn, _BYTE).astype(np.uint8)

    return kept_rows(counts, n_trees, n_jobs)


def kept_rows(
    counts: Callable[[int], NDArray[np.uint8]], n_trees: int, n_jobs: int
) -> tuple[NDArray[np.uint32], NDArray[np.uint8], NDArray[np.int64]]:
    """Row numbers and weights of all trees, and where each tree begins, from how often a tree has each row."""
    drawn: list[tuple[NDArray[np.uint32], NDArray[np.uint8]]] = [(_NO_ROWS, _NO_WEIGHTS)] * n_trees

    def keep(tree: int) -> None:
        how_often = counts(tree)
        rows, kept = np.empty(len(how_often), np.uint32), np.empty(len(how_often), np.uint8)
        m = keep_drawn(how_often, rows, kept)
        drawn[tree] = rows[:m].copy(), kept[:m].copy()

    run_chunks(keep, range(n_trees), n_jobs)
    bounds = np.concatenate([[0], np.cumsum([len(rows) for rows, _ in drawn])]).astype(np.int64)
    return np.concatenate([rows for rows, _ in drawn]), np.concatenate([weights for _, weights in drawn]), bounds


_BYTE = 255
_NO_THRESHOLDS = np.empty(0, np.uint64)
_NO_ROWS = np.empty(0, np.uint32)
_NO_WEIGHTS = np.empty(0, np.uint8)
