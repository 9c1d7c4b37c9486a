"""Messages of a comparison of new rows with those of a training; every page is sealed to the user."""

from __future__ import annotations

from typing import ClassVar

from woodlot.protocols.core.message import FROM_PARTY, TO_PARTY, U8, Disclosure, Message


class AskDrift(Message):
    """Asks how far the party's new rows are from those of the training."""

    discloses: ClassVar = Disclosure(*TO_PARTY, "nothing but that the user asks", "clear")


class DriftTold(Message):
    """How far they are, for the user."""

    discloses: ClassVar = Disclosure(
        *FROM_PARTY,
        "nothing but about how many columns the model has of the party; the user reads the population stability of "
        "each, by name where the party's catalogue tells names, else the largest one, and how many rows were compared",
        "encrypted",
    )
    page: U8
