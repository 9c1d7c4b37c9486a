"""The one way to open a database: its permissions, its version, its migrations, and what its errors mean.

Every database of Woodlot is an SQLite file with a write-ahead log::

    NAME         application_id says whose file it is, user_version the version of its schema
    NAME-wal     what was committed and is not in NAME yet
    NAME-shm     the index of the log

All three are readable and writable by their owner only. Files that others own or can read, that another program has
written, or that a newer Woodlot has written are refused and left as they are. An older schema is brought up to date in
one transaction.

What is deleted is overwritten with zeros (``secure_delete``), but two kinds of copies stay: earlier versions of pages
in the log, which `Database.erase` removes, and what is left where a row was moved, which `ERASABLE` prevents. The
blocks that the file system frees then are out of reach of any program; encrypt the disk against whoever can read it as
a device.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from sqlite3 import Connection
from typing import Self
from urllib.parse import quote

from woodlot.exceptions import JournalError
from woodlot.foundation.disk import sync

logger = logging.getLogger(__name__)

PAGE_BYTES = 4096

ERASABLE = f"BLOB NOT NULL DEFAULT (zeroblob({PAGE_BYTES}))"
"""The type of a column to put before the last column of a table, so that nothing is left of the last one when erased.

SQLite moves rows between pages as a table grows and shrinks. It does not zero the places that rows have left so, only
those of rows that are deleted. The start of a row, up to a page, is moved; the rest lies on overflow pages, which are
never moved and are zeroed as a whole when they are freed. A page of padding makes the last column part of the rest.
"""

_WAIT_SECONDS = 10.0
_WAL_BYTES = 1 << 26  # a log that one large message has made longer than this is shortened again


@dataclass(frozen=True, kw_only=True)
class Schema:
    """What one kind of database holds.

    Attributes
    ----------
    name : str
        What errors call it, such as "the record of jobs".
    application : bytes
        Four characters that tell its files from all others (``application_id``).
    tables : tuple of str
        The statements that make the first version.
    migrations : tuple of tuple of str
        The statements that make each later version from the one before it. Never change one that was released.
    damaged : str
        What to do with a damaged file of which there is no copy: a sentence.
    unusable : str
        What follows while the file cannot be used; part of a sentence, may be empty.

    """

    name: str
    application: bytes
    tables: tuple[str, ...]
    migrations: tuple[tuple[str, ...], ...] = ()
    damaged: str
    unusable: str = ""

    @property
    def application_id(self) -> int:
        """The number in the file's header."""
        return int.from_bytes(self.application, "big")

    @property
    def version(self) -> int:
        """The version that this Woodlot writes."""
        return 1 + len(self.migrations)


_REMEDIES = {
    sqlite3.SQLITE_FULL: "the disk is full; make room on the disk and repeat",
    sqlite3.SQLITE_IOERR: "the disk cannot be written or read; check it, make room on the disk and repeat",
    sqlite3.SQLITE_READONLY: "it cannot be written; let this user write to the file and its folder",
    sqlite3.SQLITE_PERM: "it cannot be used; let this user read and write the file and its folder",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened; check that its folder exists and that this user may write there",
    sqlite3.SQLITE_BUSY: "another program has it locked; end that program and repeat",
    sqlite3.SQLITE_LOCKED: "another program has it locked; end that program and repeat",
    sqlite3.SQLITE_NOTADB: "it is not a database; use another path, or restore it from a copy",
}


