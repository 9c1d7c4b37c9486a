"""Numbers of any size as short whole numbers, whose sums over clients give back the sum of the numbers.

A number is taken as a multiple of 2^-`FRACTION_BITS`, in two's complement of `WIDTH` bits, and cut into limbs of 32
bits. Limbs are added one by one, each in 64 bits; what the sums of limbs stand for, modulo 2^`WIDTH`, is the sum. So
clients need not agree on how large their numbers are, which would tell of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from woodlot.exceptions import DataError

LIMB_BITS = 32
N_LIMBS = 32
WIDTH = LIMB_BITS * N_LIMBS
FRACTION_BITS = 480
_LARGEST = 2.0 ** (WIDTH - FRACTION_BITS - 16)  # so that the sum of as many clients as a job can have fits


def to_limbs(numbers: Sequence[float]) -> NDArray[np.int64]:
    """The limbs of some numbers, one number after the other, the lowest limb first."""
    found = []
    for number in numbers:
        if not abs(number) < _LARGEST:
            raise DataError("a sum over its rows is not finite, or too large to be added to that of others")
        numerator, denominator = float(number).as_integer_ratio()
        whole = ((numerator << FRACTION_BITS) // denominator) % (1 << WIDTH)
        found += [(whole >> (LIMB_BITS * k)) & ((1 << LIMB_BITS) - 1) for k in range(N_LIMBS)]
    return np.array(found, np.int64)


def from_limbs(sums: NDArray[np.int64]) -> list[float]:
    """The numbers that sums of `to_limbs` stand for, each to the nearest float."""
    found = []
    for limbs in sums.reshape(-1, N_LIMBS).tolist():
        whole = sum(limb << (LIMB_BITS * k) for k, limb in enumerate(limbs)) % (1 << WIDTH)
        found.append((whole - (1 << WIDTH) if whole >> (WIDTH - 1) else whole) / (1 << FRACTION_BITS))
    return found
