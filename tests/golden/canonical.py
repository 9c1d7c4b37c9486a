"""Canonical forms: what a message, a model file or a result is digested as.

A value has two canonical forms. The *named* form has the names of message types, structs, fields and files. The
*contents* form leaves these names out and keeps the order of the fields. A commit that only renames changes the first
and not the second. Neither form holds a module's path, so code can move.

Numbers keep their type and all their bits, arrays also dtype and shape. Fields that differ from run to run or from
machine to machine are listed in the table `fields.VARIABLE`, each with the reason.
"""

from __future__ import annotations

import hashlib
import io
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from typing import Any, Literal

import msgspec
import numpy as np

DECIMALS = 6
"""Digits after the point that are kept of floats which depend on the last bits of BLAS or libm."""


ADDED: dict[tuple[str, str], Any] = {
    ("ForestPlan", "ccp_alpha"): msgspec.UNSET,
    ("LocalPlan", "row_weights"): msgspec.UNSET,
    ("LosslessPlan", "row_weights"): msgspec.UNSET,
    ("RowSubset", "by_class"): msgspec.UNSET,
    ("StartForest", "ccp_alpha"): None,
}
"""Fields that were added later, and what they are where they do not travel: then they are not digested either. So the
digests say that what travelled before the field was added travels as it did."""


@dataclass(frozen=True)
class Variable:
    """Why a field is not digested as it is, and what is digested instead.

    Attributes
    ----------
    kind : {"secret", "sealed", "shape", "drawn", "rounded", "name", "json", "files"}
        "secret": it follows from a secret; type, shape and length are digested, and all of it in the *whole* digest of
        settings whose secrets are given. "sealed": as "secret", but its length follows from secrets too. "shape": only
        type, shape and length are ever digested. "drawn": only its type. "rounded": floats, to `DECIMALS`. "name": a
        value that is a name in the code; it is part of the named form alone. "json": bytes that are read as JSON, whose
        objects are structs with the field's name. "files": bytes by the name of a file, read as `of_file` does.
    why : str
        The reason, for readers.
    """

    kind: Literal["secret", "sealed", "shape", "drawn", "rounded", "name", "json", "files"]
    why: str


