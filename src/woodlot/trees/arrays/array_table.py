"""A party's codes where they are searched: in the memory of the card."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from woodlot.data.columns import CategoryColumn
from woodlot.data.tables import Table
from woodlot.trees.arrays.array_module import ArrayModule
from woodlot.trees.arrays.array_rows import typed
from woodlot.trees.encoding import MAX_COARSE, CategoryCoding, Coding, NumericCoding
from woodlot.trees.kernels.encode import group_codes
from woodlot.trees.parallel import run_chunks

SOURCE = r"""
// Column, ordered bits of the value, row. Missing values are above all others, and -0 is 0.
extern "C" __global__ void value_keys(
    const unsigned int* bits, unsigned long long column, int row_bits, long long n, unsigned long long* keys) {
  long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i >= n) return;
  unsigned int b = bits[i];
  if ((b & 0x7FFFFFFFu) > 0x7F800000u) b = 0xFFFFFFFFu;
  else if (b > 0x80000000u) b ^= 0xFFFFFFFFu;
  else b |= 0x80000000u;
  keys[i] = (((column << 32) | b) << row_bits) | (unsigned long long)i;
}

extern "C" __global__ void mark_values(
    const unsigned long long* keys, int row_bits, long long n, unsigned char* marks) {
  long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i < n) marks[i] = i == 0 || keys[i] >> row_bits != keys[i - 1] >> row_bits;
}

// Every column has as many keys as the table rows: the rank of a value is what the running count gains in its column.
extern "C" __global__ void put_ranks(
    const unsigned long long* keys, const unsigned int* run, const long long* last, const long long* n_bins,
    int row_bits, long long n_rows, long long n, CODE* fine) {
  long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i >= n) return;
  long long column = i / n_rows, code = (long long)(run[i] - run[column * n_rows]);
  if (last) {  // the first bin that ends at the rank or behind it; missing values are behind all
    const long long* ends = last + 256 * column;
    long long low = 0, high = n_bins[column];
    while (low < high) { long long mid = (low + high) >> 1; if (ends[mid] >= code) high = mid; else low = mid + 1; }
    code = low;
  }
  fine[column * n_rows + (long long)(keys[i] & ((1ull << row_bits) - 1))] = (CODE)code;
}

