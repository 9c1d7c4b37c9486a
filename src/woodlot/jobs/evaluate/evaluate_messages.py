"""Messages of evaluations: answers go to the label holder, and a report comes back that only the user can read."""

from __future__ import annotations

from typing import ClassVar

from woodlot.protocols.core.message import FROM_PARTY, TO_PARTY, U8, Disclosure, F64x2, Message


class RateAnswers(Message):
    """Brings the model's answers to the label holder, which compares them with its labels."""

    discloses: ClassVar = Disclosure(*TO_PARTY, "the model's answer for each row", "clear")
    outputs: F64x2
    classes: tuple[str | int | float | bool, ...]


class AnswersRated(Message):
    """The label holder's report, sealed to the user who has ordered the evaluation."""

    discloses: ClassVar = Disclosure(
        *FROM_PARTY,
        "nothing but about how long the report is; the user reads metrics, intervals, counts and coarse curves in it",
        "encrypted",
    )
    report: U8
