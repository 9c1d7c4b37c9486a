"""The file under a journal: its tables, its lock, and its records, each chained to the one before it."""

from __future__ import annotations

import fcntl
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec

from woodlot.exceptions import JournalError
from woodlot.foundation.database import ERASABLE, Schema
from woodlot.protocols.core.message import registered
from woodlot.runtime.audit import DisclosureRow

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


# --- records ---

START = bytes(32)
"""Stands for the link before the first."""

END = "end of job"
"""The kind of the record after which bodies may be gone; no message can have this name."""


class Entry(NamedTuple):
    """One message to be recorded."""

    sender: str
    receiver: str
    number: int
    kind: str
    n_bytes: int
    digest: bytes
    body: bytes | None

    @classmethod
    def of(cls, sender: str, receiver: str, number: int, kind: str, data: bytes, *, keep: bool = True) -> Entry:
        """Return the entry of a message of which all bytes are kept, or none."""
        body = data if keep else None
        return cls(str(sender), str(receiver), number, kind, len(data), hashlib.sha256(data).digest(), body)


@dataclass(frozen=True)
class Record:
    """One message as it was recorded.

    Parameters
    ----------
    position : int
        Its place in the job, from 1.
    sender, receiver : str
        The name of a party, or ``"coordinator"``.
    number : int
        The number of the request that it is or answers.
    kind : str
        The name of the message's class.
    n_bytes : int
        Its size.
    digest : bytes
        SHA-256 of its bytes.
    kept : int
        1 if its bytes were recorded too, else 0.
    time : int
        When it was recorded, in nanoseconds since 1970.
    chain : bytes
        SHA-256 over the link before it and all that is above.

    """

    position: int
    sender: str
    receiver: str
    number: int
    kind: str
    n_bytes: int
    digest: bytes
    kept: int
    time: int
    chain: bytes


COLUMNS = ", ".join(Record.__dataclass_fields__)
"""The columns of a record, in the order of its fields."""


def link(previous: bytes, job: str, *fields: object) -> bytes:
    """Return the link of a record: `fields` are all its fields but the link itself."""
    # MessagePack has one encoding for one row, so no two rows can be mistaken for each other.
    return hashlib.sha256(previous + msgspec.msgpack.encode((job, *fields))).digest()


def disclosure(sender: str, receiver: str, kind: str, count: int, n_bytes: int) -> DisclosureRow:
    """Return what `count` messages of one kind have told, from the name of the kind alone."""
    message = registered().get(kind)
    form = "unknown" if message is None else message.discloses.form
    reveals = "unknown: this version of Woodlot has no such message" if message is None else message.discloses.reveals
    return DisclosureRow(sender, receiver, kind, count, n_bytes, form, reveals)
