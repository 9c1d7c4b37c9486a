"""The library of the extra ``crypto``, imported when it is first needed."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any


@cache
def gmp() -> Any:
    """gmpy2, or an error that says how to get it."""
    try:
        return import_module("gmpy2")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "gmpy2 is not installed, and encryption needs it: pip install 'woodlot[crypto]'", name=error.name
        ) from error
