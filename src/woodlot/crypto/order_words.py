"""Two sides tell a third which of their numbers is the smaller one, under a coin, and nothing else.

Helper and dealer (the key service) have a key in common that the coordinator has not. Each sends the coordinator one
line of words for each comparison. The coordinator looks for a word that both lines contain. It sends nothing itself.

::

    Z = 2 z + 1 (helper),  R = 2 r (dealer)    one bit longer than the numbers, never equal
    the smaller side lists, for each bit that is 0, the bits above it followed by a 1
    the larger side lists,  for each bit that is 1, the bits above it followed by that 1
    some entry is in both lists  exactly if  smaller < larger            (Lin and Tzeng's 0-encoding and 1-encoding)

    word = the first 8 bytes of AES(key, entry, number of the comparison, place of the bit)
    places without an entry have a word that the other side cannot have; the words of a line are sorted

Words are outputs of a pseudorandom function at points that occur once, and sorting hides the place where they agree,
so the coordinator learns one bit: whether there is a common word. A common coin decides which side is the smaller one,
so that the bit alone means nothing. Two different words are equal with a chance below 2^-51 for each comparison.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import ECB
from numpy.typing import NDArray

from woodlot.crypto.streams import KEY_BYTES, SecretStream

Bytes2 = NDArray[np.uint8]
"""One line of bytes per comparison."""

HELPER, DEALER = 1, 0
"""The two sides; a side's number is also the lowest bit of what it compares."""

WORD_BYTES = 8
"""Bytes of a word."""

_BLOCK = 1024  # comparisons that are worked on at a time, for the sake of memory
_INPUT = np.dtype([("entry", "<u8"), ("comparison", "<u4"), ("place", "u1"), ("kind", "u1"), ("zero", "V2")])


class OrderWords:
    """What both sides have in common for some comparisons. Fewer comparisons are the first of more.

    Parameters
    ----------
    stream : SecretStream
        From the key that the sides have in common, for these comparisons only.
    count : int
        How many there are.
    bits : int
        Length of the numbers, at most 64.

    Attributes
    ----------
    swapped : bool array
        Whether the dealer's side is the smaller one.
    coin : uint8 array
        A second bit for each comparison.

    """

    def __init__(self, stream: SecretStream, count: int, bits: int) -> None:
        # each block is encrypted once under this key, and no two are equal: AES is used as a pseudorandom function
        self._cipher = Cipher(AES(stream.bytes(KEY_BYTES)), ECB())  # noqa: S305
        self._bits = bits
        coins = np.frombuffer(stream.bytes(count), np.uint8)
        self.swapped = (coins & 1).astype(bool)
        self.coin = (coins >> 1 & 1).astype(np.uint8)

    def words(self, low: NDArray[np.uint64], side: int) -> Bytes2:
        """One side's words of its numbers, a line for each."""
        bits, places = self._bits, self._bits + 1
        found = np.empty((len(low), places), np.uint64)
        shift = np.arange(bits - 1, -1, -1, dtype=np.uint64)
        for start in range(0, len(low), _BLOCK):
            part = slice(start, start + _BLOCK)
            numbers, smaller = low[part], self.swapped[part] == (side == DEALER)
            entry = np.empty((len(numbers), places), np.uint64)
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
            lines["place"] = np.arange(places, dtype=np.uint8)
            lines["kind"] = np.where(listed, 2, side)
            data = self._cipher.encryptor().update(lines.tobytes())
            found[part] = np.frombuffer(data, "<u8").reshape(len(numbers), places, 2)[:, :, 0]
        found.sort(axis=1)
        return found.astype("<u8").view(np.uint8).reshape(len(low), WORD_BYTES * places)


def has_common_word(first: Bytes2, second: Bytes2) -> NDArray[np.bool_]:
    """The coordinator: whether the two lines of each comparison have a word in common."""
    both = np.concatenate([_as_words(first), _as_words(second)], axis=1)
    both.sort(axis=1)
    return np.asarray((both[:, 1:] == both[:, :-1]).any(axis=1), bool)


def _as_words(lines: Bytes2) -> NDArray[Any]:
    return np.ascontiguousarray(lines).view("<u8")
