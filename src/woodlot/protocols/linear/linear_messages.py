"""Messages of federated linear models (F-LR): partial scores and residuals travel, weights and columns do not.

A partial score is a party's share of a row's score: its own columns times its own weights or directions.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from woodlot.protocols.core.message import (
    F64,
    FROM_HOLDER,
    FROM_PARTY,
    TO_HOLDER,
    TO_PARTY,
    U8,
    Disclosure,
    F64x2,
    Message,
)


class OpenLinear(Message):
    """Asks a party what it brings to a linear model."""

    discloses: ClassVar = Disclosure(
        *TO_PARTY, "that a linear model is planned, and whether columns are centred and scaled", "clear"
    )
    centred: bool
    standardised: bool


class LinearSummary(Message):
    """What a party brings: how many rows, and how many columns once categories are columns of their own."""

    discloses: ClassVar = Disclosure(*FROM_PARTY, "number of rows; number of columns and categories together", "clear")
    n_rows: int
    n_columns: int


class DescentStart(Message, abstract=True):
    """What every start of a descent tells: the task and the penalty."""

    task: Literal["classes", "targets"]
    strength: float
    fit_intercept: bool
    balanced: bool
    class_weight: tuple[tuple[str, float], ...]


class StartLinear(DescentStart):
    """Tells the label holder the task, and asks for the first residuals."""

    discloses: ClassVar = Disclosure(
        *TO_HOLDER, "the task, the strength of the penalty, and the weights asked for its classes", "clear"
    )


class LinearStarted(Message):
    """The label holder's first residuals: what is left of the labels when no column is used."""

    discloses: ClassVar = Disclosure(
        *FROM_HOLDER,
        "the names of the classes, for the model; the residual of every row: of classes its sign tells the class, of "
        "targets it is the target up to shift and scale; the penalty, which tells the total weight of the rows; the "
        "weight of every row, where there are any",
        "clear",
    )
    classes: tuple[str | int | float | bool, ...]
    penalty: float
    curvature: float
    residuals: F64x2
    weights: F64 | None = None


class Descend(Message):
    """Brings a party the step that it takes and the residuals there, and asks for its next direction."""

    discloses: ClassVar = Disclosure(
        *TO_PARTY,
        "the residual of every row under the model so far: whoever knows the classes' frequencies reads most labels "
        "from it; how far everybody goes along the last directions; at the first step, the weight of every row, where "
        "there are any",
        "clear",
    )
    step: F64
    residuals: F64x2
    penalty: float
    curvature: float
    weights: F64 | None = None
    """By which the party centres and scales its columns."""


class PartialScores(Message):
    """A party's next direction, by what it adds to the score of every row."""

    discloses: ClassVar = Disclosure(
        *FROM_PARTY,
        "for every row the party's share of the scores along one direction: a weighted sum of its columns, whose "
        "weights stay with it (as many such sums as it has columns tell the space that its columns span); lengths and "
        "angles of its last directions; the largest slope",
        "clear",
    )
    scores: F64x2
    products: F64x2
    steepest: float


class Advance(Message):
    """Brings the label holder the sum of the parties' directions, and asks how far to go and what is left then."""

    discloses: ClassVar = Disclosure(
        *TO_HOLDER,
        "for every row the sum over all parties of their scores along one direction (of two parties: each other's "
        "share); sums of lengths and angles of the directions",
        "clear",
    )
    scores: F64x2
    products: F64x2


class Residuals(Message):
    """The label holder's answer: the step, and the residuals after it."""

    discloses: ClassVar = Disclosure(
        *FROM_HOLDER,
        "the residual of every row after the step, which tells labels as the first residuals do; how far to go",
        "clear",
    )
    step: F64
    residuals: F64x2
    stuck: bool


class FinishLinear(Message):
    """Ends the descent."""

    discloses: ClassVar = Disclosure(*TO_PARTY, "that the model is finished", "clear")


class LinearFinished(Message):
    """The party keeps its weights."""

    discloses: ClassVar = Disclosure(*FROM_PARTY, "nothing but that the weights are kept", "clear")


class LinearFit(Message):
    """The label holder's part of the model that everybody needs to predict."""

    discloses: ClassVar = Disclosure(*FROM_HOLDER, "the intercepts, and the unit of the targets", "clear")
    intercept: F64
    unit: float


class AskScores(Message):
    """Asks for a party's share of the scores of rows to be predicted."""

    discloses: ClassVar = Disclosure(*TO_PARTY, "that the rows are to be predicted", "clear")


class Scores(Message):
    """A party's share of the scores: its columns times its weights."""

    discloses: ClassVar = Disclosure(
        *FROM_PARTY,
        "for every row the party's share of its scores, up to a constant: one weighted sum of its columns per class; "
        "which rows the party does not have",
        "clear",
    )
    scores: F64x2
    known: U8 | None
