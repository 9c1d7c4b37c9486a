"""Types that msgspec may decode in several threads at once."""

from __future__ import annotations

import threading
from typing import Any, TypeVar

import msgspec

Kind = TypeVar("Kind")
_built: set[Any] = set()
_one_at_a_time = threading.Lock()


def built(kind: Kind) -> Kind:
    """Return a type as it is, after msgspec knows all its fields.

    msgspec finds out what the fields of a struct are when it is first decoded. Another thread that decodes it meanwhile
    finds half of them, and the process dies of that: a party that has just started and is sent two jobs at once.
    """
    if kind not in _built:
        with _one_at_a_time:
            msgspec.msgpack.Decoder(kind)
            _built.add(kind)
    return kind
