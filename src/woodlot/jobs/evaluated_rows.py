"""Which rows a label was evaluated on, so that no combination of reports tells of a few rows alone.

Who subtracts the report on some rows from the report on nearly the same rows has a report on the difference. So the
label holder divides its rows into cells. Rows are in one cell as long as each evaluation was of all of them or of none.
Sums over rows that follow from several reports are sums over whole cells, so an evaluation is refused that would make
a cell of fewer rows than it could be of itself::

    first evaluation      [------ A ------)
    second               refused: [-)          cells A and 3 rows beside it
    third                         [-------- B --------)
    fourth                    [------ C ------)      A and B are divided: each part must be large

Rows that are in no evaluation are not divided. Rows are known by a hash under a key of the party alone.
"""

from __future__ import annotations

from pathlib import Path
from sqlite3 import Connection

import numpy as np
from numpy.typing import NDArray

from woodlot.data.whole_files import state_folder
from woodlot.exceptions import JournalError, PolicyError
from woodlot.foundation.database import Database, Schema

EVALUATED_FILE = "evaluated.sqlite"
"""Name of the record of evaluated rows in a party's state folder."""

EVALUATED = Schema(
    name="the record of evaluated rows",
    application=b"WEVA",
    tables=("CREATE TABLE cells (label TEXT PRIMARY KEY, points BLOB NOT NULL, cells BLOB NOT NULL) STRICT",),
    damaged="Without a copy, move away this file alone: reports from before and after can then be told apart by rows.",
    unusable="no label may be evaluated with",
)
"""The database of `EvaluatedRows`."""

Points = NDArray[np.uint64]
Cells = NDArray[np.uint32]
_POINT, _CELL = np.dtype("<u8"), np.dtype("<u4")


def divide(known: Points, cells: Cells, asked: Points, least: int) -> tuple[Points, Cells]:
    """Divide cells of rows by one more evaluation, or refuse it.

    Parameters
    ----------
    known : array
        Rows that were evaluated before, in rising order.
    cells : array
        The cell of each of them.
    asked : array
        Rows to evaluate.
    least : int
        The fewest rows that a new cell may have.

    Returns
    -------
    known, cells
        The same after the evaluation.

    Raises
    ------
    PolicyError
        If there would be a new cell of fewer rows.

    """
    asked = np.unique(asked)
    inside = np.isin(known, asked, assume_unique=True)
    fresh = np.setdiff1d(asked, known, assume_unique=True)
    size = np.bincount(cells)
    taken = np.bincount(cells[inside], minlength=len(size))
    halved = (taken > 0) & (taken < size)
    parts = np.concatenate([taken[halved], (size - taken)[halved], [len(fresh)] if len(fresh) else []])
    if len(parts) and parts.min() < least:
        raise PolicyError(
            f"with earlier evaluations of this label, this one would tell of fewer than {least:,} rows by the "
            "difference (min_evaluation_rows and min_rows in the section [policy]). Evaluate on the same parts as "
            "before, with the same seed and shares, or on parts that differ in more rows; where the table has changed "
            f"since, its operator can let earlier evaluations be forgotten ({EVALUATED_FILE})"
        )
    names = len(size) + np.cumsum(halved) - 1  # of the part of each halved cell that is in this evaluation
    moved = inside & halved[cells]
    cells = np.where(moved, names[cells], cells)
    grown = np.append(known, fresh)
    cells = np.append(cells, np.full(len(fresh), len(size) + halved.sum()))
    order = np.argsort(grown)
    # names of cells are numbered again: there are never more of them than rows
    return grown[order], np.unique(cells[order], return_inverse=True)[1].astype(_CELL)


class EvaluatedRows:
    """The cells of each label of a party, kept on disk.

    Parameters
    ----------
    state : Path
        The party's state folder.

    """

    def __init__(self, state: Path) -> None:
        state_folder(state)
        self._db = Database(state / EVALUATED_FILE, EVALUATED)

    def check(self, label: str, rows: Points, least: int) -> None:
        """Refuse an evaluation that would tell of fewer rows than ``least``; nothing is recorded.

        Parameters
        ----------
        label : str
            What is evaluated with: the table and the column.
        rows : array
            Hashes of the rows.
        least : int
            The fewest rows of a cell.

        Raises
        ------
        PolicyError
            It would; the message says what can be done.
        JournalError
            The record cannot be read, so that nothing may be evaluated.

        """
        with self._db.transaction() as db:
            divide(*self._read(db, label), rows, least)

    def take(self, label: str, rows: Points, least: int) -> None:
        """Record an evaluation, or refuse it and record nothing; as `check`. A job that comes again changes nothing."""
        with self._db.transaction() as db:
            points, cells = divide(*self._read(db, label), rows, least)
            row = (label, points.astype(_POINT).tobytes(), cells.astype(_CELL).tobytes())
            db.execute("INSERT OR REPLACE INTO cells VALUES (?, ?, ?)", row)

    def _read(self, db: Connection, label: str) -> tuple[Points, Cells]:
        found = db.execute("SELECT points, cells FROM cells WHERE label = ?", (label,)).fetchone()
        points, cells = found or (b"", b"")
        if len(points) % _POINT.itemsize or len(points) // _POINT.itemsize != len(cells) / _CELL.itemsize:
            raise JournalError(f"{EVALUATED.name} {self._db.path} is damaged; restore it from a copy")
        return np.frombuffer(points, _POINT).astype(np.uint64), np.frombuffer(cells, _CELL).astype(np.uint32)

    def close(self) -> None:
        """Close the file. Closing twice does nothing."""
        self._db.close()
