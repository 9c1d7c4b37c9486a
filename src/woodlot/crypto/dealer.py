"""Whether the helper's number is less than the dealer's, told to the coordinator alone, and to it only as a share.

The dealer (the key service) draws a mask r before anything is compared. The helper opens z, a difference under that
mask, and knows nothing of r. Both send the coordinator one line of words for each comparison, made with a key that the
two have in common and the coordinator has not. The coordinator looks for a word that both lines contain.

::

    Z = 2 z + 1,  R = 2 r                      65 bits each, never equal
    the smaller side lists, for each bit that is 0, the bits above it followed by a 1
    the larger side lists,  for each bit that is 1, the bits above it followed by that 1
    some entry is in both lists  exactly if  smaller < larger            (Lin and Tzeng's 0-encoding and 1-encoding)

    word = the first 8 bytes of AES(key, entry, number of the comparison, place of the bit)
    places without an entry have a word that the other side cannot have; the 65 words are sorted

Words are outputs of a pseudorandom function at points that occur once, and sorting hides the place where they agree,
so the coordinator learns one bit: whether there is a common word. A common coin decides which side is the smaller one,
so that the bit alone means nothing. The coordinator sends nothing here: there is nothing that it could send wrongly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import ECB
from numpy.typing import NDArray

from woodlot.crypto.encoding import CODE_BITS
from woodlot.crypto.streams import KEY_BYTES, SecretStream
from woodlot.exceptions import RemoteProtocolError

Bytes2 = NDArray[np.uint8]
"""One line of bytes per comparison."""

PLACES = CODE_BITS + 1
"""Bits of the numbers that are compared."""

LINE_BYTES = 8 * PLACES
"""Bytes of one side's words for one comparison."""

_LOW = (1 << CODE_BITS) - 1
_BLOCK = 1024  # comparisons that are worked on at a time, for the sake of memory
_HELPER, _DEALER = 1, 0  # a side's number is also the lowest bit of what it compares
_INPUT = np.dtype([("entry", "<u8"), ("comparison", "<u4"), ("place", "u1"), ("kind", "u1"), ("zero", "V2")])


@dataclass(frozen=True, eq=False, repr=False)
class Dealt:
    """The coordinator's part, one line per comparison.

    Attributes
    ----------
    words : uint8 array of 520 columns
        The dealer's words.
    tops : uint8 array
        Bit 64 of each mask, under a coin that dealer and helper have in common.

    """

    words: Bytes2
    tops: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.words)

    def take(self, lines: NDArray[np.int64]) -> Dealt:
        """Some of them."""
        return Dealt(self.words[lines], self.tops[lines])


class _Common:
    """What dealer and helper have in common for one step. Fewer comparisons are the first of more."""

    def __init__(self, stream: SecretStream, count: int) -> None:
        # each block is encrypted once under this key, and no two are equal: AES is used as a pseudorandom function
        self._cipher = Cipher(AES(stream.bytes(KEY_BYTES)), ECB())  # noqa: S305
        coins = np.frombuffer(stream.bytes(count), np.uint8)
        self.swapped = (coins & 1).astype(bool)  # whether the dealer's side is the smaller one
        self.coin = (coins >> 1 & 1).astype(np.uint8)

    def words(self, low: NDArray[np.uint64], side: int) -> Bytes2:
        """One side's words of its numbers."""
        found = np.empty((len(low), PLACES), np.uint64)
        shift = np.arange(CODE_BITS - 1, -1, -1, dtype=np.uint64)
        for start in range(0, len(low), _BLOCK):
            part = slice(start, start + _BLOCK)
            numbers, smaller = low[part], self.swapped[part] == (side == _DEALER)
            entry = np.empty((len(numbers), PLACES), np.uint64)
            entry[:, :-1] = numbers[:, None] >> shift
            bit = np.empty(entry.shape, bool)
            bit[:, :-1] = entry[:, :-1] & np.uint64(1)
            bit[:, -1] = side
            entry[:, :-1] |= np.uint64(1)
            entry[:, -1] = numbers  # with the lowest bit, which is 1 in every entry, left out
            listed = bit != smaller[:, None]
            lines = np.zeros(entry.shape, _INPUT)
            lines["entry"] = np.where(listed, entry, 0)
            lines["comparison"] = np.arange(start, start + len(numbers), dtype=np.uint32)[:, None]
            lines["place"] = np.arange(PLACES, dtype=np.uint8)
            lines["kind"] = np.where(listed, 2, side)
            data = self._cipher.encryptor().update(lines.tobytes())
            found[part] = np.frombuffer(data, "<u8").reshape(len(numbers), PLACES, 2)[:, :, 0]
        found.sort(axis=1)
        return found.astype("<u8").view(np.uint8).reshape(len(low), LINE_BYTES)


def _low_and_top(numbers: Sequence[int]) -> tuple[NDArray[np.uint64], NDArray[np.uint8]]:
    """The low 64 bits of numbers, and the bit above them."""
    return (
        np.array([number & _LOW for number in numbers], np.uint64),
        np.array([number >> CODE_BITS & 1 for number in numbers], np.uint8),
    )


def deal(masks: Sequence[int], common: SecretStream) -> Dealt:
    """The dealer: the coordinator's part of comparisons with these masks.

    Parameters
    ----------
    masks : sequence of int
        r of each comparison.
    common : SecretStream
        From the key that dealer and helper have in common.

    """
    low, top = _low_and_top(masks)
    shared = _Common(common, len(masks))
    return Dealt(shared.words(low, _DEALER), top ^ shared.coin)


def answer(opened: Sequence[int], common: SecretStream) -> tuple[Bytes2, NDArray[np.uint8]]:
    """The helper: its words for the coordinator, and its shares of the results, for the providers.

    Parameters
    ----------
    opened : sequence of int
        z of each comparison.
    common : SecretStream
        From the key that dealer and helper have in common; of the same step as the dealer's.

    """
    low, top = _low_and_top(opened)
    shared = _Common(common, len(opened))
    return shared.words(low, _HELPER), top ^ shared.coin ^ shared.swapped


def decide(dealt: Dealt, words: Bytes2) -> NDArray[np.uint8]:
    """The coordinator: its share of each result; with the helper's share it is 1 where bit 64 of z - r is.

    Raises
    ------
    RemoteProtocolError
        If these are not words of so many comparisons.

    """
    if words.shape != dealt.words.shape:
        raise RemoteProtocolError(f"{len(dealt)} comparisons need {LINE_BYTES} bytes each")
    both = np.concatenate([_as_words(dealt.words), _as_words(words)], axis=1)
    both.sort(axis=1)
    common = (both[:, 1:] == both[:, :-1]).any(axis=1)
    return np.asarray(common ^ dealt.tops, np.uint8)


def _as_words(lines: Bytes2) -> NDArray[Any]:
    return np.ascontiguousarray(lines).view("<u8").reshape(len(lines), PLACES)
