"""A fingerprint of all that an object holds: two of the same object are equal unless something in it has changed."""

from __future__ import annotations

import enum
import hashlib
import sqlite3
from functools import cache
from typing import Any

import msgspec
import numpy as np

_UNCHANGING = ("woodlot.crypto", "woodlot.data", "cryptography")
"""Keys with their tables of powers, and tables of data: nobody can change them, and there is much in them."""
_PLAIN = (type(None), bool, int, float, complex, str, bytes, bytearray, enum.Enum, np.generic)


def digest(thing: Any) -> str:
    """SHA-256 of an object and of everything that it refers to; of functions, locks and keys only their kind counts."""
    sha = hashlib.sha256()
    met: dict[int, int] = {}
    waiting = [thing]
    while waiting:
        one = waiting.pop()
        sha.update(type(one).__qualname__.encode() + b"\0")
        if isinstance(one, _PLAIN):
            sha.update(repr(one).encode() + b"\0")
            continue
        if id(one) in met:
            sha.update(b"%d\0" % met[id(one)])
            continue
        met[id(one)] = len(met)
        if isinstance(one, np.ndarray) and one.dtype.kind != "O":
            sha.update(f"{one.dtype} {one.shape}".encode() + np.ascontiguousarray(one).tobytes())
            continue
        if isinstance(one, sqlite3.Connection):
            sha.update("\n".join(one.iterdump()).encode())
            continue
        if type(one).__module__.startswith(_UNCHANGING):
            continue
        parts = _parts(one)
        sha.update(b"%d\0" % len(parts))
        waiting.extend(reversed(parts))
    return sha.hexdigest()


def _parts(one: Any) -> list[Any]:
    match one:
        case dict():
            return [part for key in sorted(one, key=repr) for part in (key, one[key])]
        case set() | frozenset():
            return sorted(one, key=repr)
        case list() | tuple():
            return list(one)
        case np.ndarray():
            return one.reshape(-1).tolist()
        case msgspec.Struct():
            return [getattr(one, name) for name in one.__struct_fields__]
    if callable(one) and hasattr(one, "__closure__"):
        return [cell.cell_contents for cell in one.__closure__ or ()]
    slots = [name for kind in type(one).__mro__ for name in getattr(kind, "__slots__", ()) if isinstance(name, str)]
    found = [part for name in slots if hasattr(one, name) for part in (name, getattr(one, name))]
    if not hasattr(one, "__dict__") or isinstance(one, type):
        return found
    return found + _parts({**_said_by_class(type(one)), **vars(one)})


@cache
def _said_by_class(kind: type) -> dict[str, Any]:
    """What a class says of all its objects counts until one says otherwise, even if that then says the same."""
    said = {name: value for base in reversed(kind.__mro__) for name, value in vars(base).items()}
    return {name: value for name, value in said.items() if isinstance(value, _PLAIN) and not name.startswith("__")}
