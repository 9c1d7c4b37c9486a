"""Secret random numbers: a key from the operating system, stretched by ChaCha20.

A handler must answer the same to the same, also after a restart, so it cannot ask the operating system again each time.
It makes a stream from a secret of its job and everything that the numbers are used for, and a number is never used for
two things.
"""

from __future__ import annotations

import os
import secrets
from typing import Self

import msgspec
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from woodlot.exceptions import LocalProtocolError

KEY_BYTES = 32
"""Bytes of a stream's key."""

_TAG = "woodlot secret stream 1"
_NONCE = bytes(16)  # a key is used for one stream
_SPARE_BITS = 128  # by how much a draw is longer than its range: what is left of the bias cannot be seen


class SecretStream:
    """Unpredictable numbers that follow from a key.

    Parameters
    ----------
    key : bytes
        32 secret bytes, for this stream alone.

    """

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            raise LocalProtocolError(f"the key of a stream has {KEY_BYTES} bytes, not {len(key)}")
        self._cipher = Cipher(ChaCha20(key, _NONCE), mode=None).encryptor()
        self._process: int | None = None

    @classmethod
    def fresh(cls) -> Self:
        """A stream that nobody can repeat: its key is the operating system's.

        It belongs to this process. A child that is forked would draw the same numbers, so there it is refused.
        """
        stream = cls(secrets.token_bytes(KEY_BYTES))
        stream._process = os.getpid()
        return stream

    @classmethod
    def derived(cls, secret: bytes, *purpose: object) -> Self:
        """The stream of a secret for one purpose; another purpose gives another stream."""
        info = msgspec.msgpack.encode((_TAG, *purpose))
        return cls(HKDF(SHA256(), KEY_BYTES, None, info).derive(secret))

    def bytes(self, count: int) -> bytes:
        """The next bytes.

        Raises
        ------
        LocalProtocolError
            If a fresh stream is used in another process than it was made in.

        """
        if self._process is not None and self._process != os.getpid():
            raise LocalProtocolError("this stream is another process's, which draws the same numbers; make a fresh one")
        return self._cipher.update(b"\0" * count)

    def bits(self, count: int) -> int:
        """A number of at most `count` bits."""
        return int.from_bytes(self.bytes(-(-count // 8)), "little") & ((1 << count) - 1)

    def below(self, limit: int) -> int:
        """A number from 0 up to, but not including, `limit`."""
        if limit < 1:
            raise LocalProtocolError(f"there is no number below {limit}")
        return self.bits(int(limit).bit_length() + _SPARE_BITS) % int(limit)

    def log_uniform(self, bits: int) -> int:
        """A number of 1 to `bits` bits whose length, not whose value, is uniform."""
        length = 1 + self.below(bits)
        return (1 << (length - 1)) | self.bits(length - 1)
