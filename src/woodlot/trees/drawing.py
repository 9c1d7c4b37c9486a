"""Draws of rows that depend on the rows themselves, not on where they stand or who holds them.

Each tree draws each row a number of times that is Poisson distributed, by a hash of seed, tree and the row's *key*.
The key is a hash of all that the row holds, its label included: see docs/decisions/0011-draws-by-content.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.trees.kernels.cells import add_to_keys, draw_poisson
from woodlot.trees.kernels.rows import keep_drawn
from woodlot.trees.parallel import run_chunks
from woodlot.trees.sampling import derive_seed

MAX_RATE = 32.0
"""The most times that a row is drawn on average: its number of draws then fits a byte."""
_LABEL = 0x5851F42D4C957F2D


def poisson_thresholds(rate: float) -> NDArray[np.uint64]:
    """A random number of 64 bits that reaches n of the thresholds stands for n draws.

    In decimals, so that every machine finds the same.
    """
    with localcontext() as context:
        context.prec = 60
        mean = Decimal(rate)
        share = (-mean).exp()
        upto, found, n = share, [], 0
        while (threshold := int(upto * 2**64)) < 2**64 - 1 and n < 255:
            found.append(threshold)
            n += 1
            share *= mean / n
            upto += share
    return np.array(found, np.uint64)


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
    keys: NDArray[np.uint64], thresholds: NDArray[np.uint64], seed: int, n_trees: int, n_jobs: int
) -> tuple[NDArray[np.uint32], NDArray[np.uint8], NDArray[np.int64]]:
    """Row numbers and weights of all trees, tree after tree, and where each tree begins.

    Without thresholds every tree has every row once.
    """
    n_rows = len(keys)
    drawn: list[tuple[NDArray[np.uint32], NDArray[np.uint8]]] = [(_NO_ROWS, _NO_WEIGHTS)] * n_trees

    def draw(tree: int) -> None:
        counts = np.ones(n_rows, np.uint8)
        if len(thresholds):
            draw_poisson(np.uint64(derive_seed(seed, "bootstrap", tree)), keys, thresholds, counts)
        rows, kept = np.empty(n_rows, np.uint32), np.empty(n_rows, np.uint8)
        m = keep_drawn(counts, rows, kept)
        drawn[tree] = rows[:m].copy(), kept[:m].copy()

    run_chunks(draw, range(n_trees), n_jobs)
    bounds = np.concatenate([[0], np.cumsum([len(rows) for rows, _ in drawn])]).astype(np.int64)
    return np.concatenate([rows for rows, _ in drawn]), np.concatenate([weights for _, weights in drawn]), bounds


_NO_ROWS = np.empty(0, np.uint32)
_NO_WEIGHTS = np.empty(0, np.uint8)
