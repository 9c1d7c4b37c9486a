"""Whether the helper's number is less than the dealer's, told to the coordinator alone, and to it only as a share.

The dealer (the key service) draws a mask r before anything is compared. The helper opens z, a difference under that
mask, and knows nothing of r. Both send the coordinator one line
of words for each comparison, of which it learns whether z < r, under a coin (`order_words`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from woodlot.crypto.encoding import CODE_BITS
from woodlot.crypto.order_words import DEALER, HELPER, Bytes2, OrderWords, has_common_word
from woodlot.crypto.streams import SecretStream
from woodlot.exceptions import RemoteProtocolError

PLACES = CODE_BITS + 1
"""Bits of the numbers that are compared."""

LINE_BYTES = 8 * PLACES
"""Bytes of one side's words for one comparison."""

_LOW = (1 << CODE_BITS) - 1


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
    shared = OrderWords(common, len(masks), CODE_BITS)
    return Dealt(shared.words(low, DEALER), top ^ shared.coin)


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
    shared = OrderWords(common, len(opened), CODE_BITS)
    return shared.words(low, HELPER), top ^ shared.coin ^ shared.swapped


def decide(dealt: Dealt, words: Bytes2) -> NDArray[np.uint8]:
    """The coordinator: its share of each result; with the helper's share it is 1 where bit 64 of z - r is.

    Raises
    ------
    RemoteProtocolError
        If these are not words of so many comparisons.

    """
    if words.shape != dealt.words.shape:
        raise RemoteProtocolError(f"{len(dealt)} comparisons need {LINE_BYTES} bytes each")
    return np.asarray(has_common_word(dealt.words, words) ^ dealt.tops, np.uint8)
