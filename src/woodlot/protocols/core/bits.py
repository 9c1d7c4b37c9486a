"""Bits as they travel: packed eight to a byte, first bit lowest, with the length known to both sides."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.exceptions import RemoteProtocolError


def pack(bits: NDArray[Any]) -> NDArray[np.uint8]:
    """Pack booleans or 0/1 flags."""
    return np.packbits(bits, bitorder="little")


def check_packed(packed: NDArray[np.uint8], n: int, what: str) -> None:
    """Refuse a packet of another length than that of ``n`` flags; it is the peer's fault."""
    if len(packed) != (n + 7) // 8:
        raise RemoteProtocolError(f"{what}: expected {n} bits, got {len(packed)} bytes")


def unpack(packed: NDArray[np.uint8], n: int, what: str) -> NDArray[np.uint8]:
    """Unpack exactly ``n`` flags; a packet of another length is the peer's fault."""
    check_packed(packed, n, what)
    return np.unpackbits(packed, count=n, bitorder="little")


def as_words(packed: NDArray[np.uint8], n: int, what: str) -> NDArray[np.uint64]:
    """Exactly ``n`` packed bits as 64-bit words, with a word to spare."""
    check_packed(packed, n, what)
    words = np.zeros(n // 64 + 2, np.uint64)
    words.view(np.uint8)[: len(packed)] = packed
    return words


def from_words(words: NDArray[np.uint64], n: int) -> NDArray[np.uint8]:
    """The first ``n`` bits of some words, packed."""
    return words.view(np.uint8)[: (n + 7) // 8]


def smallest_unsigned(values: NDArray[Any]) -> NDArray[Any]:
    """The same whole numbers in the smallest unsigned type that holds them."""
    return values.astype(np.min_scalar_type(int(values.max(initial=0))))
