"""Lengths that tell little: what is sealed is padded first, for who carries it sees how long it is.

Lengths are rounded up as PADME does (Nikitin et al., "Reducing Metadata Leakage from Encrypted Files and Communication
with PURBs", 2019): of a length of E + 1 bits only the upper bits stay, as many as E has. So there are few lengths,
O(log log L) bits are told, and at most 12 % is added. A floor hides what is below it altogether.
"""

from __future__ import annotations

from woodlot.exceptions import RemoteProtocolError

LENGTH_BYTES = 8
"""Of the length of what is padded, which stands at the end."""


def padded_length(length: int) -> int:
    """The next length that is in use."""
    if length < 2:
        return length
    exponent = length.bit_length() - 1
    last_bits = exponent - exponent.bit_length()
    mask = (1 << max(0, last_bits)) - 1
    return (length + mask) & ~mask


def pad(data: bytes, floor: int = 0) -> bytes:
    """Make data so long that its length tells little; `unpad` takes it off again.

    Parameters
    ----------
    data : bytes
        What is to be sealed.
    floor : int
        As long as if it had so many bytes, at least.

    """
    size = padded_length(max(len(data), floor) + LENGTH_BYTES)
    return b"".join((data, bytes(size - len(data) - LENGTH_BYTES), len(data).to_bytes(LENGTH_BYTES, "little")))


def unpad(padded: bytes) -> bytes:
    """What `pad` was given."""
    end = len(padded) - LENGTH_BYTES
    length = int.from_bytes(padded[-LENGTH_BYTES:], "little")
    if not 0 <= length <= end:
        raise RemoteProtocolError("what was sealed is not padded as it must be")
    return padded[:length]
