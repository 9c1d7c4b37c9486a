"""What helper and key service keep of a forest under ``scheme="shares"``, by owner, and how boxes are sealed.

A party splits its thresholds: the key service gets a seed, the helper the differences (`woodlot.crypto.split_compare`).
Each keeps its half by owner in a `ShareBook`. When an owner leaves, its lines are deleted from both books.

The *registration* of a forest is one hash over what all owners have committed to. Helper and key service compute it
each for itself, from what the owners have sealed to them. Requesters sign it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from woodlot.data.decoding import from_msgpack
from woodlot.exceptions import RemoteProtocolError
from woodlot.protocols.core.agreement import derive
from woodlot.protocols.revocable import key_messages as msg
from woodlot.protocols.revocable.epoch_keys import TAG, EpochKeys, seal, unseal
from woodlot.protocols.revocable.share_messages import COMMIT_BYTES, CompareRows

MAX_COMPARISONS = 1 << 17
"""The most comparisons of one message."""

MAX_VALUES = 1 << 24
"""The most values of a request."""


class HeldShares(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One holder's half of the splits of one owner.

    Attributes
    ----------
    forest : str
        Fingerprint of the forest.
    total : int
        How many splits the forest has, of all owners.
    count : int
        How many are this owner's.
    commit : bytes
        The owner's word on both halves; the same at helper and key service.
    feature : bytes
        At the helper: the number of each split's column among the owner's own, as int32.
    data : bytes
        At the helper the shares, at the key service the seed of its shares.

    """

    forest: str
    total: int
    count: int
    commit: bytes
    feature: bytes
    data: bytes

    def __repr__(self) -> str:
        return f"HeldShares({self.count} splits, secret)"

    def features(self) -> NDArray[np.int32]:
        """The number of each split's column."""
        return np.frombuffer(self.feature, np.int32)


class ShareBook(Protocol):
    """Where a holder keeps shares. What is deleted is gone for good."""

    def keep(self, registration: bytes, held: Mapping[str, HeldShares]) -> None:
        """Keep the shares of a forest, beside those of others."""
        ...

    def load(self, registration: bytes) -> dict[str, HeldShares]:
        """The shares of a forest, by owner."""
        ...

    def keep_only(self, registration: bytes) -> None:
        """Delete the shares of all other forests."""
        ...

    def strike_out(self, owner: str) -> None:
        """Delete all shares of one owner."""
        ...


class MemoryBook:
    """A book in this process; with the process it is gone."""

    def __init__(self) -> None:
        self.lines: dict[bytes, dict[str, HeldShares]] = {}

    def keep(self, registration: bytes, held: Mapping[str, HeldShares]) -> None:
        """Keep the shares of a forest."""
        self.lines[registration] = dict(held)

    def load(self, registration: bytes) -> dict[str, HeldShares]:
        """The shares of a forest."""
        return dict(self.lines.get(registration, {}))

    def keep_only(self, registration: bytes) -> None:
        """Delete those of others."""
        self.lines = {key: held for key, held in self.lines.items() if key == registration}

    def strike_out(self, owner: str) -> None:
        """Delete those of one owner."""
        for held in self.lines.values():
            held.pop(owner, None)


def registration_of(epoch: int, forest: str, commits: Mapping[str, tuple[int, bytes]]) -> bytes:
    """The hash of what all owners have committed to: their numbers of splits, and their words on them."""
    lines = [(owner, *commits[owner]) for owner in sorted(commits)]
    return hashlib.sha256(msgspec.msgpack.encode((TAG, "shared splits", epoch, forest, lines))).digest()


def line_of(epoch: int, forest: str, owner: str, count: int, commit: bytes) -> bytes:
    """The hash of what one owner has committed to. Holders tell it, so that one that tells them two things is named."""
    return hashlib.sha256(msgspec.msgpack.encode((TAG, "splits of one", epoch, forest, owner, count, commit))).digest()


def seal_held(keys: EpochKeys, holder: str, held: HeldShares) -> bytes:
    """At an owner: a half for its holder."""
    return seal(keys.key_with(holder, "shares"), msgspec.msgpack.encode(held), holder, held.forest)


def open_held(keys: EpochKeys, holder: str, owner: str, forest: str, box: bytes) -> HeldShares:
    """At a holder: the half that an owner has sealed to it.

    Raises
    ------
    RemoteProtocolError
        If it was changed on the way, is another owner's, or is of another forest.

    """
    wrong = (
        f"the shares under the name of {owner!r} are not those that it has sealed to this member for this forest; "
        "they may have been changed on the way"
    )
    held = from_msgpack(unseal(keys.key_with(owner, "shares"), box, holder, forest, wrong=wrong), HeldShares)
    if held.forest != forest or len(held.commit) != COMMIT_BYTES or held.count < 0:
        raise RemoteProtocolError(wrong)
    return held


class RequestPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a requester has told a holder alone.

    Attributes
    ----------
    key : bytes
        At the helper it opens the shares of the values; at the key service they follow from it.
    owners : tuple of str
        At the helper: whose each column of the request is.
    other : bytes
        `key_commit` of the key that the other holder was told. The answers of two keys for one request have nothing in
        common.

    """

    key: bytes
    owners: tuple[str, ...] = ()
    other: bytes = b""

    def __repr__(self) -> str:
        return "RequestPart(secret)"


def key_commit(key: bytes) -> bytes:
    """A word on the key that a requester has told one holder, for the other."""
    return derive(TAG, key, "key of a request")


def asking_facts(ticket: msg.Ticket) -> tuple[object, ...]:
    """What shares of values are made for: in any other request they are random numbers."""
    return ticket.epoch, ticket.request, ticket.requester, ticket.rows, ticket.features, ticket.splits


def compared_digest(message: CompareRows) -> bytes:
    """The hash of what is compared. It enters the common key, so both sides must have been asked the same."""
    whole = (message.owner.tobytes(), message.place.tobytes(), message.row.tobytes(), message.column.tobytes())
    return hashlib.sha256(msgspec.msgpack.encode((message.owners, *whole))).digest()
