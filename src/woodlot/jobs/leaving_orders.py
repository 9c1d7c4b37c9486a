"""Orders by which a party leaves a model, of whatever kind the model is."""

from __future__ import annotations

from typing import TypeAlias

from woodlot.jobs.orders import RevokeOrder
from woodlot.jobs.revocable.revocable_orders import RevokeRevocableOrder
from woodlot.jobs.rows.rows_orders import RevokeRowsOrder

Revocation: TypeAlias = RevokeOrder | RevokeRevocableOrder | RevokeRowsOrder
"""Orders by which a party leaves a model."""
