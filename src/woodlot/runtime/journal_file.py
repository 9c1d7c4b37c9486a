"""The file under a journal: its tables, its lock, and what its errors mean."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from woodlot.exceptions import JournalError

SCHEMA_VERSION = 1
_APPLICATION = int.from_bytes(b"WOOD", "big")
_WAIT_SECONDS = 10.0
_WAL_BYTES = 1 << 26  # what a large message has made of the write-ahead log is given back above this

_SCHEMA = f"""
BEGIN IMMEDIATE;
CREATE TABLE jobs (
    job TEXT PRIMARY KEY,
    count INTEGER NOT NULL,
    head BLOB NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE records (
    job TEXT NOT NULL,
    position INTEGER NOT NULL,
    sender TEXT NOT NULL,
    receiver TEXT NOT NULL,
    number INTEGER NOT NULL,
    kind TEXT NOT NULL,
    n_bytes INTEGER NOT NULL,
    digest BLOB NOT NULL,
    kept INTEGER NOT NULL,
    time INTEGER NOT NULL,
    chain BLOB NOT NULL,
    PRIMARY KEY (job, position),
    UNIQUE (job, sender, receiver, number)
) STRICT, WITHOUT ROWID;
CREATE TABLE bodies (
    job TEXT NOT NULL,
    position INTEGER NOT NULL,
    part INTEGER NOT NULL,
    data BLOB NOT NULL,
    UNIQUE (job, position, part)
) STRICT;
PRAGMA application_id = {_APPLICATION};
PRAGMA user_version = {SCHEMA_VERSION};
COMMIT;
"""

_REMEDIES = {
    sqlite3.SQLITE_FULL: "the disk is full: free some space and repeat",
    sqlite3.SQLITE_IOERR: "the disk cannot be written or read: check it and its free space, and repeat",
    sqlite3.SQLITE_READONLY: "it cannot be written: check the permissions of the file and its folder",
    sqlite3.SQLITE_PERM: "it may not be used: check the permissions of the file and its folder",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened: check that its folder exists and may be written to",
    sqlite3.SQLITE_BUSY: "another program has it locked: end that program and repeat",
    sqlite3.SQLITE_LOCKED: "another program has it locked: end that program and repeat",
    sqlite3.SQLITE_CORRUPT: "it is damaged: restore it from a copy, or move it away to begin a new one",
    sqlite3.SQLITE_NOTADB: "it is not a journal: name another file, or move it away to begin a new one",
}


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn an error of the database or the file system into a `JournalError` that says what to do."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF  # the rest tells apart how it came
        remedy = _REMEDIES.get(code, "it cannot be used; is it a journal of this version?")
        raise JournalError(f"journal {path}: {remedy} ({error})") from error
    except UnicodeDecodeError as error:  # SQLite quotes what it finds in a damaged file
        raise JournalError(f"journal {path}: {_REMEDIES[sqlite3.SQLITE_CORRUPT]}") from error
    except OSError as error:
        raise JournalError(f"journal {path}: {error.strerror or error}: check its folder and permissions") from error


class FileLock:
    """Keeps other processes from writing to a journal, for as long as this process lives or until released."""

    def __init__(self, path: Path) -> None:
        # A file beside the journal: to close any handle on the journal itself would take SQLite's own locks away.
        with explained(path):
            self._handle: int | None = os.open(f"{path}.lock", os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.release()
            raise JournalError(
                f"journal {path} is in use by another process: does the service run already? End it first, or name "
                "another state folder; `woodlot audit --state FOLDER` reads a journal while it is in use"
            ) from error

    def release(self) -> None:
        """Let others in."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def connect_writer(path: Path, *, durable: bool) -> sqlite3.Connection:
    """Open a journal for writing, and make it when there is none yet."""
    with explained(path):
        _make_private(path, durable=durable)
        connection = _connect(path, "rw")
        try:
            (version, application, tables) = _identity(connection)
            (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
            if mode != "wal":
                raise JournalError(f"journal {path}: it must be on a local disk; here, SQLite cannot share memory")
            connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            connection.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES}")
            connection.execute("PRAGMA secure_delete = ON")  # bytes that are removed shall not stay in free pages
            if (version, application, tables) == (0, 0, 0):
                connection.executescript(_SCHEMA)
            _check_version(path, connection)
        except BaseException:
            connection.close()
            raise
    return connection


@contextmanager
def synced(connection: sqlite3.Connection) -> Iterator[None]:
    """Have the transactions in between, and with them all before, reach the disk when they are committed."""
    (usual,) = connection.execute("PRAGMA synchronous").fetchone()
    connection.execute("PRAGMA synchronous = FULL")
    try:
        yield
    finally:
        connection.execute(f"PRAGMA synchronous = {usual}")


def connect_reader(path: Path) -> sqlite3.Connection:
    """Open a journal for reading."""
    connection = _connect(path, "ro")
    try:
        _check_version(path, connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"file:{quote(str(path.absolute()))}?mode={mode}",
        uri=True,
        timeout=_WAIT_SECONDS,
        isolation_level=None,
        check_same_thread=False,
    )
    # A changed byte may leave text that is none: it must be found as a change, not end the search for it.
    connection.text_factory = lambda data: data.decode(errors="replace")
    return connection


def _make_private(path: Path, *, durable: bool) -> None:
    """Make an empty file that only its owner can read; SQLite gives the files beside it the same permissions."""
    try:
        handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    except FileExistsError:
        mode = path.stat().st_mode & 0o777
        if mode & 0o077:
            raise JournalError(
                f"journal {path} can be read by others (mode {mode:o}): make it private with chmod 600"
            ) from None
        return
    os.close(handle)
    if durable:
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # a loss of power must not take the whole new file
        finally:
            os.close(folder)


def _identity(connection: sqlite3.Connection) -> tuple[int, int, int]:
    """The version, the application and the number of tables; all 0 in a new file."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (tables,) = connection.execute("SELECT COUNT(*) FROM sqlite_schema").fetchone()
    return version, application, tables


def _check_version(path: Path, connection: sqlite3.Connection) -> None:
    version, application, _ = _identity(connection)
    if application != _APPLICATION:
        raise JournalError(f"{path} is not a journal of Woodlot: name another file")
    if version != SCHEMA_VERSION:
        age = "newer" if version > SCHEMA_VERSION else "older"
        raise JournalError(
            f"journal {path} is of version {version} and was written by a {age} Woodlot; "
            f"this one has version {SCHEMA_VERSION}: use that Woodlot, or begin a new journal"
        )
