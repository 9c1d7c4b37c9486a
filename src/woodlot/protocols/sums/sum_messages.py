"""Messages of the secure sums: what the coordinator needs only the sum of, it gets only the sum of.

The request of a sum belongs to the protocol that needs it and has a field ``order: SumOrder``; the answer is one of the
two vectors here. Clients stand in ascending order of their names everywhere.
"""

from __future__ import annotations

import itertools
from typing import ClassVar, Literal

import msgspec

from woodlot.protocols.core.message import Disclosure, Message, Role, UInt

_TO_PARTY = (Role.coordinator, Role.party)
_FROM_PARTY = (Role.party, Role.coordinator)

Mode = Literal["secure", "plain"]

MAX_BITS = 64


class SumIntroduction(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a client tells all others of itself, signed; all empty where sums are plain.

    Parameters
    ----------
    configured : bool
        Whether it has a shared secret from its configuration.
    share : bytes
        A fresh X25519 public key.
    certificate : bytes
        Its identity; empty if it has none.
    signature : bytes
        By this identity, over everything above, the client's name, the job, and who takes part.

    """

    configured: bool = False
    share: bytes = b""
    certificate: bytes = b""
    signature: bytes = b""


class SumOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which sum a request is for.

    Parameters
    ----------
    round : int
        Its number in the session. A sum that is repeated without some clients has a new one.
    clients : tuple of str
        Whose vectors are added.
    length : int
        Numbers in each vector.
    bound : int
        The largest absolute value that one client's number can have. Where the sums fit into 32 bits, so do the
        numbers on the wire. Clients refuse nothing by it: the sum is compared with it.

    """

    round: int
    clients: tuple[str, ...]
    length: int
    bound: int

    def __post_init__(self) -> None:
        check_clients(self.clients)
        if not 0 <= self.round < 1 << MAX_BITS:
            raise ValueError("rounds are numbered from 0")
        if self.length < 1:
            raise ValueError("a sum has one number or more")
        if self.bound < 1 or self.bound * len(self.clients) >= 1 << (MAX_BITS - 1):
            raise ValueError("the bound must be at least 1, and the sum of all clients' bounds less than 2^63")

    @property
    def bits(self) -> Literal[32, 64]:
        """The width of the numbers on the wire."""
        return 32 if self.bound * len(self.clients) < 1 << 31 else 64


def check_clients(clients: tuple[str, ...]) -> None:
    """Raise ``ValueError`` unless there are clients, in ascending order, each once."""
    if not clients or any(first >= second for first, second in itertools.pairwise(clients)):
        raise ValueError("clients are named in ascending order, each once")


class OpenSums(Message):
    """Asks a client to introduce itself to those whose vectors will be added to its own."""

    discloses: ClassVar = Disclosure(*_TO_PARTY, "whose numbers will be added, and whether they are masked", "clear")
    clients: tuple[str, ...]
    mode: Mode

    def check(self) -> None:
        """Every client has one place."""
        check_clients(self.clients)


class SumsIntroduced(Message):
    """A client's introduction."""

    discloses: ClassVar = Disclosure(
        *_FROM_PARTY,
        "the client's certificate and a fresh public key; whether a shared secret is configured",
        "clear",
    )
    introduction: SumIntroduction


class StartSums(Message):
    """Brings a client the introductions of all."""

    discloses: ClassVar = Disclosure(
        *_TO_PARTY,
        "the introduction of every client: its certificate, a fresh public key, whether it has a configured secret",
        "clear",
    )
    introductions: dict[str, SumIntroduction]


class SumsStarted(Message):
    """The client has verified all introductions and has a key in common with each other client."""

    discloses: ClassVar = Disclosure(
        *_FROM_PARTY, "a hash of what the client was told, to find out whether all were told the same", "clear"
    )
    transcript: bytes


class SumVector(Message, abstract=True):
    """A client's numbers, and two check numbers after them."""

    round: int
    values: UInt


class MaskedVector(SumVector):
    """A client's numbers under its masks, two check numbers after them."""

    discloses: ClassVar = Disclosure(
        *_FROM_PARTY,
        "nothing of one client's numbers; together with the vectors of all other clients of the same round, their sum",
        "encoded",
    )


class PlainVector(SumVector):
    """A client's numbers as they are, two check numbers after them; for debugging, where the client allows it."""

    discloses: ClassVar = Disclosure(*_FROM_PARTY, "every one of the client's numbers", "clear")
