"""Rows of clients with the same columns, by their ids: everywhere, or at the clients that are named with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from woodlot.data.ids import canonical_ids
from woodlot.exceptions import DataError


def ids_by_client(ids: Any, clients: Sequence[str]) -> dict[str, tuple[bytes, ...]]:
    """The ids that each client is to look for, in canonical form.

    Parameters
    ----------
    ids : array-like or mapping of str to array-like
        Ids that all clients look for; or, by client, those that only this one does.
    clients : sequence of str
        All of them.
    """
    if not isinstance(ids, Mapping):
        wanted = tuple(canonical_ids(ids, "the list of ids").values)
        return dict.fromkeys(clients, wanted)
    unknown = sorted(str(name) for name in set(ids) - set(clients))
    if unknown:
        raise DataError(
            f"ids are named for {unknown}, who are no clients of this model; its clients are {list(clients)}"
        )
    return {name: tuple(canonical_ids(own, f"the list of ids of {name}").values) for name, own in ids.items()}
