"""The lossless horizontal forest: grown on all clients' rows from sums alone. See docs/protocol/lossless.md."""

from __future__ import annotations

from woodlot.protocols.horizontal.lossless.client import LosslessClient
from woodlot.protocols.horizontal.lossless.coordinator import lossless_forest
from woodlot.protocols.horizontal.lossless.plan import MAX_BINS, MOST_BINS, LosslessPlan

__all__ = ["MAX_BINS", "MOST_BINS", "LosslessClient", "LosslessPlan", "lossless_forest"]
