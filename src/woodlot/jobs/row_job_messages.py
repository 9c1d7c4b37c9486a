"""Messages of jobs with parties that have the same columns, besides those of the horizontal forests themselves."""

from __future__ import annotations

from typing import ClassVar

from woodlot.protocols.core.message import I64, U8, Disclosure, Message, Role


class PredictRows(Message):
    """Brings a whole forest to a party, which predicts its own rows and keeps the answers."""

    discloses: ClassVar = Disclosure(
        Role.coordinator,
        Role.party,
        "the whole forest, as the files in which it is kept: columns, categories, thresholds, answers of the leaves",
        "clear",
    )
    model: str
    files: dict[str, U8]


class RowsPredicted(Message):
    """The party has predicted its rows and kept the answers."""

    discloses: ClassVar = Disclosure(
        Role.party,
        Role.coordinator,
        "the number of its rows; accuracy or R2 of the answers, where it was asked for. Under differential privacy "
        "neither: how many answers are right and how many wrong, with noise that is charged, where it was asked for",
        "clear",
    )
    n_rows: int | None
    """None where it is not told."""
    score: float | None
    counts: I64 | None
    """Right answers and wrong ones, with noise."""

    def check(self) -> None:
        """Of right and wrong there are two counts."""
        if self.counts is not None and self.counts.shape != (2,):
            raise ValueError("a score with noise has two counts")
