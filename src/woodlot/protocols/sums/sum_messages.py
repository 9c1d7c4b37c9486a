"""Messages of the secure sums: what the coordinator needs only the sum of, it gets only the sum of.

The request of a sum belongs to the protocol that needs it and has a field ``order: SumOrder``; the answer is one of the
two vectors here. Clients stand in ascending order of their names everywhere.
"""

from __future__ import annotations

import itertools
from typing import Annotated, ClassVar, Literal

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
    picks : tuple of int
        The places of the clients that it has drawn to share masks with, in ascending order; empty where it shares
        masks with all.
    certificate : bytes
        Its identity; empty if it has none.
    signature : bytes
        By this identity, over everything above, the client's name, the job, and who takes part.

    """

    configured: bool = False
    share: bytes = b""
    picks: tuple[int, ...] = ()
    certificate: bytes = b""
    signature: bytes = b""


class SumOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which sum a request is for.

    Parameters
    ----------
    round : int
        Its number in the session.
    clients : tuple of str
        Whose vectors are asked for.
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
        _check_round(self.round)
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


def _check_round(number: int) -> None:
    if not 0 <= number < 1 << MAX_BITS:
        raise ValueError("rounds are numbered from 0")


class OpenSums(Message):
    """Asks a client to introduce itself to those whose vectors will be added to its own.

    ``quorum`` clients are needed for a sum; where it is None no client can be spared.
    """

    discloses: ClassVar = Disclosure(
        *_TO_PARTY, "whose numbers will be added, whether they are masked, and how many clients a sum needs", "clear"
    )
    clients: tuple[str, ...]
    mode: Mode
    quorum: int | None = None

    def check(self) -> None:
        """Every client has one place, and a quorum is some of them."""
        check_clients(self.clients)
        if self.quorum is not None and not 1 <= self.quorum < len(self.clients):
            raise ValueError("a quorum is at least one client, and fewer than all")


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


class PrepareSums(Message):
    """Asks a client to deal the shares of the next rounds; where clients can be spared."""

    discloses: ClassVar = Disclosure(*_TO_PARTY, "whose numbers will be added in the next rounds", "clear")
    first: int
    clients: tuple[str, ...]

    def check(self) -> None:
        """Rounds have numbers, clients one place each."""
        _check_round(self.first)
        check_clients(self.clients)


class SumsPrepared(Message):
    """Envelopes of a client's keys, one for each round, and what it has sealed for each holder of its shares."""

    discloses: ClassVar = Disclosure(
        *_FROM_PARTY,
        "nothing: an envelope can be opened with the shares that clients tell if this one drops out, and shares are "
        "sealed for those who hold them",
        "encrypted",
    )
    first: int
    envelopes: tuple[bytes, ...]
    shares: dict[str, bytes]


class TakeShares(Message):
    """Brings a client the shares that others have sealed for it."""

    discloses: ClassVar = Disclosure(
        *_TO_PARTY,
        "who has dealt shares; one share of each secret of the clients that have drawn it, for the next rounds, which "
        "tells nothing alone",
        "encrypted",
    )
    first: int
    clients: tuple[str, ...]
    shares: dict[str, bytes]

    def check(self) -> None:
        """Rounds have numbers, clients one place each."""
        _check_round(self.first)
        check_clients(self.clients)


class SharesTaken(Message):
    """The client has the shares."""

    discloses: ClassVar = Disclosure(*_FROM_PARTY, "nothing but that shares have arrived", "clear")
    first: int


class NameSurvivors(Message):
    """Names the clients of which the vectors of a round are there; no other list is taken for this round."""

    discloses: ClassVar = Disclosure(*_TO_PARTY, "whose numbers are in the sum", "clear")
    round: int
    survivors: tuple[str, ...]

    def check(self) -> None:
        """Rounds have numbers, clients one place each."""
        _check_round(self.round)
        check_clients(self.survivors)


class SurvivorsEchoed(Message):
    """Proves to each other survivor which list this client was told."""

    discloses: ClassVar = Disclosure(
        *_FROM_PARTY, "nothing: codes by which others find out whether they were told the same", "encoded"
    )
    round: int
    echoes: dict[str, bytes]


class Unmask(Message):
    """Asks for shares: of the own masks of survivors, of the common keys of the others; never both of one client."""

    discloses: ClassVar = Disclosure(
        *_TO_PARTY, "whose numbers are in the sum, and that the others were told the same", "clear"
    )
    round: int
    survivors: tuple[str, ...]
    echoes: dict[str, bytes]

    def check(self) -> None:
        """Rounds have numbers, clients one place each."""
        _check_round(self.round)
        check_clients(self.survivors)


class SharesTold(Message):
    """A client's share of one secret of itself and of those who have drawn it, and a hash of what it was asked."""

    discloses: ClassVar = Disclosure(
        *_FROM_PARTY,
        "with the shares of enough other clients, the masks that are still in the sum of the survivors' numbers, and "
        "so this sum; nothing of one client's numbers",
        "encoded",
    )
    round: int
    asked: bytes
    shares: dict[str, bytes]


MOST_SECONDS = 1e9
"""The longest that a client may be waited for."""
WaitSeconds = Annotated[float, msgspec.Meta(gt=0, le=MOST_SECONDS)]
Quorum = Annotated[int, msgspec.Meta(ge=1)] | Annotated[float, msgspec.Meta(gt=0, lt=1)]
"""A number of clients, or more than a share of them."""

SETTING_UP = (OpenSums, StartSums)
"""What a client is told before any sum."""
RECOVERING = (PrepareSums, TakeShares, NameSurvivors, Unmask)
"""What it is told besides where clients can be spared."""


class SumVector(Message, abstract=True):
    """A client's numbers, and two check numbers after them."""

    round: int
    values: UInt


class MaskedVector(SumVector):
    """A client's numbers under its masks, two check numbers after them."""

    discloses: ClassVar = Disclosure(
        *_FROM_PARTY,
        "nothing of one client's numbers; together with the vectors of all other clients of the same round (where "
        "clients can be spared: of those who have survived it, and the shares that they tell), their sum",
        "encoded",
    )


class PlainVector(SumVector):
    """A client's numbers as they are, two check numbers after them; for debugging, where the client allows it."""

    discloses: ClassVar = Disclosure(*_FROM_PARTY, "every one of the client's numbers", "clear")
