"""Alignment: the same rows at every party, found without showing ids. See docs/protocol/align.md."""

from __future__ import annotations

from woodlot.protocols.align.align_coordinator import Alignment, align
from woodlot.protocols.align.align_party import AlignParty
from woodlot.protocols.core.agreement import Signer

__all__ = ["AlignParty", "Alignment", "Signer", "align"]
