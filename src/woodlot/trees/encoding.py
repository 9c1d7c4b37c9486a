"""From a table to the integer codes that split search works on.

A number has two codes. The fine one is the rank of its value, so that a search over fine codes is exact. The
coarse one is a group of neighbouring fine codes that fits one byte, so that a large node is searched by a
histogram first. Missing values have a code of their own, after all others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from woodlot.data.columns import CategoryColumn
from woodlot.data.spool import Spool
from woodlot.data.tables import Table
from woodlot.trees.coarsening import shifts, value_cells
from woodlot.trees.kernels.encode import encode_values
from woodlot.trees.parallel import effective_jobs, run_chunks

MAX_COARSE = 256
MIN_BINS = 2

ENCODING_BYTES = 64
"""What a thread needs in memory per row to read and encode a column: work space of 45 bytes, the column as it is read,
and its codes on the way to where they stay."""


@dataclass(frozen=True, eq=False, repr=False)
class NumericCoding:
    """What the fine codes of a numeric column mean.

    Attributes
    ----------
    low, high : ndarray of float32
        Smallest and largest value of each code, ascending; equal unless the column was binned.

    """

    low: NDArray[np.float32]
    high: NDArray[np.float32]


@dataclass(frozen=True, eq=False, repr=False)
class CategoryCoding:
    """What the codes of a categorical column mean: positions in `categories`, which are ascending."""

    categories: tuple[str, ...]


Coding: TypeAlias = NumericCoding | CategoryCoding


@dataclass(frozen=True, eq=False, repr=False)
class EncodedTable:
    """The codes of p columns and n rows, with what the split kernels must know about them.

    Attributes
    ----------
    fine : ndarray of uint8, uint16 or uint32, shape (p, n)
        Rank of each value or code of each category, in the smallest type that fits all columns. The same
        object as `coarse` where no column needs other codes.
    coarse : ndarray of uint8, shape (p, n)
        Groups of whole fine codes of about equal frequency, in the same order; missing is a group of its own
        and the last. Zero in categorical columns.
    last_fine : ndarray of int64, shape (p, 256)
        Last fine code of each coarse group.
    n_coarse : ndarray of int64, shape (p,)
        Coarse groups in use, with that of missing values; zero for categorical columns.
    refine : ndarray of uint8, shape (p,)
        1 where fine codes are finer than coarse ones. Where 0 the two are equal, save in categorical columns.
    n_codes : ndarray of int64, shape (p,)
        Number of fine codes that are values; this number itself is the code of missing values.
    has_missing : ndarray of uint8, shape (p,)
        1 where a row is missing.
    categorical : ndarray of uint8, shape (p,)
        1 for columns of categories.
    codings : tuple of NumericCoding or CategoryCoding
        What the fine codes mean. Their values are parts of `lowest` and `highest`.
    lowest, highest : ndarray of float32
        Smallest and largest value of each code of each column, one after the other; the same object unless a column
        was binned. One value stands before all columns, so that one without values points at something too.
    first_value : ndarray of int64, shape (p,)
        Where the values of each column begin.

    """

    fine: NDArray[np.unsignedinteger[Any]]
    coarse: NDArray[np.uint8]
    last_fine: NDArray[np.int64]
    n_coarse: NDArray[np.int64]
    refine: NDArray[np.uint8]
    n_codes: NDArray[np.int64]
    has_missing: NDArray[np.uint8]
    categorical: NDArray[np.uint8]
    codings: tuple[Coding, ...]
    lowest: NDArray[np.float32]
    highest: NDArray[np.float32]
    first_value: NDArray[np.int64]

    @property
    def n_columns(self) -> int:
        """Number of columns p."""
        return len(self.n_codes)

    @property
    def n_rows(self) -> int:
        """Number of rows n."""
        return int(self.coarse.shape[1])

    @cached_property
    def levels(self) -> CoarseLevels:
        """This table in coarser cells; made at the first use."""
        return CoarseLevels.of(self)

    def thresholds(
        self, feature: NDArray[np.int64], low: NDArray[np.int64], high: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Midpoints between neighbouring codes, by their values; NaN for categories.

        A ``high`` of -1 says that nothing but missing values is on the right: every value goes left.
        """
        first = self.first_value[feature]
        below = self.highest[first + np.maximum(low, 0)].astype(np.float64)
        above = self.lowest[first + np.maximum(high, 0)].astype(np.float64)
        threshold = np.where(high >= 0, below / 2 + above / 2, np.inf)
        return np.where(self.categorical[feature] == 1, np.nan, threshold)


