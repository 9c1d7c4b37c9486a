"""Bytes and plain values into typed ones, in any number of threads: the only place that lets msgspec decode.

msgspec finds out what the fields of a struct are when it is first decoded. Another thread that decodes it meanwhile
finds half of them, and the process dies of that: a party that has just started and is sent two jobs at once. So each
type is made known to msgspec by one thread before any decodes it.

What does not fit raises ``msgspec.MsgspecError``, which is a ``ValueError``.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, TypeVar, overload

import msgspec

T = TypeVar("T")
Buffer = bytes | memoryview
Hook = Callable[[type, Any], Any] | None
"""Makes a value of a type that msgspec does not know from what was read: ``hook(type, value)``."""

_known: set[Any] = set()
_one_at_a_time = threading.Lock()


def _make_known(kind: Any) -> None:
    with _one_at_a_time:
        msgspec.msgpack.Decoder(kind)
        _known.add(kind)


@overload
def from_msgpack(data: Buffer, kind: type[T], dec_hook: Hook = None) -> T: ...
@overload
def from_msgpack(data: Buffer, kind: Any, dec_hook: Hook = None) -> Any: ...
def from_msgpack(data: Buffer, kind: Any, dec_hook: Hook = None) -> Any:
    """What MessagePack holds, as a value of a type or of a union of types."""
    if kind not in _known:
        _make_known(kind)
    return msgspec.msgpack.decode(data, type=kind, dec_hook=dec_hook)


@overload
def from_json(data: Buffer, kind: type[T]) -> T: ...
@overload
def from_json(data: Buffer, kind: Any) -> Any: ...
def from_json(data: Buffer, kind: Any) -> Any:
    """What JSON holds, as a value of a type or of a union of types."""
    if kind not in _known:
        _make_known(kind)
    return msgspec.json.decode(data, type=kind)


@overload
def converted(value: Any, kind: type[T], dec_hook: Hook = None) -> T: ...
@overload
def converted(value: Any, kind: Any, dec_hook: Hook = None) -> Any: ...
def converted(value: Any, kind: Any, dec_hook: Hook = None) -> Any:
    """What plain dicts, lists, texts and numbers hold, as a value of a type or of a union of types."""
    if kind not in _known:
        _make_known(kind)
    return msgspec.convert(value, kind, dec_hook=dec_hook)


def converter(kind: Any) -> Callable[[Any], Any]:
    """`converted` for one type, for those who call it often."""
    if kind not in _known:
        _make_known(kind)
    return functools.partial(msgspec.convert, type=kind)
