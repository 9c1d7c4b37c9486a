"""A client's labels, checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.data.labels import check_classes, check_targets, finite_weights
from woodlot.exceptions import DataError
from woodlot.protocols.core.forest_parts import ClassName
from woodlot.protocols.core.target import Target
from woodlot.protocols.rows.row_messages import Task

UNLISTED = -1
"""The number of a label that is not in the public list of classes, or is missing."""

MOST_WEIGHT_BITS = 16
"""No weight of a row is above 2 to this power."""
MOST_COPIES = 255
"""The largest weight of a row that is not drawn: it counts as so many copies."""

_TRUTH = {"true": True, "false": False}


def target_of(
    y: NDArray[Any],
    task: Task,
    public: tuple[ClassName, ...] | None = None,
    public_range: tuple[float, float] | None = None,
) -> Target:
    """Labels, checked; of no rows too, which have no classes.

    Parameters
    ----------
    y : array
        The labels.
    task : {"classes", "targets"}
        What they are.
    public : tuple, optional
        The public list of classes, under differential privacy. Any label is then taken, since to refuse one would tell
        of its row: what is not in the list is `UNLISTED`.
    public_range : (float, float), optional
        The public range of targets. Any target is then taken, and what is not a number is NaN.
    """
    if len(y) == 0:
        return Target((), np.empty(0, np.int64), np.empty(0))
    if public is not None and task == "classes":
        return Target(public, listed_numbers(y.tolist(), public), np.empty(0))
    if public_range is not None and task == "targets":
        return Target((), np.empty(0, np.int64), np.array([_number(value) for value in y.tolist()]))
    return Target.of_classes(check_classes(y)) if task == "classes" else Target.of_values(check_targets(y))


def row_weights(values: Any, n_rows: int, *, copies: bool) -> NDArray[np.float64]:
    """A client's weights of rows, checked; all of them may be 0.

    Parameters
    ----------
    values : array-like
        As the client has them.
    n_rows : int
        Of the client.
    copies : bool
        Whether rows are not drawn: a weight is then the number of times that a row counts.

    Raises
    ------
    DataError
        If they cannot be used; no weight is told.
    """
    if n_rows == 0:
        return np.empty(0)
    try:
        weights = finite_weights(values)
    except ValueError as error:
        raise DataError(str(error)) from None
    if weights.shape != (n_rows,):
        raise DataError(f"sample_weight must have one weight for each of the {n_rows:,} rows")
    most = MOST_COPIES if copies else 2**MOST_WEIGHT_BITS
    if float(weights.max()) > most:
        raise DataError(f"sample_weight has weights above {most:,}; scale them, so that they are 1 on average")
    if copies and not (weights == np.floor(weights)).all():
        raise DataError("with bootstrap=False sample_weight must be whole numbers: how often a row counts")
    return weights


def listed_numbers(labels: Sequence[Any], public: tuple[ClassName, ...]) -> NDArray[np.int64]:
    """The place of each label in the public list, `UNLISTED` where it is not in it.

    Numbers are the same as text or as numbers: one cell that is no number makes a column of a CSV file text, and must
    not change what the other rows are counted as.
    """
    place = {_value(label): number for number, label in enumerate(public)}
    if len(place) < len(public):  # a list with both 1 and "1" tells them apart
        exact = {(isinstance(label, str), label): number for number, label in enumerate(public)}
        return np.array([exact.get((isinstance(label, str), label), UNLISTED) for label in labels], np.int64)
    return np.array([place.get(_value(label), UNLISTED) for label in labels], np.int64)


def _number(value: Any) -> float:
    """A target as a number, NaN where it is none; infinite ones are beyond any range."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return float("nan")


def _value(label: Any) -> Any:
    """A label as what it says: text that is a number, or a truth value, is that."""
    if not isinstance(label, str):
        return label
    if label.lower() in _TRUTH:
        return _TRUTH[label.lower()]
    try:
        return float(label)
    except ValueError:
        return label