@dataclass(frozen=True, eq=False, repr=False)
class CoarseLevels:
    """A table whose columns stand there again in every coarseness that the rule ``min_cell`` can ask for.

    A search then picks the column that is coarse enough for its node, and works on it as on any other.

    Attributes
    ----------
    table : EncodedTable
        First the columns as they are, then each one without its lowest bit, its two lowest bits, ...
    first : ndarray of int64, shape (p,)
        Where the coarser ones of each column begin.
    source, shift : ndarray of int64
        Of every column of `table`, which one it is, and how many bits it lacks.
    """

    table: EncodedTable
    first: NDArray[np.int64]
    source: NDArray[np.int64]
    shift: NDArray[np.int64]

    @classmethod
    def of(cls, base: EncodedTable) -> CoarseLevels:
        p = base.n_columns
        if (base.n_codes + base.has_missing > MAX_COARSE)[base.categorical == 0].any():
            raise ValueError("Only columns in bins have coarser cells.")
        most = shifts(np.full(p, 2), base.n_codes, base.has_missing, 1)  # two cells, the fewest
        source = np.concatenate([np.arange(p), np.repeat(np.arange(p), most)])
        first = p + np.cumsum(most) - most
        shift = np.concatenate([np.zeros(p, np.int64), np.arange(int(most.sum())) - np.repeat(first - p, most) + 1])
        n_codes, categorical, has_missing = base.n_codes[source], base.categorical[source], base.has_missing[source]
        n_codes = np.where(shift > 0, value_cells(n_codes, shift), n_codes)
        fine = np.empty((len(source), base.n_rows), base.fine.dtype)
        coarse = fine if base.fine is base.coarse else np.zeros(fine.shape, np.uint8)
        last_fine = np.concatenate([base.last_fine, np.tile(np.arange(MAX_COARSE), (len(source) - p, 1))])
        fine[:p], coarse[:p] = base.fine, base.coarse
        for k in range(p, len(source)):
            f = source[k]
            np.right_shift(base.fine[f], shift[k], out=fine[k], casting="unsafe")
            if has_missing[k]:
                fine[k][base.fine[f] == base.n_codes[f]] = n_codes[k]
            if not categorical[k]:
                coarse[k] = fine[k]
        table = replace(
            base,
            fine=fine,
            coarse=coarse,
            last_fine=last_fine,
            n_coarse=np.concatenate([base.n_coarse, np.where(categorical == 1, 0, n_codes + has_missing)[p:]]),
            refine=np.concatenate([base.refine, np.zeros(len(source) - p, np.uint8)]),
            n_codes=n_codes,
            has_missing=has_missing,
            categorical=categorical,
        )
        return cls(table, first, source, shift)

    def columns_for(self, feature: NDArray[np.int64], n_rows: NDArray[np.int64], min_cell: int) -> NDArray[np.int64]:
        """Which columns of `table` serve some features at nodes of so many rows."""
        shift = shifts(n_rows, self.table.n_codes[feature], self.table.has_missing[feature], min_cell)
        return np.where(shift > 0, self.first[feature] + shift - 1, feature)


