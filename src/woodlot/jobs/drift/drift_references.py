"""What is kept of a training to compare new rows with: bins and counts, at each owner and at the leader."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np
from numpy.typing import NDArray

from woodlot.data.tables import Table
from woodlot.metrics.stability import CategoryBins, NumberBins, column_bins, column_index

MAX_ROWS = 100_000
"""The most rows of a training that are counted, at equal distances."""

_DIGITS = 3
"""Digits of an index that are told."""

_LENGTH = 8
"""Characters of an index, as far as the length of a page tells."""


def rounding(indices: Iterable[float]) -> int:
    """Bytes that indices lack to one length: who sees how long a page is knows not which are large."""
    return sum(max(0, _LENGTH - len(repr(index))) for index in indices)


class ColumnsReference(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An owner's columns in the training, in its state folder."""

    n_rows: int
    columns: dict[str, NumberBins | CategoryBins]

    @classmethod
    def of(cls, table: Table) -> ColumnsReference:
        """Bins and counts of the columns that a model has learnt from."""
        n_rows = min(table.n_rows, MAX_ROWS)
        some = (
            table if n_rows == table.n_rows else table.take(np.linspace(0, table.n_rows - 1, n_rows).astype(np.int64))
        )
        return cls(n_rows, {name: column_bins(some.column(name)) for name in some.names})

    def indices(self, table: Table) -> dict[str, float]:
        """How far the columns of a table are from these."""
        return {name: round(column_index(old, table.column(name)), _DIGITS) for name, old in self.columns.items()}


class AnswersReference(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The model's out-of-bag answers for the training's rows, at the leader; by output."""

    outputs: tuple[NumberBins, ...]

    @classmethod
    def of(cls, outputs: NDArray[np.float64]) -> AnswersReference:
        """Bins and counts of answers; rows that every tree has drawn have none."""
        known = outputs[~np.isnan(outputs).any(axis=1)]
        return cls(tuple(NumberBins.of(column) for column in known.T))

    def indices(self, outputs: NDArray[np.float64]) -> tuple[float, ...]:
        """How far new answers are from these."""
        return tuple(round(old.index(new), _DIGITS) for old, new in zip(self.outputs, outputs.T, strict=True))


class DriftPage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an owner tells the user: the index of each column by name, or the largest; and rows that were compared."""

    n_old: int
    n_new: int
    largest: float
    columns: dict[str, float] | None = None


class AnswersPage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the leader tells the user: the index of each output, None without out-of-bag answers; and the classes."""

    indices: tuple[float, ...] | None
    classes: tuple[str | int | float | bool, ...]
