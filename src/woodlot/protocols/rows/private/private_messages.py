"""Messages of private forests: all that clients tell are sums with noise, under masks.

Trees are drawn from public ranges and from what was told with noise before. So nothing here that goes to a client, and
nothing in the model, tells more of a row than the noise allows.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from woodlot.protocols.core.message import F64, FROM_PARTY, TO_PARTY, Disclosure, F64x2, Message
from woodlot.protocols.rows.row_messages import TreesMessage
from woodlot.protocols.sums.sum_messages import SumOrder


class CountTotals(Message):
    """Asks for rows by class, or rows and the sum of targets, and histograms; answered by a vector of a sum."""

    discloses: ClassVar = Disclosure(*TO_PARTY, "nothing new", "clear")
    order: SumOrder


class TakeTrees(TreesMessage):
    """Brings a client all trees, without answers, and the score that every row starts from."""

    discloses: ClassVar = Disclosure(
        *TO_PARTY,
        "all questions of the trees, drawn from declared ranges and from histograms with noise; the share of each "
        "class, or the mean target, with noise",
        "clear",
    )
    start: F64

    def check(self) -> None:
        """Scores are numbers."""
        super().check()
        if not np.isfinite(self.start).all():
            raise ValueError("a score is not a number")


class TreesTaken(Message):
    """The client has the trees."""

    discloses: ClassVar = Disclosure(*FROM_PARTY, "nothing but that trees have arrived", "clear")


class SumGradients(Message):
    """Brings what the leaves of the tree before answer, and asks for the gradients in those of the next one."""

    discloses: ClassVar = Disclosure(
        *TO_PARTY, "what the leaves of the tree before answer, which follows from sums with noise", "clear"
    )
    tree: int
    answers: F64x2
    """Of the leaves of the tree before, by score; of no leaves for the first tree."""
    order: SumOrder

    def check(self) -> None:
        """Trees have numbers, and answers are numbers."""
        if self.tree < 0 or not np.isfinite(self.answers).all():
            raise ValueError("a tree has no number, or an answer is not one")
