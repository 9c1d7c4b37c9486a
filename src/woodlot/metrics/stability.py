"""Population stability: how far the shares of rows in some bins have moved, sum of (new - old) * ln(new / old).

What is kept of old rows are bins and counts, so that new rows can be compared when the old ones are gone.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from woodlot.data.columns import CategoryColumn, Column, NumericColumn
from woodlot.exceptions import DataError

BINS = 10
"""Bins of numbers: tenths of the old rows."""


def stability_index(old: NDArray[np.float64], new: NDArray[np.float64]) -> float:
    """Population stability of counts by bin; half a row is added to each: an empty one costs a finite number."""
    p, q = (old + 0.5) / (old + 0.5).sum(), (new + 0.5) / (new + 0.5).sum()
    return float(np.sum((q - p) * np.log(q / p)))


class NumberBins(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="numbers"):
    """Tenths of old numbers: where they are cut, and how many are in each; the last bin is of missing ones."""

    cuts: tuple[float, ...]
    counts: tuple[int, ...]

    @classmethod
    def of(cls, values: NDArray[Any]) -> NumberBins:
        """The bins of old numbers."""
        known = values[~np.isnan(values)]
        cuts = np.unique(np.quantile(known, np.linspace(0, 1, BINS + 1)[1:-1])) if len(known) else np.empty(0)
        return cls(tuple(cuts.tolist()), tuple(np.bincount(_places(cuts, values), minlength=len(cuts) + 2).tolist()))

    def index(self, new: NDArray[Any]) -> float:
        """How far new numbers are from the old ones."""
        return _index(self.counts, _places(np.array(self.cuts), new))


class CategoryBins(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="categories"):
    """Old categories, and how many rows have each; then a bin of categories that are new, and one of missing ones."""

    categories: tuple[str, ...]
    counts: tuple[int, ...]

    @classmethod
    def of(cls, column: CategoryColumn) -> CategoryBins:
        """The bins of old categories."""
        n = len(column.categories)
        places = np.where(column.codes < 0, n + 1, column.codes)
        return cls(tuple(column.categories), tuple(np.bincount(places, minlength=n + 2).tolist()))

    def index(self, new: CategoryColumn) -> float:
        """How far new categories are from the old ones."""
        place, n = {name: k for k, name in enumerate(self.categories)}, len(self.categories)
        # a missing code is -1: the last one
        moved = np.array([*(place.get(name, n) for name in new.categories), n + 1], np.int64)
        return _index(self.counts, moved[new.codes])


def column_bins(column: Column) -> NumberBins | CategoryBins:
    """What is kept of an old column."""
    if isinstance(column, NumericColumn):
        return NumberBins.of(column.values)
    if not isinstance(column, CategoryColumn):
        raise TypeError("a column has numbers or categories")
    return CategoryBins.of(column)


def column_index(old: NumberBins | CategoryBins, new: Column) -> float:
    """How far a new column is from an old one."""
    if isinstance(old, NumberBins) and isinstance(new, NumericColumn):
        return old.index(new.values)
    if isinstance(old, CategoryBins) and isinstance(new, CategoryColumn):
        return old.index(new)
    raise DataError("a column is numeric in one of the tables and has categories in the other; give both alike")


def _places(cuts: NDArray[np.float64], values: NDArray[Any]) -> NDArray[np.int64]:
    return np.where(np.isnan(values), len(cuts) + 1, np.searchsorted(cuts, values, side="left"))


def _index(old: tuple[int, ...], places: NDArray[np.int64]) -> float:
    counts = [np.array(old, np.float64), np.bincount(places, minlength=len(old)).astype(np.float64)]
    used = (counts[0] > 0) | (counts[1] > 0)
    return stability_index(counts[0][used], counts[1][used])
