"""Messages of a hidden linear model (``protection="hidden"``): residuals and columns travel under masks of a dealer.

The label holder leads: it runs the protocol. No two of the label holder, the dealer and another party work together:
that is what all of it rests on. Numbers are modulo 2**128, as two words each; under a mask they are uniform.

These messages take the place of those that carry residuals in ``linear``; the others are the same.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from woodlot.protocols.core.message import F64, U64, Disclosure, Message, Role
from woodlot.protocols.linear.linear_messages import DescentStart

_TO_PARTY = (Role.label_holder, Role.party)
_FROM_PARTY = (Role.party, Role.label_holder)
_TO_DEALER = (Role.label_holder, Role.dealer)
_FROM_DEALER = (Role.dealer, Role.label_holder)
_TO_SELF = (Role.label_holder, Role.label_holder)
_STAYS = "nothing: it stays with the label holder, which leads"


class DealtIntroduction(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A fresh X25519 public key of a party or the dealer, signed by its identity where it has one."""

    share: bytes
    certificate: bytes = b""
    signature: bytes = b""


class StartHidden(DescentStart):
    """Tells the label holder the task, and how many columns every other party has."""

    discloses: ClassVar = Disclosure(*_TO_SELF, _STAYS, "clear")
    columns: dict[str, int]


class HiddenStart(Message):
    """What the others need of the label holder for the descent."""

    discloses: ClassVar = Disclosure(*_TO_SELF, _STAYS, "clear")
    classes: tuple[str | int | float | bool, ...]
    n_scores: int
    penalty: float
    curvature: float
    nonce: bytes
    weights: F64 | None = None


class OpenDealt(Message):
    """Asks a party, and the dealer, to introduce themselves."""

    discloses: ClassVar = Disclosure(*_TO_PARTY, "who takes part in which role", "clear")
    parties: tuple[str, ...]
    """Every party with columns but the label holder, and last the dealer."""
    holder: str
    dealer: str


class DealtKey(Message):
    """An introduction."""

    discloses: ClassVar = Disclosure(*_FROM_PARTY, "a public key", "clear")
    introduction: DealtIntroduction


class StartProducts(Message):
    """Starts the dealer: lengths."""

    discloses: ClassVar = Disclosure(
        *_TO_DEALER, "the numbers of rows, of scores, and of columns of each party", "clear"
    )
    introductions: dict[str, DealtIntroduction]
    columns: dict[str, int]
    n_rows: int
    n_scores: int


class ProductsReady(Message):
    """The dealer's secret with the label holder, from which the masks of residuals follow."""

    discloses: ClassVar = Disclosure(
        *_FROM_DEALER, "random numbers that depend on nothing that anybody has", "encrypted"
    )
    secret: bytes


class OpenDescent(Message):
    """Brings a party the public keys, and what stays the same in all steps."""

    discloses: ClassVar = Disclosure(
        *_TO_PARTY,
        "the public keys of the others; the number of scores (of classes); the total weight of the rows, and the "
        "weight of every row, where there are any",
        "clear",
    )
    introductions: dict[str, DealtIntroduction]
    n_scores: int
    penalty: float
    curvature: float
    tol: float
    weights: F64 | None = None


class DescentReady(Message):
    """The party is ready to descend; a number by which the masks of its columns are like no others."""

    discloses: ClassVar = Disclosure(*_FROM_PARTY, "nothing: a keyed hash", "encrypted")
    nonce: bytes


class AskColumns(Message):
    """Asks a party for some of its columns under masks; once in a job for each column."""

    discloses: ClassVar = Disclosure(*_TO_PARTY, "which of its columns are due", "clear")
    first: int
    n_columns: int


class MaskedColumns(Message):
    """Some columns of a party under masks that it shares with the dealer."""

    discloses: ClassVar = Disclosure(
        *_FROM_PARTY, "nothing: uniform numbers, without the masks that the dealer has", "encrypted"
    )
    columns: U64


class TakeMasked(Message):
    """Brings the label holder the dealer's secret and the masked columns of the others."""

    discloses: ClassVar = Disclosure(*_TO_SELF, _STAYS, "encrypted")
    secret: bytes
    columns: dict[str, U64]


class MaskedTaken(Message):
    """The label holder has them."""

    discloses: ClassVar = Disclosure(*_TO_SELF, _STAYS, "clear")


class DealProducts(Message):
    """Asks the dealer for the products of a step: of masks of columns and masks of residuals."""

    discloses: ClassVar = Disclosure(
        *_TO_DEALER, "that another step begins; keyed hashes of what is masked, which tell nothing of it", "encrypted"
    )
    step: int
    nonce: bytes
    of_columns: dict[str, bytes]


class DealtProducts(Message):
    """Products of masks, under a mask that the dealer shares with the party that has the columns."""

    discloses: ClassVar = Disclosure(*_FROM_DEALER, "nothing: uniform numbers", "encrypted")
    products: dict[str, U64]


class MaskSlopes(Message):
    """Brings the label holder what was dealt, and asks for what the others need."""

    discloses: ClassVar = Disclosure(*_TO_SELF, _STAYS, "encrypted")
    products: dict[str, U64]


class SlopeShares(Message):
    """The residuals under their mask, and for each other party its share of the slopes."""

    discloses: ClassVar = Disclosure(*_TO_SELF, _STAYS, "encrypted")
    residuals: U64
    shares: dict[str, U64]


class DescendHidden(Message):
    """Brings a party the step that it takes and its shares of the slopes there, and asks for its next direction."""

    discloses: ClassVar = Disclosure(
        *_TO_PARTY,
        "the slopes of the loss by the party's own weights: one weighted sum of all residuals per column and score, "
        "and no residual; how far everybody goes along the last directions",
        "encrypted",
    )
    step: F64
    nonce: bytes
    residuals: U64
    share: U64
    asked: dict[str, bytes]
    """By party a digest of its other fields: masks of scores are bound to all of them."""


class MaskedScores(Message):
    """A party's next direction, by what it adds to the scores, under masks that cancel out in the sum."""

    discloses: ClassVar = Disclosure(
        *_FROM_PARTY,
        "with those of all other parties, for every row the sum of their scores along one direction, and sums of "
        "lengths and angles of their last directions (of one other party alone: its own, a weighted sum of its "
        "columns); whether its slopes are small enough",
        "encrypted",
    )
    scores: U64
    products: U64
    settled: bool


class DescendOwn(Message):
    """Has the label holder take the step with its own columns, whose slopes it knows by its residuals."""

    discloses: ClassVar = Disclosure(*_TO_SELF, _STAYS, "clear")
    step: F64


class HiddenResiduals(Message):
    """The label holder's answer to Advance: the step; the residuals stay with it."""

    discloses: ClassVar = Disclosure(*_TO_SELF, _STAYS, "clear")
    step: F64
    nonce: bytes
    stuck: bool
