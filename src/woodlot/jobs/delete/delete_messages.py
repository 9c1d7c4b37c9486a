"""Messages by which the parties of a model erase their parts of it."""

from __future__ import annotations

from typing import ClassVar

from woodlot.protocols.core.message import FROM_PARTY, TO_PARTY, Disclosure, Message


class EraseModel(Message):
    """Asks a party to erase its part of a model for good; the order that the user has signed names the model."""

    brief_reply: ClassVar[bool] = True
    discloses: ClassVar = Disclosure(*TO_PARTY, "which model its user has deleted", "clear")
    model: str


class ModelErased(Message):
    """The party has erased its part, and which rows the model was trained on."""

    discloses: ClassVar = Disclosure(*FROM_PARTY, "nothing but that it is erased", "clear")
