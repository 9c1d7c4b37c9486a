"""The end of a journal's write-ahead log, as a crash in the middle of writing leaves it: torn at any byte."""

from __future__ import annotations

import struct
from pathlib import Path

_HEADER = 32
_FRAME_HEADER = 24


def log_of(journal: Path) -> Path:
    """The write-ahead log beside a journal."""
    return journal.with_name(f"{journal.name}-wal")


def last_transaction(journal: Path) -> tuple[int, int]:
    """Where the last transaction of the log begins and ends, in bytes.

    What follows the end was written before the log was begun again, and does not count.
    """
    log = log_of(journal).read_bytes()
    (page_size,) = struct.unpack_from(">I", log, 8)
    salts = log[16:24]
    commits = [_HEADER]
    at = _HEADER
    while at + _FRAME_HEADER + page_size <= len(log) and log[at + 8 : at + 16] == salts:
        (committed,) = struct.unpack_from(">I", log, at + 4)
        at += _FRAME_HEADER + page_size
        if committed:
            commits.append(at)
    assert len(commits) > 1, "there is no transaction in the log"
    return commits[-2], commits[-1]


def moved(journal: Path) -> int:
    """How far the log has been moved into the database, in bytes.

    This part was forced onto the disk before it was moved, so a crash cannot lose it: a database without it would be of
    pages from different times. Its length is in SQLite's index of the log, behind two copies of its header.
    """
    with journal.with_name(journal.name + "-shm").open("rb") as index:
        index.seek(96)
        (n_frames,) = struct.unpack("=I", index.read(4))
    (page_size,) = struct.unpack_from(">I", log_of(journal).read_bytes(), 8)
    return _HEADER + n_frames * (_FRAME_HEADER + page_size)


def tear(journal: Path, at: int) -> None:
    """Cut the log off at a byte."""
    with log_of(journal).open("r+b") as file:
        file.truncate(at)
