"""Labels given as arrays: one per row of a federation in this process, as scikit-learn hands them to an estimator.

A federation's columns are features unless they are known to be the labels. An array does not say where it came from,
and a model that is fitted on the labels' own column learns nothing else. So ``fed["bank.default"]`` is a `LabelColumn`:
an array that knows its column. So do its subsets, and what is computed from it (``fed["bank.default"] == "yes"``). For
other arrays, such as scikit-learn's encoded labels, every column is compared, and the one that tells the labels is
taken for theirs, with a warning.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from woodlot.data.columns import Column, NumericColumn
from woodlot.data.labels import check_weights
from woodlot.data.values import is_null, natural_type
from woodlot.data.wording import quoted
from woodlot.exceptions import DataError
from woodlot.federation.grown import Labels
from woodlot.protocols.core.target import Target

if TYPE_CHECKING:
    from woodlot.federation.local import Federation


_FEW_ROWS = 10
"""Of fewer, columns may tell each other by chance."""
_ALIKE = 0.99
"""Share of a target's values that must differ in a column that tells it in order."""


class LabelColumn(np.ndarray):
    """A column of a federation, one value per row, that remembers which column it is.

    Attributes
    ----------
    column : str or None
        The column, as the federation names it.
    """

    column: str | None

    @classmethod
    def of(cls, values: NDArray[Any], column: str) -> LabelColumn:
        """Values of this column."""
        labels = np.asarray(values).view(cls)
        labels.column = column
        return labels

    def __array_finalize__(self, made_of: Any) -> None:
        self.column = getattr(made_of, "column", None)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (np.asarray(self), self.column)  # numpy's own way forgets the column


def _rebuilt(values: NDArray[Any], column: str | None) -> LabelColumn:
    labels = values.view(LabelColumn)
    labels.column = column
    return labels


def column_of(y: object) -> str | None:
    """The column that an array has come from, where it knows."""
    return y.column if isinstance(y, LabelColumn) else None


def one_per_row(y: Any, n_rows: int, what: str) -> NDArray[Any]:
    """Labels as an array, one per row, none missing."""
    values = natural_type(np.asarray(y))
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1:
        raise DataError(f"{what} should be a 1d array, got an array of shape {values.shape} instead")
    if len(values) != n_rows:
        raise DataError(
            f"Found input variables with inconsistent numbers of samples: {[n_rows, len(values)]}; the federation has "
            f"{n_rows:,} rows and {what} {len(values):,} values"
        )
    missing = int(is_null(values).sum())
    if missing:
        raise DataError(f"Input {what} contains NaN: {missing} of its values are missing; drop these rows first")
    return values


def labels_of_array(
    federation: Federation,
    y: Any,
    sample_weight: Any,
    make_target: Callable[[NDArray[Any], NDArray[np.float64] | None], Target],
) -> Labels:
    """Labels that were given as an array, with the columns that are not to be learnt from.

    Parameters
    ----------
    federation : Federation
        Parties with different columns.
    y : array-like
        One label per row.
    sample_weight : str, LabelColumn or None
        A column of the label holder: its name, or an array that knows it.
    make_target : callable
        Checks labels and weights.
    """
    values, place = one_per_row(y, federation.n_rows, "y"), column_of(y)
    if place is None:
        members = federation.members.items()
        place = found_column(
            values, {f"{p}.{name}": [m.table.column(name)] for p, m in members for name in m.table.names}
        )
    holder, column = _owner(federation, place)
    weight, weights = _weights(federation, sample_weight, values)
    if weight is not None and weight[0] != holder:
        raise DataError(f"weights must be at the label holder {holder}, not at {weight[0]}")
    made = column is None or not np.array_equal(values, federation.labels(f"{holder}.{column}"))
    return Labels(holder, column, weight[1] if weight else None, make_target(values, weights), made=made)


