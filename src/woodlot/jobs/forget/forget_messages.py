"""Messages by which rows are forgotten; the forest itself is grown by those of a training."""

from __future__ import annotations

from typing import ClassVar

from woodlot.protocols.core.message import FROM_PARTY, TO_PARTY, Disclosure, Message


class OpenForgetting(Message):
    """Asks a party to find the rows that the order names among those of the training."""

    brief_reply: ClassVar[bool] = True
    discloses: ClassVar = Disclosure(*TO_PARTY, "the fingerprint of the forest that is to lose rows", "clear")
    model: str
    forest: str


class ForgettingOpened(Message):
    """The party has found them, and takes the others."""

    discloses: ClassVar = Disclosure(
        *FROM_PARTY,
        "a digest of which rows of the training stay, which whoever knows the ids can compute, how many of the ids are "
        "of no row of it, and a keyed fingerprint of the party's former part",
        "encoded",
    )
    rows: int
    unknown: int
    kept: str
    digest: str


class EndForgetting(Message):
    """Tells a party that the forest without the rows is complete: it checks what the receipt states, and signs it."""

    brief_reply: ClassVar[bool] = True
    discloses: ClassVar = Disclosure(
        *TO_PARTY,
        "how many rows were forgotten, of how many ids, the sizes of the forest before and after, and keyed "
        "fingerprints of all parts",
        "clear",
    )
    statement: str


class ForgettingSigned(Message):
    """The party uses its former part no longer, and has erased delivered answers for the rows."""

    discloses: ClassVar = Disclosure(*FROM_PARTY, "the party's signature under the receipt", "clear")
    certificate: bytes
    signature: bytes


class RowsFound(Message):
    """A client of a forest over rows has found its rows of the ids in its part, and grows the forest without them."""

    discloses: ClassVar = Disclosure(
        *FROM_PARTY,
        "how many of its rows are to be forgotten, and digests of the ids in its part and of those that it has rows "
        "of, under a key that only the user and parties with ids have",
        "encoded",
    )
    rows: int
    named: tuple[str, ...]
    found: tuple[str, ...]
