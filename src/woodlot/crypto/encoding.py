"""Numbers as integers to be encrypted, in the same order.

``exact``: the bits of a float64, read so that integers stand in the order of the numbers. Nothing is rounded: different
numbers have different codes. ``fixed-point``: the paper's form, the nearest integer to x 10^digits; neighbours closer
than that become one.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from woodlot.exceptions import DataError

Encoding = Literal["exact", "fixed-point"]

CODE_BITS = 64
"""Codes are signed integers of this length."""

DEFAULT_DIGITS = 6
"""Decimal places of the fixed-point form."""

_LARGEST = 2.0**62


def encode(values: Any, *, encoding: Encoding = "exact", digits: int = DEFAULT_DIGITS) -> NDArray[np.int64]:
    """Return the codes of numbers: a <= b wherever code(a) <= code(b), and with ``"exact"`` nowhere else.

    Parameters
    ----------
    values : array of float
        The numbers. Both zeros have the same code; infinities have the outermost codes.
    encoding : {"exact", "fixed-point"}
        See above.
    digits : int
        Decimal places of the fixed-point form.

    Raises
    ------
    DataError
        If a value is not a number, or too large for the fixed-point form.

    """
    numbers = np.array(values, np.float64)  # a copy: zeros are rewritten
    missing = np.isnan(numbers)
    if missing.any():
        raise DataError(f"value {int(np.flatnonzero(missing)[0])} is not a number, which has no place in the order")
    if encoding == "fixed-point":
        scaled = np.rint(numbers * 10.0**digits)
        if not (np.abs(scaled) < _LARGEST).all():
            raise DataError(f"a value is too large for {digits} decimal places; use fewer, or encoding='exact'")
        return scaled.astype(np.int64)
    if encoding != "exact":
        raise DataError(f"encoding is 'exact' or 'fixed-point', not {encoding!r}")
    numbers[numbers == 0] = 0.0
    bits = numbers.view(np.int64)
    return np.where(bits >= 0, bits, -(bits & np.int64(np.iinfo(np.int64).max)))


def decode(codes: NDArray[np.int64], *, encoding: Encoding = "exact", digits: int = DEFAULT_DIGITS) -> NDArray[Any]:
    """Return the numbers of codes; of the fixed-point form, to its decimal places."""
    if encoding == "fixed-point":
        return codes / 10.0**digits
    negative = codes < 0
    bits = np.where(negative, -codes, codes).view(np.uint64) | (negative.astype(np.uint64) << np.uint64(63))
    return bits.view(np.float64)
