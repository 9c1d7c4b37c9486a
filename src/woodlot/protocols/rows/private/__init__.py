"""Private forests: boosted random trees whose sums have noise. See docs/protocol/private.md."""

from __future__ import annotations

from woodlot.protocols.rows.private.private_client import PrivateClient
from woodlot.protocols.rows.private.private_coordinator import private_forest
from woodlot.protocols.rows.private.private_plan import PrivatePlan

__all__ = ["PrivateClient", "PrivatePlan", "private_forest"]
