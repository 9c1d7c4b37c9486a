"""Random bits that a client can always derive again from its secret, and nobody else can.

``HMAC-SHA256(secret, purpose and all inputs)`` is the key of a ChaCha20 stream. Every part of the input is preceded
by its length, so that no two inputs give the same text.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

SECRET_BYTES = 32
"""The shortest secret that a client may derive from."""

_NONCE = bytes(16)  # every key is used for one stream only


def check_secret(secret: bytes) -> None:
    """Refuse a secret that could be guessed."""
    if not isinstance(secret, bytes) or len(secret) < SECRET_BYTES:
        raise ValueError(
            f"the client's secret must be at least {SECRET_BYTES} random bytes; "
            f"make one with secrets.token_bytes({SECRET_BYTES}) and keep it for ever"
        )


def pack(*parts: bytes) -> bytes:
    """Join some parts so that they can be told apart again."""
    return b"".join(len(part).to_bytes(8, "big") + part for part in parts)


def derive_key(secret: bytes, purpose: str, *parts: bytes) -> bytes:
    """32 bytes for one purpose and input."""
    check_secret(secret)
    return hmac.digest(secret, pack(purpose.encode(), *parts), "sha256")


def open_stream(key: bytes) -> Callable[[int], bytes]:
    """The one stream of a key, read from its beginning: each call gives the next so many bytes."""
    cipher = Cipher(algorithms.ChaCha20(key, _NONCE), mode=None).encryptor()
    return lambda n_bytes: cipher.update(bytes(n_bytes))


def derive_streams(secret: bytes, purpose: str, common: bytes, tails: list[bytes], n_bytes: int) -> bytes:
    """One stream for each tail, end to end; the same as deriving the key of each ``(common, tail)`` by itself."""
    check_secret(secret)
    head = pack(purpose.encode(), common)
    return b"".join(open_stream(hmac.digest(secret, head + pack(tail), "sha256"))(n_bytes) for tail in tails)
