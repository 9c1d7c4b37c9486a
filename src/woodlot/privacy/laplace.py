"""Integer (discrete) Laplace noise, drawn exactly and in bulk.

The number k has the chance a^|k| (1 - a) / (1 + a), where a = exp(-1 / scale). It is drawn as the difference of two
geometric numbers, each of which has the chance (1 - a) a^k. Written in binary, a geometric number has bits that do not
depend on each other: that of 2^i is 1 with the chance 1 / (1 + exp(2^i / scale)), for a^k is a product over its bits.
So all numbers are drawn bit by bit, without a table and without a number that is rejected.

What is rounded: chances at the 256th bit, and numbers end where larger ones have a chance below 2^-256. So epsilon is
kept to but for a chance of less than 2^-240 in each number, far below that of guessing a key.
"""

from __future__ import annotations

from decimal import Context, Decimal
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from woodlot.privacy.derivation import open_stream

_BITS = 256
_WORD = 64
_NUMBERS_AT_ONCE = 1 << 16
_MOST_LOG_ODDS = Decimal(1000)  # beyond 178 a chance is 0 in 256 bits
_LONGEST = 360  # exp(-360 / 2) is below 2^-256: so far do numbers go, in parts of the scale, and twice as far


def draw_laplace(scale: float, key: bytes, n: int) -> NDArray[np.int64]:
    """Discrete Laplace numbers from the stream of a key of 32 bytes, which is used for nothing else.

    A word of the stream is compared with the first 64 bits of a chance. Where it equals them, the next bits decide.
    """
    chances, stream = bit_chances(scale), open_stream(key)
    drawn = np.zeros(n, np.int64)
    for start in range(0, n, _NUMBERS_AT_ONCE):
        part = drawn[start : start + _NUMBERS_AT_ONCE]
        for sign in (1, -1):
            for place, chance in enumerate(chances):
                words = np.frombuffer(stream(8 * len(part)), "<u8")
                first = np.uint64(chance >> (_BITS - _WORD))
                part += np.where(words < first, sign << place, 0)
                for i in np.flatnonzero(words == first).tolist():
                    tail = int.from_bytes(stream((_BITS - _WORD) // 8), "little")
                    part[i] += (sign << place) * (tail < chance & ((1 << (_BITS - _WORD)) - 1))
    return drawn


@lru_cache(maxsize=64)
def bit_chances(scale: float) -> tuple[int, ...]:
    """How likely each bit of a geometric number is 1, of 2^256, from the lowest bit on."""
    context, chances, place = Context(prec=110), list[int](), 0
    while not chances or (1 << place) <= _LONGEST * scale:
        exponent = context.divide(Decimal(1 << place), Decimal(scale))
        odds = context.exp(min(exponent, _MOST_LOG_ODDS))
        chances.append(int(context.divide(Decimal(1 << _BITS), context.add(odds, Decimal(1)))))
        place += 1
    return tuple(chances)
