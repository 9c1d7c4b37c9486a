"""Messages of an explanation: how the answer for a row is divided among the parties and their columns.

An explanation needs a row's side at every node, also where the row does not get to: Shapley values ask what the forest
would answer if some columns were not known. That is more than a prediction tells, so a party's policy names it.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from woodlot.protocols.core.message import FROM_PARTY, TO_PARTY, U8, U64, Disclosure, Message

Explains = Literal["none", "party", "columns", "values"]
"""What a party lets explanations show: nothing, its part of an answer, the parts of its columns by their names, or
these with the rows' values."""
EXPLAINS: tuple[Explains, ...] = ("none", "party", "columns", "values")
MAX_WORDS = 1 << 22
"""The most words of sides in one message: 32 MiB. It bounds the memory of all roles."""
MAX_TEXTS = 10_000
"""The most values in words in one message: they are in its header, which holds 4 MiB."""


class AskExplained(Message):
    """Asks what the party lets an explanation show."""

    discloses: ClassVar = Disclosure(*TO_PARTY, "that answers for some rows are to be explained", "clear")


class ExplainedColumns(Message):
    """What the party lets an explanation show."""

    discloses: ClassVar = Disclosure(
        *FROM_PARTY,
        "the names of the party's columns, in the order of their codes, where its policy lets explanations name them; "
        "whether it also tells the rows' values",
        "clear",
    )
    names: tuple[str, ...] | None
    tells_values: bool

    def check(self) -> None:
        """Values have the names of their columns beside them."""
        if self.tells_values and self.names is None:
            raise ValueError("values are told of columns that have names")


class AskAllSides(Message):
    """Asks for the sides of some rows at all nodes of the party."""

    discloses: ClassVar = Disclosure(*TO_PARTY, "which of the rows are to be explained", "clear")
    first_row: int
    n_rows: int

    def check(self) -> None:
        """Rows are numbered from 0, and blocks of 64 are not divided."""
        if self.first_row < 0 or self.first_row % 64 or self.n_rows < 1:
            raise ValueError("rows to explain are numbered from 0, in blocks of 64")


class AllSides(Message):
    """One bit per row and node of the party, also at nodes that the row does not get to."""

    discloses: ClassVar = Disclosure(
        *FROM_PARTY,
        "for each row to explain, its side at all of the party's nodes: with the coded column of each node, which the "
        "receiver knows, the rank of each of the row's values among the forest's thresholds, and in which of the "
        "forest's sets its categories are; which rows the party does not have",
        "clear",
    )
    words: U64
    known: U8 | None


class AskRowValues(Message):
    """Asks for the values of some rows, in words, to be shown beside their parts of the answer."""

    discloses: ClassVar = Disclosure(*TO_PARTY, "which of the rows are to be explained", "clear")
    first_row: int
    n_rows: int

    def check(self) -> None:
        """Rows are numbered from 0."""
        if self.first_row < 0 or self.n_rows < 1:
            raise ValueError("rows to explain are numbered from 0")


class RowValues(Message):
    """The values of some rows in the party's columns, column after column."""

    discloses: ClassVar = Disclosure(
        *FROM_PARTY,
        "the values of the rows to explain in the party's columns, where its policy lets them be told",
        "clear",
    )
    texts: tuple[str, ...]
