"""How errors about data say things."""

from __future__ import annotations

from collections.abc import Sequence

_SHOWN = 20


def quoted(names: Sequence[str]) -> str:
    """Names as an error shows them: not more than can be read."""
    shown = ", ".join(repr(name) for name in names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"
