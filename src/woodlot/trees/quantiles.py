"""Bins of a column whose values lie at several holders, from sums of counts alone.

A float32 has an integer form of 32 bits that keeps its order. The pooled values are counted by the first 8 of these
bits, then some of the prefixes that occur by the next 4, and so on: after seven rounds the values at the quantiles, and
the values next to them, are known to the last bit. They depend on all rows together, not on who holds which.

::

    prefix    80   bf        c0                       nonempty, in order; count 10, 31, 22
    refined        bf 8  bf 9     c0 0  c0 4          those that a quantile lies in, and their followers

Of the first 8 bits a column is asked once, of later digits for up to two prefixes for each bin. So these are short:
with digits of 8 bits there were 4 rounds and 8 times as many numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

VALUE_BITS = 32
DIGIT_BITS = {0: 8} | dict.fromkeys(range(8, VALUE_BITS, 4), 4)
"""Round by round: bits that are known of a prefix, and how many more are learnt."""
_SIGN = np.uint32(1 << 31)
_LOWEST = float(np.finfo(np.float32).min)


def ordered_form(values: NDArray[np.float32]) -> NDArray[np.uint32]:
    """Integers in the order of the numbers; -0 and 0 are one number. Missing values are left to the caller."""
    bits = (values + np.float32(0)).view(np.uint32)  # -0 + 0 is 0
    return np.where(bits >= _SIGN, ~bits, bits | _SIGN)


def ordered_values(form: NDArray[np.uint32]) -> NDArray[np.float32]:
    """Back from `ordered_form`."""
    return np.where(form >= _SIGN, form ^ _SIGN, ~form).astype(np.uint32).view(np.float32)


def count_digits(ordered: NDArray[np.uint32], prefixes: NDArray[np.uint32], known_bits: int) -> NDArray[np.int64]:
    """Holder: how many of its values, sorted, have each prefix and each next digit; shape (prefixes, digits)."""
    digit_bits = DIGIT_BITS[known_bits]
    step = np.uint64(1 << (VALUE_BITS - digit_bits - known_bits))
    bounds = prefixes.astype(np.uint64)[:, None] + np.arange((1 << digit_bits) + 1, dtype=np.uint64) * step
    below = np.searchsorted(ordered, np.minimum(bounds, np.uint64(2**32 - 1)).astype(np.uint32))
    # the bound above the largest number of all has no form of its own
    below[bounds > np.uint64(2**32 - 1)] = len(ordered)
    return np.diff(below, axis=1)


@dataclass(frozen=True, eq=False)
class Bins:
    """How a column of numbers becomes codes: code k has the values above edge k - 1 and up to edge k.

    Attributes
    ----------
    below, above : float64 arrays
        Edge k, and the least value above it: a cut between them asks for values up to their midpoint.
    """

    below: NDArray[np.float64]
    above: NDArray[np.float64]

    @property
    def n_codes(self) -> int:
        return len(self.below) + 1

    def encode(self, values: NDArray[np.float32]) -> NDArray[np.int64]:
        """Code of each value; the number of codes for missing ones."""
        codes = np.searchsorted(self.below, values.astype(np.float64), side="left")
        return np.where(np.isnan(values), self.n_codes, codes)


class PooledColumn:
    """Coordinator: what it knows of one column, round by round.

    Parameters
    ----------
    max_bins : int
        A column of no more distinct values has a bin for each; any other one is cut at its quantiles.
    """

    def __init__(self, max_bins: int) -> None:
        self._max_bins = max_bins
        self._known_bits = 0
        self._prefix: NDArray[np.uint32] = np.zeros(1, np.uint32)
        self._count: NDArray[np.int64] = np.zeros(1, np.int64)
        self._due: NDArray[np.int64] = np.zeros(1, np.int64)

    def due(self) -> NDArray[np.uint32]:
        """The prefixes to be counted by their next digit; none where the column has no values."""
        return self._prefix[self._due]

    def refine(self, counts: NDArray[np.int64]) -> None:
        """Take the sums over all holders, of shape (prefixes due, digits)."""
        self._known_bits += DIGIT_BITS[self._known_bits]
        step = np.uint32(1 << (VALUE_BITS - self._known_bits))
        finer = self.due()[:, None] + np.arange(counts.shape[1], dtype=np.uint32) * step
        stay = np.ones(len(self._prefix), bool)
        stay[self._due] = False
        prefix = np.concatenate([self._prefix[stay], finer.ravel()])
        count = np.concatenate([self._count[stay], counts.ravel()])
        occurs = np.flatnonzero(count > 0)
        order = occurs[np.argsort(prefix[occurs])]
        self._prefix, self._count = prefix[order], count[order]
        self._due = np.arange(len(order)) if len(order) <= self._max_bins else self._at_quantiles(followers=True)

    def _at_quantiles(self, *, followers: bool) -> NDArray[np.int64]:
        """The prefixes that the quantiles lie in, and perhaps those behind them."""
        upto = np.cumsum(self._count)
        ranks = -(-np.arange(1, self._max_bins) * int(upto[-1]) // self._max_bins)
        at = np.searchsorted(upto, ranks)
        at = np.concatenate([at, at + 1]) if followers else at
        return np.unique(at[at < len(upto)])

    def bins(self) -> Bins:
        """The bins, after all digits are known."""
        # A prefix that is not refined (an edge only where counts do not fit) may not be the form of a number:
        # it is below all of them.
        values = ordered_values(self._prefix).astype(np.float64)
        values[np.isnan(values)] = _LOWEST
        last = len(values) - 1
        edges = np.arange(last + 1) if len(values) <= self._max_bins else self._at_quantiles(followers=False)
        edges = edges[edges < last]
        return Bins(values[edges], values[edges + 1])


def declared_bins(edges: NDArray[np.float64]) -> Bins:
    """Bins between given edges, ascending; nothing is learnt of the values."""
    return Bins(edges, edges)
