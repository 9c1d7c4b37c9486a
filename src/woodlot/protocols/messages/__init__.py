"""Every wire message of every protocol: what is not declared here does not travel."""

from __future__ import annotations

from woodlot.protocols.messages import base, vertical

__all__ = ["base", "vertical"]
