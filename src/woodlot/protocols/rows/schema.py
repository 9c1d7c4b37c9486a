"""What the tables of all clients have in common: the first two rounds of every horizontal training.

::

    round 1   every client   number of rows, columns, categories, classes
    round 2   every client   maps its table onto the columns, categories and classes of all

Categories and classes are united in ascending order. One that a client has never seen is legal, and so is a client
without rows, and a column that is empty at some clients.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from woodlot.data.columns import CategoryColumn, Column, NumericColumn
from woodlot.data.tables import Table
from woodlot.data.wording import quoted
from woodlot.exceptions import DataError, RemoteProtocolError
from woodlot.protocols.core.forest_parts import ClassName
from woodlot.protocols.core.message import Message, Round
from woodlot.protocols.core.replies import reply_of
from woodlot.protocols.core.target import Target
from woodlot.protocols.rows.row_messages import DescribeRows, Kind, RowsDescribed, SchemaInUse, Task, UseSchema
from woodlot.trees.encoding import MAX_COARSE, MIN_BINS

Rounds = Generator[Round, dict[str, Message], Any]
PHASE = "prepare"
NO_MAGNITUDE = -1100
"""Stands for targets that are all zero, or none: less than the exponent of any float."""


@dataclass(frozen=True)
class CommonSchema:
    """The common schema, and who has how many rows.

    Attributes
    ----------
    names : tuple of str
        Columns, in the order of the first client that has any.
    categories : tuple
        The categories of each column, ascending; None for numbers.
    classes : tuple
        The classes, ascending; empty for regression.
    magnitude : int
        The least power of two above the absolute value of every target is ``2**magnitude``.
    n_rows : dict of str to int
        Rows of each client; known to the coordinator only.
    """

    names: tuple[str, ...]
    categories: tuple[tuple[str, ...] | None, ...]
    classes: tuple[ClassName, ...]
    magnitude: int
    n_rows: dict[str, int]

    @property
    def n_outputs(self) -> int:
        return max(1, len(self.classes))

    @property
    def total_rows(self) -> int:
        return sum(self.n_rows.values())

    def count_bound(self, least: int = 1) -> int | None:
        """A bound of one client's counts that halves their bytes and tells nothing; None where they may be larger.

        Parameters
        ----------
        least : int
            What the bound must reach, besides the number of any client's rows.
        """
        bound = (2**31 - 1) // len(self.n_rows)
        return bound if bound >= max(least, *self.n_rows.values()) else None


# --- coordinator ---


class Known(NamedTuple):
    """What a forest that is grown on knows of the data; the clients may have less of it."""

    names: tuple[str, ...]
    categories: tuple[tuple[str, ...] | None, ...]
    classes: tuple[ClassName, ...]


def agree_on_schema(
    clients: Sequence[str], task: Task, max_bins: int | None, known: Known | None = None
) -> Generator[Round, dict[str, Message], CommonSchema]:
    """Coordinator: compare what the clients have, and tell all of them what they have together.

    Parameters
    ----------
    clients, task, max_bins
        Who takes part, and what all are told.
    known : Known, optional
        Columns, categories and classes that are used instead of what the clients have together.

    Raises
    ------
    DataError
        Where columns, kinds or classes do not agree, or nobody has a row; names the clients and the columns.
    """
    replies = yield Round(PHASE, {client: DescribeRows(task=task) for client in clients})
    told = {client: reply_of(reply, RowsDescribed, client) for client, reply in replies.items()}
    schema = unite(told, task)
    if known is not None:
        if set(known.names) != set(schema.names):
            raise DataError("the clients have other columns than the forest; give them the tables of the training")
        schema = replace(schema, **known._asdict())
    use = UseSchema(
        names=schema.names,
        categories=schema.categories,
        classes=schema.classes,
        magnitude=schema.magnitude,
        max_bins=max_bins,
    )
    replies = yield Round(PHASE, dict.fromkeys(clients, use))
    for client, reply in replies.items():
        reply_of(reply, SchemaInUse, client)
    return schema


def unite(told: Mapping[str, RowsDescribed], task: Task, rows_are_told: bool = True) -> CommonSchema:
    """The schema of all clients together."""
    names = _same_columns(told)
    categories = tuple(_unite_column(name, told) for name in names)
    classes = _unite_classes(told) if task == "classes" else ()
    n_rows = {client: description.n_rows for client, description in told.items()}
    if rows_are_told and not any(n_rows.values()):
        raise DataError("no rows to train on: the tables of all clients are empty")
    magnitude = max(description.magnitude for description in told.values())
    if not NO_MAGNITUDE <= magnitude <= 1024:
        raise RemoteProtocolError("a client's targets are beyond the range of floats")
    return CommonSchema(names, categories, classes, magnitude, n_rows)


def _same_columns(told: Mapping[str, RowsDescribed]) -> tuple[str, ...]:
    first = next(iter(told))
    names = told[first].names
    if not names:
        raise DataError(f"{first} has no column to learn from")
    for client, description in told.items():
        lacks = [name for name in names if name not in description.names]
        extra = [name for name in description.names if name not in names]
        if lacks or extra:
            parts = [f"{client} lacks {quoted(lacks)}, which {first} has"] if lacks else []
            parts += [f"{first} lacks {quoted(extra)}, which {client} has"] if extra else []
            raise DataError(
                f"clients have different columns: {'; '.join(parts)}. Give every client the same columns, in any order"
            )
    return names


def _unite_column(name: str, told: Mapping[str, RowsDescribed]) -> tuple[str, ...] | None:
    kinds: dict[Kind, str] = {}
    categories: set[str] = set()
    for client, description in told.items():
        place = description.names.index(name)
        kinds.setdefault(description.kinds[place], client)
        categories.update(description.categories[place])
    if "number" in kinds and "category" in kinds:
        raise DataError(
            f"column {name!r} holds numbers at {kinds['number']} and categories at {kinds['category']}; "
            "make it the same at every client"
        )
    return tuple(sorted(categories)) if "category" in kinds else None


def _unite_classes(told: Mapping[str, RowsDescribed]) -> tuple[ClassName, ...]:
    kinds: dict[type, str] = {}
    for client, description in told.items():
        for label in description.classes:
            kinds.setdefault(type(label), client)
    if len(kinds) > 1:
        found = ", ".join(f"{kind.__name__} at {client}" for kind, client in kinds.items())
        raise DataError(f"the labels of the clients are of different types: {found}; make them the same everywhere")
    union = {label for description in told.values() for label in description.classes}
    return tuple(sorted(union))


# --- client ---


def describe(table: Table, target: Target) -> RowsDescribed:
    """Client: what its rows look like."""
    return RowsDescribed(
        n_rows=table.n_rows,
        names=table.names,
        kinds=tuple(column_kind(column) for column in table.columns),
        categories=tuple(c.categories if isinstance(c, CategoryColumn) else () for c in table.columns),
        classes=target.classes,
        magnitude=_magnitude(target),
    )


def column_kind(column: Column) -> Kind:
    """What a column holds, by its values."""
    if isinstance(column, CategoryColumn):
        return "category" if column.categories else "empty"
    return "empty" if np.isnan(column.values).all() else "number"


def _magnitude(target: Target) -> int:
    largest = float(np.abs(target.values).max(initial=0.0))
    return int(np.frexp(largest)[1]) if largest > 0 else NO_MAGNITUDE


def map_table(table: Table, schema: UseSchema) -> Table:
    """Client: its table with the columns and the category codes of the common schema.

    Raises
    ------
    RemoteProtocolError
        If the schema is not one of this table's.
    """
    if schema.max_bins is not None and not MIN_BINS <= schema.max_bins <= MAX_COARSE:
        raise RemoteProtocolError(f"the schema asks for {schema.max_bins} bins")
    if set(schema.names) != set(table.names):
        raise RemoteProtocolError("the schema has other columns than this client")
    pairs = zip(schema.names, schema.categories, strict=True)
    columns = tuple(_map_column(table.column(name), categories) for name, categories in pairs)
    return Table(schema.names, columns, table.n_rows)


def _map_column(column: Column, categories: tuple[str, ...] | None) -> Column:
    kind = column_kind(column)
    if categories is None:
        if kind == "category":
            raise RemoteProtocolError("the schema calls a column of categories numbers")
        return column if isinstance(column, NumericColumn) else NumericColumn(np.full(len(column), np.nan, np.float32))
    if kind == "number":
        raise RemoteProtocolError("the schema calls a column of numbers categories")
    place = {category: code for code, category in enumerate(categories)}
    if list(place) != sorted(place) or len(place) != len(categories):
        raise RemoteProtocolError("the categories of the schema are not in ascending order")
    if not isinstance(column, CategoryColumn):
        return CategoryColumn(np.full(len(column), -1, np.int32), categories)
    if not set(column.categories) <= set(place):
        raise RemoteProtocolError("the schema leaves out a category of this client")
    recode = np.array([*(place[c] for c in column.categories), -1], np.int32)
    return CategoryColumn(recode[column.codes], categories)


def map_classes(target: Target, classes: tuple[ClassName, ...]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Client: the number of each row's class among those of the common schema."""
    place = {label: number for number, label in enumerate(classes)}
    if len(place) != len(classes) or not set(target.classes) <= set(place):
        raise RemoteProtocolError("the schema leaves out a class of this client")
    return np.array([place[label] for label in target.classes], np.int64)[target.numbers]
