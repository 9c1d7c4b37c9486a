"""The splits of a forest as the helper registers them, before anybody asks for a prediction.

A list has one line for each split: whose it is, of which of the owner's columns, and the hash of its ciphertext. Lines
stand in the order of the hashes, which says nothing of the nodes. The helper keeps one hash of the whole list. A
requester signs it, and the coordinator brings the list with each request: nothing else is compared.

Who vouches for what in a list:

- each owner, by a tag for the helper: its own lines, the forest, and how many splits the forest has in all. So nobody
  can add a line without another owner's word, since the parties know the structure;
- each owner, by a proof (`woodlot.crypto.knowledge`): it knows the numbers in its ciphertexts.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from woodlot.exceptions import RemoteProtocolError
from woodlot.protocols.core.agreement import derive
from woodlot.protocols.revocable.epoch_keys import TAG, EpochKeys

HASH_BYTES = 32
"""Bytes of the hash of a ciphertext, and of a list."""

MAX_SPLITS = 1 << 22
"""The most splits of a forest."""


def hash_lines(lines: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The hash of each line of bytes."""
    data = b"".join(hashlib.sha256(line.tobytes()).digest() for line in lines)
    return np.frombuffer(data, np.uint8).reshape(len(lines), HASH_BYTES)


@dataclass(frozen=True, eq=False)
class SplitList:
    """Whose splits a forest has.

    Attributes
    ----------
    owners : tuple of str
        Who has splits, in ascending order.
    owner : uint16 array
        For each split, the place of its owner there.
    feature : int32 array
        The number of its column among the owner's.
    hashes : uint8 array of shape (n_splits, 32)
        Of its C1, ascending.

    """

    owners: tuple[str, ...]
    owner: NDArray[np.uint16]
    feature: NDArray[np.int32]
    hashes: NDArray[np.uint8]

    @classmethod
    def of(cls, names: Sequence[str], feature: NDArray[np.int32], hashes: NDArray[np.uint8]) -> SplitList:
        """The list of some splits, given in any order by the names of their owners.

        Raises
        ------
        RemoteProtocolError
            If two have one ciphertext.

        """
        order = sort_hashes(hashes)
        owners = tuple(sorted(set(names)))
        place = {name: number for number, name in enumerate(owners)}
        owner = np.array([place[name] for name in names], np.uint16)
        made = cls(owners, owner[order], feature[order], hashes[order])
        made.check()
        return made

    def check(self) -> None:
        """Refuse a list that was received and is none.

        Raises
        ------
        RemoteProtocolError
            If lines are incomplete, or not in order.

        """
        count = len(self.owner)
        if (len(self.feature), self.hashes.shape) != (count, (count, HASH_BYTES)):
            raise RemoteProtocolError("a list of splits has one owner, column and hash for each of them")
        if count > MAX_SPLITS:
            raise RemoteProtocolError(f"a forest has at most {MAX_SPLITS:,} splits")
        if count and int(self.owner.max()) >= len(self.owners):
            raise RemoteProtocolError("a list of splits has one of nobody")
        if any(first >= second for first, second in itertools.pairwise(self.owners)):
            raise RemoteProtocolError("a list of splits names each owner once, in ascending order")
        if any(first >= second for first, second in itertools.pairwise(self.lines)):
            raise RemoteProtocolError("a list of splits has each of them once, in the order of their hashes")

    @cached_property
    def lines(self) -> list[bytes]:
        """The hashes, as bytes."""
        data = self.hashes.tobytes()
        return [data[at : at + HASH_BYTES] for at in range(0, len(data), HASH_BYTES)]

    @cached_property
    def places(self) -> dict[bytes, int]:
        """Where each hash stands."""
        return {line: number for number, line in enumerate(self.lines)}

    def names(self) -> list[str]:
        """The owner of each split."""
        return [self.owners[number] for number in self.owner.tolist()]

    def digest(self, epoch: int, forest: str) -> bytes:
        """The hash of the whole list: what the helper registers, and requesters sign."""
        whole = (self.owner.tobytes(), self.feature.tobytes(), self.hashes.tobytes())
        return hashlib.sha256(msgspec.msgpack.encode((TAG, "splits", epoch, forest, self.owners, *whole))).digest()

    def fields(self) -> dict[str, Any]:
        """The list as fields of a message."""
        return {"owners": self.owners, "owner": self.owner, "feature": self.feature, "hashes": self.hashes}


NO_SPLITS = SplitList((), np.zeros(0, np.uint16), np.zeros(0, np.int32), np.zeros((0, HASH_BYTES), np.uint8))
"""The list before anything was registered."""


def sort_hashes(hashes: NDArray[np.uint8]) -> NDArray[np.intp]:
    """The order in which hashes stand in a list."""
    return np.lexsort(hashes.T[::-1]) if len(hashes) else np.zeros(0, np.intp)


def read_list(message: Any) -> SplitList:
    """The list in a message that was received; see `SplitList.check`."""
    found = SplitList(tuple(message.owners), message.owner, message.feature, message.hashes)
    found.check()
    return found


def own_facts(
    epoch: int, forest: str, total: int, feature: NDArray[np.int32], hashes: NDArray[np.uint8]
) -> tuple[object, ...]:
    """What a provider's tag of its splits is over: its own, in the order of their hashes, and the number of all."""
    own = hashlib.sha256(feature.tobytes() + hashes.tobytes()).digest()
    return "registered", epoch, forest, total, len(feature), own


def known_purpose(owner: str, epoch: int, forest: str, feature: NDArray[np.int32]) -> bytes:
    """What a provider's proof to know its splits is for: no other owner, forest, epoch or columns."""
    return msgspec.msgpack.encode((TAG, "known splits", owner, epoch, forest, feature.tolist()))


def made_facts(keys: EpochKeys, feature: int, c1: bytes) -> tuple[object, ...]:
    """What a provider's tag for itself of one split is over: the ciphertext, and the number of its column."""
    return keys.epoch, feature, c1


def made_key(keys: EpochKeys) -> bytes:
    """The key of a provider's tags for itself: nobody else has it."""
    return derive(TAG, keys.secret, "made here")
