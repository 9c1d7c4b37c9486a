"""Shamir's secret sharing of 256 bits: any `threshold` shares give the secret, fewer tell nothing of it.

The secret is the value at 0 of a random polynomial of degree ``threshold - 1`` over the integers modulo a prime; the
share of place x (1, 2, ...) is its value at x. Shamir, How to share a secret, 1979.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from woodlot.exceptions import RemoteProtocolError
from woodlot.protocols.core.agreement import KEY_BYTES
from woodlot.protocols.sums.keystreams import key_bytes

PRIME = 2**256 + 297
"""The least prime above 2^256."""
SHARE_BYTES = 33
"""A share on the wire, big-endian."""
_COEFFICIENT_BYTES = 40  # 64 bits more than the prime: their remainders are uniform, up to 2^-63


def split(secret: bytes, threshold: int, places: Sequence[int], randomness: bytes) -> list[bytes]:
    """Return the share of each place.

    Parameters
    ----------
    secret : bytes
        Of 32 bytes.
    threshold : int
        How many shares give the secret.
    places : sequence of int
        From 1 on, none twice.
    randomness : bytes
        A secret key that is used for this polynomial alone.

    """
    drawn = key_bytes(randomness, _COEFFICIENT_BYTES * (threshold - 1))
    coefficients = [
        int.from_bytes(drawn[first : first + _COEFFICIENT_BYTES]) % PRIME
        for first in range(0, len(drawn), _COEFFICIENT_BYTES)
    ]
    shares = []
    for place in places:
        value = 0
        for coefficient in coefficients:  # Horner's rule, the highest power first
            value = (value + coefficient) * place % PRIME
        shares.append(((value + int.from_bytes(secret)) % PRIME).to_bytes(SHARE_BYTES))
    return shares


def combine(shares: Mapping[int, bytes]) -> bytes:
    """Return the secret of which these are enough shares, by place: Lagrange's interpolation at 0.

    Raises
    ------
    RemoteProtocolError
        If these cannot be shares of one secret.

    """
    secret = 0
    for place, share in shares.items():
        above = below = 1
        for other in shares:
            if other != place:
                above, below = above * other % PRIME, below * (other - place) % PRIME
        secret += int.from_bytes(share) * above * pow(below, -1, PRIME)
    secret %= PRIME
    if secret.bit_length() > 8 * KEY_BYTES:
        raise RemoteProtocolError("the shares are not those of one secret")
    return secret.to_bytes(KEY_BYTES)
