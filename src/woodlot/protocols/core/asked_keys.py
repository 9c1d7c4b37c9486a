"""What a party checks before it makes or takes a key for somebody else's job."""

from __future__ import annotations

from woodlot.crypto import paillier
from woodlot.crypto._libraries import gmp
from woodlot.exceptions import RemoteProtocolError


def check_key_bits(bits: int) -> None:
    """Refuse keys that are too short for use, or so long that they keep a machine busy."""
    if not paillier.SMALLEST_BITS <= bits <= paillier.LARGEST_BITS or bits % 2:
        raise RemoteProtocolError(f"the coordinator asks for a key of {bits} bits")


def need_library() -> None:
    """Refuse to begin where encryption is not installed."""
    gmp()
