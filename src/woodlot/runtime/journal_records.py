"""What a journal holds: one record per message, each chained to the one before it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from woodlot.protocols.core.message import registered
from woodlot.runtime.audit import DisclosureRow

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
