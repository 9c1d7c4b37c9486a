"""Checks of single arguments: each error names it, what it was, and what it may be."""

from __future__ import annotations

from numbers import Integral, Real

import numpy as np

from woodlot.crypto.paillier import DEFAULT_BITS, SMALLEST_BITS

KEY_BITS = (SMALLEST_BITS, DEFAULT_BITS, 4096)
"""Lengths of a key that labels and residuals are encrypted under."""


def require(condition: bool, name: str, value: object, allowed: str) -> None:
    """Raise scikit-learn's kind of error unless the condition holds."""
    if not condition:
        raise ValueError(f"The {name!r} parameter must be {allowed}. Got {value!r} instead.")


def is_int(value: object) -> bool:
    """A whole number that is not a boolean."""
    return isinstance(value, Integral) and not isinstance(value, bool | np.bool_)


def is_real(value: object) -> bool:
    """A real number that is not a boolean."""
    return isinstance(value, Real) and not isinstance(value, bool | np.bool_)
