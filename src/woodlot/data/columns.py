"""Columns as the forests see them: float32 numbers or small integers that stand for categories."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from woodlot.exceptions import DataError


@dataclass(frozen=True, eq=False, repr=False)
class NumericColumn:
    """Numbers; the precision is scikit-learn's, so that exported forests predict the same.

    Attributes
    ----------
    values : ndarray of float32
        One value per row, NaN where missing, never infinite. Belongs to the column and is never written to.

    """

    values: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.values)

    def take(self, rows: NDArray[np.int64]) -> NumericColumn:
        """Return the column of these rows, in this order."""
        return NumericColumn(self.values[rows])


@dataclass(frozen=True, eq=False, repr=False)
class CategoryColumn:
    """Values without an order.

    Attributes
    ----------
    codes : ndarray of int32
        Position in `categories` of each row's value, -1 where missing. Never written to.
    categories : tuple of str
        The categories that occur in the column, ascending.

    """

    codes: NDArray[np.int32]
    categories: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.codes)

    def take(self, rows: NDArray[np.int64]) -> CategoryColumn:
        """Return the column of these rows, in this order, with the categories that still occur."""
        return category_column(self.codes[rows], self.categories)


Column: TypeAlias = NumericColumn | CategoryColumn


def check_names(names: Sequence[str], what: str) -> None:
    """Refuse names of columns that could not be written down: those with a NUL, or with half a character."""
    for name in names:
        if "\0" in name or any("\ud800" <= letter <= "\udfff" for letter in name):
            raise DataError(f"{what} has the column {name!r}, whose name is not valid Unicode; rename it")


def numeric_column(
    values: NDArray[Any], *, name: str, what: str, missing: NDArray[np.bool_] | None = None
) -> NumericColumn:
    """Copy numbers of any precision into a column; `missing` marks rows whose number means nothing."""
    with np.errstate(over="ignore"):  # becomes infinite, which is refused below
        numbers = np.array(values, dtype=np.float32)
    if missing is not None:
        numbers[missing] = np.nan
    if np.isinf(numbers).any():
        raise infinite_value(name, what)
    return NumericColumn(numbers)


def category_column(codes: NDArray[np.integer[Any]], labels: Sequence[str | None]) -> CategoryColumn:
    """Build a column from positions in `labels`, which may repeat, go unused or be None; -1 is missing."""
    used = np.zeros(len(labels) + 1, dtype=np.bool_)
    used[codes] = True  # -1 marks the extra last place
    occurring = [label if seen else None for label, seen in zip(labels, used, strict=False)]
    categories = tuple(sorted({label for label in occurring if label is not None}))
    position: dict[str | None, int] = {category: code for code, category in enumerate(categories)}
    recode = np.array([position.get(label, -1) for label in [*occurring, None]], dtype=np.int32)
    return CategoryColumn(recode[codes], categories)


def infinite_value(name: str, what: str) -> DataError:
    """The refusal of an infinite number, in scikit-learn's words."""
    return DataError(
        f"Input {what} contains infinity or a value too large for dtype('float32'). It is in column {name!r}."
    )


def time_value(name: str, what: str, kind: str) -> DataError:
    """The refusal of dates, times and durations."""
    return DataError(
        f"Column {name!r} of {what} holds dates or times ({kind}). Derive numbers from it that a tree "
        "can split, such as the day of the week, an age in days or the days since 1970-01-01."
    )


def unusable_type(name: str, what: str, kind: str) -> DataError:
    """The refusal of a column that is neither numbers nor categories."""
    return DataError(
        f"Column {name!r} of {what} has the type {kind}, which is neither a number, a boolean nor a "
        "category. Convert it to one of these or leave the column out."
    )


def mixed_types(name: str, what: str, kinds: Sequence[str]) -> DataError:
    """The refusal of a column of Python objects that have no type in common."""
    return DataError(
        f"Column {name!r} of {what} mixes values of different types ({', '.join(kinds)}). "
        "Make them all numbers or all strings."
    )