class Hashed:
    """Builds the SHA-256 of a value.

    Parameters
    ----------
    variable : mapping
        By struct and field, see `fields.VARIABLE`.
    names : bool
        Whether names count.
    whole : bool
        Whether secrets count.
    """

    def __init__(self, variable: Mapping[tuple[str, str], Variable], *, names: bool, whole: bool) -> None:
        self._variable = variable
        self._names = names
        self._whole = whole
        self._hash = hashlib.sha256()

    def digest(self, value: Any) -> str:
        """The SHA-256 of the value's canonical form, in hexadecimal."""
        self._add(value)
        return self._hash.hexdigest()

    def _put(self, tag: str, data: bytes | str | int = b"") -> None:
        raw = str(data).encode() if isinstance(data, str | int) else data
        self._hash.update(f"{tag} {len(raw)} ".encode() + raw)

    def _name(self, name: str) -> None:
        if self._names:
            self._put("name", name)

    def _add(self, value: Any) -> None:
        match value:
            case None:
                self._put("none")
            case Enum():
                self._add(value.value)
            case bool() | np.bool_():
                self._put("bool", int(value))
            case int() | np.integer():
                self._put("int", int(value))
            case float() | np.floating():
                self._put("float", struct.pack("<d", value))
            case str():
                self._put("text", value)
            case bytes() | bytearray() | memoryview():
                self._put("bytes", bytes(value))
            case np.ndarray():
                self._array(value)
            case Mapping():
                self._put("mapping", len(value))
                for key, item in value.items():
                    self._add(key)
                    self._add(item)
            case Named():
                self._put("names", len(value.items))
                for key, item in value.items.items():
                    self._name(key)
                    self._field(value.of, key, item)
            case list() | tuple() if not hasattr(value, "_fields"):
                self._put("items", len(value))
                for item in value:
                    self._add(item)
            case _:
                self._struct(value)

    def _array(self, value: Any) -> None:
        if value.dtype.kind not in "biuf":  # labels as text or objects
            self._add(value.tolist())
            return
        plain = np.ascontiguousarray(value)
        self._put("array", f"{plain.dtype.newbyteorder('<').str} {plain.shape}")
        self._put("data", plain.astype(plain.dtype.newbyteorder("<"), copy=False).tobytes())

    def _struct(self, value: Any) -> None:
        if isinstance(value, msgspec.Struct):
            own = value.__struct_fields__
        elif is_dataclass(value) and not isinstance(value, type):
            own = tuple(field.name for field in fields(value))
        elif hasattr(value, "_fields"):
            own = value._fields
        else:
            raise TypeError(f"a value of type {type(value).__name__} has no canonical form; say here what it is")
        kind = type(value).__name__
        own = tuple(name for name in own if (kind, name) not in ADDED or getattr(value, name) != ADDED[kind, name])
        self._put("struct", len(own))
        self._name(kind)
        for field in own:
            self._name(field)
            self._field(kind, field, getattr(value, field))

    def _field(self, kind: str, field: str, value: Any) -> None:
        rule = self._variable.get((kind, field))
        counts = {"secret": self._whole, "sealed": self._whole, "name": self._names}
        if rule is None or counts.get(rule.kind, False):
            self._add(value)
        elif rule.kind == "rounded":
            self._add(rounded(value))
        elif rule.kind == "json" and value:
            self._add(of_json(json.loads(value), field))
        elif rule.kind == "files":
            self._add(Named(field, {name: of_file(name, bytes(data)) for name, data in value.items()}))
        else:
            self._put(rule.kind)
            self._shape(value, lengths=rule.kind in ("secret", "shape"))

    def _shape(self, value: Any, *, lengths: bool) -> None:
        """Type and, where they do not vary, lengths."""
        match value:
            case np.ndarray():
                self._put("shape", f"{value.dtype.str} {value.shape if lengths else value.ndim}")
            case Mapping():
                for key, item in value.items():
                    self._add(key)
                    self._shape(item, lengths=lengths)
            case list() | tuple():
                self._put("shape", len(value) if lengths else "items")
                for item in value if lengths else ():
                    self._shape(item, lengths=lengths)
            case bytes() | str():
                empty = "" if value else "empty"
                self._put("shape", f"{type(value).__name__} {len(value) if lengths else empty}")
            case _:
                self._put("shape", type(value).__name__)


@dataclass(frozen=True)
class Named:
    """A mapping whose keys are names in the code, such as the files of a model or the settings in a JSON file.

    Attributes
    ----------
    of : str
        What it is of: a struct's name in `fields.VARIABLE`.
    items : mapping
        By name.
    """

    of: str
    items: Mapping[str, Any]


def rounded(value: Any) -> Any:
    """All floats in a value, texts of floats too, to `DECIMALS` after the point; minus zero is zero."""
    match value:
        case str():
            try:
                return round(float(value), DECIMALS) + 0.0
            except ValueError:
                return value
        case np.ndarray() if value.dtype.kind == "f":
            return np.round(value, DECIMALS) + 0.0
        case float() | np.floating():
            return round(float(value), DECIMALS) + 0.0
        case list() | tuple():
            return [rounded(item) for item in value]
        case Mapping():
            return {key: rounded(item) for key, item in value.items()}
        case Named():
            return Named(value.of, {key: rounded(item) for key, item in value.items.items()})
    return value


def of_json(value: Any, of: str) -> Any:
    """A parsed JSON value: its objects have names in the code."""
    if isinstance(value, dict):
        return Named(of, {key: of_json(item, f"{of}.{key}") for key, item in value.items()})
    if isinstance(value, list):
        return [of_json(item, of) for item in value]
    return value


def of_file(name: str, data: bytes) -> Any:
    """A file of a model: arrays or JSON, by what is in them; a ZIP has times in it."""
    if name.endswith(".npz"):
        with np.load(io.BytesIO(data), allow_pickle=False) as stored:
            return Named(name, {key: stored[key] for key in stored.files})
    if name.endswith(".json"):
        return of_json(json.loads(data), name)
    return data
