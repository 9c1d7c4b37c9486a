"""Weighted sums of ciphertexts: one ciphertext per column of known whole numbers, of the sum of plaintexts times them.

A power per row and column is what that means, and far too slow. Instead (Pippenger's buckets) rows with equal weights
are added first; weights are cut into digits, what has the same digit is added up, and a running sum over the digits
from the highest down counts each as often as its digit says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.crypto._libraries import gmp
from woodlot.crypto.paillier import PaillierPublicKey

_LONGEST = 16  # bits of a digit: buckets beyond take more room than they save time


def weighted_sums(key: PaillierPublicKey, ciphers: Sequence[Any], weights: NDArray[np.int64], bits: int) -> list[Any]:
    """Ciphertexts of ``weights.T @ plaintexts`` modulo n; their noise follows from the ciphertexts and the weights.

    Parameters
    ----------
    key : PaillierPublicKey
        Of all ciphertexts.
    ciphers : sequence
        One ciphertext per row.
    weights : int64 array of shape (rows, columns)
        What each plaintext is multiplied by, from ``-2**(bits - 1)`` up to ``2**(bits - 1) - 1``.
    bits : int
        See above.

    """
    square, offset = key.square, 1 << (bits - 1)
    total = gmp().mpz(1)
    for cipher in ciphers:
        total = total * cipher % square
    # digits are not negative: weights are counted from the lowest, and what that adds is taken away at the end
    extra = gmp().invert(key.multiply(total, offset), square)
    found = []
    for column in weights.T:
        values, place = np.unique(column, return_inverse=True)
        sums: list[Any] = [None] * len(values)
        for i, cipher in zip(place.tolist(), ciphers, strict=True):
            held = sums[i]
            sums[i] = cipher if held is None else held * cipher % square
        found.append(_powers(sums, values + offset, bits, square) * extra % square)
    return found


def _powers(bases: Sequence[Any], exponents: NDArray[np.int64], bits: int, modulus: Any) -> Any:
    """The product of every base to its own exponent."""
    digit = min(range(1, _LONGEST + 1), key=lambda w: -(-bits // w) * (len(bases) + 2 ** (w + 1)))
    one = gmp().mpz(1)
    result = one
    for low in reversed(range(0, bits, digit)):
        for _ in range(digit):
            result = result * result % modulus
        buckets: list[Any] = [None] * (1 << digit)
        for base, place in zip(bases, (exponents >> low & ((1 << digit) - 1)).tolist(), strict=True):
            held = buckets[place]
            buckets[place] = base if held is None else held * base % modulus
        running = one
        for held in reversed(buckets[1:]):
            if held is not None:
                running = running * held % modulus
            result = result * running % modulus
    return result
