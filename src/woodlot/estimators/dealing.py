"""Which columns of one table go to which simulated party."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from woodlot.data.tables import Table
from woodlot.exceptions import DataError
from woodlot.federation import party_name


def deal_columns(table: Table, parties: int | Mapping[str, Sequence[Any]]) -> dict[str, list[str]]:
    """Columns of each party: an integer deals them in turn, a mapping names them (or their positions).

    Parties that get no column are parties all the same.
    """
    if isinstance(parties, Mapping):
        return _named(table, parties)
    names = [f"party-{k + 1}" for k in range(parties)]
    return {name: list(table.names[k::parties]) for k, name in enumerate(names)}


def _named(table: Table, parties: Mapping[str, Sequence[Any]]) -> dict[str, list[str]]:
    if not parties:
        raise DataError("parties must name at least one party")
    dealt: dict[str, list[str]] = {}
    owner: dict[str, str] = {}
    for party, columns in ((party_name(name, " in parties"), columns) for name, columns in parties.items()):
        if isinstance(columns, str) or not hasattr(columns, "__iter__"):
            raise DataError(f"parties[{party!r}] must be a list of columns, not {columns!r}")
        dealt[party] = [str(c) for c in columns]
        for column in dealt[party]:
            if column not in table.names:
                raise DataError(
                    f"parties[{party!r}] names column {column!r}, which X does not have; "
                    f"the columns of X are {list(table.names)}"
                )
            if column in owner:
                raise DataError(
                    f"column {column!r} is dealt to both {owner[column]!r} and {party!r}; deal each column once"
                )
            owner[column] = party
    left_out = [c for c in table.names if c not in owner]
    if left_out:
        raise DataError(f"parties leaves out columns of X: {left_out}; deal them to a party or drop them from X")
    return dealt
