"""How settings are read: quantities, addresses and paths, and errors that say which setting may be what."""

from __future__ import annotations

import difflib
import math
import re
import tomllib
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, NoReturn, Self, TypeVar, get_args

import msgspec

from woodlot.data.decoding import converted
from woodlot.exceptions import ConfigError
from woodlot.identity.list_source import ListSource

S = TypeVar("S", bound=msgspec.Struct)

DEFAULT_PORT = 7443
"""Where a coordinator listens unless told otherwise."""

_BYTES = {"b": 1} | {
    f"{prefix}{unit}": base**power
    for power, prefix in enumerate("kmgt", 1)
    for unit, base in (("b", 1000), ("ib", 1024))
}
_SECONDS = {"s": 1, "min": 60, "h": 3600, "d": 86400}

_LIKENESS = 0.7
"""How like a setting must be to what was written to be offered in its place; at 0.6 it would be a wild guess."""

_EXAMPLES = {
    "coordinator": f'coordinator = "coordinator.example:{DEFAULT_PORT}"',
    "id": 'id = "customer_id"',
    "columns": 'columns = ["age", "income"], or columns = "*" for all',
    "job": '[job] with y = "bank.default"',
    "tables": 'tables = "customers", or tables = { bank = "customers", shop = "visits" }',
    "task": 'task = "classification" or task = "regression"',
    "y": 'y = "bank.default"',
}


class Size(int):
    """A number of bytes: a whole number, or text such as ``"500 MB"`` (millions) or ``"1 GiB"`` (powers of 1024)."""

    @classmethod
    def parse(cls, value: object) -> Self:
        """Read a size, or raise ValueError."""
        wanted = "a size in bytes such as 500000, or text such as '500 MB' or '1 GiB'"
        return cls(_quantity(value, _BYTES, wanted, whole=True))


class Duration(float):
    """Seconds: a number, or text such as ``"30 s"``, ``"5 min"``, ``"2 h"`` or ``"1 d"``."""

    @classmethod
    def parse(cls, value: object) -> Self:
        """Read a duration, or raise ValueError."""
        wanted = "a number of seconds such as 30, or text such as '5 min' or '2 h'"
        return cls(_quantity(value, _SECONDS, wanted, whole=False))


def _quantity(value: object, units: Mapping[str, int], wanted: str, *, whole: bool) -> Decimal:
    amount = Decimal(0)
    if isinstance(value, str):
        match = re.fullmatch(r"\s*(\d{1,15}(?:\.\d{1,9})?)\s*([a-z]+)\s*", value, re.IGNORECASE | re.ASCII)
        if match and match[2].lower() in units:
            amount = Decimal(match[1]) * units[match[2].lower()]
    elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        amount = Decimal(value)
    if amount <= 0 or (whole and amount % 1):
        raise ValueError(f"{value!r} is not {wanted}")
    return amount


class Address(str):
    """Host and port, written ``"host:7443"``; a host of IPv6 stands in brackets."""

    @classmethod
    def parse(cls, value: object) -> Self:
        """Read an address, or raise ValueError."""
        match = re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[\w.-]+):(\d{1,5})", value) if isinstance(value, str) else None
        if match is None or int(match[2]) > 65535:
            raise ValueError(f"{value!r} is not an address such as 'coordinator.example:{DEFAULT_PORT}'")
        return cls(value)

    @property
    def host(self) -> str:
        """What stands before the port."""
        return self.rpartition(":")[0]

    @property
    def port(self) -> int:
        """The number after the last colon."""
        return int(self.rpartition(":")[2])


class ClusterAddress(str):
    """The address of a Dask scheduler, written ``"tcp://host:8786"`` or ``"tls://host:8786"``."""

    @classmethod
    def parse(cls, value: object) -> Self:
        """Read an address, or raise ValueError."""
        scheme, _, rest = value.partition("://") if isinstance(value, str) else ("", "", "")
        try:
            if scheme not in ("tcp", "tls"):
                raise ValueError(scheme)
            Address.parse(rest)
        except ValueError:
            raise ValueError(f"{value!r} is not the address of a scheduler, such as 'tcp://scheduler:8786'") from None
        return cls(value)


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings under one heading."""


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file, or raise ConfigError."""
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text; save it as UTF-8") from error
    except RecursionError:
        raise ConfigError(f"{path} is not TOML for a person to read: lists in lists in lists") from None
    except ValueError as error:  # TOMLDecodeError among them, and numbers of thousands of digits
        raise ConfigError(f"{path} is not TOML: {error}") from error


