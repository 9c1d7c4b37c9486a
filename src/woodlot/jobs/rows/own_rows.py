"""Which of its own rows a party uses in a job over rows, by a keyed hash of their ids.

The key is a lasting secret of the party alone. Nobody else can compute on which side a row is, and a row stays there
when rows are added, another party joins, or the table is sorted in another way.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.data.ids import canonical_ids
from woodlot.data.row_rules import RowRule, class_points, row_points
from woodlot.exceptions import DataError
from woodlot.jobs.columns.row_selection import own_row_key, seen_points
from woodlot.jobs.forget.forget_orders import ForgetRowsOrder
from woodlot.jobs.home import TakenOrder, private_errors
from woodlot.jobs.rows.rows_orders import EvaluateRowsOrder, TrainRowsOrder

Selecting = TakenOrder[TrainRowsOrder] | TakenOrder[EvaluateRowsOrder]
Growing = TakenOrder[TrainRowsOrder] | TakenOrder[ForgetRowsOrder]
Taken = Selecting | TakenOrder[ForgetRowsOrder]


def own_rows(taken: Selecting) -> NDArray[np.int64] | None:
    """The rows that the order is for; None: all."""
    if not taken.order.subsets:
        return None
    key: Any = own_row_key(taken)
    ids = own_ids(taken)
    chosen = np.ones(len(ids), np.bool_)
    for part in taken.order.subsets:
        points = row_points(ids, part.seed, key)
        if part.by_class is True:
            points = class_points(ids, part.seed, _labels(taken), key)
        chosen &= RowRule(part.seed, part.start, part.stop).chosen(points)
    if not chosen.any():
        raise DataError("none of its rows is in the part that the order is for; take another seed or share")
    return np.flatnonzero(chosen)


def _labels(taken: Selecting) -> NDArray[Any]:
    """Labels of all rows: each party divides the rows of each class, and tells nobody which they are."""
    if taken.part.label is None:
        raise DataError("rows are divided by class, and the order names no column of labels")
    with private_errors(taken.job, "its labels cannot be used"):
        return taken.loaded.values(taken.part.label)


def own_ids(taken: Taken) -> list[bytes]:
    """The ids of all rows."""
    with private_errors(taken.job, "its ids cannot be used"):
        return canonical_ids(taken.loaded.ids).values


def keep_seen(taken: Growing, rows: NDArray[np.int64] | None) -> None:
    """Keep which rows a model was trained on, to say so when it is evaluated on them."""
    with private_errors(taken.job, "its ids cannot be used"):
        taken.home.store.keep_seen(taken.job, seen_points(taken, every_row(taken, rows)))


def count_seen(taken: TakenOrder[EvaluateRowsOrder], rows: NDArray[np.int64] | None) -> int | None:
    """How many of these rows were in the model's training; None where that is not known here."""
    with private_errors(taken.job, "its ids cannot be used"):
        return taken.home.store.count_seen(taken.order.model, seen_points(taken, every_row(taken, rows)))


def every_row(taken: Taken, rows: NDArray[np.int64] | None) -> NDArray[np.int64]:
    """Numbers of these rows; of all, where none are chosen."""
    return np.arange(taken.loaded.n_rows) if rows is None else rows
