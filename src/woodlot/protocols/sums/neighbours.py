"""Who shares masks with whom.

Up to `DENSE` clients everybody shares masks with everybody. Above, each client draws some others by its own secret,
and two clients are neighbours if one of them has drawn the other (after Bell et al., Secure single-server aggregation
with (poly)logarithmic overhead, 2020). Each client draws itself; the number grows with the logarithm of the clients.
The drawn places are a part of the introduction, and so are signed. Others can make themselves neighbours of a client by
drawing it on purpose: that only adds masks, for shares of its secrets go to those alone whom it has drawn.

Where all clients are in one process there is nobody to hide numbers from; masks only have to be there and to cancel:
each client shares them with those beside it (`beside`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from woodlot.exceptions import RemoteProtocolError
from woodlot.protocols.sums.keystreams import keystream

DENSE = 20
"""Up to so many clients everybody is a neighbour of everybody."""
_PICKS = 6  # times the binary logarithm of the number of clients

Neighbours = Mapping[str, frozenset[str]]
"""The neighbours of each client."""


def n_picks(n_clients: int) -> int:
    """How many others a client draws; none where everybody is a neighbour."""
    return 0 if n_clients <= DENSE else min(n_clients - 1, _PICKS * math.ceil(math.log2(n_clients)))


def draw_picks(key: bytes, place: int, n_clients: int) -> tuple[int, ...]:
    """Draw the places of other clients, in ascending order, by a key that is used for nothing else."""
    order = np.argsort(keystream(key, n_clients), kind="stable")
    others = order[order != place]
    return tuple(sorted(others[: n_picks(n_clients)].tolist()))


def drawn_by(picks: Mapping[str, tuple[int, ...]]) -> Neighbours:
    """Return whom each client has drawn, or all others where nobody draws; the clients in ascending order.

    Raises
    ------
    RemoteProtocolError
        If a client has not drawn as many others as it should.

    """
    clients = tuple(picks)
    wanted = n_picks(len(clients))
    if not wanted:
        if any(picks.values()):
            raise RemoteProtocolError(f"up to {DENSE} clients share masks with all others, and one draws some")
        return {name: frozenset(clients) - {name} for name in clients}
    found: dict[str, frozenset[str]] = {}
    for place, (name, drawn) in enumerate(picks.items()):
        others = set(drawn) - {place}
        if len(drawn) != wanted or len(others) != wanted or min(drawn) < 0 or max(drawn) >= len(clients):
            raise RemoteProtocolError(f"client {name!r} has not drawn {wanted} others to share masks with")
        found[name] = frozenset(clients[other] for other in others)
    return found


def beside(name: str, clients: tuple[str, ...]) -> frozenset[str]:
    """Return the clients before and after this one in a ring of all."""
    place = clients.index(name)
    return frozenset({clients[place - 1], clients[(place + 1) % len(clients)]}) - {name}


def neighbours_of(drawn: Neighbours) -> Neighbours:
    """Return everybody's neighbours: whom it has drawn, and by whom it was drawn."""
    found = {name: set(others) for name, others in drawn.items()}
    for name, others in drawn.items():
        for other in others:
            found[other].add(name)
    return {name: frozenset(others) for name, others in found.items()}
