"""Online scoring: the outcome of a forest for a few rows that a user names by their ids, again and again.

An order opens the scoring at every party once. Then each request has the ids sealed to each party by the user, under
keys that came with the order: the coordinator passes them on and cannot read them, nor make any up. Requests that wait
at the same time go to the parties together.
"""

from __future__ import annotations

from typing import ClassVar

from woodlot.protocols.core.message import (
    FROM_PARTY,
    FROM_USER,
    TO_PARTY,
    TO_USER,
    U8,
    Disclosure,
    F64x2,
    Message,
    Name,
)

MAX_ROWS = 1_000
"""Rows in one request."""
MAX_BATCH_ROWS = 4_096
"""Rows that are asked of a party at once."""


class OpenScoring(Message):
    """Asks a party to get its part of a forest ready, for rows that the user names later."""

    discloses: ClassVar = Disclosure(*TO_PARTY, "which forest is to be used", "clear")
    model: str
    forest: str


class ScoringReady(Message):
    """The party has its part and its table ready."""

    discloses: ClassVar = Disclosure(*FROM_PARTY, "nothing but that it is ready", "clear")


class ScoreBatch(Message):
    """Asks a party for its decisions on the rows of some requests, which are answered together.

    The answer is `Decisions` for all rows, request after request. It follows from the table and the model alone, so
    neither is kept to be repeated.
    """

    discloses: ClassVar = Disclosure(
        *TO_PARTY, "how many rows are to be predicted; sealed by the user to this party alone: their ids", "encrypted"
    )
    repeatable: ClassVar[bool] = True
    batch: int
    numbers: tuple[int, ...]
    n_rows: tuple[int, ...]
    sealed: tuple[bytes, ...]

    def check(self) -> None:
        """One number, size and seal per request; and no more rows than a batch may have."""
        if not len(self.numbers) == len(self.n_rows) == len(self.sealed) > 0 or self.batch < 1:
            raise ValueError("a batch has a number, and a number, a size and a seal for each of its requests")
        if not all(1 <= n <= MAX_ROWS for n in self.n_rows) or sum(self.n_rows) > MAX_BATCH_ROWS:
            raise ValueError(f"a request has up to {MAX_ROWS} rows, and a batch up to {MAX_BATCH_ROWS}")


class AskScore(Message):
    """A user's request within its scoring."""

    discloses: ClassVar = Disclosure(
        *FROM_USER, "how many rows are to be predicted; their ids are sealed to the parties", "encrypted"
    )
    job: Name
    number: int
    n_rows: int
    sealed: dict[Name, bytes]

    def check(self) -> None:
        """A request has rows, and not too many."""
        if not 1 <= self.n_rows <= MAX_ROWS or not 1 <= self.number < 1 << 63:
            raise ValueError(f"a request has a positive number, and 1 to {MAX_ROWS} rows")


class Score(Message):
    """The forest's answers to one request."""

    discloses: ClassVar = Disclosure(
        *TO_USER, "the forest's answer for each row, and which rows some party does not have", "clear"
    )
    outputs: F64x2
    uncertain: U8


class CloseScoring(Message):
    """Ends a scoring."""

    discloses: ClassVar = Disclosure(*FROM_USER, "which scoring is to end", "clear")
    job: Name
