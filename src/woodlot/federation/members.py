"""From the tables that a caller gives to the members of a federation: names checked, columns read, rows aligned."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.data.alignment import align_rows
from woodlot.data.ids import canonical_ids
from woodlot.data.indexes import index_as_column, require_equal_indexes
from woodlot.data.tables import Table, read_table
from woodlot.data.values import column_values
from woodlot.data.wording import nearest, quoted
from woodlot.exceptions import DataError
from woodlot.protocols.vertical.explain_messages import EXPLAINS, Explains


@dataclass(frozen=True, eq=False)
class Member:
    """One party: its columns in the common order of rows, and where they came from."""

    table: Table
    source: Any
    rows: NDArray[np.int64] | None
    """Row of the source for each common row, -1 where the party has none; None: the same rows."""
    shares_model: bool
    sealed_only: bool = False
    id: str | None = None
    """The column of the source that identifies a row, where there is one."""
    explains: Explains = "party"
    """What explanations may show."""

    @property
    def known(self) -> NDArray[np.bool_] | None:
        return None if self.rows is None or (self.rows >= 0).all() else self.rows >= 0

    def take(self, rows: NDArray[np.int64]) -> Member:
        """The member with some of the common rows."""
        return replace(self, table=self.table.take(rows), rows=rows if self.rows is None else self.rows[rows])

    def values(self, column: str, what: str) -> NDArray[Any]:
        values = column_values(self.source, column, what)
        return values if self.rows is None else values[self.rows]


def party_name(name: object, where: str = "") -> str:
    """A party's name as plain text; what cannot be one is refused, and ``where`` says where it stands.

    Names stand before the dot of ``party.column``, in ledgers and in folders. Of numpy's texts, such as
    ``numpy.unique`` gives, messages and files take none.
    """
    if not isinstance(name, str) or not name or "." in name or name == "coordinator":
        raise DataError(f"{name!r} cannot name a party{where}: use a text without dots, other than 'coordinator'")
    return str(name)


def refuse_strangers(here: Sequence[str], parties: Sequence[str], needed: Sequence[str]) -> None:
    """Refuse to predict with a party that is not of the model while one of the model's is absent: a name is wrong.

    Otherwise the model would answer without the absent party, as if it were offline.
    """
    absent = [party for party in needed if party not in here]
    for stranger in here if absent else ():
        if stranger not in parties:
            near = nearest(stranger, absent)
            raise DataError(
                f"{stranger!r} is not a party of this model, whose parties are {quoted(parties)}; "
                + (
                    f"did you mean {near!r}?"
                    if near
                    else f"leave it out, or rename it if it is one of {quoted(absent)}"
                )
            )


def aligned_members(
    tables: Mapping[str, Any],
    id: str | None,
    join: str,
    shares_model: bool | Sequence[str],
    sealed_predictions: bool | Sequence[str],
    explains: Explains | Mapping[str, Explains],
) -> tuple[dict[str, Member], NDArray[Any] | None]:
    """Parties with different columns of the same rows, and the rows' ids; parameters as for `Federation.local`."""
    tables = {name: index_as_column(data, id) for name, data in tables.items()}
    sharing = _named_parties(tables, shares_model, "shares_model")
    sealing = _named_parties(tables, sealed_predictions, "sealed_predictions")
    shown = _explaining(tables, explains)
    read = {name: _read_named(data, name, id) for name, data in tables.items()}
    _refuse_shared_columns(read)
    ids, rows = align_rows(tables, id, join)
    if rows is None and len({table.n_rows for table in read.values()}) > 1:
        raise DataError(
            f"tables have different numbers of rows: { {p: t.n_rows for p, t in read.items()} }; "
            "name the id column with id=... so that rows can be aligned"
        )
    if rows is None:
        require_equal_indexes(tables)
    members = {}
    for name, table in read.items():
        own = None if rows is None else rows[name]
        aligned = table if own is None else table.take_or_missing(own)
        members[name] = Member(aligned, tables[name], own, name in sharing, name in sealing, id, shown[name])
    return members, ids


def row_members(
    tables: Mapping[str, Any], id: str | None
) -> tuple[dict[str, Member], dict[str, Callable[[], list[bytes]]]]:
    """Clients with different rows of the same columns, and what reads the ids of their rows, where there are any."""
    tables = {name: index_as_column(data, id) for name, data in tables.items()}
    members = {
        name: Member(_read_named(data, name, id), data, None, shares_model=True, id=id) for name, data in tables.items()
    }
    return members, {} if id is None else {name: partial(_row_ids, data, id, name) for name, data in tables.items()}


def _row_ids(data: Any, id: str, party: str) -> list[bytes]:
    what = f"the column {id!r} of {party}"
    return canonical_ids(column_values(data, id, f"the table of {party}"), what).values


def _named_parties(tables: Mapping[str, Any], given: bool | Sequence[str], what: str) -> set[str]:
    if isinstance(given, bool):
        return set(tables) if given else set()
    names = {given} if isinstance(given, str) else set(given)
    unknown = sorted(names - set(tables))
    if unknown:
        raise DataError(f"{what} names {unknown}, who are not parties; the parties are {list(tables)}")
    return names


def _explaining(tables: Mapping[str, Any], given: Explains | Mapping[str, Explains]) -> dict[str, Explains]:
    levels = dict(given) if isinstance(given, Mapping) else dict.fromkeys(tables, given)
    unknown = sorted(set(levels) - set(tables))
    if unknown:
        raise DataError(f"explains names {unknown}, who are not parties; the parties are {list(tables)}")
    for party, level in levels.items():
        if level not in EXPLAINS:
            raise ValueError(f"explains of {party} must be one of {list(EXPLAINS)}, not {level!r}")
    return {party: levels.get(party, "none") for party in tables}


def _read_named(data: Any, party: str, id: str | None) -> Table:
    if isinstance(data, str | os.PathLike):
        raise DataError(f"the table of {party} is the name of a file; read it first, as with pandas.read_csv({data!r})")
    if id is not None and not isinstance(id, str):
        raise DataError(f"id must be the name of a column that every table has, not {id!r}; rename columns to be alike")
    table = read_table(data, what=f"the table of {party}", skip=id)
    if table.positional:
        raise DataError(
            f"the table of {party} has no column names; give a pandas, polars or Arrow table instead of an array"
        )
    return table


def _refuse_shared_columns(tables: Mapping[str, Table]) -> None:
    holder: dict[str, str] = {}
    for name, table in tables.items():
        for column in table.names:
            if column in holder:
                raise DataError(
                    f"column {column!r} is at both {holder[column]} and {name}; rename one, such as "
                    f"'{name}_{column}', or drop it; if it identifies the rows, name it with id={column!r}; if the "
                    "parties have different rows of the same columns, give layout='rows'"
                )
            holder[column] = name
