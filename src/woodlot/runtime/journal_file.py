"""The file under a journal: its tables and its lock."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from woodlot.exceptions import JournalError
from woodlot.foundation.database import ERASABLE, Schema

JOURNAL_SCHEMA = Schema(
    name="journal",
    application=b"WOOD",
    tables=(
        """
        CREATE TABLE jobs (
            job TEXT PRIMARY KEY,
            count INTEGER NOT NULL,
            head BLOB NOT NULL
        ) STRICT, WITHOUT ROWID
        """,
        """
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
        ) STRICT, WITHOUT ROWID
        """,
        f"""
        CREATE TABLE bodies (
            job TEXT NOT NULL,
            position INTEGER NOT NULL,
            part INTEGER NOT NULL,
            padding {ERASABLE},
            data BLOB NOT NULL,
            UNIQUE (job, position, part)
        ) STRICT
        """,
    ),
    damaged=(
        "Without a copy, move away this file with its -wal and -shm, and nothing else: jobs that were running must be "
        "ordered again, and a party takes over from second-copy.sqlite which orders it has taken and what it has spent "
        "of privacy."
    ),
)


class FileLock:
    """Keeps other processes from writing to a journal, for as long as this process lives or until released."""

    def __init__(self, path: Path) -> None:
        # A file beside the journal: to close any handle on the journal itself would take SQLite's own locks away.
        self._handle: int | None = None
        try:
            self._handle = os.open(f"{path}.lock", os.O_CREAT | os.O_RDWR, 0o600)
        except OSError as error:
            raise JournalError(
                f"journal {path} cannot be used: check that its folder exists and that this user may write there "
                f"({error.strerror})"
            ) from error
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
