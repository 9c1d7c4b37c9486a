"""Messages of catalogues: each party tells the user of its columns, sealed, as far as its policy says."""

from __future__ import annotations

from typing import ClassVar

from woodlot.protocols.core.message import FROM_PARTY, TO_PARTY, U8, Disclosure, Message


class AskCatalog(Message):
    """Asks a party what it tells of its table."""

    discloses: ClassVar = Disclosure(*TO_PARTY, "nothing but that the user asks", "clear")


class CatalogTold(Message):
    """What the party tells the user of its table."""

    discloses: ClassVar = Disclosure(
        *FROM_PARTY,
        "nothing but about how much is told; the user reads names, types and missing shares of columns and the number "
        "of rows, as far as the party's policy says",
        "encrypted",
    )
    page: U8
