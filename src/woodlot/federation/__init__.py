"""Parties with their tables in this process, and what runs the protocols between them.

`local` has the `Federation` that estimators are fitted on, made of `members`; `rows` is the same for clients with
different rows of the same columns; `linear` and `revocable` run the protocols of these models. What `grown` declares,
labels and forests in their parts, parties elsewhere have too (`woodlot.connected`).
"""

from __future__ import annotations

from woodlot.federation.grown import Answer, GrownForest, Labels, Route
from woodlot.federation.local import Federation, fresh_entropy
from woodlot.federation.members import Member, party_name

__all__ = [
    "Answer",
    "Federation",
    "GrownForest",
    "Labels",
    "Member",
    "Route",
    "fresh_entropy",
    "party_name",
]
