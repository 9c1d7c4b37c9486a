"""Whether a value is larger than a threshold, when each of them is split between helper and dealer.

The owner of a number splits it: the dealer (the key service) gets a seed of random numbers, the helper the difference.
Each side subtracts its share of the value from its share of the threshold. The two results add up to s - x, and its
sign is what the coordinator is told (`order_words`)::

    z = s_H - x_H  (helper),   r = -(s_K - x_K)  (dealer),   s - x = z - r          all modulo 2^33
    sign of s - x  =  bit 32 of z  xor  bit 32 of r  xor  (low 32 bits of z < low 32 bits of r)

Codes have 32 bits, so s - x has a sign and 32 bits and nothing wraps around. A uniform share tells its holder nothing.
The coordinator gets one line of words and one bit from each side; the bits are under a coin that it does not know.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from woodlot.crypto.order_words import DEALER, HELPER, WORD_BYTES, Bytes2, OrderWords, has_common_word
from woodlot.crypto.streams import SecretStream
from woodlot.exceptions import DataError, RemoteProtocolError

Numbers = NDArray[np.uint64]
"""Codes, or shares of them."""

CODE_BITS = 32
"""Codes are the bits of float32, in the order of the numbers."""

SHARE_BITS = CODE_BITS + 1
"""Shares are numbers of this length."""

SHARE_BYTES = 8
"""Bytes of a share, on the way and at rest."""

LINE_BYTES = WORD_BYTES * (CODE_BITS + 1)
"""Bytes of one side's words for one comparison."""

_MASK = np.uint64((1 << SHARE_BITS) - 1)
_LOW = np.uint64((1 << CODE_BITS) - 1)


def value_codes(values: ArrayLike) -> Numbers:
    """The codes of values, which forests compare as float32: in the same order, equal where the values are equal.

    Raises
    ------
    DataError
        If a value is not finite as float32.

    """
    with np.errstate(over="ignore", under="ignore"):
        numbers = np.array(values, np.float64).astype(np.float32)
    bad = np.flatnonzero(~np.isfinite(numbers))
    if len(bad):
        raise DataError(f"value {int(bad[0])} is missing, infinite or beyond float32; fill it or leave it out")
    return _codes(numbers)


def threshold_codes(thresholds: ArrayLike) -> Numbers:
    """The codes of thresholds: x <= s exactly if the code of x is at most that of s, for every float32 x.

    A threshold between two float32 numbers becomes the lower one.

    Raises
    ------
    DataError
        If one is not a number, as that of a split on categories.

    """
    exact = np.array(thresholds, np.float64)
    if np.isnan(exact).any():
        raise DataError("a split on categories has no threshold that could be compared encrypted")
    with np.errstate(over="ignore", under="ignore"):
        rounded = exact.astype(np.float32)
        below = np.nextafter(rounded, np.float32(-np.inf))
    return _codes(np.where(rounded.astype(np.float64) > exact, below, rounded))


def _codes(numbers: NDArray[np.float32]) -> Numbers:
    bits = (numbers + np.float32(0)).view(np.uint32)  # both zeros have one code
    flipped = np.where(bits >> np.uint32(31), ~bits, bits | np.uint32(1 << 31))
    return flipped.astype(np.uint64)


def dealer_shares(stream: SecretStream, count: int) -> Numbers:
    """The dealer's shares of some numbers: they follow from a seed."""
    return np.frombuffer(stream.bytes(SHARE_BYTES * count), "<u8").astype(np.uint64) & _MASK


def helper_shares(codes: Numbers, dealt: Numbers) -> Numbers:
    """The owner of numbers: the helper's shares, where these are the dealer's."""
    return (codes - dealt) & _MASK


def write_shares(shares: Numbers) -> bytes:
    """Shares as they travel and lie."""
    return shares.astype("<u8").tobytes()


def read_shares(data: bytes, count: int) -> Numbers:
    """What `write_shares` wrote.

    Raises
    ------
    RemoteProtocolError
        If these are not so many shares.

    """
    if len(data) != SHARE_BYTES * count:
        raise RemoteProtocolError(f"{count} shares have {SHARE_BYTES * count} bytes, and {len(data)} were sent")
    found = np.frombuffer(data, "<u8").astype(np.uint64)
    if (found > _MASK).any():
        raise RemoteProtocolError(f"a share has more than {SHARE_BITS} bits")
    return found


def helper_side(thresholds: Numbers, values: Numbers, common: SecretStream) -> tuple[Bytes2, NDArray[np.uint8]]:
    """The helper: words and bits for the coordinator, from its shares of both sides of each comparison."""
    z = (thresholds - values) & _MASK
    words = OrderWords(common, len(z), CODE_BITS)
    top = (z >> np.uint64(CODE_BITS)).astype(np.uint8)
    return words.words(z & _LOW, HELPER), top ^ words.coin ^ words.swapped


def dealer_side(thresholds: Numbers, values: Numbers, common: SecretStream) -> tuple[Bytes2, NDArray[np.uint8]]:
    """The dealer: the same from its own shares."""
    r = (values - thresholds) & _MASK
    words = OrderWords(common, len(r), CODE_BITS)
    return words.words(r & _LOW, DEALER), (r >> np.uint64(CODE_BITS)).astype(np.uint8) ^ words.coin


def is_larger(helper: tuple[Bytes2, NDArray[np.uint8]], dealer: tuple[Bytes2, NDArray[np.uint8]]) -> NDArray[np.bool_]:
    """The coordinator: whether the value is larger than the threshold, for each comparison."""
    return np.asarray(has_common_word(helper[0], dealer[0]) ^ helper[1].astype(bool) ^ dealer[1].astype(bool), bool)
