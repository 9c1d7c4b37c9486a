"""Messages of federated extra-trees: the coordinator draws questions, the clients count what they do to their rows.

All answers with counts are vectors of a sum (`sum_messages`): masked unless plain sums were ordered. Under LocalDP the
numbers are rows and sums of randomised bits; under GlobalDP they have noise before they are masked. The model is whole:
every client sees all questions.
"""

from __future__ import annotations

from typing import ClassVar

from woodlot.protocols.core.message import F64, FROM_PARTY, I32, TO_PARTY, U8, Disclosure, F64x2, Message
from woodlot.protocols.rows.row_messages import Kind, Task, TreesMessage
from woodlot.protocols.sums.sum_messages import SumOrder

_FATE = (
    "which nodes have been split, by which questions, and which are leaves: so what the sums of all clients have said "
    "of the level before"
)


class DescribeColumns(Message):
    """Asks a client for its columns, where labels or rows are under differential privacy."""

    discloses: ClassVar = Disclosure(*TO_PARTY, "that a training is planned, and whether it is of classes", "clear")
    task: Task
    hide_rows: bool
    """Whether nothing may be told that depends on single rows."""


class ColumnsDescribed(Message):
    """A client's columns, without anything that labels tell."""

    discloses: ClassVar = Disclosure(
        *FROM_PARTY,
        "names and kinds of the columns; under LocalDP also their categories and the number of rows",
        "clear",
    )
    n_rows: int
    """0 where rows are hidden."""
    names: tuple[str, ...]
    kinds: tuple[Kind, ...]
    categories: tuple[tuple[str, ...], ...]
    """Empty where rows are hidden."""

    def check(self) -> None:
        """Every column has a name, a kind and categories."""
        if not len(self.names) == len(set(self.names)) == len(self.kinds) == len(self.categories):
            raise ValueError("columns are not described one by one")
        if self.n_rows < 0:
            raise ValueError("a table has no fewer than 0 rows")


class TellQuantiles(Message):
    """Asks a client for private quantiles of its columns of numbers."""

    discloses: ClassVar = Disclosure(*TO_PARTY, "that quantiles are needed", "clear")


class QuantilesTold(Message):
    """Quantiles under differential privacy."""

    discloses: ClassVar = Disclosure(
        *FROM_PARTY,
        "edges of a public grid near the quantiles of each column of numbers, chosen by the exponential mechanism; the "
        "epsilon is charged",
        "clear",
    )
    values: F64x2
    """A row for each column of numbers, ascending."""


class CountOutside(Message):
    """Asks how many values of each column are not within what was declared; answered by a vector of a sum."""

    discloses: ClassVar = Disclosure(*TO_PARTY, "nothing new", "clear")
    order: SumOrder


class CountRows(Message):
    """Asks for rows by class, or the sum of targets; answered by a vector of a sum."""

    discloses: ClassVar = Disclosure(
        *TO_PARTY, "of a regression, a precision that tells the power of two above the number of all rows", "clear"
    )
    order: SumOrder
    fraction_bits: int


class LevelMessage(Message, abstract=True):
    """What has become of the nodes that were open, in their order: all of it or, in a repeated level, nothing."""

    step: int
    """Number of this level; the same again: the open nodes are still those."""
    fate: U8
    """Of each node that was open: 0 a leaf, 1 waits, 2 split."""
    is_open: U8
    """Of each that waits, and each child: whether it is open now."""
    split_feature: I32
    """Of each split; and so on."""
    split_threshold: F64
    split_missing_left: U8
    split_sets: U8
    width: int
    """Candidates at every open node."""


class ProposeThresholds(LevelMessage):
    """Asks a client for a threshold of each candidate, from its own rows in the node."""

    discloses: ClassVar = Disclosure(*TO_PARTY, _FATE + "; the candidate columns of each open node", "clear")
    feature: I32


class ThresholdsProposed(Message):
    """A client's proposals."""

    discloses: ClassVar = Disclosure(
        *FROM_PARTY,
        "for each open node and candidate a number between the smallest and the largest value of this client's rows "
        "there (several of them tell that range), or that it has too few rows there or all of one value",
        "clear",
    )
    threshold: F64
    """NaN: no proposal."""


class CountSplits(LevelMessage):
    """Asks what each candidate sends left; answered by a vector of a sum."""

    discloses: ClassVar = Disclosure(*TO_PARTY, _FATE + "; the candidate questions of some open nodes", "clear")
    first: int
    """Place of the first node that is asked about, among the open ones."""
    feature: I32
    """Of each candidate, node after node; -1: none."""
    threshold: F64
    missing_left: U8
    sets: U8
    fraction_bits: int
    order: SumOrder


class CountLeaves(TreesMessage):
    """Brings a client finished trees, and asks what its rows leave in their leaves; answered by a vector of a sum."""

    discloses: ClassVar = Disclosure(*TO_PARTY, "all questions of the trees", "clear")
    order: SumOrder