def _owner(federation: Federation, place: str | None) -> tuple[str, str | None]:
    """The party that has the labels, and their column if it is still there; of unknown ones the first party."""
    party, _, name = (place or "").partition(".")
    if party not in federation.parties:
        return federation.parties[0], None
    return party, name if name in federation.columns(party) else None


def _weights(
    federation: Federation, sample_weight: Any, y: NDArray[Any]
) -> tuple[tuple[str, str] | None, NDArray[np.float64] | None]:
    if sample_weight is None:
        return None, None
    if isinstance(sample_weight, str):
        return federation.locate(sample_weight), federation.weight_values(sample_weight)
    place = column_of(sample_weight)
    if place is None:
        raise DataError(
            "on a federation sample_weight names the weights: 'party.column', at the label holder; or give the column "
            "itself, fed['party.column']"
        )
    return federation.locate(place), check_weights(one_per_row(sample_weight, len(y), "sample_weight"), y)


def found_column(y: NDArray[Any], columns: Mapping[str, list[Column]]) -> str | None:
    """The column that has the labels, or values that stand for them row by row; None if there is none.

    Parameters
    ----------
    y : array
        One label per row, that does not know its column.
    columns : mapping of str to list of columns
        What would be learnt from, perhaps in several pieces.
    """
    telling = [name for name, pieces in columns.items() if _tells(np.concatenate([_plain(c) for c in pieces]), y)]
    if len(telling) > 1:
        raise DataError(
            f"the columns {quoted(telling)} tell y, row by row, and would be learnt from; drop all but the labels' "
            "own, and give its name as y"
        )
    if telling:
        warnings.warn(
            f"y tells the same as column {telling[0]!r}, row by row: it is taken for the labels' column, and not "
            f"learnt from; fed[{telling[0]!r}] is an array that says so itself",
            UserWarning,
            stacklevel=6,
        )
        return telling[0]
    return None


def _tells(found: NDArray[Any], y: NDArray[Any]) -> bool:
    """Whether a column has the labels, or others in their place, row by row."""
    codes, others = _codes(y), _codes(found)
    if codes.max(initial=0) == 0:
        return False
    if len(y) < _FEW_ROWS:  # other columns may agree by chance: the values must be the same
        numbers = y.dtype.kind in "iufb" and found.dtype.kind == "f"
        return bool(np.array_equal(found, y.astype(np.float32) if numbers else y.astype(np.str_)))
    # where labels are measured numbers, other numbers may well be in one-to-one relation to them: compare the order
    if codes.max() + 1 == len(y) or (y.dtype.kind == "f" and bool((y != np.round(y)).any())):
        numbers = y.dtype.kind in "iuf" and found.dtype.kind == "f" and not np.isnan(found).any()
        return numbers and _same_order(codes, others)
    return _one_to_one(codes, others)


def _same_order(left: NDArray[np.int64], right: NDArray[np.int64]) -> bool:
    """Whether two columns of numbers rise together, or one falls where the other rises.

    A few values that differ on one side may be equal on the other: features are rounded to float32.
    """
    few, many = sorted((int(left.max()), int(right.max())))
    if few < _ALIKE * many:
        return False
    rising = np.diff(left[np.lexsort((left, right))])
    falling = np.diff(left[np.lexsort((-left, right))])
    return bool((rising >= 0).all() or (falling <= 0).all())


def _plain(column: Column) -> NDArray[Any]:
    if isinstance(column, NumericColumn):
        return column.values
    return np.array([*column.categories, ""], dtype=object)[column.codes].astype(np.str_)


def _codes(values: NDArray[Any]) -> NDArray[np.int64]:
    return np.unique(values.astype(np.str_) if values.dtype.kind == "O" else values, return_inverse=True)[1]


def _one_to_one(left: NDArray[np.int64], right: NDArray[np.int64]) -> bool:
    """Whether each code on one side stands for one code on the other."""
    if left.max() != right.max():
        return False
    pairs = np.unique(left * (int(right.max()) + 1) + right)
    return len(pairs) == int(left.max()) + 1
