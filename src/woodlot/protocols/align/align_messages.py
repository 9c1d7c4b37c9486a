"""Messages of the alignment: which rows of the parties belong to the same id.

No message holds an id or a hash of one that could be guessed without a secret. What is sealed is encrypted by one
party for one other; the coordinator passes it on and sees its length.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import msgspec

from woodlot.data.ids import IdKind
from woodlot.protocols.core.message import U8, Disclosure, Message, Role, U8x2

_TO_PARTY = (Role.coordinator, Role.party)
_FROM_PARTY = (Role.party, Role.coordinator)

Method = Literal["keyed-hash", "psi"]
Join = Literal["inner", "outer"]


class Introduction(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a party tells all others of itself, signed.

    Parameters
    ----------
    id_kind : {"whole numbers", "text", "nothing"}
        What its ids are.
    configured : bool
        Whether it has a shared secret from its configuration.
    share : bytes
        A fresh X25519 public key.
    certificate : bytes
        Its identity; empty if it has none.
    signature : bytes
        By this identity, over everything above, the party's name, the job, and who takes part.

    """

    id_kind: IdKind
    configured: bool
    share: bytes
    certificate: bytes
    signature: bytes


class OpenAlignment(Message):
    """Asks a party to introduce itself. The first of the parties is the leader."""

    discloses: ClassVar = Disclosure(*_TO_PARTY, "who takes part in an alignment, and how it is done", "clear")
    parties: tuple[str, ...]
    method: Method
    join: Join

    def check(self) -> None:
        """Two parties at least, each once; private set intersection finds what is common and no more."""
        if len(self.parties) < 2 or len(set(self.parties)) < len(self.parties):
            raise ValueError("an alignment has two or more parties, each named once")
        if self.method == "psi" and self.join == "outer":
            raise ValueError(
                "private set intersection has no outer join, which would tell the parties about each other's rows; "
                "use method='keyed-hash' or join='inner'"
            )


class Introduced(Message):
    """A party's introduction, and how many rows it has."""

    discloses: ClassVar = Disclosure(
        *_FROM_PARTY,
        "number of rows; whether the ids are numbers or text; whether a shared secret is configured; the party's "
        "certificate and a fresh public key",
        "clear",
    )
    introduction: Introduction
    n_rows: int


class DrawSecret(Message):
    """Asks the leader for the secret of this job, sealed for each of the others."""

    discloses: ClassVar = Disclosure(
        *_TO_PARTY,
        "the introduction of every party: its certificate, a fresh public key, whether its ids are numbers or text, "
        "whether it has a configured secret",
        "clear",
    )
    introductions: dict[str, Introduction]


class SealedSecret(Message):
    """The secret of the job and the key of rows, sealed for each party; nothing is sealed where it is configured."""

    discloses: ClassVar = Disclosure(
        *_FROM_PARTY,
        "nothing: the secret is sealed for each of the parties; the confirmation is a keyed hash that only those who "
        "have the secret can check",
        "encrypted",
    )
    confirmation: bytes
    sealed: dict[str, bytes]


class TakeSecret(Message):
    """Brings a party the introductions, the sealed secret, and the confirmation that it has the same as the leader."""

    discloses: ClassVar = Disclosure(
        *_TO_PARTY,
        "as DrawSecret; the secret of the job and the key by which parts of the rows are selected, which are the "
        "leader's and sealed for this party",
        "encrypted",
    )
    introductions: dict[str, Introduction]
    confirmation: bytes
    sealed: bytes | None


class SecretTaken(Message):
    """The party has the same secret as the leader."""

    discloses: ClassVar = Disclosure(*_FROM_PARTY, "nothing but that the party has the leader's secret", "clear")


# --- keyed hash ---


class SendTokens(Message):
    """Asks for the tokens of all ids; sent when every party has the secret."""

    discloses: ClassVar = Disclosure(*_TO_PARTY, "nothing but that all parties have the same secret", "clear")


class IdTokens(Message):
    """A token per id: its HMAC-SHA256 under the secret of the job, first 16 bytes, ascending."""

    discloses: ClassVar = Disclosure(
        *_FROM_PARTY,
        "for each row a token that stands for its id in this job: which rows of which parties belong together, and "
        "nothing of the ids without the parties' secret; not the order of the rows",
        "encoded",
    )
    tokens: U8x2


class CommonRows(Message):
    """Which rows are common: for an inner join a bit per token sent, for an outer join a bit per row of the result."""

    discloses: ClassVar = Disclosure(
        *_TO_PARTY,
        "inner join: which of its own rows are at every party; outer join: how many different ids there are at all "
        "parties together, and where its own stand among their tokens",
        "clear",
    )
    n_rows: int
    bits: U8


class RowsTaken(Message):
    """The party knows its common rows and their order."""

    discloses: ClassVar = Disclosure(*_FROM_PARTY, "how many common rows the party has found", "clear")
    n_rows: int


# --- private set intersection ---


class SendRequests(Message):
    """Asks the leader for its ids, blinded; sent when every party has the secret."""

    discloses: ClassVar = Disclosure(*_TO_PARTY, "nothing but that all parties have the same secret", "clear")


class SealedRequests(Message):
    """The leader's ids, blinded by its key, sealed for each of the others."""

    discloses: ClassVar = Disclosure(
        *_FROM_PARTY, "by its length the leader's number of rows, which it told before", "encrypted"
    )
    sealed: dict[str, U8]


class AnswerRequest(Message):
    """Brings a party the leader's blinded ids."""

    discloses: ClassVar = Disclosure(
        *_TO_PARTY, "the leader's number of rows; its ids only under a key that the leader keeps", "encrypted"
    )
    sealed: U8


class SealedAnswer(Message):
    """A party's answer to the leader, and its own ids blinded by its key."""

    discloses: ClassVar = Disclosure(
        *_FROM_PARTY, "by its length the party's and the leader's number of rows, which they told before", "encrypted"
    )
    sealed: U8


class FindCommon(Message):
    """Brings the leader the answers of all others."""

    discloses: ClassVar = Disclosure(
        *_TO_PARTY,
        "which of its own ids each single other party has, and each party's number of rows; ids that the leader does "
        "not have only under keys that their parties keep",
        "encrypted",
    )
    sealed: dict[str, U8]


class SealedCommon(Message):
    """How many rows are common, and for each of the others what it needs to find them; nothing if there are none."""

    discloses: ClassVar = Disclosure(
        *_FROM_PARTY, "the number of common rows; by the lengths, numbers of rows that were told before", "encrypted"
    )
    n_rows: int
    sealed: dict[str, U8]


class TakeIntersection(Message):
    """Brings a party what it needs to find the common rows among its own."""

    discloses: ClassVar = Disclosure(*_TO_PARTY, "which of its own rows are at every party", "encrypted")
    sealed: U8
