"""Parties with their tables in this process, and what runs the protocols between them.

`interface` says what estimators ask of a federation, here or elsewhere (`woodlot.connected`). `local` has the
`Federation` that they are fitted on, made of `members`; `local_rows` is the same for clients with different rows of the
same columns; `local_linear` and `local_revocable` run the protocols of these models. `grown` declares labels and
forests in their parts.
"""

from __future__ import annotations

from woodlot.federation.grown import Answer, GrownForest, Labels, Route
from woodlot.federation.interface import AnyFederation, as_federation
from woodlot.federation.local import Federation, fresh_entropy
from woodlot.federation.members import Member, party_name

__all__ = [
    "Answer",
    "AnyFederation",
    "Federation",
    "GrownForest",
    "Labels",
    "Member",
    "Route",
    "as_federation",
    "fresh_entropy",
    "party_name",
]
