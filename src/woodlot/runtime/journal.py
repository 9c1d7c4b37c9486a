"""The record of every run: what a crashed run is resumed from, and what an audit reads.

One SQLite file per process holds the records of all its jobs. It is only ever appended to; each record is
chained to the one before it in its job by SHA-256, and a row of its own holds each job's count and last link.
So `JobJournal.verify` finds every changed, removed, added or reordered record, also at the end.

What a chain cannot tell: that somebody who can write to the file has rewritten a job from some record on, with
new links and a new last link; has put back an older copy of the whole file; or has removed all traces of a job.
Against these, keep `JobJournal.head` somewhere else, or compare it with the journal of the other side: what one
side sent, the other received, with the same digests.
"""

from __future__ import annotations

import hashlib
import io
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from sqlite3 import Connection, Error, IntegrityError
from types import TracebackType
from typing import Any, Self, TypeVar

from woodlot.exceptions import JournalError
from woodlot.foundation.database import PAGE_BYTES, Database, explained, open_reader
from woodlot.runtime.audit import Disclosures
from woodlot.runtime.journal_file import COLUMNS, END, JOURNAL_SCHEMA, START, Entry, FileLock, Record, disclosure, link

__all__ = ["Entry", "JobJournal", "Journal", "Record"]

R = TypeVar("R")
_IDLE_READERS = 4  # each keeps up to two megabytes of what it has read
_PART = 1 << 20  # a body is stored in parts of this size, so that no copy of a large one is ever made


_END = Entry("", "", 0, END, 0, hashlib.sha256(b"").digest(), None)


