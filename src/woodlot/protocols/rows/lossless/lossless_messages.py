"""Messages of the lossless horizontal forest: every answer is a vector of a secure sum.

What clients are told of the growing trees is what the finished model tells everybody: its splits, and how much weight
of which classes comes to a node.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from woodlot.protocols.core.message import F64, I32, I64, TO_PARTY, U8, U32, U64, Disclosure, Message, UInt
from woodlot.protocols.rows.row_messages import TreesMessage
from woodlot.protocols.sums.sum_messages import SumOrder


class CountValues(Message):
    """Asks how many of a client's values have given leading bits, by their next four; answered by a vector of a sum.

    ``prefix`` has the leading ``known_bits`` bits of the ordered integer form of a float, column by column. Where none
    are known, values are counted by their first eight.
    """

    discloses: ClassVar = Disclosure(
        *TO_PARTY,
        "which ranges of values the quantiles of all clients' values lie in, narrower from round to round until they "
        "are single values",
        "clear",
    )
    order: SumOrder
    known_bits: int
    with_missing: bool
    """Whether the missing values of every column are counted too, before all others."""
    column: UInt
    prefix: U32


class DrawRows(Message):
    """Brings the common bins and the rules of drawing; asks for what each tree draws. Answered by a vector of a sum."""

    discloses: ClassVar = Disclosure(
        *TO_PARTY,
        "the bins of every column of numbers, each edge a value of one of the clients' rows unless it was declared; "
        "which columns have missing values; the number of trees, the seed and the rules of drawing rows",
        "clear",
    )
    order: SumOrder
    n_edges: UInt
    """Of each column; 0 for categories."""
    edges: F64
    has_missing: U8
    n_trees: int
    seed: int
    thresholds: U64
    """A row is drawn as many times as there are thresholds up to its random number; none: every row once."""
    with_rows: bool
    target_bits: int

    def check(self) -> None:
        """Columns are described one by one, and edges ascend."""
        if len(self.n_edges) != len(self.has_missing) or int(self.n_edges.sum()) != len(self.edges):
            raise ValueError("columns are not described one by one")
        if self.n_trees < 1 or not 0 <= self.target_bits < 53 or len(self.thresholds) > 255:
            raise ValueError("trees and draws are out of range")


class CountClasses(Message):
    """Asks how many rows of each class a client has; answered by a vector of a sum."""

    discloses: ClassVar = Disclosure(
        *TO_PARTY, "nothing; the coordinator reads how many rows of all clients are of which class", "clear"
    )
    order: SumOrder


class DrawByClass(DrawRows):
    """As `DrawRows`, where rows of some classes are drawn more often: ``thresholds`` has those of class after class."""

    discloses: ClassVar = Disclosure(
        *TO_PARTY,
        "the bins of every column of numbers, each edge a value of one of the clients' rows unless it was declared; "
        "which columns have missing values; the number of trees, the seed and the rules of drawing rows; how many rows "
        "of all clients are of which class",
        "clear",
    )
    class_rows: I64
    n_thresholds: UInt

    def check(self) -> None:
        """As for `DrawRows`, for each class."""
        if len(self.n_edges) != len(self.has_missing) or int(self.n_edges.sum()) != len(self.edges):
            raise ValueError("columns are not described one by one")
        if self.n_trees < 1 or self.target_bits or int(self.n_thresholds.max(initial=0)) > 255:
            raise ValueError("trees and draws are out of range")
        if len(self.n_thresholds) != len(self.class_rows) or int(self.n_thresholds.sum()) != len(self.thresholds):
            raise ValueError("draws are not described class by class")

    def lists(self) -> list[NDArray[np.uint64]]:
        """The thresholds of each class."""
        stops = np.cumsum(self.n_thresholds.astype(np.int64))[:-1]
        return [np.array(part) for part in np.split(self.thresholds, stops)]


class CountWeights(Message):
    """Asks how many rows of each class a client has, and what they weigh; answered by a vector of a sum."""

    discloses: ClassVar = Disclosure(
        *TO_PARTY,
        "nothing but about how many rows all clients have; the coordinator reads how many rows of all clients are of "
        "which class, and the sum of their weights",
        "clear",
    )
    order: SumOrder
    fraction_bits: int

    def check(self) -> None:
        """Weights have a few bits after the point."""
        if not 0 <= self.fraction_bits <= 52:
            raise ValueError("fraction_bits is out of range")


class DrawByWeight(DrawRows):
    """As `DrawRows`, where clients have weights of rows: each draws its own rows by them."""

    discloses: ClassVar = Disclosure(
        *TO_PARTY,
        "the bins of every column of numbers, each edge a value of one of the clients' rows unless it was declared; "
        "which columns have missing values; the number of trees, the seed and the rules of drawing rows; how many rows "
        "of all clients are of which class, and the sum of their weights; the coordinator reads how many rows of all "
        "clients are too heavy to be drawn",
        "clear",
    )
    class_rows: I64
    class_sums: I64
    """In fixed point, as `CountWeights` has asked for them."""
    fraction_bits: int
    rates: F64
    """How often a row of weight 1 of each class is drawn on average; none: a row counts as often as it weighs."""

    def check(self) -> None:
        """As for `DrawRows`; and there is a rate for each class, or none."""
        super().check()
        if len(self.class_rows) != len(self.class_sums) or len(self.rates) not in (0, len(self.class_rows)):
            raise ValueError("rates are not described class by class")
        in_range = np.isfinite(self.rates) & (self.rates >= 0)
        if len(self.thresholds) or not 0 <= self.fraction_bits <= 52 or not in_range.all():
            raise ValueError("rates are out of range")


class CountCells(Message):
    """Brings the splits of the last level, and asks for the histograms of the next; answered by a vector of a sum.

    The first fields are the splits, for the nodes that were open before; a client that has carried out this level
    already leaves them aside. The others say which numbers of the nodes that are open now are asked for
    (``trees/cells.py``).
    """

    discloses: ClassVar = Disclosure(
        *TO_PARTY,
        "the splits of the growing trees, as the model will have them; for every open node its candidate features, the "
        "power of two above its weight, and which classes occur in it at any client",
        "clear",
    )
    order: SumOrder
    level: int
    split: U8
    feature: UInt
    cut: UInt
    missing_left: U8
    set_length: UInt
    sets: U8
    is_open: U8
    every_row: U32
    """At the roots: trees that have drawn no row, and take every row once."""

    nodes: U32
    width: U8
    n_classes: UInt
    classes: UInt
    n_pairs: UInt
    pair_feature: UInt
    first: UInt
    codes: UInt
    missing: U8
    word_bits: int


class ScoreLeftOut(TreesMessage):
    """Brings the finished forest, and asks how good it is for rows that trees have not drawn; answered by a sum."""

    discloses: ClassVar = Disclosure(
        *TO_PARTY,
        "the whole forest: columns, thresholds, sets of categories, answers of the leaves; which trees have seen every "
        "row. The coordinator reads, over all clients, how many answers are right and how many wrong, or the sums of "
        "targets, of their squares and of squared errors; and how many rows every tree has drawn",
        "clear",
    )
    order: SumOrder
    leaf_start: I64
    leaf_output: I32
    leaf_value: F64
    every_row: U32
    fraction_bits: int

    def check(self) -> None:
        """As for all trees; and sums have bits after the point, or none."""
        super().check()
        if not 0 <= self.fraction_bits <= 52:
            raise ValueError("fraction_bits is out of range")


WEIGHTED = (DrawByClass, DrawByWeight)
"""Drawings in which some rows come more often than others: scores then count each class by its share of all rows."""
