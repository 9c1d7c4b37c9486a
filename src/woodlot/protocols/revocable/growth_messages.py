"""Messages of the revocable forest's construction (FLE-Expan, FOS-Find) and of its revocation.

CS of the paper is the coordinator, who has the labels; UD are the participants. Bits travel packed, eight to a byte,
first bit lowest. Nodes are never named while trees grow: both sides keep the same list of open nodes. Keys, encrypted
splits and encrypted predictions have messages of their own (`revocable_keys`).
"""

from __future__ import annotations

from typing import ClassVar

from woodlot.protocols.core.message import (
    F64,
    FROM_PARTY,
    I32,
    I64,
    TO_PARTY,
    U8,
    U32,
    U64,
    Disclosure,
    Message,
    UInt,
)


class SendLabels(Message):
    """Asks the label holder for its labels: in a revocable forest it is the coordinator who judges candidates."""

    discloses: ClassVar = Disclosure(*TO_PARTY, "that the coordinator is to grow a forest on the labels", "clear")


class LabelsSent(Message):
    """The labels of the common rows; a party sends them only where its policy says so in words."""

    discloses: ClassVar = Disclosure(
        *FROM_PARTY, "the label of every common row, with the names of the classes, to the coordinator", "clear"
    )
    classes: tuple[str | int | float | bool, ...]
    """Empty for a regression."""
    numbers: I64
    """Class of each row; empty for a regression."""
    values: F64
    """Target of each row; empty for a classification."""


class OpenConstruction(Message):
    """Asks a participant what it brings, and says how many candidate splits it is to recommend, from what range."""

    discloses: ClassVar = Disclosure(
        *TO_PARTY,
        "that a revocable forest is planned; rho, the samples that give a range, and zeta, the candidates in it; "
        "whether a former forest is to be grown again in part",
        "clear",
    )
    rho: int
    zeta: int
    regrows: bool


class ParticipantSummary(Message):
    """How many rows a participant has, and its columns by their codes."""

    discloses: ClassVar = Disclosure(
        *FROM_PARTY,
        "number of rows and of columns; each column's code, which only its participant can turn into a name",
        "encoded",
    )
    n_rows: int
    feature_keys: U64


class ExpandLeaves(Message):
    """FLE-Expan for one level of all trees: sample vectors and feature selection vectors of the new open nodes."""

    discloses: ClassVar = Disclosure(
        *TO_PARTY,
        "which of the participant's candidates have won; one bit per row of each split node: its side; sample vectors "
        "of nodes at which growing begins; which nodes are closed: rows that share a pure one have one label, and many "
        "trees together join them to the classes; which of its own features are candidates at each open node",
        "clear",
    )
    won_pair: U32
    won_cut: UInt
    is_split: U8
    flags: U8
    is_open: U8
    vectors: U8
    sizes: U32
    samples: U32
    keys: U64
    selected: U8


class SplitVectors(Message):
    """The participant's split vectors: for each pair of open node and own candidate feature, one bin per row."""

    discloses: ClassVar = Disclosure(
        *FROM_PARTY,
        "for each row of an open node the number of the participant's evenly spaced candidates below its value: the "
        "paper's zeta split vectors, packed; not the values, but much of their order",
        "clear",
    )
    planes: U8


class FinishConstruction(Message):
    """Ends the construction: where each of the participant's splits stands in the finished trees."""

    discloses: ClassVar = Disclosure(
        *TO_PARTY,
        "as ExpandLeaves for the last level; the shape of the trees, and where the participant's own splits stand",
        "clear",
    )
    won_pair: U32
    won_cut: UInt
    offset: I64
    right: I32
    moved: I32
    node: I32


class ConstructionDone(Message):
    """The participant has stored its splits."""

    discloses: ClassVar = Disclosure(*FROM_PARTY, "nothing but that they are stored", "clear")
