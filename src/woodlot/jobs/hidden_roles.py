"""Who has which role in a hidden training, as an order names it: label holder, second server and dealer.

No two of the three may work together: a hidden training rests on that. The dealer is the coordinator, or a helper that
the order names. A helper has no rows: it takes no part in the alignment, and has no part of the model.
"""

from __future__ import annotations

import msgspec

from woodlot.exceptions import RemoteProtocolError


def named_dealer(dealer: str | msgspec.UnsetType) -> str | None:
    """The helper that deals; None: the coordinator does, or the job has no dealer."""
    return None if isinstance(dealer, msgspec.UnsetType) else dealer


def without_dealer(parties: tuple[str, ...], dealer: str | msgspec.UnsetType) -> tuple[str, ...]:
    """The parties that have rows."""
    return tuple(party for party in parties if party != dealer)


def check_hidden_roles(holder: str, server: str, dealer: str | msgspec.UnsetType, parties: tuple[str, ...]) -> None:
    """Refuse an order in which one party would have two roles, or one that takes no part would have one."""
    if server not in parties or server == holder:
        raise RemoteProtocolError(
            f"the second server of a hidden training is a party of it and not its label holder; {server!r} is not such "
            "a party"
        )
    if isinstance(dealer, msgspec.UnsetType):
        return
    if dealer not in parties or dealer in (holder, server):
        raise RemoteProtocolError(
            f"the dealer of a hidden training is the coordinator, or a helper that takes part and is neither its label "
            f"holder nor its second server; {dealer!r} is not such a helper"
        )
