"""Uniform bytes and numbers from a key: the ChaCha20 keystream, nonce zero. Every key is used for one stream alone."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from numpy.typing import NDArray

Vector: TypeAlias = NDArray[np.unsignedinteger[Any]]

_NONCE = bytes(16)  # for keys that are used once
_ZEROS = memoryview(bytes(1 << 16))  # what is encrypted to get a keystream, piece by piece


def keystream(key: bytes, size: int) -> NDArray[np.uint64]:
    """So many uniform numbers of 64 bits from a key that is used for nothing else."""
    numbers = np.empty(size, "<u8")
    fill(key, numbers)
    return numbers


def key_bytes(key: bytes, size: int) -> bytes:
    """So many uniform bytes from a key that is used for nothing else."""
    return Cipher(ChaCha20(key, _NONCE), mode=None).encryptor().update(bytes(size))


def fill(key: bytes, out: Vector) -> None:
    """Overwrite a vector with uniform numbers."""
    encryptor = Cipher(ChaCha20(key, _NONCE), mode=None).encryptor()
    stream = out.data.cast("B")
    for first in range(0, len(stream), len(_ZEROS)):
        part = stream[first : first + len(_ZEROS)]
        encryptor.update_into(_ZEROS[: len(part)], part)
