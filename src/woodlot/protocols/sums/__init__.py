"""Secure sums: the coordinator learns what the clients' numbers add up to. See docs/protocol/secure-sum.md."""

from __future__ import annotations

from woodlot.protocols.sums.masks import Masker, PlainMasker
from woodlot.protocols.sums.sum_client import SumClient, minimum_clients, quorum_of, wanted_quorum
from woodlot.protocols.sums.sum_coordinator import SumSession, ask_clients, open_sums, sum_of, sum_round
from woodlot.protocols.sums.vectors import from_fixed, to_fixed

__all__ = [
    "Masker",
    "PlainMasker",
    "SumClient",
    "SumSession",
    "ask_clients",
    "from_fixed",
    "minimum_clients",
    "open_sums",
    "quorum_of",
    "sum_of",
    "sum_round",
    "to_fixed",
    "wanted_quorum",
]
