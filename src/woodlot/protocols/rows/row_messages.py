"""Messages of the horizontal forests: same columns, different rows.

The models are whole: everybody who grows them learns the names of the columns, the categories, the classes and every
threshold. A threshold lies halfway between two values of the client that found it, so trees tell about the rows that
they were grown on: more the deeper they are and the fewer rows their leaves must have.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import msgspec

from woodlot.protocols.core.message import F64, FROM_PARTY, I32, I64, TO_PARTY, U8, Disclosure, Message, UInt
from woodlot.protocols.sums.sum_messages import SumOrder

Kind = Literal["number", "category", "empty"]
Task = Literal["classes", "targets"]
LeafAverage = Literal["rows", "plain"]

_QUESTIONS = (
    "all questions of the trees: columns, sets of categories, and thresholds, each halfway between two neighbouring "
    "values of "
)


# --- the common schema ---


class DescribeRows(Message):
    """Asks a client for its columns and classes."""

    discloses: ClassVar = Disclosure(*TO_PARTY, "that a training is planned, and whether it is of classes", "clear")
    task: Task


class RowsDescribed(Message):
    """What a client's rows look like."""

    discloses: ClassVar = Disclosure(
        *FROM_PARTY,
        "number of rows; names, kinds and categories of the columns; the classes that occur, or the power of two above "
        "the largest target",
        "clear",
    )
    n_rows: int
    names: tuple[str, ...]
    kinds: tuple[Kind, ...]
    """ "empty": a column without any value, which has no kind of its own."""
    categories: tuple[tuple[str, ...], ...]
    classes: tuple[str | int | float | bool, ...]
    magnitude: int

    def check(self) -> None:
        """Every column has a name, a kind and categories."""
        if not len(self.names) == len(set(self.names)) == len(self.kinds) == len(self.categories):
            raise ValueError("columns are not described one by one")
        if self.n_rows < 0:
            raise ValueError("a table has no fewer than 0 rows")


class UseSchema(Message):
    """Brings every client the columns, categories and classes of all."""

    discloses: ClassVar = Disclosure(
        *TO_PARTY,
        "names, kinds, categories and classes that occur at any client (not at which); the largest power of two above "
        "a target",
        "clear",
    )
    names: tuple[str, ...]
    categories: tuple[tuple[str, ...] | None, ...]
    classes: tuple[str | int | float | bool, ...]
    magnitude: int
    max_bins: int | None

    def check(self) -> None:
        """Every column has a name and a kind."""
        if not len(self.names) == len(set(self.names)) == len(self.categories):
            raise ValueError("columns are not described one by one")


class SchemaInUse(Message):
    """The client has mapped its table onto the common schema."""

    discloses: ClassVar = Disclosure(*FROM_PARTY, "nothing but that it is ready", "clear")


# --- trees on the wire ---


class GrowthSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a client grows trees; counts are of its own rows."""

    entropy: bool
    max_depth: int
    min_samples_split: int
    min_samples_leaf: int
    n_candidates: int
    bootstrap: bool
    max_samples: int | float | None
    order_seed: int
    bootstrap_seed: int


class TreesMessage(Message, abstract=True):
    """Whole trees with empty leaves: a question at every inner node, in preorder."""

    first_tree: int
    offset: I64
    right: I32
    feature: I32
    threshold: F64
    missing_left: U8
    set_start: I64
    sets: U8

    def check(self) -> None:
        """Trees have numbers, by which a client knows those that it has answered for."""
        if self.first_tree < 0:
            raise ValueError("trees are numbered from 0")


class GrowAlone(Message):
    """Asks a client to grow its share of the trees alone."""

    discloses: ClassVar = Disclosure(*TO_PARTY, "the rules of growth, the seeds, and which trees are its own", "clear")
    settings: GrowthSettings
    first_tree: int
    n_trees: int

    def check(self) -> None:
        """A share has one tree or more."""
        if self.first_tree < 0 or self.n_trees < 1:
            raise ValueError("a share has one tree or more, which are numbered from 0")


class LocalTrees(TreesMessage):
    """A client's share of the forest, with what its leaves hold."""

    discloses: ClassVar = Disclosure(
        *FROM_PARTY,
        _QUESTIONS
        + "this client's rows; for every leaf the weight of each class, or the sum of targets and the weight, "
        "of the rows drawn for the tree (of single rows, where min_samples_leaf is 1)",
        "clear",
    )
    entries: UInt
    output: UInt
    weight: UInt
    total: F64


class GrowOn(TreesMessage):
    """Brings a client trees that others have begun, to be grown on at their leaves."""

    discloses: ClassVar = Disclosure(
        *TO_PARTY,
        _QUESTIONS
        + "a client that has grown the trees before (whose turn it was, the order of the clients tells); the "
        "rules of growth and the seeds",
        "clear",
    )
    settings: GrowthSettings


class GrownTrees(TreesMessage):
    """The same trees, grown on; their leaves are empty."""

    discloses: ClassVar = Disclosure(
        *FROM_PARTY,
        _QUESTIONS + "this client's rows, for the questions that it has added; that leaves where it added none need no "
        "more on its rows",
        "clear",
    )


class FillLeaves(TreesMessage):
    """Brings a client finished trees, and asks what its rows leave in them; answered by a vector of a sum."""

    discloses: ClassVar = Disclosure(
        *TO_PARTY,
        _QUESTIONS + "one of the clients; how the leaves are averaged; of a regression, a precision that "
        "tells the power of two above the largest client's number of rows",
        "clear",
    )
    order: SumOrder
    average: LeafAverage
    min_rows: int
    fraction_bits: int
