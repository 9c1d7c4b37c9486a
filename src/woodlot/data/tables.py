"""The table that every party holds in memory, and the one door through which data comes in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.data.column_readers import array_columns, arrow_columns, is_pandas_frame, pandas_columns
from woodlot.data.columns import CategoryColumn, Column, NumericColumn, category_column, check_names
from woodlot.data.values import require_column
from woodlot.data.wording import quoted
from woodlot.exceptions import DataError


@dataclass(frozen=True, eq=False, repr=False)
class Table:
    """Columns of equal length, in memory, that nobody changes.

    Attributes
    ----------
    names : tuple of str
        One name per column, no two the same.
    columns : tuple of NumericColumn or CategoryColumn
        As many as names.
    n_rows : int
        Length of every column.
    positional : bool
        True when the data had no names (a plain array): the names are then the positions "0", "1", ...

    """

    names: tuple[str, ...]
    columns: tuple[Column, ...]
    n_rows: int
    positional: bool = False

    def __post_init__(self) -> None:
        if len(self.names) != len(self.columns):
            raise DataError(f"{len(self.names)} names were given for {len(self.columns)} columns.")
        check_names(self.names, "the table")
        _refuse_duplicates(self.names, "the table")
        for name, column in zip(self.names, self.columns, strict=True):
            if len(column) != self.n_rows:
                raise DataError(f"Column {name!r} has {len(column)} rows instead of {self.n_rows}.")

    def __repr__(self) -> str:
        return f"Table({len(self.names)} columns, {self.n_rows:,} rows)"

    def column(self, name: str) -> Column:
        """Return the column of this name."""
        self._require([name])
        return self.columns[self._position[name]]

    def absent(self, names: Sequence[str]) -> list[str]:
        """Return those of these names that no column has."""
        return [name for name in names if name not in self._position]

    @cached_property
    def _position(self) -> dict[str, int]:
        """Where each column stands: made once, for a table may have many thousands of columns."""
        return {name: index for index, name in enumerate(self.names)}

    def _require(self, names: Sequence[str]) -> None:
        absent = self.absent(names)
        if absent:
            raise DataError(f"There is no column {quoted(absent)}; the columns are {quoted(self.names)}.")

    def select(self, names: Sequence[str]) -> Table:
        """Return the table of these columns, in this order; those of a plain array keep their names."""
        self._require(names)
        columns = tuple(self.columns[self._position[name]] for name in names)
        return Table(tuple(names), columns, self.n_rows, self.positional)

    def take(self, rows: Any) -> Table:
        """Return the table of these rows, in this order.

        Parameters
        ----------
        rows : array-like of int or bool, or slice
            Row numbers, a mask or a slice, as for a numpy array.

        """
        index = np.atleast_1d(np.arange(self.n_rows)[rows])
        return Table(self.names, tuple(c.take(index) for c in self.columns), len(index), self.positional)

    def take_or_missing(self, rows: NDArray[np.int64]) -> Table:
        """Return the table of these row numbers; a row that the table does not have (-1) is missing everywhere."""
        if (rows >= 0).all():
            return self.take(rows)
        columns = tuple(_take_or_missing(column, rows) for column in self.columns)
        return Table(self.names, columns, len(rows), self.positional)


def _take_or_missing(column: Column, rows: NDArray[np.int64]) -> Column:
    # The value that -1 points to stands behind all others.
    if isinstance(column, CategoryColumn):
        return category_column(np.append(column.codes, np.int32(-1))[rows], column.categories)
    return NumericColumn(np.append(column.values, np.float32(np.nan))[rows])


def read_table(data: Any, *, what: str = "X", skip: str | None = None) -> Table:
    """Copy data of any supported kind into a table.

    Parameters
    ----------
    data : array-like, DataFrame, Arrow table or Table
        A two-dimensional numpy array or nested sequence; a pandas or polars data frame; a pyarrow Table or
        RecordBatch; anything else with the Arrow interface (``__arrow_c_stream__``). A Table is returned as
        it is.
    what : str
        What error messages call the data.
    skip : str, optional
        A column with a name that is not to be read, whatever its type: the ids of the rows. It must be there: under a
        misspelt name ids would be learnt from.

    Returns
    -------
    Table
        Numbers and booleans are numeric; strings and dictionary-encoded values are categories; nulls are
        missing. A column of Python objects in a plain array is numeric where all of them convert to numbers.

    Raises
    ------
    DataError
        A ValueError that names the column which cannot be used and says what to do.
    TypeError
        For sparse matrices, and for Python objects that are neither strings nor numbers, as in scikit-learn.

    """
    if isinstance(data, Table):
        return data
    if type(data).__module__.startswith("scipy.sparse"):
        raise TypeError(
            f"Sparse data was passed for {what}, but dense data is required. "
            "Use '.toarray()' to convert to a dense numpy array."
        )
    if is_pandas_frame(data):
        names = tuple(str(label) for label in data.columns)
        _refuse_duplicates(names, what)
        if skip is not None:
            require_column(skip, names, what)
        kept = [i for i, name in enumerate(names) if name != skip]
        names = tuple(names[i] for i in kept)
        return Table(names, pandas_columns(data.iloc[:, kept], names, what), len(data))
    if hasattr(data, "__arrow_c_stream__") and getattr(data, "ndim", 2) != 1:
        arrow = _arrow_table(data, what)
        _refuse_duplicates(arrow.column_names, what)
        if skip is not None:
            require_column(skip, arrow.column_names, what)
        names = tuple(name for name in arrow.column_names if name != skip)
        arrow = arrow.select(names)
        return Table(names, arrow_columns(arrow, what), arrow.num_rows)
    columns, n_rows = array_columns(data, what)
    return Table(tuple(str(i) for i in range(len(columns))), columns, n_rows, positional=True)


def arrow_of(data: Any, what: str) -> Any:
    """A table with names as pyarrow has it: a pandas frame without its index, or anything with the Arrow interface."""
    if not is_pandas_frame(data):
        return _arrow_table(data, what).replace_schema_metadata(None)
    import pyarrow as pa

    try:
        return pa.Table.from_pandas(data, preserve_index=False).replace_schema_metadata(None)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise DataError(f"{what} has a column that Arrow has no type for: {error}; convert it first") from error


def _arrow_table(data: Any, what: str) -> Any:
    import pyarrow as pa

    if isinstance(data, pa.Table):  # the interface would cut a name where it holds a NUL
        return data
    try:
        return pa.table(data)
    except pa.ArrowException as error:
        raise DataError(
            f"{what} could not be read as a table through its Arrow interface: {error}. "
            "It must have columns and rows; a single column must be put into a table first."
        ) from error


def _refuse_duplicates(names: Sequence[str], what: str) -> None:
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise DataError(
            f"Column names must be unique, but {what} has {quoted(repeated)} more than once. "
            "Rename or drop all but one of each."
        )
