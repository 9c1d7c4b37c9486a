"""What a party checks before it makes or takes a key for somebody else's job."""

from __future__ import annotations

from woodlot.crypto._libraries import gmp


def need_library() -> None:
    """Refuse to begin where encryption is not installed."""
    gmp()
