"""Receipts in a model's file: who has left it, and which rows it has forgotten.

The key of the ids in a receipt of forgotten rows is no part of the receipt, and of no file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from woodlot.identity.erasure import ErasureReceipt
from woodlot.identity.receipts import Receipt


def notes_of_receipts(model: Any) -> dict[str, list[str]]:
    """The receipts of a fitted forest, as text."""
    notes = {"receipts": [receipt.to_json() for receipt in getattr(model, "receipts_", ())]}
    erasures = [receipt.to_json() for receipt in getattr(model, "erasures_", ())]
    return notes | ({"erasures": erasures} if erasures else {})  # files of models that forgot nothing stay as they were


def restore_receipts(model: Any, notes: Mapping[str, Any]) -> None:
    """Give a loaded forest its receipts; files of former versions have none of forgotten rows."""
    if notes.get("receipts"):
        model.receipts_ = tuple(Receipt.parse(text.encode()) for text in notes["receipts"])
    if notes.get("erasures"):
        model.erasures_ = tuple(ErasureReceipt.parse(text.encode()) for text in notes["erasures"])
