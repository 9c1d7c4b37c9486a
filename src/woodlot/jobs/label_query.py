"""What a party with labels checks before it tells how good answers are: reports and scores are queries on labels."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray

from woodlot.exceptions import DataError
from woodlot.jobs.columns.row_selection import seen_points
from woodlot.jobs.home import TakenOrder
from woodlot.jobs.orders import AlignedOrder, AnsweredOrder, Order

Rows = NDArray[np.int64]
Points = NDArray[np.uint64]


def label_query(taken: TakenOrder[AlignedOrder], rows: Rows | None) -> LabelQuery | None:
    """What this party is asked about its labels; None where it is not.

    What can be refused is refused here, before any party has been asked for anything.

    Parameters
    ----------
    taken : TakenOrder
        What was ordered.
    rows : array of int or None
        Own row of each row of the job, where they are known already.

    """
    order = taken.order
    if not isinstance(order, AnsweredOrder) or order.score_at != taken.home.identity.name:
        return None
    query = LabelQuery(taken)
    query.check_day()
    if rows is not None:
        query.check_rows(rows)
    return query


class LabelQuery:
    """One evaluation, or one score of a prediction, at a party that has the labels.

    Parameters
    ----------
    taken : TakenOrder
        What was ordered; its part names the label.

    """

    def __init__(self, taken: TakenOrder[Order]) -> None:
        if taken.part.label is None:
            raise DataError("the order names no column of labels")
        self._taken = taken
        self._label = f"{taken.loaded.name}.{taken.part.label}"
        self._hashed: tuple[Rows, Points] | None = None

    def points(self, rows: Rows) -> Points:
        """Hashes of the rows of the job under a key of this party, by which it knows them again."""
        if self._hashed is None or not np.array_equal(self._hashed[0], rows):
            self._hashed = rows, seen_points(self._taken, rows)
        return self._hashed[1]

    def check_day(self) -> None:
        """Refuse where the label was evaluated with as often as the day allows."""
        self._taken.home.store.check_evaluation(self._taken.job, self._label, datetime.now(UTC))

    def check_rows(self, rows: Rows) -> NDArray[np.bool_]:
        """Which of the rows are told of; too few are refused, and rows without a label."""
        home = self._taken.home
        home.policy.check_evaluation(len(rows))
        if (rows < 0).any():
            raise DataError(f"{int((rows < 0).sum())} rows have no label here; use join='inner'")
        told = home.store.evaluated.check(self._label, self.points(rows), home.policy.fewest_told)
        home.policy.check_evaluation(int(told.sum()))
        return told

    def pay(self, rows: Rows) -> None:
        """Record the query in all accounts, or refuse it; last before something is told. A job pays once.

        ``rows`` are those that are told of.
        """
        taken, store, now = self._taken, self._taken.home.store, datetime.now(UTC)
        store.spend_evaluation(taken.job, self._label, taken.user, now)
        # what is told of labels counts also where no part of the model was asked for here
        store.spend_predictions(taken.job, taken.user, len(rows), now)
        store.evaluated.take(self._label, self.points(rows), taken.home.policy.fewest_told)  # last: it is for good

    def seed(self, rows: Rows, asked: int) -> int:
        """A seed for bootstrap samples of rows that only this party can know; the same when asked again.

        Samples of a known seed weigh known rows, so that intervals would be sums over rows that the user chooses.
        """
        secret = self._taken.home.store.secret_for("bootstrap", str(asked))
        digest = hashlib.blake2b(self.points(rows).tobytes(), key=secret, digest_size=16).digest()
        return int.from_bytes(digest, "big")