extern "C" __global__ void thresholds(
    const long long* nodes, const int* feature, const long long* low, const long long* high, const long long* columns,
    const float* lowest, const float* highest, long long n, double* threshold) {
  long long k = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (k >= n) return;
  long long node = nodes[k], f = feature[node], first = columns[2 * f], l = low[node], h = high[node];
  if (columns[2 * f + 1]) threshold[k] = __longlong_as_double(0x7ff8000000000000ll);
  else if (h < 0) threshold[k] = __longlong_as_double(0x7ff0000000000000ll);
  else threshold[k] = (double)highest[first + (l < 0 ? 0 : l)] / 2 + (double)lowest[first + h] / 2;
}
"""
KEYS = 1 << 28
"""At most this many values are sorted at a time."""
MISSING = 0xFFFFFFFF
SOURCE_OF_CODES = SOURCE.replace("CODE", "unsigned int")
"""For the kernels that write no codes."""


@dataclass(frozen=True, eq=False, repr=False)
class ArrayTable:
    """The codes of p columns and n rows, as `EncodedTable` has them, without the groups that only CPU kernels use.

    Attributes
    ----------
    arrays : ArrayModule
        Where `fine`, `lowest` and `highest` are.
    fine : array of uint8, uint16 or uint32, shape (p, n)
        Rank of each value or code of each category.
    lowest, highest : array of float32
        Smallest and largest value of each code, column after column.
    first_value, n_codes, has_missing, categorical, codings
        As `EncodedTable` has them.
    """

    arrays: ArrayModule
    fine: Any
    lowest: Any
    highest: Any
    first_value: NDArray[np.int64]
    n_codes: NDArray[np.int64]
    has_missing: NDArray[np.uint8]
    categorical: NDArray[np.uint8]
    codings: tuple[Coding, ...]

    def thresholds(self, nodes: Any, feature: Any, low: Any, high: Any) -> Any:
        """Thresholds of some nodes (float64): as ``EncodedTable.thresholds``, of arrays of the module.

        ``feature``, ``low`` and ``high`` are those of all nodes.
        """
        xp, n = self.arrays.xp, len(nodes)
        if self.arrays.on_card:
            threshold = xp.empty(n, xp.float64)
            self.arrays.launch(
                SOURCE_OF_CODES, "thresholds", n, nodes, feature, low, high, self._columns_here, self.lowest,
                self.highest, np.int64(n), threshold,
            )  # fmt: skip
            return threshold
        first, categorical = self._columns_here[feature[nodes]].T
        low, high = (np.where(categorical == 1, -1, bound[nodes]) for bound in (low, high))
        below = self.highest[first + np.maximum(low, 0)].astype(np.float64)
        above = self.lowest[first + np.maximum(high, 0)].astype(np.float64)
        return np.where(categorical == 1, np.nan, np.where(high >= 0, below / 2 + above / 2, np.inf))

    @cached_property
    def _columns_here(self) -> Any:
        """Where the values of each column begin, and whether it has categories (int64, by column)."""
        return self.arrays.put(np.stack([self.first_value, self.categorical], axis=1).astype(np.int64))


def encode_here(arrays: ArrayModule, table: Table, max_bins: int | None, n_jobs: int) -> ArrayTable:
    """Encode every column of a table, as ``encoding.encode`` does.

    Values are sorted and ranked where ``arrays`` are. How the ranks of a column are dealt into bins is decided by the
    CPU's own kernel, from how often each occurs.
    """
    xp, n, p = arrays.xp, table.n_rows, len(table.columns)
    n_codes, has_missing = np.zeros(p, np.int64), np.zeros(p, np.uint8)
    categorical = np.array([isinstance(column, CategoryColumn) for column in table.columns], np.uint8)
    codings = tuple(
        CategoryCoding(c.categories) if isinstance(c, CategoryColumn) else NumericCoding(_NO_VALUES, _NO_VALUES)
        for c in table.columns
    )
    for f, column in enumerate(table.columns):
        if isinstance(column, CategoryColumn):
            n_codes[f], has_missing[f] = len(column.categories), bool((column.codes < 0).any())
    ranked: list[tuple[NDArray[np.int64], _Ranked]] = []
    numbers = np.flatnonzero(categorical == 0)
    step = max(1, min(KEYS // max(n, 1), 1 << (32 - _row_bits(n)))) if n else max(p, 1)
    for k in range(0, len(numbers), step):
        some = numbers[k : k + step]
        ranks = _rank(arrays, [table.columns[f].values for f in some.tolist()], n)
        if max_bins is not None and n:
            ranks = _in_bins(arrays, ranks, n, max_bins, n_jobs)
        n_codes[some], has_missing[some] = ranks.n_codes, ranks.has_missing
        ranked.append((some, ranks))
    fine = xp.empty((p, n), _type_of(int((n_codes + has_missing).max(initial=0))))
    for some, ranks in ranked:
        codes = _codes(arrays, ranks, n, fine.dtype)
        for k, f in enumerate(some.tolist()):
            fine[f] = codes[k]
    for f, column in enumerate(table.columns):
        if isinstance(column, CategoryColumn):
            fine[f] = arrays.put(np.where(column.codes < 0, n_codes[f], column.codes).astype(fine.dtype))
    lowest = highest = xp.concatenate([xp.zeros(1, xp.float32), *(ranks.values for _, ranks in ranked)])
    if max_bins is not None:
        highest = xp.concatenate([xp.zeros(1, xp.float32), *(ranks.highest for _, ranks in ranked)])
    sizes = np.where(categorical == 1, 0, n_codes)
    first_value = np.minimum(1 + np.cumsum(sizes) - sizes, len(lowest) - 1)
    return ArrayTable(arrays, fine, lowest, highest, first_value, n_codes, has_missing, categorical, codings)


class _Ranked(NamedTuple):
    """Some columns, sorted."""

    keys: Any
    run: Any
    """uint32: values so far that differ from the one before, over all columns."""
    values: Any
    """float32: distinct values, column after column; of bins the smallest of each."""
    highest: Any
    """float32: the same, of bins the largest."""
    n_codes: NDArray[np.int64]
    has_missing: NDArray[np.uint8]
    last: Any
    """int64 (columns, MAX_COARSE): last rank of each bin; None without bins."""


def _row_bits(n: int) -> int:
    return max(1, (n - 1).bit_length())


def _rank(arrays: ArrayModule, columns: list[NDArray[np.float32]], n: int) -> _Ranked:
    """Sort some columns of at least one row, all in one go."""
    xp, p, shift = arrays.xp, len(columns), _row_bits(n)
    if n == 0:
        empty = xp.empty(0, xp.uint64), xp.empty(0, xp.uint32), xp.empty(0, xp.float32)
        return _Ranked(*empty, empty[2], np.zeros(p, np.int64), np.zeros(p, np.uint8), None)
    keys = xp.empty((p, n), xp.uint64)
    for k, values in enumerate(columns):
        bits = arrays.put(np.ascontiguousarray(values)).view(xp.uint32)
        if arrays.on_card:
            arrays.launch(SOURCE_OF_CODES, "value_keys", n, bits, np.uint64(k), np.int32(shift), np.int64(n), keys[k])
            continue
        b = bits.astype(np.uint64)
        upper = np.where(b > 0x80000000, b ^ np.uint64(0xFFFFFFFF), b | np.uint64(0x80000000))
        upper[(b & np.uint64(0x7FFFFFFF)) > 0x7F800000] = MISSING
        keys[k] = ((np.uint64(k << 32) | upper) << np.uint64(shift)) | np.arange(n, dtype=np.uint64)
    keys = keys.ravel()
    keys.sort()
    if arrays.on_card:
        marks = xp.empty(p * n, xp.uint8)
        arrays.launch(SOURCE_OF_CODES, "mark_values", p * n, keys, np.int32(shift), np.int64(p * n), marks)
    else:
        upper = keys >> np.uint64(shift)
        marks = np.concatenate([[1], upper[1:] != upper[:-1]]).astype(np.uint8)
    run = xp.cumsum(marks, dtype=xp.uint32)
    distinct = (keys[xp.flatnonzero(marks)] >> xp.uint64(shift)).astype(xp.uint32)
    ends = arrays.get(run[n - 1 :: n]).astype(np.int64)
    last = arrays.get(keys[n - 1 :: n] >> xp.uint64(shift)) & np.uint64(0xFFFFFFFF)
    missing = (last == MISSING).astype(np.uint8)
    distinct = distinct[xp.flatnonzero(distinct != MISSING)] if missing.any() else distinct
    sign = xp.uint32(0x80000000)
    values = xp.where(distinct & sign > 0, distinct ^ sign, ~distinct).view(xp.float32)
    return _Ranked(keys, run, values, values, np.diff(ends, prepend=0) - missing, missing, None)


def _in_bins(arrays: ArrayModule, ranked: _Ranked, n: int, max_bins: int, n_jobs: int) -> _Ranked:
    """Deal the ranks of each column of too many values into bins."""
    xp, p = arrays.xp, len(ranked.n_codes)
    run = ranked.run.reshape(p, n)
    begins = xp.ones((p, n), bool)
    begins[:, 1:] = run[:, 1:] != run[:, :-1]
    at = xp.concatenate([xp.flatnonzero(begins), xp.full(1, p * n, xp.int64)])
    counts = arrays.get(xp.diff(at))
    del begins, at
    first = np.cumsum(ranked.n_codes + ranked.has_missing) - (ranked.n_codes + ranked.has_missing)  # ranks before
    last = np.full((p, MAX_COARSE), np.iinfo(np.int64).max, np.int64)
    n_codes = np.empty(p, np.int64)

    def deal(k: int) -> None:
        n_values = int(ranked.n_codes[k])
        most = min(max_bins, MAX_COARSE - int(ranked.has_missing[k]))
        n_codes[k] = n_values
        if n_values > most:
            n_codes[k] = group_codes(counts[first[k] : first[k] + n_values], n_values, most, last[k])
            last[k, n_codes[k] :] = np.iinfo(np.int64).max
        else:
            last[k, :n_values] = np.arange(n_values)

    run_chunks(deal, range(p), n_jobs)
    own = np.cumsum(ranked.n_codes) - ranked.n_codes  # values before those of the column
    ends = [own[k] + last[k, : n_codes[k]] for k in range(p)]
    starts = [np.concatenate([own[k : k + 1], part[:-1] + 1])[: len(part)] for k, part in enumerate(ends)]
    low, high = (ranked.values[arrays.put(np.concatenate(part))] for part in (starts, ends))
    return ranked._replace(values=low, highest=high, n_codes=n_codes, last=arrays.put(last))


def _codes(arrays: ArrayModule, ranked: _Ranked, n: int, kind: Any) -> Any:
    """The ranks of some columns where their rows are."""
    xp, shift = arrays.xp, _row_bits(n)
    p = len(ranked.n_codes)
    fine = xp.empty((p, n), kind)
    if arrays.on_card:
        source = typed(SOURCE, CODE=fine)
        bins = (np.uint64(0), np.uint64(0)) if ranked.last is None else (ranked.last, arrays.put(ranked.n_codes))
        arrays.launch(
            source, "put_ranks", p * n, ranked.keys, ranked.run, *bins, np.int32(shift), np.int64(n), np.int64(p * n),
            fine,
        )  # fmt: skip
        return fine
    row = (ranked.keys & np.uint64((1 << shift) - 1)).astype(np.int64)
    for k in range(p):
        part = slice(k * n, (k + 1) * n)
        code = (ranked.run[part] - ranked.run[part][:1]).astype(np.int64)
        if ranked.last is not None:
            code = np.searchsorted(ranked.last[k, : ranked.n_codes[k]], code)
        fine[k, row[part]] = code
    return fine


def _type_of(n_codes: int) -> np.dtype[np.unsignedinteger[Any]]:
    return np.min_scalar_type(max(n_codes - 1, 0))


_NO_VALUES = np.empty(0, np.float32)
