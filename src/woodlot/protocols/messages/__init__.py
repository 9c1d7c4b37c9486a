"""Every wire message of every protocol: what is not declared here does not travel."""

from __future__ import annotations

from woodlot.protocols.messages import align, base, jobs, vertical

__all__ = ["align", "base", "jobs", "vertical"]