class Journal:
    """All jobs of one process.

    The file is readable by its owner only. One process at a time writes to it; others may look into it with
    `read` meanwhile. Threads may share it.

    Parameters
    ----------
    path : path-like
        The file; it is made when it does not exist.
    durable : bool
        Whether a record that was appended survives a loss of power, as a party's must. Without, it still
        survives a crash of the process; a coordinator can ask its parties again for what is lost, save for what
        it appends as ``lasting``.

    Raises
    ------
    JournalError
        If another process has the journal open, or the file cannot be used.

    """

    _file_lock: FileLock | None
    _database: Database | None

    def __init__(self, path: str | Path, *, durable: bool) -> None:
        self._set_up(Path(path))
        self._file_lock = FileLock(self.path)
        try:
            self._database = Database(self.path, JOURNAL_SCHEMA, durable=durable)
            for name in self._with_bodies():  # a crash may have come between the end of a job and the end of its bodies
                JobJournal(self, name)._remove_bodies()
        except BaseException:
            self.close()
            raise

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """Open a journal for reading only, also while its service runs; appending is a `JournalError`."""
        journal = cls.__new__(cls)
        journal._set_up(Path(path))
        with journal._reading():
            pass
        return journal

    def _set_up(self, path: Path) -> None:
        self.path = path
        self._file_lock = None
        self._database = None
        self._idle: list[Connection] = []
        self._idle_lock = threading.Lock()
        self._closed = False

    def job(self, name: str) -> JobJournal:
        """Return the records of one job, which may be new."""
        return JobJournal(self, name)

    def jobs(self) -> list[str]:
        """Return the names of all jobs that have records, in the order in which they began."""
        with self._reading() as connection:
            found = connection.execute(
                "SELECT jobs.job FROM jobs LEFT JOIN records ON records.job = jobs.job AND position = 1 "
                "ORDER BY time, jobs.job"
            )
            return [name for (name,) in found]

    def _with_bodies(self) -> list[str]:
        """The jobs of which some bytes are kept: those that run, however many have ended."""
        with self._reading() as connection:
            return [name for (name,) in connection.execute("SELECT DISTINCT job FROM bodies")]

    def take_over(self, jobs: Sequence[str], also: Callable[[Connection], None]) -> None:
        """Record that jobs of another journal, which is lost, have ended; ``also`` is as for `JobJournal.append`."""
        with self._writing(lasting=True) as connection:
            for name in jobs:
                JobJournal(self, name)._append(connection, [_END])
            also(connection)

    def consult(self, reader: Callable[[Connection], R]) -> R:
        """Return what a reader finds in other tables of the file."""
        with self._reading() as connection:
            return reader(connection)

    def verify(self) -> None:
        """Verify the file and every job in it; see `JobJournal.verify`."""
        with self._reading() as connection:
            (state,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
            if state != "ok":
                raise JournalError(f"journal {self.path} is damaged ({state}): restore it from a copy")
            strays = connection.execute(
                "SELECT job FROM (SELECT job FROM records UNION SELECT job FROM bodies) "
                "WHERE job NOT IN (SELECT job FROM jobs)"
            ).fetchone()
            if strays is not None:
                raise JournalError(f"journal {self.path}: the row of job {strays[0]} is missing")
        for name in self.jobs():
            self.job(name).verify()

    def close(self) -> None:
        """Let go of the file; closing twice does nothing."""
        with self._idle_lock:
            self._closed = True
            for connection in self._idle:
                with suppress(Error):
                    connection.close()
            self._idle = []
            if self._database is not None:  # last, so that it finds nobody who still needs the log
                self._database.close()
            if self._file_lock is not None:
                self._file_lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        """A connection that sees the journal as it is now, whatever is written meanwhile."""
        with explained(self.path, JOURNAL_SCHEMA):
            with self._idle_lock:
                if self._closed:
                    raise JournalError(f"journal {self.path} is closed")
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                connection = open_reader(self.path, JOURNAL_SCHEMA)
            try:
                connection.execute("BEGIN")
                yield connection
            finally:
                with suppress(Error):
                    connection.execute("ROLLBACK")
                with self._idle_lock:
                    if self._closed or len(self._idle) >= _IDLE_READERS:
                        connection.close()
                    else:
                        self._idle.append(connection)
                if self._database is not None:
                    self._database.go_on_erasing()

    @contextmanager
    def _writing(self, *, lasting: bool = False) -> Iterator[Connection]:
        """One transaction: what is written in it is there as a whole, or not at all."""
        if self._database is None:
            raise JournalError(f"journal {self.path} is open for reading only")
        with self._database.transaction(lasting=lasting) as connection:
            yield connection

    def _erase(self) -> None:
        """Have nothing left of what was removed, in the file or its log."""
        if self._database is None:
            raise JournalError(f"journal {self.path} is open for reading only")
        self._database.erase()


class JobJournal:
    """The records of one job; see `Journal.job`."""

    def __init__(self, journal: Journal, name: str) -> None:
        self.name = name
        self._journal = journal

    def append(
        self, entries: Sequence[Entry], also: Callable[[Connection], None] | None = None, *, lasting: bool = False
    ) -> None:
        """Record some messages, all or none; when this returns they are recorded.

        Parameters
        ----------
        entries : sequence of Entry
            The messages.
        also : callable, optional
            Writes to tables of its own in the same transaction. What it raises undoes everything.
        lasting : bool
            Whether these records, and all before them, survive a loss of power also where the journal is not durable.

        Raises
        ------
        JournalError
            If they cannot be written, a message of these names and number is there already, or the job has
            ended. The journal is as before, and the call can be repeated.

        """
        with self._journal._writing(lasting=lasting) as connection:
            self._append(connection, entries)
            if also is not None:
                also(connection)

    def _append(self, connection: Connection, entries: Sequence[Entry]) -> None:
        now = time.time_ns()
        count, head = self._head(connection)
        if self._has_ended(connection):
            raise JournalError(f"job {self.name} has ended: nothing more is recorded for it")
        for entry in entries:
            count += 1
            kept = int(entry.body is not None)
            fields = (count, *entry[:6], kept, now)
            head = link(head, self.name, *fields)
            try:
                connection.execute(
                    f"INSERT INTO records (job, {COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608
                    (self.name, *fields, head),
                )
            except IntegrityError as error:
                raise JournalError(
                    f"message {entry.number} from {entry.sender} to {entry.receiver} "
                    f"of job {self.name} is recorded already"
                ) from error
            for part, start in enumerate(range(0, len(entry.body or b""), _PART)):
                piece = memoryview(entry.body or b"")[start : start + _PART]
                connection.execute(
                    "INSERT INTO bodies (job, position, part, data) VALUES (?, ?, ?, ?)",
                    (self.name, count, part, piece),
                )
        connection.execute(
            "INSERT INTO jobs VALUES (?, ?, ?) "
            "ON CONFLICT (job) DO UPDATE SET count = excluded.count, head = excluded.head",
            (self.name, count, head),
        )

    def consult(self, reader: Callable[[Connection], R]) -> R:
        """Return what a reader finds in other tables of the file."""
        return self._journal.consult(reader)

    def drop_bodies(self, also: Callable[[Connection], None] | None = None) -> None:
        """End the job: the bytes of its messages are removed; who sent what when, and the digests, stay.

        Parameters
        ----------
        also : callable, optional
            As for `append`, in the transaction that records the end.

        """
        with self._journal._reading() as connection:
            ended = self._has_ended(connection)
        if not ended:
            self.append([_END], also)
        self._remove_bodies()

    def _remove_bodies(self) -> None:
        # In small turns: on a full disk there is no room to note the removal of everything at once.
        removed = True
        while removed:
            with self._journal._reading() as connection:
                parts = connection.execute("SELECT rowid FROM bodies WHERE job = ? LIMIT 16", (self.name,)).fetchall()
                removed = bool(parts) and self._has_ended(connection)
            if removed:
                with self._journal._writing() as connection:
                    connection.executemany("DELETE FROM bodies WHERE rowid = ?", parts)
        self._journal._erase()

    # --- reading ---

    @property
    def ended(self) -> bool:
        """Whether the job has ended and the bytes of its messages are gone."""
        with self._journal._reading() as connection:
            return self._has_ended(connection)

    @property
    def head(self) -> tuple[int, str]:
        """The number of records and the last link in hexadecimal, to be kept elsewhere or compared."""
        with self._journal._reading() as connection:
            count, head = self._head(connection)
        return count, head.hex()

    @property
    def began(self) -> float | None:
        """When the first record was written, in seconds since 1970; None where it is missing."""
        first = self._select("AND position = 1")
        return first[0].time / 1e9 if first else None

    def last(self, sender: str, receiver: str) -> int:
        """Return the highest number of a message from `sender` to `receiver`, or 0."""
        with self._journal._reading() as connection:
            (number,) = connection.execute(
                "SELECT MAX(number) FROM records WHERE job = ? AND sender = ? AND receiver = ?",
                (self.name, str(sender), str(receiver)),
            ).fetchone()
        return number or 0

    def lookup(self, sender: str, receiver: str, number: int) -> Record | None:
        """Return the record of one message, if there is one."""
        found = self._select("AND sender = ? AND receiver = ? AND number = ?", str(sender), str(receiver), number)
        return found[0] if found else None

    def records(self) -> list[Record]:
        """Return all records in order."""
        return self._select("")

    def sent(self, sender: str, receiver: str) -> list[Record]:
        """Return the records of all that `sender` has sent to `receiver`, in order."""
        return self._select("AND sender = ? AND receiver = ?", str(sender), str(receiver))

    def body(self, record: Record) -> bytes:
        """Return the bytes of a message.

        Raises
        ------
        JournalError
            If they were not kept, are gone since the job has ended, or are not what was written.

        """
        body = io.BytesIO()
        with self._journal._reading() as connection:
            if not record.kept or self._has_ended(connection):
                raise JournalError(f"the bytes of record {record.position} of job {self.name} are not kept")
            self._check_body(connection, record, body)
        return body.getvalue()  # shares the memory that was written to

    def disclosures(self) -> Disclosures:
        """Return who has seen what, from the records alone, in the order in which each kind first travelled."""
        with self._journal._reading() as connection:
            rows = connection.execute(
                "SELECT sender, receiver, kind, COUNT(*), SUM(n_bytes) FROM records WHERE job = ? AND kind != ? "
                "GROUP BY sender, receiver, kind ORDER BY MIN(position)",
                (self.name, END),
            ).fetchall()
        return Disclosures(tuple(disclosure(*row) for row in rows))

    def verify(self) -> None:
        """Raise unless every record is what was written.

        Raises
        ------
        JournalError
            Naming the first record that was changed, or is missing, or should not be there.

        """
        with self._journal._reading() as connection:
            count, head = self._head(connection)
            ended = self._has_ended(connection)
            position, before = 0, START
            for row in self._rows(connection, "ORDER BY position"):
                position += 1
                record = Record(*row)
                if record.position != position:
                    raise self._wrong(position, "is missing")
                if record.chain != link(before, self.name, *row[:-1]):
                    raise self._wrong(position, "is not what was written, or was put between others")
                before = record.chain
                if record.kept and not ended:
                    self._check_body(connection, record)
            if position < count:
                raise self._wrong(position + 1, "is missing")
            if (position, before) != (count, head):
                raise self._wrong(
                    count + 1, f"should not be there, or the row of the job was changed ({count} records)"
                )
            stray = connection.execute(
                "SELECT MIN(b.position) FROM bodies b LEFT JOIN records r USING (job, position) "
                "WHERE b.job = ? AND (r.kept IS NOT 1 OR b.padding != zeroblob(?))",
                (self.name, PAGE_BYTES),
            ).fetchone()
            if stray[0] is not None:
                raise self._wrong(stray[0], "has bytes that were never written")

    def _wrong(self, position: int, what: str) -> JournalError:
        return JournalError(f"journal {self._journal.path}: record {position} of job {self.name} {what}")

    def _head(self, connection: Connection) -> tuple[int, bytes]:
        row = connection.execute("SELECT count, head FROM jobs WHERE job = ?", (self.name,)).fetchone()
        return (0, START) if row is None else (row[0], row[1])

    def _has_ended(self, connection: Connection) -> bool:
        last = next(self._rows(connection, "ORDER BY position DESC LIMIT 1"), None)
        return last is not None and Record(*last).kind == END

    def _rows(self, connection: Connection, rest: str, *values: object) -> Iterator[tuple[Any, ...]]:
        return connection.execute(f"SELECT {COLUMNS} FROM records WHERE job = ? {rest}", (self.name, *values))  # noqa: S608

    def _select(self, condition: str, *values: object) -> list[Record]:
        with self._journal._reading() as connection:
            return [Record(*row) for row in self._rows(connection, f"{condition} ORDER BY position", *values)]

    def _check_body(self, connection: Connection, record: Record, into: io.BytesIO | None = None) -> None:
        digest, size = hashlib.sha256(), 0
        parts = connection.execute(
            "SELECT part, data FROM bodies WHERE job = ? AND position = ? ORDER BY part", (self.name, record.position)
        )
        for expected, (part, data) in enumerate(parts):
            if part != expected or not isinstance(data, bytes):  # in a damaged file anything may stand there
                break
            digest.update(data)
            size += len(data)
            if into is not None:
                into.write(data)
        if (size, digest.digest()) != (record.n_bytes, record.digest):
            raise self._wrong(record.position, "has bytes that are not what was written")
