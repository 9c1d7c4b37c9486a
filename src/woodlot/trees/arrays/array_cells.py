"""Histograms of a holder's rows on arrays: the numbers of ``kernels.cells.count_cells``.

They are whole numbers that are added, so that the order of the rows does not show in them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.trees.arrays.array_module import ArrayModule
from woodlot.trees.arrays.array_rows import typed
from woodlot.trees.cells import Cells

SOURCE = r"""
// A thread is a row of a node. Of a class that is listed twice the last place counts, as on the CPU.
extern "C" __global__ void count_cells(
    const CODE* codes, long long n_table, const long long* missing_code, const LABEL* labels, const long long* targets,
    const unsigned int* rows, const WEIGHT* weights, const long long* bounds, const long long* start,
    const long long* word_start, const long long* sum_start, const long long* class_start, const long long* pair_start,
    const long long* width, const long long* classes, const long long* pairs, long long n_pairs, int with_rows,
    int target_bits, int word_bits, long long n_nodes, long long n, unsigned long long* words) {
  long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i >= n) return;
  long long low = 0, high = n_nodes - 1;
  while (low < high) { long long mid = (low + high + 1) >> 1; if (bounds[mid] <= i) low = mid; else high = mid - 1; }
  long long node = low, at = start[node] + i - bounds[node], c0 = class_start[node];
  long long n_here = class_start[node + 1] - c0, place = n_here - 1;
  unsigned int row = rows[at];
  long long label = labels[row];
  while (place >= 0 && classes[c0 + place] != label) place--;
  if (place < 0) return;
  unsigned long long w = width[node], per_word = word_bits / w, weight = weights[at];
  unsigned long long sum_width = w + target_bits, sums_per_word = word_bits / sum_width;
  for (long long q = pair_start[node]; q < pair_start[node + 1]; q++) {
    long long f = pairs[q], first = pairs[n_pairs + q], n_codes = pairs[2 * n_pairs + q];
    long long code = codes[f * n_table + row], cell = code - first;
    if (code == missing_code[f]) cell = pairs[3 * n_pairs + q] ? n_codes : -1;
    else if (cell >= n_codes) cell = -1;
    if (cell < 0) continue;
    cell += pairs[4 * n_pairs + q];
    unsigned long long field = cell * (n_here + with_rows) + place;
    atomicAdd(&words[word_start[node] + field / per_word], weight << ((field % per_word) * w));
    if (with_rows) {
      field += n_here - place;
      atomicAdd(&words[word_start[node] + field / per_word], 1ull << ((field % per_word) * w));
    }
    if (targets)
      atomicAdd(&words[sum_start[node] + cell / sums_per_word],
                (weight * (unsigned long long)targets[row]) << ((cell % sums_per_word) * sum_width));
  }
}
"""


class CellCounter:
    """A holder's table where its rows are counted.

    Parameters
    ----------
    arrays : ArrayModule
        NumPy or a card.
    codes, n_codes, labels, targets
        As for ``Cells.count``.
    """

    def __init__(
        self,
        arrays: ArrayModule,
        codes: NDArray[Any],
        n_codes: NDArray[np.int64],
        labels: NDArray[Any],
        targets: NDArray[np.int64] | None,
    ) -> None:
        self._arrays = arrays
        with arrays.guard():
            self._codes, self._n_codes, self._labels = (
                arrays.put(np.ascontiguousarray(a)) for a in (codes, n_codes, labels)
            )
            self._targets = None if targets is None else arrays.put(np.ascontiguousarray(targets))

    def put_rows(self, rows: NDArray[np.uint32], weights: NDArray[Any]) -> tuple[Any, Any]:
        """Rows and weights of all trees where they are counted."""
        with self._arrays.guard():
            return self._arrays.put(rows), self._arrays.put(weights)

    def count(
        self, cells: Cells, placed: tuple[Any, Any], start: NDArray[np.int64], end: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """As ``Cells.count``, of rows that `put_rows` has placed."""
        arrays, shape = self._arrays, cells.shape
        bounds = np.append(0, np.cumsum(end - start))
        n_nodes, n = len(start), int(bounds[-1])
        here, of_pair = shape.codes.astype(np.int64) + shape.missing, np.repeat(np.arange(n_nodes), cells.n_pairs)
        upto = np.cumsum(here) - here
        before = upto - upto[shape.pair_start[of_pair]]  # cells of the node that stand before those of the pair
        width = shape.width.astype(np.int64)
        per_word = cells.word_bits // width
        counts = cells.cells * (np.diff(shape.class_start) + cells.with_rows)
        sum_start = shape.word_start[:-1] + -(-counts // per_word)
        pairs = np.stack(
            [np.asarray(a, np.int64) for a in (shape.feature, shape.first, shape.codes, shape.missing, before)]
        )
        nodes = bounds, start, shape.word_start, sum_start, shape.class_start, shape.pair_start, width
        classes = shape.classes.astype(np.int64)
        with arrays.guard():
            words = arrays.xp.zeros(cells.length, arrays.xp.uint64)
            if arrays.on_card:
                rows, weights = placed
                source = typed(SOURCE, CODE=self._codes, LABEL=self._labels, WEIGHT=weights)
                arrays.launch(
                    source, "count_cells", n, self._codes, np.int64(self._codes.shape[1]), self._n_codes, self._labels,
                    np.uint64(0) if self._targets is None else self._targets, rows, weights,
                    *(arrays.put(a) for a in nodes), arrays.put(classes), arrays.put(pairs), np.int64(pairs.shape[1]),
                    np.int32(cells.with_rows), np.int32(cells.target_bits), np.int32(cells.word_bits),
                    np.int64(n_nodes), np.int64(n), words,
                )  # fmt: skip
            else:
                self._count(cells, placed, nodes, pairs, words)
            return arrays.get(words).view(np.int64)

    def _count(
        self, cells: Cells, placed: tuple[Any, Any], nodes: tuple[NDArray[np.int64], ...], pairs: Any, words: Any
    ) -> None:
        """Twin of the kernel, node after node."""
        bounds, start, word_start, sum_start, class_start, pair_start, width = nodes
        for node in range(len(start)):
            at = slice(start[node], start[node] + bounds[node + 1] - bounds[node])
            rows, weights = placed[0][at], placed[1][at].astype(np.uint64)
            classes = cells.classes[class_start[node] : class_start[node + 1]].astype(np.int64)
            listed, last = np.unique(classes[::-1], return_index=True)
            found = np.minimum(np.searchsorted(listed, self._labels[rows]), len(listed) - 1)
            is_listed = listed[found] == self._labels[rows]
            place = len(classes) - 1 - last[found]
            per_word, sums_per_word = (cells.word_bits // w for w in (width[node], width[node] + cells.target_bits))
            for f, first, n_codes, missing, before in pairs[:, pair_start[node] : pair_start[node + 1]].T:
                code = self._codes[f, rows].astype(np.int64)
                cell = np.where(code - first < n_codes, code - first, -1)
                cell = np.where(code == self._n_codes[f], n_codes if missing else -1, cell)
                some = np.flatnonzero((cell >= 0) & is_listed)
                cell = cell[some] + before
                field = cell * (len(classes) + cells.with_rows)
                told = [(word_start[node], field + place[some], per_word, width[node], weights[some])]
                if cells.with_rows:
                    one = np.ones(len(some), np.uint64)
                    told.append((word_start[node], field + len(classes), per_word, width[node], one))
                if self._targets is not None:
                    sums = weights[some] * self._targets[rows[some]].astype(np.uint64)
                    told.append((sum_start[node], cell, sums_per_word, width[node] + cells.target_bits, sums))
                for base, fields, per, bits, numbers in told:
                    np.add.at(words, base + fields // per, numbers << ((fields % per) * bits).astype(np.uint64))
