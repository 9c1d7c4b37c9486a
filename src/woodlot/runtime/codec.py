"""Messages to bytes and back.

::

    0   magic "WOOD"            4 bytes
    4   version                 4 bytes, little endian
    8   length of the header    8 bytes, little endian
    16  header                  MessagePack: [name, {field: value}], an array as [dtype, shape]
    ..  the arrays              raw, little endian, C order, in the order of the header;
                                zeros before each so that it starts at a multiple of 8

Decoding trusts nothing: a length counts only after it has been compared with what was received, arrays are
views on the received bytes and never copies, and whatever is wrong is a `RemoteProtocolError`.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from woodlot.data.decoding import from_msgpack
from woodlot.exceptions import LocalProtocolError, RemoteProtocolError
from woodlot.protocols.core.message import ARRAY_DTYPES, Message, registered

DEFAULT_LIMIT = 1 << 30
"""The largest message, in bytes, that is sent or accepted unless told otherwise."""

MAX_HEADER = 1 << 22
"""The longest header, in bytes: headers hold names and settings; data travels in arrays."""

listeners: list[Callable[[bytes], None]] = []
"""Called with the bytes of every message that this process encodes; a test can search them."""

_MAGIC = b"WOOD"
_VERSION = 1
_FRAME = struct.Struct("<4sIQ")
_HEADER = tuple[str, msgspec.Raw]
_ALIGNMENT = 8
_MAX_DIMENSIONS = 8
_MAX_ERROR = 300  # characters of an error that may quote what the peer sent


def encode(message: Message, *, limit: int = DEFAULT_LIMIT) -> bytes:
    """Return the bytes of a message.

    Parameters
    ----------
    message : Message
        Any registered message.
    limit : int
        The most bytes that the receiver takes.

    Returns
    -------
    bytes
        Equal for equal messages.

    Raises
    ------
    LocalProtocolError
        If `message` is not a message, holds a value that cannot travel, or is too large.

    """
    if not isinstance(message, Message):
        raise LocalProtocolError(f"only messages travel, not {type(message).__name__}")
    name = type(message).__name__
    arrays: list[NDArray[Any]] = []

    def describe(value: Any) -> tuple[str, tuple[int, ...]]:
        if not isinstance(value, np.ndarray):
            raise TypeError(f"a value of type {type(value).__name__} cannot travel")
        arrays.append(value)
        return value.dtype.str, value.shape

    try:
        header = msgspec.msgpack.encode((name, message), enc_hook=describe)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise LocalProtocolError(f"message {name} cannot be encoded: {error}") from error
    parts: list[bytes | memoryview] = [_FRAME.pack(_MAGIC, _VERSION, len(header)), header]
    size = _FRAME.size + len(header)
    for array in arrays:
        padding = -size % _ALIGNMENT
        size += padding + array.nbytes
        parts += [bytes(padding), np.ascontiguousarray(array).reshape(-1).view(np.uint8).data]
    if len(header) > MAX_HEADER or size > limit:
        raise LocalProtocolError(
            f"message {name} is too large: {size:,} bytes of at most {limit:,}, "
            f"of these {len(header):,} bytes of header of at most {MAX_HEADER:,}"
        )
    data = b"".join(parts)
    for listener in tuple(listeners):
        listener(data)
    return data


def decode(data: bytes | memoryview, *, limit: int = DEFAULT_LIMIT) -> Message:
    """Return the message that `data` encodes; its arrays are read-only views on `data`.

    Parameters
    ----------
    data : bytes or memoryview
        One whole message. The owner of a memoryview must leave its bytes alone as long as the message lives.
    limit : int
        The most bytes that are accepted.

    Returns
    -------
    Message
        A checked message of a registered type.

    Raises
    ------
    RemoteProtocolError
        If `data` is anything else than one well-formed message within the limits.

    """
    view = memoryview(data).cast("B")
    if len(view) > limit:
        raise RemoteProtocolError(f"message too large: {len(view):,} bytes of at most {limit:,}")
    if len(view) < _FRAME.size:
        raise RemoteProtocolError(f"message too short: {len(view)} bytes")
    magic, version, header_length = _FRAME.unpack_from(view)
    if magic != _MAGIC:
        raise RemoteProtocolError("not a Woodlot message")
    if version != _VERSION:
        raise RemoteProtocolError(f"message of version {version}; this side speaks version {_VERSION}")
    header_end = _FRAME.size + header_length
    if header_length > MAX_HEADER or header_end > len(view):
        raise RemoteProtocolError(f"header of {header_length:,} bytes in a message of {len(view):,}")
    arrays = _Arrays(view, header_end, limit)
    try:
        name, fields = from_msgpack(view[_FRAME.size : header_end], _HEADER)
        if name not in registered():
            raise ValueError(f"unknown message {name!r}")
        message = from_msgpack(fields, registered()[name], dec_hook=arrays.take)
        arrays.finish()
    # The checks of the message itself raise LocalProtocolError: they cannot know that a peer has built it.
    except (msgspec.MsgspecError, ValueError, RecursionError, LocalProtocolError) as error:
        raise RemoteProtocolError(f"malformed message: {error}"[:_MAX_ERROR]) from None
    return message


def kind_of(data: bytes | memoryview) -> str:
    """Return the name of the message that `data` claims to encode; empty where there is no message of that name.

    Only the header is looked at, so what is named here may still be refused by `decode`.
    """
    view = memoryview(data).cast("B")
    if len(view) < _FRAME.size:
        return ""
    magic, version, header_length = _FRAME.unpack_from(view)
    if magic != _MAGIC or version != _VERSION or header_length > MAX_HEADER:
        return ""
    try:
        name, _ = from_msgpack(view[_FRAME.size : _FRAME.size + header_length], _HEADER)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return ""
    return name if name in registered() else ""


class _Arrays:
    """Hands out the arrays behind a header, in its order."""

    def __init__(self, data: memoryview, position: int, limit: int) -> None:
        self._data = data
        self._position = position
        self._limit = limit

    def take(self, hint: Any, described: Any) -> NDArray[Any]:
        """Return the next array, given what the header says of it."""
        match described:
            case [str() as dtype, [*shape]] if dtype in ARRAY_DTYPES:
                pass
            case _:
                raise ValueError("not the dtype and shape of an array")
        if len(shape) > _MAX_DIMENSIONS or any(type(length) is not int or length < 0 for length in shape):
            raise ValueError("a shape is a few lengths, none negative")
        item_size = np.dtype(dtype).itemsize
        # An empty array may still claim a huge second dimension, which somebody might allocate.
        if item_size * math.prod(max(length, 1) for length in shape) > self._limit:
            raise ValueError("an array larger than a message can be")
        start = self._position + -self._position % _ALIGNMENT
        count = math.prod(shape)
        end = start + count * item_size
        if end > len(self._data):
            raise ValueError("an array longer than the message")
        if any(self._data[self._position : start]):
            raise ValueError("something hidden between the arrays")
        self._position = end
        array: NDArray[Any] = np.frombuffer(self._data[start:end], dtype=dtype).reshape(shape)
        if not array.flags.aligned:  # only where the received bytes do not start at a multiple of 8
            array = array.copy()
        array.flags.writeable = False
        return array

    def finish(self) -> None:
        """Refuse bytes that belong to nothing."""
        if self._position != len(self._data):
            raise ValueError(f"{len(self._data) - self._position} bytes too many")
