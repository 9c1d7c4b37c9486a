"""The libraries of the extra ``dp``, imported when they are first needed."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def opendp(module: str) -> Any:
    """A module of OpenDP, with the mechanisms that it counts as contributed."""
    _need("opendp.mod").enable_features("contrib")
    return _need(f"opendp.{module}")


def pld() -> Any:
    """The privacy loss distributions of dp-accounting."""
    return _need("dp_accounting.pld.privacy_loss_distribution")


def _need(name: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{name.partition('.')[0]} is not installed, and this needs it: pip install 'woodlot[dp]'", name=error.name
        ) from error
