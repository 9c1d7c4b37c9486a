"""Messages of revocable forests whose splits are split between helper and key service (``scheme="shares"``).

The members meet as under the other scheme (`key_messages`). What a party or a requester gives to helper or key service
is sealed to it; the coordinator carries it and has no key.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from woodlot.protocols.core.message import I32, U8, U16, U32, Disclosure, Message, Role, U8x2
from woodlot.protocols.revocable.key_messages import Ticket

_TO_MEMBER = (Role.coordinator, Role.party)
_FROM_MEMBER = (Role.party, Role.coordinator)
_TO_HELPER = (Role.coordinator, Role.helper)
_FROM_HELPER = (Role.helper, Role.coordinator)
_TO_KEYS = (Role.coordinator, Role.key_service)
_FROM_KEYS = (Role.key_service, Role.coordinator)

COMMIT_BYTES = 32
"""Bytes of a party's word on its shares."""

Commit = Annotated[bytes, msgspec.Meta(min_length=COMMIT_BYTES, max_length=COMMIT_BYTES)]


class PrepareShares(Message):
    """Tells every member that all have met: it makes its keys, to be used once the epoch is complete."""

    discloses: ClassVar = Disclosure(*_TO_MEMBER, "that all members have met", "clear")
    epoch: int


class SharesPrepared(Message):
    """The member has its keys."""

    discloses: ClassVar = Disclosure(*_FROM_MEMBER, "nothing but that", "clear")


class ShareSplits(Message):
    """Asks a party to split its thresholds between helper and key service."""

    discloses: ClassVar = Disclosure(*_TO_MEMBER, "which of the party's nodes are in use", "clear")
    epoch: int
    forest: str
    """Fingerprint of the forest."""
    total: int
    """How many splits the forest has, of all parties."""
    node: I32
    """The party's nodes, ascending."""


class SplitsShared(Message):
    """A party's shares, sealed to helper and key service."""

    discloses: ClassVar = Disclosure(
        *_FROM_MEMBER,
        "the party's splits, in two boxes that only helper and key service open; a random order of its nodes",
        "encrypted",
    )
    helper: bytes
    service: bytes
    place: U32
    """Where the split of each node stands in the boxes."""
    commit: Commit
    """The party's word on what is in both boxes: a hash with a secret."""


class RegisterAt(Message, abstract=True):
    """Brings a holder of shares the boxes of all parties: requests are compared with these and nothing else."""

    epoch: int
    forest: str
    boxes: dict[str, bytes]


class RegisterAtHelper(RegisterAt):
    """Brings the helper its shares of all splits of a forest."""

    discloses: ClassVar = Disclosure(
        *_TO_HELPER,
        "how many splits each party has, and of which of its columns, in a random order; its shares of the thresholds, "
        "which are random numbers",
        "encrypted",
    )


class RegisterAtService(RegisterAt):
    """Brings the key service its shares of all splits of a forest."""

    discloses: ClassVar = Disclosure(
        *_TO_KEYS, "how many splits each party has; a seed of random numbers of each, its shares", "encrypted"
    )


class RegisteredAt(Message, abstract=True):
    """A holder of shares has them, and none of forests before.

    It tells what each party has sealed to it, as a hash (`share_keeping.line_of`): the coordinator, who has the party's
    own word, names a party that has sealed other things to helper and key service.
    """

    lines: dict[str, Commit]


_LINES = "of each party a hash of how many splits it has, and of its word on them; both were told before"


class RegisteredAtHelper(RegisteredAt):
    """The helper has its shares, and none of forests before."""

    discloses: ClassVar = Disclosure(*_FROM_HELPER, _LINES, "clear")


class RegisteredAtService(RegisteredAt):
    """The key service has its shares, and none of forests before."""

    discloses: ClassVar = Disclosure(*_FROM_KEYS, _LINES, "clear")


# --- predictions ---


class SharesOfModel(Message):
    """Who has the shares of a model's splits, for a user who asks for its keys (`key_messages.AskKeys`)."""

    discloses: ClassVar = Disclosure(
        Role.coordinator, Role.user, "who holds shares of the model, and the hash of what is registered", "clear"
    )
    epoch: int
    parties: tuple[str, ...]
    helper: str
    key_service: str
    keys: str
    """The name under which the members keep what they have in common."""
    splits: bytes
    """The hash of the splits that helper and key service have registered: a requester signs it."""


class AdmitRequest(Message):
    """Asks a party whether a request may be compared with its splits; it may refuse the requester."""

    discloses: ClassVar = Disclosure(*_TO_MEMBER, "who asks, and how many rows", "clear")
    ticket: Ticket


class RequestAdmitted(Message):
    """The party's leave for this request, sealed to the helper."""

    discloses: ClassVar = Disclosure(
        *_FROM_MEMBER,
        "that the party allows the request; to the helper, how many comparisons a row has with the party's splits at "
        "most, and which column of the request each of its columns is",
        "encrypted",
    )
    leave: bytes


class TakeValues(Message):
    """Brings the helper a request: its shares of the values, and the leave of every party with splits."""

    discloses: ClassVar = Disclosure(
        *_TO_HELPER, "who asks for a prediction of how many rows; random numbers, its shares of the values", "encrypted"
    )
    ticket: Ticket
    values: bytes
    leaves: dict[str, bytes]


class ValuesTaken(Message):
    """The helper has the request."""

    discloses: ClassVar = Disclosure(*_FROM_HELPER, "nothing but that", "clear")


class CompareRows(Message, abstract=True):
    """Asks for one side of comparisons of rows of a request with splits, all of them at once.

    Comparisons stand in ascending order of owner, place and row: the order says nothing of trees.
    """

    ticket: Ticket
    owners: tuple[str, ...]
    """Whose splits are compared, ascending."""
    owner: U16
    """For each comparison, the place of the owner there."""
    place: U32
    """Where the split stands among the owner's."""
    row: U32
    column: U32
    """The column of the request."""

    def check(self) -> None:
        """Every comparison has all four numbers, and is of somebody who is named."""
        count = len(self.owner)
        if not len(self.place) == len(self.row) == len(self.column) == count:
            raise ValueError("a comparison has an owner, a place, a row and a column")
        if count and int(self.owner.max()) >= len(self.owners):
            raise ValueError("a comparison is with a split of no owner that is named")


class CompareAtHelper(CompareRows):
    """Asks the helper for its side of comparisons."""

    discloses: ClassVar = Disclosure(
        *_TO_HELPER,
        "which rows come by the same splits at each level; whose splits these are, and of which of its columns; "
        "of many rows that tells trees without their direction, and the order of the rows' values",
        "clear",
    )


class CompareAtService(CompareRows):
    """Asks the key service for its side of comparisons."""

    discloses: ClassVar = Disclosure(
        *_TO_KEYS,
        "which rows come by the same splits at each level; whose splits these are, and of which column of the request; "
        "of many rows that tells trees without their direction, and the order of the rows' values",
        "clear",
    )


class HelperCompared(Message):
    """The helper's side: words and a bit for each comparison."""

    discloses: ClassVar = Disclosure(
        *_FROM_HELPER,
        "nothing alone; with the key service's side one bit for each comparison: whether the requester's value is at "
        "most the party's split. Many requests whose values the coordinator knows would tell it the split, so parties "
        "limit and log them",
        "encoded",
    )
    words: U8x2
    tops: U8


class ServiceCompared(Message):
    """The key service's side: words and a bit for each comparison."""

    discloses: ClassVar = Disclosure(
        *_FROM_KEYS, "nothing alone; with the helper's side one bit for each comparison, as there", "encoded"
    )
    words: U8x2
    tops: U8
