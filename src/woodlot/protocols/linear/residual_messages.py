"""Messages of a linear model whose residuals never leave the label holder in clear (``residuals="encrypted"``).

They take the place of those that carry residuals in ``linear``; the others are the same.
"""

from __future__ import annotations

from typing import ClassVar

from woodlot.protocols.core.message import F64, FROM_HOLDER, FROM_PARTY, TO_HOLDER, TO_PARTY, U8, Disclosure, Message
from woodlot.protocols.linear.linear_messages import DescentStart


class StartEncrypted(DescentStart):
    """Tells the label holder the task, and asks for the first residuals under encryption."""

    discloses: ClassVar = Disclosure(
        *TO_HOLDER,
        "the task, the strength of the penalty, the weights asked for its classes, the length of the key; the number "
        "of columns of every other party that has some",
        "clear",
    )
    key_bits: int
    columns: dict[str, int]


class EncryptedStart(Message):
    """The label holder's key and first residuals; both are empty where nobody else has columns."""

    discloses: ClassVar = Disclosure(
        *FROM_HOLDER,
        "nothing of any row's label; the names of the classes, for the model; the penalty, which tells the total "
        "weight of the rows; in clear the weight of every row, where there are any (class weights are not among them)",
        "encrypted",
    )
    classes: tuple[str | int | float | bool, ...]
    n_scores: int
    penalty: float
    curvature: float
    modulus: U8
    noise: U8
    ciphertexts: U8
    weights: F64 | None = None


class OpenDescent(Message):
    """Brings a party what stays the same in all steps: the key and the penalty."""

    discloses: ClassVar = Disclosure(
        *TO_PARTY,
        "the label holder's public key; the number of scores (of classes); the total weight of the rows, and the "
        "weight of every row, where there are any",
        "clear",
    )
    n_scores: int
    penalty: float
    curvature: float
    modulus: U8
    noise: U8
    weights: F64 | None = None


class DescentReady(Message):
    """The party is ready to descend."""

    discloses: ClassVar = Disclosure(*FROM_PARTY, "nothing but that the party is ready", "clear")


class AskSlopes(Message):
    """Brings a party the encrypted residuals, and asks for the slopes by its own weights."""

    discloses: ClassVar = Disclosure(*TO_PARTY, "nothing of any row's residual", "encrypted")
    ciphertexts: U8


class MaskedSlopes(Message):
    """The slopes by a party's weights under the label holder's key, and beneath it under a mask of the party's own."""

    discloses: ClassVar = Disclosure(*FROM_PARTY, "nothing: not even the owner of the key sees the slopes", "encrypted")
    ciphertexts: U8


class OpenSlopes(Message):
    """Brings all parties' masked slopes to the label holder."""

    discloses: ClassVar = Disclosure(
        *TO_HOLDER, "uniform numbers: slopes under masks that only parties know", "encoded"
    )
    slopes: dict[str, U8]


class OpenedSlopes(Message):
    """The masked slopes without their encryption."""

    discloses: ClassVar = Disclosure(
        *FROM_HOLDER, "uniform numbers: slopes under masks that only parties know", "encoded"
    )
    slopes: dict[str, U8]


class DescendMasked(Message):
    """Brings a party the step that it takes and the masked slopes there, and asks for its next direction.

    The label holder gets no slopes: it has the residuals.
    """

    discloses: ClassVar = Disclosure(
        *TO_PARTY,
        "the slopes of the loss by the party's own weights: one weighted sum of all residuals per column and score; "
        "how far everybody goes along the last directions",
        "encoded",
    )
    step: F64
    slopes: U8


class EncryptedResiduals(Message):
    """The label holder's answer to Advance: the step, and the residuals after it under encryption."""

    discloses: ClassVar = Disclosure(*FROM_HOLDER, "nothing of any row's residual; how far to go", "encrypted")
    step: F64
    ciphertexts: U8
    stuck: bool