@contextmanager
def explained(path: Path, schema: Schema) -> Iterator[None]:
    """Turn an error of SQLite into a `JournalError` that says which file it is and what to do."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF  # the higher bits only say how it came
        remedy = _REMEDIES.get(code, _damaged(schema))
        raise _unusable(path, schema, remedy, str(error)) from error
    except UnicodeDecodeError as error:  # SQLite quotes what it finds in a damaged file
        raise _unusable(path, schema, _damaged(schema), "it quotes what is not text") from error


def open_reader(path: Path, schema: Schema) -> Connection:
    """Open a database for reading only, also while another process writes to it."""
    connection = _connect(path, "ro")
    try:
        if _identity(path, schema, connection) < schema.version:
            raise _unusable(
                path, schema, "an older Woodlot has written it; start its service once, which brings it up to date"
            )
    except BaseException:
        connection.close()
        raise
    return connection


def copy_database(path: Path, copy: Path) -> None:
    """Copy a database as it is at one moment, also while another process writes to it.

    Parameters
    ----------
    path : Path
        A database of any schema of Woodlot's.
    copy : Path
        The new file; only its owner can read it.

    Raises
    ------
    JournalError
        If it cannot be read, or is damaged.

    """
    os.close(os.open(copy, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    try:
        with closing(_connect(path, "ro")) as source, closing(_connect(copy, "rw")) as target:
            source.backup(target)
            (state,) = target.execute("PRAGMA integrity_check(1)").fetchone()
            target.execute("PRAGMA journal_mode = DELETE")  # one file, until its service opens it
    except sqlite3.Error as error:
        raise JournalError(f"{path} cannot be copied: {error}") from error
    if state != "ok":
        raise JournalError(f"{path} is damaged ({state}), so it was not copied")


class Database:
    """A database that this process writes to, and the only connection that it writes with. Threads may share it.

    Parameters
    ----------
    path : Path
        The file; it is made when it does not exist.
    schema : Schema
        What it holds.
    durable : bool
        Whether what was committed survives a loss of power. Otherwise it survives the end of the process only.

    Raises
    ------
    JournalError
        If the file cannot be used, is another program's or a newer Woodlot's, or is not private.

    """

    def __init__(self, path: Path, schema: Schema, *, durable: bool = True) -> None:
        self.path = path
        self.schema = schema
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._erasing = False
        try:
            _make_private(path, schema)
        except OSError as error:
            remedy = _REMEDIES[sqlite3.SQLITE_CANTOPEN]
            raise _unusable(path, schema, remedy, error.strerror or str(error)) from error
        with explained(path, schema):
            self._connection = _connect(path, "rw")
            try:
                self._set_up(self._connection, durable=durable)
                self._erasing = True  # a process that was killed may have left copies in the log
                self._go_on_erasing(self._connection)
            except BaseException:
                self.close()
                raise

    @classmethod
    def in_memory(cls, schema: Schema) -> Self:
        """Return a database of which nothing is left when it is closed."""
        database = cls.__new__(cls)
        database.path = Path(":memory:")
        database.schema = schema
        database._lock = threading.Lock()
        database._connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        database._erasing = False
        _make_tables(database.path, schema, database._connection)
        return database

    def _set_up(self, connection: Connection, *, durable: bool) -> None:
        # First, as nothing else may be done to a file that is not ours.
        version = _identity(self.path, self.schema, connection)
        connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")  # of a new file
        if _write_ahead(connection) != "wal":
            raise _unusable(self.path, self.schema, "SQLite cannot share memory on this disk; use a local disk")
        connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
        connection.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES}")
        connection.execute("PRAGMA secure_delete = ON")
        connection.execute("PRAGMA temp_store = MEMORY")  # no copy of a row in a temporary file
        if version < self.schema.version:
            with _transaction(connection):
                _make_tables(self.path, self.schema, connection)

    @property
    def closed(self) -> bool:
        """Whether it has been closed."""
        return self._connection is None

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """The connection, for one thread at a time; each statement is a transaction of its own."""
        with self._lock, explained(self.path, self.schema):
            if self._connection is None:
                raise JournalError(f"{self.schema.name} {self.path} is closed")
            yield self._connection

    @contextmanager
    def transaction(self, *, lasting: bool = False) -> Iterator[Connection]:
        """The connection, in a transaction that is committed as a whole or not at all.

        Parameters
        ----------
        lasting : bool
            Whether this transaction, and all before it, survive a loss of power also where others need not.

        """
        with self.connection() as connection:
            with _synced(connection) if lasting else nullcontext(), _transaction(connection):
                yield connection
            self._go_on_erasing(connection)

    def erase(self) -> None:
        """Remove what has been deleted from the log too, where earlier copies of it are.

        This never fails. While another process is reading the database, which needs the log, or the disk is full, a
        warning is logged. Then the log is emptied after the next transaction that can do it, at the latest when the
        database is next opened.
        """
        with self.connection() as connection:
            self._erase(connection)

    def go_on_erasing(self) -> None:
        """Try again what `erase` could not do, unless another thread is writing, which will try it next."""
        if self._erasing and self._lock.acquire(blocking=False):
            try:
                if self._connection is not None:
                    self._go_on_erasing(self._connection)
            finally:
                self._lock.release()

    def _erase(self, connection: Connection) -> None:
        asked, self._erasing = self._erasing, True
        reason = self._go_on_erasing(connection)
        if self._erasing and not asked:
            logger.warning(
                "%s %s: deleted data stays in %s-wal for now, because %s; it is erased as soon as possible",
                self.schema.name, self.path, self.path.name, reason,
            )  # fmt: skip

    def _go_on_erasing(self, connection: Connection) -> str:
        """Empty the log if that is due; if it cannot be done now, say why."""
        if not self._erasing:
            return ""
        try:
            connection.execute("PRAGMA busy_timeout = 0")  # nothing may wait for a reader
            (busy, _, _) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            self._erasing = bool(busy)
            return "another program is reading it"
        except sqlite3.Error as error:  # what was committed stays committed
            return str(error)
        finally:
            with suppress(sqlite3.Error):
                connection.execute(f"PRAGMA busy_timeout = {int(1000 * _WAIT_SECONDS)}")

    def close(self) -> None:
        """Close the file. Closing twice does nothing."""
        with self._lock:
            if self._connection is not None:
                with suppress(sqlite3.Error):
                    self._connection.close()
                self._connection = None


@contextmanager
def _transaction(connection: Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            with suppress(sqlite3.Error):  # the first error says more
                connection.execute("ROLLBACK")
        raise


@contextmanager
def _synced(connection: Connection) -> Iterator[None]:
    (usual,) = connection.execute("PRAGMA synchronous").fetchone()
    connection.execute("PRAGMA synchronous = FULL")
    try:
        yield
    finally:
        connection.execute(f"PRAGMA synchronous = {usual}")


def _write_ahead(connection: Connection) -> str:
    """Have changes go to a log first, and return the journal mode that this gave."""
    # Of two processes that do this to a new file at once, SQLite refuses one without its usual wait, since each holds
    # what the other needs. Trying again lets the other end, and then finds the work done.
    give_up = time.monotonic() + _WAIT_SECONDS
    while True:
        try:
            (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
            return str(mode)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > give_up:
                raise
        time.sleep(0.01)


def _connect(path: Path, mode: str) -> Connection:
    connection = sqlite3.connect(
        f"file:{quote(str(path.absolute()))}?mode={mode}",
        uri=True,
        timeout=_WAIT_SECONDS,
        isolation_level=None,
        check_same_thread=False,
    )
    # A changed byte may leave text that is not UTF-8: it must be found as a change, not end the search for it.
    connection.text_factory = lambda data: data.decode(errors="replace")
    return connection


def _make_private(path: Path, schema: Schema) -> None:
    """Make an empty file that only its owner can read, or refuse one that others own or can read."""
    # An existing file is never opened here: closing it would take away the locks of this process's connections.
    for suffix in ("", "-wal", "-shm"):
        file = Path(f"{path}{suffix}")
        try:
            found = file.stat()
        except FileNotFoundError:
            continue
        if not stat.S_ISREG(found.st_mode):
            raise _unusable(file, schema, "it is not a plain file; move it away")
        if found.st_uid != os.geteuid():
            raise _unusable(file, schema, "it belongs to another user; run Woodlot as that user, or chown it")
        if found.st_mode & 0o077:
            mode = stat.S_IMODE(found.st_mode)
            raise _unusable(
                file, schema, f"it can be read or written by others (mode {mode:o}); make it private with chmod 600"
            )
    try:
        handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    except FileExistsError:
        return
    os.fchmod(handle, 0o600)  # a umask may have taken the owner's own rights
    os.close(handle)
    sync(path.parent)  # a loss of power must not take the whole new file


def _identity(path: Path, schema: Schema, connection: Connection) -> int:
    """The version of a file of this schema, 0 of a new one; any other file is refused."""
    (application, version, tables) = (
        connection.execute(
            "SELECT application_id, user_version, (SELECT COUNT(*) FROM sqlite_schema) "
            "FROM pragma_application_id, pragma_user_version"  # in one statement: another process may be making it now
        )
    ).fetchone()
    if (application, version, tables) == (0, 0, 0):
        return 0
    if application != schema.application_id:
        raise _unusable(path, schema, "it is another program's database; use another path, or move it away")
    if version > schema.version:
        raise _unusable(
            path,
            schema,
            f"a newer Woodlot has written it (version {version}; this one reads versions up to {schema.version}); use "
            "the newer Woodlot",
        )
    if version < 1:
        raise _unusable(path, schema, _damaged(schema), f"its version is {version}")
    return int(version)


def _make_tables(path: Path, schema: Schema, connection: Connection) -> None:
    """Bring a new or older database to the version of the schema, in a transaction."""
    version = _identity(path, schema, connection)  # again: another process may have been faster
    for statements in (schema.tables, *schema.migrations)[version:]:
        for statement in statements:
            connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {schema.application_id}")
    connection.execute(f"PRAGMA user_version = {schema.version}")


def _damaged(schema: Schema) -> str:
    return f"it is damaged; restore it from a copy. {schema.damaged}"


def _unusable(path: Path, schema: Schema, remedy: str, cause: str = "") -> JournalError:
    so = f", so {schema.unusable}" if schema.unusable else ""
    return JournalError(f"{schema.name} {path} cannot be used{so}: {remedy}{f' ({cause})' if cause else ''}")
