"""The lossless horizontal forest: grown on all clients' rows from sums alone. See docs/protocol/lossless.md."""

from __future__ import annotations

from woodlot.protocols.rows.lossless.lossless_client import LosslessClient
from woodlot.protocols.rows.lossless.lossless_coordinator import lossless_forest
from woodlot.protocols.rows.lossless.lossless_plan import MAX_BINS, MOST_BINS, LosslessPlan

__all__ = ["MAX_BINS", "MOST_BINS", "LosslessClient", "LosslessPlan", "lossless_forest"]
