"""Which of the common rows a job is for: every party finds them itself, by a keyed hash of its own ids."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from woodlot.data.ids import canonical_ids
from woodlot.data.row_rules import RowRule, row_points
from woodlot.exceptions import DataError
from woodlot.jobs.home import TakenOrder
from woodlot.jobs.orders import AlignedOrder, Order

Rows = NDArray[np.int64]


def own_row_key(taken: TakenOrder[Order]) -> bytes:
    """The key of rows of a party that has nobody to align with."""
    return taken.home.store.secret_for("rows", "points")


def selected_rows(taken: TakenOrder[AlignedOrder], rows: Rows) -> Rows:
    """Those of the common rows that the order is for.

    Parameters
    ----------
    taken : TakenOrder
        The order, and the table.
    rows : array of int
        Own row of each common row.

    """
    order = taken.order
    if not order.subsets:
        return rows
    if any(part.by_class is True for part in order.subsets):
        raise DataError("rows of parties with different columns are not divided by class: only one of them has labels")
    if (rows < 0).any():
        raise DataError("it lacks rows of the alignment, and cannot tell on which side they are: use join='inner'")
    key = own_row_key(taken) if order.alignment is None else taken.home.store.row_key(order.alignment)
    ids = _ids(taken, rows)
    chosen = np.ones(len(rows), np.bool_)
    for part in order.subsets:
        chosen &= RowRule(part.seed, part.start, part.stop).chosen(row_points(ids, part.seed, key))
    if not chosen.any():
        raise DataError("none of the common rows is in the part that the order is for; take another seed or share")
    return rows[chosen]


def seen_points(taken: TakenOrder[Order], rows: Rows) -> NDArray[np.uint64]:
    """Hashes of rows, under a key of this party alone, by which it knows the rows of a training again."""
    return row_points(_ids(taken, rows), 0, taken.home.store.secret_for("rows", "seen"))


def _ids(taken: TakenOrder[Order], rows: Rows) -> list[bytes]:
    values = canonical_ids(taken.loaded.ids).values
    return [values[row] for row in rows.tolist()]
