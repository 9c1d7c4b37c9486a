"""Which rows a label was evaluated on, so that no combination of reports tells of a few rows alone.

Who subtracts the report on some rows from the report on nearly the same rows has a report on the difference. So the
label holder divides its rows into cells. Rows are in one cell as long as each evaluation was of all of them or of none.
Sums over rows that follow from several reports are sums over whole cells, so no evaluation makes a cell of fewer rows
than it could be of itself::

    first evaluation      [------ A ------)
    second                [------ A ------)--)     of A alone: a few new rows are left out
    third                 [------ A ---)           of less of A: the rest that is told by the difference is large, too
    fourth                         [---- B ----)   A and what is outside of it are divided: each part must be large

Rows that have left the table stay in their cells: a report from before and one from after tell of them as well. A few
of them are kept company by other rows of their cell, which are left out from then on. Rows that are in no evaluation
are not divided. Rows are known by a hash under a key of the party alone, which also says who keeps company.

Hidden trainings open exact counts of a table's rows, which tell of the difference of two trainings likewise. There no
row can be left out, since all parties train on the same ones: such a training is refused (`EvaluatedRows.take_whole`).
Indices of drift are sums over rows, too (`EvaluatedRows.take_part`).
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


def divide(known: Points, cells: Cells, asked: Points, least: int) -> tuple[Points, Cells, NDArray[np.bool_]]:
    """Divide cells of rows by one more evaluation, of as many of its rows as can be told of, or refuse it.

    New rows, and rows that are a small part of a cell, are left out. A table that grows can so be evaluated every day;
    new rows take part when there are enough of them. Of an evaluation of nearly all rows of a cell, as many more are
    left out as make the difference large: those with the lowest hashes, which depend on nothing that is told.

    Parameters
    ----------
    known : array
        Rows that were evaluated before, in rising order.
    cells : array
        The cell of each of them.
    asked : array
        Rows to evaluate, none twice.
    least : int
        The fewest rows that a new cell may have.

    Returns
    -------
    known, cells
        The same after the evaluation.
    told : bool array
        Which of the rows can be told of.

    Raises
    ------
    PolicyError
        If no row can be told of.

    """
    inside = np.isin(known, asked)
    is_new = ~np.isin(asked, known)
    size = np.bincount(cells)
    taken = np.bincount(cells[inside], minlength=len(size))
    company = np.where(taken < size, np.maximum(least - (size - taken), 0), 0)
    is_small = (taken - company < least) & (taken < size)
    inside &= ~is_small[cells] & (_places(cells, inside, len(size)) >= company[cells])
    taken = np.bincount(cells[inside], minlength=len(size))
    told = np.where(is_new, is_new.sum() >= least, np.isin(asked, known[inside]))
    if not told.any():
        raise _too_few(least)
    fresh = asked[told & is_new]
    halved = (taken > 0) & (taken < size)
    names = len(size) + np.cumsum(halved) - 1  # of the part of each halved cell that is in this evaluation
    cells = np.where(inside & halved[cells], names[cells], cells)
    grown = np.append(known, fresh)
    cells = np.append(cells, np.full(len(fresh), len(size) + halved.sum()))
    order = np.argsort(grown)
    # names of cells are numbered again: there are never more of them than rows
    return grown[order], np.unique(cells[order], return_inverse=True)[1].astype(_CELL), told


def _places(cells: Cells, inside: NDArray[np.bool_], n_cells: int) -> NDArray[np.int64]:
    """Of each row that is asked for, its place among those of its cell, in the order of the rows; of others 0."""
    places = np.zeros(len(cells), np.int64)
    rows = np.flatnonzero(inside)
    rows = rows[np.argsort(cells[rows], kind="stable")]
    counts = np.bincount(cells[rows], minlength=n_cells)
    places[rows] = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    return places


def _too_few(least: int) -> PolicyError:
    return PolicyError(
        f"with earlier evaluations of this label, this one would tell of fewer than {least:,} rows by the difference "
        "(min_evaluation_rows and min_rows in the section [policy]). Evaluate on the same parts as before, with the "
        "same seed and shares, or on parts that differ in more rows. Where too many rows have left since, its "
        f"operator can let earlier evaluations be forgotten ({EVALUATED_FILE})"
    )


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

    def check(self, label: str, rows: Points, least: int) -> NDArray[np.bool_]:
        """Which of the rows an evaluation can tell of; one that would tell of fewer than ``least`` is refused.

        Nothing is recorded.

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
            return divide(*self._read(db, label), rows, least)[2]

    def take(self, label: str, rows: Points, least: int) -> None:
        """Record an evaluation of rows that `check` has let through, or refuse it and record nothing.

        A job that comes again changes nothing.
        """
        with self._db.transaction() as db:
            points, cells, told = divide(*self._read(db, label), rows, least)
            if not told.all():  # another evaluation was faster
                raise _too_few(least)
            self._write(db, label, points, cells)

    def take_whole(self, table: str, rows: Points, least: int) -> None:
        """Record a hidden training on all of some rows, or refuse it and record nothing.

        Parameters
        ----------
        table : str
            The party's table, of whose rows counts are opened.
        rows : array
            Hashes of the rows.
        least : int
            By how many rows hidden trainings differ at least.

        Raises
        ------
        PolicyError
            With former trainings, this one would tell of fewer rows; the message says what can be done.
        """
        key = f"{table}\nhidden trainings"  # no column of a label has a name of two lines
        with self._db.transaction() as db:
            try:
                points, cells, told = divide(*self._read(db, key), rows, least)
            except PolicyError:
                told = np.zeros(len(rows), np.bool_)
            if not told.all():
                raise PolicyError(
                    f"with earlier hidden trainings on this table, this one would open counts of fewer than {least:,} "
                    "rows by the difference (min_difference in the section [policy]). Train on the same rows as "
                    f"before, or on parts that differ in {least:,} rows or more"
                )
            self._write(db, key, points, cells)

    def take_part(self, table: str, rows: Points, least: int) -> NDArray[np.bool_]:
        """Record that columns of some rows are compared with a training; which of the rows it can tell of.

        Parameters
        ----------
        table, rows, least
            As for `take_whole`.

        Raises
        ------
        PolicyError
            With former comparisons, this one would tell of fewer rows; nothing is recorded.
        """
        key = f"{table}\ndrift"
        with self._db.transaction() as db:
            try:
                points, cells, told = divide(*self._read(db, key), rows, least)
            except PolicyError:
                raise PolicyError(
                    f"with earlier comparisons of this table, this one would tell of fewer than {least:,} rows by the "
                    "difference (min_rows in the section [policy]). Compare the same parts as before, or parts that "
                    "differ in more rows"
                ) from None
            self._write(db, key, points, cells)
        return told

    def _write(self, db: Connection, key: str, points: Points, cells: Cells) -> None:
        row = (key, points.astype(_POINT).tobytes(), cells.astype(_CELL).tobytes())
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