def anchored(settings: S, folder: Path) -> S:
    """Settings with all paths below the folder, unless they are absolute."""
    changes: dict[str, Any] = {}
    for name in settings.__struct_fields__:
        value = getattr(settings, name)
        if isinstance(value, Path):
            changes[name] = folder / value
        elif isinstance(value, ListSource):
            changes[name] = value.below(folder)
        elif isinstance(value, msgspec.Struct):
            changes[name] = anchored(value, folder)
    return msgspec.structs.replace(settings, **changes)


def _decode(kind: type, value: object) -> object:
    """How msgspec reads the types that are not its own."""
    if kind is Path:
        if not isinstance(value, str) or not value:
            raise ValueError("expected a path")
        return Path(value).expanduser()
    return kind.parse(value)  # type: ignore[attr-defined]


def convert(
    kind: type[S], raw: Mapping[str, Any], origin: str, *, prefix: str = "", whole: type[msgspec.Struct] | None = None
) -> S:
    """Turn settings as TOML has them into a struct, or raise ConfigError.

    Parameters
    ----------
    kind : type
        What to make of them.
    raw : mapping
        The settings.
    origin : str
        What errors call the file.
    prefix : str
        What stands before the names of these settings in the file: ``"tables.customers."``.
    whole : type, optional
        What the whole file is made into, if `kind` is a section of it.

    """
    _refuse_unknown(kind, raw, origin, prefix, {field.name for field in msgspec.structs.fields(whole or kind)})
    try:
        return converted(raw, kind, dec_hook=_decode)
    except msgspec.ValidationError as error:
        words, _, place = str(error).partition(" - at ")
        setting = place.strip("`").removeprefix("$").removeprefix(".")
    if missing := re.fullmatch(r"Object missing required field `(.+)`", words):
        refuse_missing(origin, prefix + ".".join(filter(None, [setting, missing[1]])))
    if words.startswith("Invalid enum value") and (choices := _choices(kind, setting)):
        words = f"{words.removeprefix('Invalid enum value ')} is not one of {', '.join(map(repr, choices))}"
    raise ConfigError(f"{origin}: {prefix}{setting}: {_plain(words)}")


def _plain(words: str) -> str:
    """The names of types as somebody who writes TOML knows them."""
    types = {"array": "a list", "object": "a section", "str": "text", "int": "a whole number", "float": "a number"}
    types |= {"bool": "true or false"}

    def named(match: re.Match[str]) -> str:
        return " or ".join(types.get(name, name) for name in match[1].split(" | ") if name != "null")

    plain = re.sub(r"`([^`]*)`", named, words)
    return plain[:1].lower() + plain[1:]


def refuse_missing(origin: str, setting: str) -> NoReturn:
    """Say that a setting is missing, and what it looks like."""
    example = _EXAMPLES.get(setting.rpartition(".")[2], "")
    raise ConfigError(f"{origin}: the setting {setting} is missing; add {example or 'it'}")


def _refuse_unknown(kind: type[msgspec.Struct], raw: object, origin: str, prefix: str, top: set[str]) -> None:
    """Name the first setting that there is not, and what was probably meant."""
    if not isinstance(raw, dict):
        return
    fields = {field.name: field.type for field in msgspec.structs.fields(kind)}
    for name, value in raw.items():
        if name not in fields:
            near = difflib.get_close_matches(name, fields, 1, _LIKENESS)
            advice = f"did you mean {near[0]!r}?" if near else f"the settings here are {', '.join(fields)}"
            if name in top:
                advice = "it belongs to the top of the file, before the first [section]"
            raise ConfigError(f"{origin}: there is no setting {prefix}{name}; {advice}")
        if isinstance(fields[name], type) and issubclass(fields[name], msgspec.Struct):
            _refuse_unknown(fields[name], value, origin, f"{prefix}{name}.", top)


def _choices(kind: Any, setting: str) -> list[object]:
    """What the setting of this name may be, where it has fixed values."""
    for name in re.sub(r"\[[^]]*\]", "", setting).split("."):
        kind = next(field.type for field in msgspec.structs.fields(kind) if field.name == name)
    return _texts(kind)


def _texts(kind: Any) -> list[object]:
    """The fixed texts that a type allows, wherever it has them."""
    return [text for part in get_args(kind) for text in ([part] if isinstance(part, str) else _texts(part))]
