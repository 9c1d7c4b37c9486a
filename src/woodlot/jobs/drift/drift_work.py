"""A party in a comparison of new rows with those of a training: it answers as in a prediction, and tells the user."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from woodlot.exceptions import DataError, PolicyError
from woodlot.jobs import job_messages as msg
from woodlot.jobs.columns.columns_work import ColumnsWork
from woodlot.jobs.drift.drift_messages import AskDrift, DriftTold
from woodlot.jobs.drift.drift_orders import DriftOrder
from woodlot.jobs.drift.drift_references import DriftPage, rounding
from woodlot.jobs.evaluate.report_seal import ReportSeal
from woodlot.jobs.home import TakenOrder
from woodlot.protocols.core.handling import takes

MIN_ROWS = 30
"""The fewest new rows: the shares of some ten bins of fewer would tell where single rows lie."""


class DriftWork(ColumnsWork, refuses=(msg.TakeAnswers,)):
    """What a party does for an order to compare new rows with those of a training."""

    def __init__(self, taken: TakenOrder[DriftOrder]) -> None:
        super().__init__(taken)
        self._seal = ReportSeal(taken.part.key, taken.job, taken.home.identity.name)
        self._model = taken.order.model
        self._compared: NDArray[np.bool_] | None = None

    @takes(AskDrift)
    def _on_AskDrift(self, message: AskDrift) -> DriftTold:
        page = self._page()
        indices = [page.largest, *(page.columns or {}).values()]
        return DriftTold(page=np.frombuffer(self.seal(page, indices), np.uint8))

    def compared(self) -> NDArray[np.bool_]:
        """Which of the rows to predict are told of, by this party's record of former comparisons."""
        if self._compared is None:
            rows, home = self._common_rows(), self.home
            told = rows >= 0
            if told.sum() >= MIN_ROWS:
                least, table = max(MIN_ROWS, home.policy.min_rows), self._taken.loaded.name
                told[told] = home.store.evaluated.take_part(table, self._seen_points(rows[told]), least)
            if told.sum() < MIN_ROWS:
                raise PolicyError(f"{MIN_ROWS} rows are compared at least: of fewer, bins would tell of single rows")
            self._compared = told
        return self._compared

    def _page(self) -> DriftPage:
        rows, store = self._common_rows(), self.home.store
        own = rows[self.compared()]
        old = store.reference(self._model)
        if old is None:
            raise DataError(
                "it has kept nothing of this training to compare new rows with: it has no column of the model, or did "
                "not list 'drift' among its protocols then; train the model again"
            )
        with self._private_table():
            indices = old.indices(self._table(own, list(old.columns)))
        self._spend(rows)  # it tells of rows, also where no part of the model was asked for here
        named = "names" in self.home.policy.catalog
        return DriftPage(old.n_rows, len(own), max(indices.values()), indices if named else None)

    def seal(self, page: msgspec.Struct, indices: Sequence[float]) -> bytes:
        """What is told, for the user alone; its length does not depend on the indices in it."""
        return self._seal.seal(page, rounding(indices))