def encode(table: Table, *, max_bins: int | None, n_jobs: int, spool: Spool | None = None) -> EncodedTable:
    """Encode every column of a table.

    Parameters
    ----------
    table : Table
        The training rows.
    max_bins : int or None
        None keeps every value of a numeric column apart, and split search exact. Otherwise, from 2 to 256:
        columns of more distinct values are binned by quantiles into at most this many codes (one fewer where
        the code of missing values would be the 257th). Categories are never binned.
    n_jobs : int
        Threads; the result does not depend on it.
    spool : Spool, optional
        Where to keep codes and values that may be larger than memory; by default they are in memory. In memory is
        then what each thread works on, `ENCODING_BYTES` for each row.

    Returns
    -------
    EncodedTable
        Nothing of it shares memory with the table.

    """
    if max_bins is not None and not MIN_BINS <= max_bins <= MAX_COARSE:
        raise ValueError(f"max_bins must be None or from {MIN_BINS} to {MAX_COARSE}, got {max_bins}.")
    n_jobs = effective_jobs(n_jobs)
    builder = _Builder(table, max_bins or 0, spool)
    # Several columns per item share a work space, whose fresh memory is as dear as the sorting.
    n_items = min(len(table.columns), 4 * n_jobs)
    run_chunks(builder.encode_columns, [range(i, len(table.columns), n_items) for i in range(n_items)], n_jobs)
    return builder.finish(n_jobs)


class _Builder:
    """The arrays of an EncodedTable while threads fill them, each its own columns."""

    def __init__(self, table: Table, max_bins: int, spool: Spool | None) -> None:
        p, n = len(table.columns), table.n_rows
        self._empty = np.zeros if spool is None else spool.empty
        self._keep = np.array if spool is None else spool.copy
        self._let_go: Callable[[], None] = (lambda: None) if spool is None else spool.let_go
        self.columns = table.columns
        self.max_bins = max_bins
        self.coarse = self._empty((p, n), np.uint8)
        self.last_fine = np.zeros((p, MAX_COARSE), dtype=np.int64)
        self.n_coarse = np.zeros(p, dtype=np.int64)
        self.n_codes = np.zeros(p, dtype=np.int64)
        self.has_missing = np.zeros(p, dtype=np.uint8)
        self.categorical = np.array([isinstance(c, CategoryColumn) for c in table.columns], dtype=np.uint8)
        self.categories: dict[int, tuple[str, ...]] = {}
        self.values: dict[int, tuple[NDArray[np.float32], NDArray[np.float32]]] = {}
        # Only the columns whose fine codes are not the coarse ones, until the type that fits all is known.
        self.own_fine: dict[int, NDArray[np.unsignedinteger[Any]]] = {}

    def encode_columns(self, indices: range) -> None:
        n = self.coarse.shape[1]
        keys, spare = np.empty((2, n), dtype=np.uint64)
        count = np.empty(n, dtype=np.int64)
        group_of = np.empty(n + 1, dtype=np.uint8)
        ranks = np.empty(n, dtype=np.uint32)
        low, high = np.empty((2, n), dtype=np.float32)
        for f in indices:
            column = self.columns[f]
            if isinstance(column, CategoryColumn):
                self._encode_categories(f, column)
                continue
            n_codes, n_coarse, missing = encode_values(
                np.ascontiguousarray(column.values),
                self.max_bins,
                keys,
                spare,
                count,
                group_of,
                ranks,
                self.coarse[f],
                low,
                high,
                self.last_fine[f],
            )
            self.n_codes[f], self.n_coarse[f], self.has_missing[f] = n_codes, n_coarse, missing
            if n_codes + missing > n_coarse:
                self.own_fine[f] = self._keep(ranks.astype(_smallest_type(n_codes + missing)))
            smallest = self._keep(low[:n_codes])
            self.values[f] = smallest, self._keep(high[:n_codes]) if self.max_bins else smallest
            self._let_go()

    def _encode_categories(self, f: int, column: CategoryColumn) -> None:
        n_codes = len(column.categories)
        missing = column.codes < 0
        self.n_codes[f], self.has_missing[f] = n_codes, missing.any()
        codes = np.where(missing, n_codes, column.codes)
        self.own_fine[f] = self._keep(codes.astype(_smallest_type(n_codes + int(self.has_missing[f]))))
        self.categories[f] = column.categories

    def finish(self, n_jobs: int) -> EncodedTable:
        fine = self._all_fine(n_jobs)
        sizes = [len(self.values[f][0]) if f in self.values else 0 for f in range(len(self.columns))]
        ends = 1 + np.cumsum([0, *sizes])
        lowest = self._all_values(0, ends)
        highest = self._all_values(1, ends) if self.max_bins else lowest
        self.values.clear()

        def coding(f: int) -> Coding:
            if f in self.categories:
                return CategoryCoding(self.categories[f])
            low = lowest[ends[f] : ends[f + 1]]
            return NumericCoding(low, highest[ends[f] : ends[f + 1]] if self.max_bins else low)

        return EncodedTable(
            fine=fine,
            coarse=self.coarse,
            last_fine=self.last_fine,
            n_coarse=self.n_coarse,
            refine=((self.n_codes + self.has_missing > self.n_coarse) & (self.categorical == 0)).astype(np.uint8),
            n_codes=self.n_codes,
            has_missing=self.has_missing,
            categorical=self.categorical,
            codings=tuple(map(coding, range(len(self.columns)))),
            lowest=lowest,
            highest=highest,
            first_value=np.minimum(ends[:-1], len(lowest) - 1),
        )

    def _all_values(self, which: int, ends: NDArray[np.int64]) -> NDArray[np.float32]:
        values: NDArray[np.float32] = self._empty((int(ends[-1]),), np.float32)
        for f, pair in self.values.items():
            values[ends[f] : ends[f + 1]] = pair[which]
            self._let_go()
        return values

    def _all_fine(self, n_jobs: int) -> NDArray[np.unsignedinteger[Any]]:
        if not self.own_fine:
            return self.coarse
        widest = max((codes.dtype for codes in self.own_fine.values()), key=lambda dtype: dtype.itemsize)
        fine: NDArray[np.unsignedinteger[Any]] = self._empty(self.coarse.shape, widest)

        def fill(f: int) -> None:
            fine[f] = self.own_fine.pop(f, self.coarse[f])  # gives the column's memory back at once
            self._let_go()

        run_chunks(fill, range(len(self.columns)), n_jobs)
        return fine


