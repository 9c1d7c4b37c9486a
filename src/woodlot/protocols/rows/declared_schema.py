"""The common schema where columns, categories and classes are declared: the first two rounds of private trainings.

::

    round 1   every client   names and kinds of its columns
    round 2   every client   maps its table onto the declared categories and classes
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace

from woodlot.exceptions import DataError
from woodlot.protocols.core.forest_parts import ClassName
from woodlot.protocols.core.message import Message, Round
from woodlot.protocols.core.replies import reply_of
from woodlot.protocols.rows import extra_messages, row_messages
from woodlot.protocols.rows.row_messages import Task
from woodlot.protocols.rows.schema import NO_MAGNITUDE, PHASE, CommonSchema, unite


@dataclass(frozen=True)
class Declared:
    """What is public of the columns.

    Attributes
    ----------
    knots : mapping of str to tuple of float
        The range of each column of numbers: its ends, and perhaps points between them.
    categories : mapping of str to tuple of str
        Of the columns of categories.
    needs_ranges, needs_categories : bool
        Whether every column of numbers must have a range, every other one its categories.
    """

    knots: Mapping[str, tuple[float, ...]]
    categories: Mapping[str, tuple[str, ...]]
    needs_ranges: bool = True
    needs_categories: bool = True

    def check(self, schema: CommonSchema) -> None:
        """Everything that must be known of the columns is declared, and of the right kind.

        Raises
        ------
        DataError
            Names the columns, and what to declare for them.
        """
        kinds = dict(zip(schema.names, schema.categories, strict=True))
        unknown = [name for name in (*self.knots, *self.categories) if name not in kinds]
        if unknown:
            raise DataError(
                f"ranges are declared for {unknown}, which the clients do not have; they have {list(kinds)}"
            )
        wrong = [name for name in self.knots if kinds[name] is not None]
        wrong += [name for name in self.categories if kinds[name] is None]
        if wrong:
            raise DataError(
                f"what is declared for {wrong} is of another kind than the columns: declare (low, high) for numbers, "
                "and a list of texts for categories"
            )
        lacking = [name for name, found in kinds.items() if found is None and name not in self.knots]
        if self.needs_ranges and lacking:
            raise DataError(
                f"no range is declared for {lacking}: declare (low, high) for each, such as "
                f"declared={{{lacking[0]!r}: (0, 100)}}; it must be public knowledge, not come from the rows"
            )
        lacking = [name for name, found in kinds.items() if found is not None and name not in self.categories]
        if self.needs_categories and lacking:
            raise DataError(
                f"no categories are declared for {lacking}: where rows are private clients do not tell theirs; declare "
                f"them, such as declared={{{lacking[0]!r}: ['a', 'b']}}"
            )


def describe_columns(
    clients: Sequence[str], task: Task, *, hide_rows: bool
) -> Generator[Round, dict[str, Message], CommonSchema]:
    """Coordinator: compare the clients' columns, without their labels and, where rows are hidden, without any rows."""
    question = extra_messages.DescribeColumns(task=task, hide_rows=hide_rows)
    replies = yield Round(PHASE, dict.fromkeys(clients, question))
    shown = {client: reply_of(reply, extra_messages.ColumnsDescribed, client) for client, reply in replies.items()}
    return unite({client: _without_labels(told) for client, told in shown.items()}, task, not hide_rows)


def use_declared(
    clients: Sequence[str],
    schema: CommonSchema,
    declared: Declared,
    classes: tuple[ClassName, ...] | None,
    max_bins: int | None,
) -> Generator[Round, dict[str, Message], CommonSchema]:
    """Coordinator: tell all clients the declared categories and classes; those that occur, where none are declared."""
    schema = replace(
        schema,
        categories=tuple(
            None if found is None else tuple(sorted(declared.categories.get(name, found)))
            for name, found in zip(schema.names, schema.categories, strict=True)
        ),
        classes=schema.classes if classes is None else classes,
    )
    declared.check(schema)
    use = row_messages.UseSchema(
        names=schema.names,
        categories=schema.categories,
        classes=schema.classes,
        magnitude=schema.magnitude,
        max_bins=max_bins,
    )
    replies = yield Round(PHASE, dict.fromkeys(clients, use))
    for client, reply in replies.items():
        reply_of(reply, row_messages.SchemaInUse, client)
    return schema


def _without_labels(told: extra_messages.ColumnsDescribed) -> row_messages.RowsDescribed:
    return row_messages.RowsDescribed(
        n_rows=told.n_rows,
        names=told.names,
        kinds=told.kinds,
        categories=told.categories,
        classes=(),
        magnitude=NO_MAGNITUDE,
    )
