"""The libraries of the extra ``dp``, imported when they are first needed."""

from __future__ import annotations

from typing import Any

from woodlot.data.extras import need

EXTRA = "dp"


def opendp(module: str) -> Any:
    """A module of OpenDP, with the mechanisms that it counts as contributed."""
    need("opendp.mod", EXTRA).enable_features("contrib")
    return need(f"opendp.{module}", EXTRA)


def pld() -> Any:
    """The privacy loss distributions of dp-accounting."""
    return need("dp_accounting.pld.privacy_loss_distribution", EXTRA)
