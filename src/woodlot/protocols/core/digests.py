"""Digests of messages: by which a party knows what it was asked, and what is secret is bound to it."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from woodlot.protocols.core.message import Message


def digest_of(message: Message, *, leaving_out: type | tuple[type, ...] = ()) -> bytes:
    """A hash of all that a message says: its type, its fields and every number of its arrays, wherever they stand.

    Parameters
    ----------
    message : Message
        As it travels: nothing is shortened or rounded, as it would be where it is printed.
    leaving_out : type or tuple of types
        Fields of these types do not count.

    Returns
    -------
    bytes
        Equal for equal messages.

    """
    arrays: list[NDArray[Any]] = []

    def describe(value: Any) -> tuple[str, tuple[int, ...]]:
        if not isinstance(value, np.ndarray):
            raise TypeError(f"a value of type {type(value).__name__} cannot travel")
        arrays.append(value)
        return value.dtype.str, value.shape

    fields = {name: getattr(message, name) for name in message.__struct_fields__}
    told = {name: value for name, value in fields.items() if not isinstance(value, leaving_out)}
    header = msgspec.msgpack.encode((type(message).__name__, told), enc_hook=describe)
    found = hashlib.sha256(len(header).to_bytes(8, "big") + header)
    for array in arrays:  # their lengths are in the header
        found.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return found.digest()
