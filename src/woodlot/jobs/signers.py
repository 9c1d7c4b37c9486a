"""Who has ordered a job: a user, or a party that leaves or has rows forgotten.

Policies are read before orders, so this stands alone.
"""

from __future__ import annotations

_SIGNING_PARTY = "party "


def signing_party(name: str) -> str:
    """The name of a party where users are named, as of who has ordered a job: no user can have it."""
    return _SIGNING_PARTY + name


def is_signing_party(name: str) -> bool:
    """Whether a party, not a user, has ordered a job: its own leaving, or that rows are forgotten, and nothing else."""
    return name.startswith(_SIGNING_PARTY)
