"""Parties elsewhere, reached through a coordinator: the user's side of a job between organisations.

`federation` has `connect` and the `ConnectedFederation` that estimators are fitted on, as on a `woodlot.Federation`;
`rows` is the same for parties with different rows of the same columns; `scores` asks a forest for a few rows at a time;
`models` reads what the coordinator sends back.
"""

from __future__ import annotations

from woodlot.connected.federation import ConnectedFederation, connect, federation_at

__all__ = ["ConnectedFederation", "connect", "federation_at"]
