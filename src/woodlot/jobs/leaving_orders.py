"""Orders by which a party leaves a model, of whatever kind the model is; and all that put another in its place."""

from __future__ import annotations

from typing import TypeAlias

from woodlot.jobs.forget.forget_orders import ForgetOrder, ForgetRowsOrder
from woodlot.jobs.orders import RevokeOrder
from woodlot.jobs.revocable.revocable_orders import RevokeRevocableOrder
from woodlot.jobs.rows.rows_orders import RevokeRowsOrder

Revocation: TypeAlias = RevokeOrder | RevokeRevocableOrder | RevokeRowsOrder
"""Orders by which a party leaves a model."""

Forgetting: TypeAlias = ForgetOrder | ForgetRowsOrder
"""Orders by which rows are forgotten."""

Replacing: TypeAlias = RevokeOrder | RevokeRevocableOrder | RevokeRowsOrder | ForgetOrder | ForgetRowsOrder
"""Orders that put another model in the place of one: of each model one at a time."""
