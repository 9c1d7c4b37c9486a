"""The library of the extra ``crypto``, imported when it is first needed."""

from __future__ import annotations

from functools import cache
from typing import Any

from woodlot.data.extras import need


@cache
def gmp() -> Any:
    """gmpy2, or an error that says how to get it."""
    return need("gmpy2", "crypto")
