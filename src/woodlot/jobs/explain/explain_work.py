"""A party in an explanation: it tells sides at all of its nodes, as far as its policy goes; the leader also seals."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import numpy as np
from numpy.typing import NDArray

from woodlot.data.ids import canonical_ids
from woodlot.exceptions import DataError
from woodlot.jobs import job_messages as msg
from woodlot.jobs.columns.columns_work import ColumnsWork
from woodlot.jobs.evaluate.report_seal import ReportSeal
from woodlot.jobs.explain.explain_orders import HIDDEN, MAX_NAMED, ExplainOrder
from woodlot.jobs.explain.told_explanations import ToldExplanation
from woodlot.jobs.home import TakenOrder, private_errors
from woodlot.jobs.ordered import OrderedExplanation, PlanWatch
from woodlot.jobs.orders import PredictOrder


class ExplainWork(ColumnsWork, refuses=(msg.TakeAnswers, msg.KeepAlignment)):
    """What a party does for an order to explain.

    What can be refused is refused when it is made, before any party has been asked for anything.
    """

    def __init__(self, taken: TakenOrder[ExplainOrder]) -> None:
        policy = taken.home.policy
        policy.check_explains()
        policy.check_wire_form("decisions")
        if taken.home.store.was_grown_hidden(taken.order.model):
            raise DataError(HIDDEN)
        super().__init__(taken)
        self._explains = policy.explains
        self._seal: ReportSeal | None = None
        if taken.order.leader == taken.home.identity.name:
            self._seal = ReportSeal(taken.part.key, taken.job, taken.home.identity.name)
        if taken.order.named:
            policy.check_named_rows()
            self._rows = named_rows(taken)

    def _watch_for(self, order: PredictOrder) -> PlanWatch:
        return OrderedExplanation()

    def _spend(self, rows: NDArray[np.int64]) -> None:
        # rows that the user names cost something also where they are not here: else it finds out for nothing who is
        n_rows = len(rows) if self._order.names_rows else int((rows >= 0).sum())
        self.home.store.spend_explanation(self.job, self._taken.user, n_rows, datetime.now(UTC))

    def seal(self, told: ToldExplanation) -> bytes:
        """At the leader: what was computed, for the user alone."""
        if self._seal is None:
            raise DataError("an explanation is sealed by the party that leads it")
        return self._seal.seal(told, told.rounding)


def named_rows(taken: TakenOrder[ExplainOrder]) -> NDArray[np.int64]:
    """Own row of each id that the user names, -1 where this party has none."""
    ids = taken.part.ids
    if isinstance(ids, msgspec.UnsetType) or not 1 <= len(ids) <= MAX_NAMED or len(set(ids)) < len(ids):
        raise DataError(f"an explanation names the ids of 1 to {MAX_NAMED:,} rows, none twice")
    with private_errors(taken.job, "its ids cannot be used"):
        own = canonical_ids(taken.loaded.ids)
    kind = b"i" if own.kind == "whole numbers" else b"t"
    if len(own) and not all(value.startswith(kind) for value in ids):
        raise DataError(f"its ids are {own.kind}; give ids of that kind")
    row = {value: number for number, value in enumerate(own.values)}
    return np.array([row.get(value, -1) for value in ids], np.int64)
