"""Which columns of a federation in this process are there, and which of them a model learns from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from woodlot.data.columns import NumericColumn
from woodlot.data.markup import html_table
from woodlot.data.tables import Table
from woodlot.data.wording import nearest, quoted
from woodlot.exceptions import DataError


@dataclass(frozen=True)
class CatalogColumn:
    """One column, without any of its values.

    Attributes
    ----------
    party, column : str
        Whose, and its name.
    kind : {"numbers", "categories"} or None
        As what it is learnt from; None: its owner does not tell.
    missing : float or None
        Share of the rows that have no value; None: its owner does not tell.
    """

    party: str
    column: str
    kind: Literal["numbers", "categories"] | None
    missing: float | None


@dataclass(frozen=True, repr=False)
class Catalog:
    """What there is to learn from: parties, columns, their types and missing shares; no values.

    Attributes
    ----------
    rows : dict of str to int
        Rows of each party; of parties with different columns, those that they have in common.
    columns : tuple of CatalogColumn
        Party after party.
    labels : tuple of str
        Between organisations, columns that their owner lets be labels, ``"party.column"``.
    closed : tuple of str
        Parties that do not tell the names of their columns.
    """

    rows: dict[str, int]
    columns: tuple[CatalogColumn, ...]
    labels: tuple[str, ...] = ()
    closed: tuple[str, ...] = ()

    def _lines(self) -> list[tuple[str, str, str, str]]:
        return [
            (c.party, c.column, c.kind or "-", "-" if c.missing is None else f"{c.missing:.1%}") for c in self.columns
        ]

    def __repr__(self) -> str:
        lines = [("party", "column", "type", "missing"), *self._lines()]
        widths = [max(len(line[k]) for line in lines) for k in range(4)]
        text = (
            "  " + "  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines
        )
        rows = ", ".join(f"{party} {n:,}" for party, n in self.rows.items())
        more = [f"may be labels: {', '.join(self.labels)}"] if self.labels else []
        more += [f"not told: the columns of {', '.join(self.closed)}"] if self.closed else []
        return "\n".join([f"{len(self.columns)} columns" + (f"; rows: {rows}" if rows else ""), *text, *more])

    def _repr_html_(self) -> str:
        return html_table(("party", "column", "type", "missing"), self._lines())

    def to_dicts(self) -> list[dict[str, Any]]:
        """One dict per column, for instance for pandas.DataFrame."""
        return [asdict(column) for column in self.columns]


def catalog_of(tables: Mapping[str, Table]) -> Catalog:
    """What the parties' tables have."""
    columns = [
        CatalogColumn(party, name, *_kind_and_missing(table, name))
        for party, table in tables.items()
        for name in table.names
    ]
    return Catalog({party: table.n_rows for party, table in tables.items()}, tuple(columns))


def _kind_and_missing(table: Table, name: str) -> tuple[Literal["numbers", "categories"], float]:
    column = table.column(name)
    if isinstance(column, NumericColumn):
        return "numbers", float(np.isnan(column.values).mean()) if len(column) else 0.0
    return "categories", float((column.codes < 0).mean()) if len(column) else 0.0


# --- what is learnt from ---


def chosen_by_party(
    tables: Mapping[str, Table], features: Any, exclude: Any, labels: Mapping[str, Sequence[str]]
) -> dict[str, list[str]]:
    """The columns that each party learns from.

    Parameters
    ----------
    tables : mapping of str to Table
        The parties' tables.
    features : mapping of str to sequence of str or None, or None
        By party its columns, or None for all of them. Every party must be named, so that none is forgotten.
    exclude : mapping of str to sequence of str, or None
        By party columns that are not learnt from.
    labels : mapping of str to sequence of str
        Columns with labels and weights, which are never learnt from.
    """
    for what, given in (("features", features), ("exclude", exclude)):
        if given is not None and not isinstance(given, Mapping):
            raise DataError(f"{what} must name columns by party, such as {what}={{'bank': ['age']}}, not {given!r}")
        for party in given or ():
            if party not in tables:
                raise DataError(f"{what} names {party!r}, which is not a party; the parties are {list(tables)}")
    if features is not None and set(features) != set(tables):
        absent = [party for party in tables if party not in features]
        raise DataError(
            f"features does not name {quoted(absent)}; write {absent[0]!r}: None for all columns, or [] for none"
        )
    return {
        party: _chosen(
            table,
            None if features is None else features[party],
            (exclude or {}).get(party),
            labels.get(party, ()),
            f"{party} has",
        )
        for party, table in tables.items()
    }


def chosen_of_all(table: Table, features: Any, exclude: Any, label: str | None) -> list[str]:
    """The columns that all clients learn from, by lists that hold for every client; ``table`` is one client's."""
    return _chosen(table, features, exclude, () if label is None else (label,), "the clients have")


def _chosen(table: Table, features: Any, exclude: Any, labels: Sequence[str], who: str) -> list[str]:
    wanted = _columns(table, features, "features", who) if features is not None else list(table.names)
    told = [name for name in wanted if name in labels]
    if features is not None and told:
        raise DataError(f"features names {quoted(told)}, which has the labels or weights; leave it out")
    without = set(_columns(table, exclude, "exclude", who)) if exclude is not None else set()
    return [name for name in table.names if name in wanted and name not in without]


def _columns(table: Table, names: Any, what: str, who: str) -> list[str]:
    if isinstance(names, str | Mapping) or not hasattr(names, "__iter__"):
        raise DataError(f"{what} must be a list of columns, not {names!r}")
    found = [str(name) for name in names]
    for name in found:
        if name not in table.names:
            near = nearest(name, table.names)
            raise DataError(
                f"{what} names column {name!r}, which is not there; {who} {list(table.names)}"
                + (f". Did you mean {near!r}?" if near else "")
            )
    return found
