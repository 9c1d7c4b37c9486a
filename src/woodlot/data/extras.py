"""The libraries of the extras, imported when they are first needed."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from woodlot.exceptions import MissingExtraError


def need(name: str, extra: str) -> Any:
    """A module of a library that comes with an extra, or an error that says how to get it."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"{name.partition('.')[0]} is not installed, and this needs it: pip install 'woodlot[{extra}]'",
            name=error.name,
        ) from error
