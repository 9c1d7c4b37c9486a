"""How a user seals the ids of a scoring's request to each party."""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from woodlot.data.decoding import from_msgpack
from woodlot.exceptions import RemoteProtocolError
from woodlot.jobs.padding import pad, unpad

KEY_BYTES = 32
_NONCE_BYTES = 12
_ID_BYTES = 48  # of one id: how long those of a request are is told only above it


def new_key() -> bytes:
    """A key for one party in one scoring; it goes into the party's sealed part of the order."""
    return os.urandom(KEY_BYTES)


class IdSeal:
    """Seals and opens the ids of requests between a user and one party, in one scoring.

    Parameters
    ----------
    key : bytes
        As `new_key` makes them.
    job : str
        The scoring.
    party : str
        The party.

    """

    def __init__(self, key: bytes, job: str, party: str) -> None:
        if len(key) != KEY_BYTES:
            raise RemoteProtocolError(f"the key of a scoring has {KEY_BYTES} bytes, not {len(key)}")
        self._cipher = ChaCha20Poly1305(key)
        self._about = f"woodlot scoring\0{job}\0{party}".encode()

    def seal(self, number: int, ids: Sequence[bytes]) -> bytes:
        """The ids of a request; its number must never be used again."""
        plain = pad(msgspec.msgpack.encode(list(ids)), len(ids) * _ID_BYTES)
        return self._cipher.encrypt(_nonce(number), plain, self._about)

    def open(self, number: int, sealed: bytes) -> list[bytes]:
        """The ids of a request, in their canonical form."""
        try:
            plain = self._cipher.decrypt(_nonce(number), sealed, self._about)
            return from_msgpack(unpad(plain), list[bytes])
        except (InvalidTag, ValueError, OverflowError, msgspec.MsgspecError):
            raise RemoteProtocolError(
                "the request has no ids that this party can open; they are not the user's"
            ) from None


def _nonce(number: int) -> bytes:
    return number.to_bytes(_NONCE_BYTES, "big")
