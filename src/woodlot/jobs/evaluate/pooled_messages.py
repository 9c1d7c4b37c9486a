"""Messages of evaluations over rows: every client rates the model on its own rows, and sums reach the user."""

from __future__ import annotations

from typing import ClassVar

from woodlot.protocols.core.message import FROM_PARTY, I64, TO_PARTY, U8, Disclosure, Message
from woodlot.protocols.sums.sum_messages import SumOrder


class AnswerOwnRows(Message):
    """Brings a whole forest to a client, which answers its own rows and compares the answers with its labels."""

    discloses: ClassVar = Disclosure(
        *TO_PARTY,
        "the whole forest, as the files in which it is kept: columns, categories, thresholds, answers of the leaves",
        "clear",
    )
    model: str
    files: dict[str, U8]


class OwnRowsAnswered(Message):
    """The client has answered its rows; its own report, where its policy lets it tell one, is sealed to the user."""

    discloses: ClassVar = Disclosure(
        *FROM_PARTY,
        "to multiples of what the client rounds counts; whether it tells figures of its own, which only the user can "
        "read: metrics, intervals, counts and coarse curves",
        "encrypted",
    )
    round_counts: int
    report: U8 | None

    def check(self) -> None:
        """Counts are rounded to multiples of 1 or more."""
        if self.round_counts < 1:
            raise ValueError("counts are rounded to multiples of 1 or more")


class CountScores(Message):
    """Asks how many rows have which probability of a class, in narrow bins, whatever their labels are."""

    discloses: ClassVar = Disclosure(
        *TO_PARTY,
        "nothing; the coordinator reads the sum of the answers: how many rows of all clients have which probability",
        "clear",
    )
    order: SumOrder


class RateOwnRows(Message):
    """Asks for the client's part of the report, in bins of which each has many rows of all clients together.

    ``cuts`` has, for each class that is ranked, the narrow bins at which a bin begins; none for predicted numbers.
    """

    discloses: ClassVar = Disclosure(
        *TO_PARTY, "which probabilities are in one bin, so about how many rows of all clients have which", "clear"
    )
    order: SumOrder
    cuts: tuple[I64, ...]
