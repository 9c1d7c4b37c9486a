"""A second copy of what a party must never forget: which orders it has taken, and what it has spent of privacy.

Both are in the journal, in the transactions that they belong to. The journal is also the largest and the busiest file,
so that it is the first to be damaged, and a new one would let every order be taken again and every budget be spent
again. So they are written to a file of their own as well, before the journal's transaction is committed: after a crash
in between, the copy has more than the journal, never less.

If one of the two files is lost, it is made again from the other when the party starts.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from sqlite3 import Connection
from types import TracebackType
from typing import Self

from woodlot.foundation.database import Database, Schema
from woodlot.privacy.budget import BUDGET_SCHEMA, BudgetRecord
from woodlot.runtime.journal import Journal

SECOND_COPY = "second-copy.sqlite"
"""Name of the file in a state folder."""

SCHEMA = Schema(
    name="the second copy of the journal",
    application=b"WCPY",
    tables=("CREATE TABLE jobs (job TEXT PRIMARY KEY) STRICT, WITHOUT ROWID", *BUDGET_SCHEMA.tables),
    damaged="Without a copy, move away this file alone: it is made again from journal.sqlite.",
    unusable="nothing may be answered",
)


class SecondCopy:
    """The orders that a party has taken, and what it has spent, apart from its journal.

    Parameters
    ----------
    path : Path
        The file; it is made when it does not exist.

    """

    def __init__(self, path: Path) -> None:
        self._db = Database(path, SCHEMA)

    def note(self, job: str, also: Callable[[Connection], None] | None = None) -> None:
        """Record that an order was taken, and what ``also`` writes to the record; when this returns it is on disk."""
        with self._db.transaction() as db:
            db.execute("INSERT OR IGNORE INTO jobs VALUES (?)", (job,))
            if also is not None:
                also(db)

    def reconcile(self, journal: Journal) -> int:
        """Make a journal that is new again from this copy, or add to this copy what only the journal has.

        Returns
        -------
        int
            How many orders a new journal has been told of.

        """
        known = journal.jobs()
        with self._db.transaction() as db:
            taken = [job for (job,) in db.execute("SELECT job FROM jobs ORDER BY job")]
            if known or not taken:
                db.executemany("INSERT OR IGNORE INTO jobs VALUES (?)", [(job,) for job in known])
                journal.consult(lambda other: BudgetRecord(other).copy_to(BudgetRecord(db)))
                return 0
            # Whoever asks for one of them is told that it has ended: its messages are lost.
            journal.take_over(taken, lambda other: BudgetRecord(db).copy_to(BudgetRecord(other)))
        return len(taken)

    def close(self) -> None:
        """Close the file. Closing twice does nothing."""
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