def _smallest_type(n_codes: int) -> np.dtype[np.unsignedinteger[Any]]:
    return np.min_scalar_type(max(n_codes - 1, 0))


class UnseenWarning(UserWarning):
    """A column has categories that training has not seen.

    Attributes
    ----------
    told : str
        The same without a category: for logs, which hold no values of tables.

    """

    def __init__(self, column: str, unseen: Sequence[str]) -> None:
        words = f"column {column!r} has {len(unseen)} categories unseen in training"
        super().__init__(f"{words}, such as {unseen[0]!r}; they are treated as missing")
        self.told = f"{words}; they are treated as missing"


def match_codes(coding: CategoryCoding, column: CategoryColumn) -> tuple[NDArray[np.int32], tuple[str, ...]]:
    """Translate a column into the codes of the training rows.

    Parameters
    ----------
    coding : CategoryCoding
        The categories of the training rows.
    column : CategoryColumn
        The same column of other rows.

    Returns
    -------
    codes : ndarray of int32
        ``len(coding.categories)`` for missing values and for categories that training has not seen.
    unseen : tuple of str
        These categories, ascending.

    """
    known = {category: code for code, category in enumerate(coding.categories)}
    other = len(known)
    # The extra last place is where the -1 of missing values points.
    recode = np.array([known.get(c, other) for c in column.categories] + [other], dtype=np.int32)
    return recode[column.codes], tuple(c for c in column.categories if c not in known)
