"""Messages of explanations between organisations: a user asks the leader for what is sealed to it."""

from __future__ import annotations

from typing import ClassVar

from woodlot.protocols.core.message import FROM_USER, TO_USER, U8, Disclosure, Message, Name


class AskExplanation(Message):
    """Asks for the explanation that a job has computed."""

    discloses: ClassVar = Disclosure(*FROM_USER, "which job the user looks at", "clear")
    job: Name


class SealedExplanation(Message):
    """An explanation, sealed with the key that its user has put into the leader's part of the order."""

    discloses: ClassVar = Disclosure(
        *TO_USER,
        "who cannot open it: about how long it is; the user reads the model's answer for each row, divided among the "
        "parties, and among their columns, names and values as far as each owner lets them be shown",
        "encrypted",
    )
    report: U8
    disclosure: str
    cost: str
