"""How errors about data say things."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

_SHOWN = 20


def quoted(names: Sequence[str]) -> str:
    """Names as an error shows them: not more than can be read."""
    shown = ", ".join(repr(name) for name in names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"


def nearest(name: str, names: Sequence[str]) -> str | None:
    """Of the names that are there, the one that was probably meant."""
    near = [other for other in names if other.lower() == name.lower()] or difflib.get_close_matches(name, names, 1)
    return near[0] if near else None
