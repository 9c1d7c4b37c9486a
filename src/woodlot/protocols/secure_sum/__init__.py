"""Secure sums: the coordinator learns what the clients' numbers add up to. See docs/protocol/secure-sum.md."""

from __future__ import annotations

from woodlot.protocols.secure_sum.client import SumClient
from woodlot.protocols.secure_sum.coordinator import SumSession, ask_clients, open_sums, sum_of, sum_round
from woodlot.protocols.secure_sum.masks import Masker, PlainMasker
from woodlot.protocols.secure_sum.vectors import from_fixed, to_fixed

__all__ = [
    "Masker",
    "PlainMasker",
    "SumClient",
    "SumSession",
    "ask_clients",
    "from_fixed",
    "open_sums",
    "sum_of",
    "sum_round",
    "to_fixed",
]
