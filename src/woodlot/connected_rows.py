"""A real federation of parties with the same columns and different rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from woodlot.connected import ConnectedFederation, grown_forest
from woodlot.exceptions import DataError
from woodlot.federation import GrownForest, Labels
from woodlot.protocols.horizontal.methods import HorizontalPlan
from woodlot.protocols.messages.base import Progress
from woodlot.runtime.audit import Account

if TYPE_CHECKING:
    from woodlot.protocols.messages.jobs import JobFacts, ModelPart
    from woodlot.service.client import Client
    from woodlot.service.orders import PredictRowsOrder, TrainRowsOrder


class ConnectedRowFederation(ConnectedFederation):
    """Parties with the same columns, reached through a coordinator. Make one with :func:`woodlot.connect`.

    Horizontal forests are fitted on it; they are whole, so that everybody predicts its own rows without the others.

    Attributes
    ----------
    parties : tuple of str
        Who takes part.
    client : Client
        The line to the coordinator.
    """

    layout = "rows"

    def __init__(self, client: Client, tables: Mapping[str, str]) -> None:
        super().__init__(client, tables, "keyed-hash", "inner")

    def align(self) -> NoReturn:
        """Refuse: there is nothing to align."""
        raise DataError("parties with the same columns have no rows in common; there is nothing to align")

    @property
    def n_rows(self) -> NoReturn:
        """Refuse: how many rows there are, parties tell in a job only."""
        raise DataError("how many rows the parties have is known when a forest has grown: model.forest_.coordinator")

    def find_labels(self, y: str, sample_weight: str | None) -> Labels:
        """Refuse to be split by columns."""
        raise DataError(
            "this federation's parties have the same columns and different rows (layout='rows'); fit a horizontal "
            "forest on it, such as a CollaborativeForest, or connect with layout='columns'"
        )

    # --- orders ---

    def _parts(self, parties: Sequence[str], label: str | None) -> dict[str, Any]:
        from woodlot.service.orders import Part

        return self.client.order_fields({p: Part(table=self._tables[p], label=label) for p in parties})

    def train_rows_order(
        self, plan: HorizontalPlan, label: str, settings: Mapping[str, Any], name: str = ""
    ) -> TrainRowsOrder:
        """An order to grow a whole forest; every party has a column of the label's name."""
        from woodlot.service.orders import TrainRowsOrder

        return TrainRowsOrder(**self._parts(self.parties, label), plan=plan, settings=json.dumps(settings), name=name)

    def predict_rows_order(self, model: str, label: str | None = None) -> PredictRowsOrder:
        """An order to have every party predict its rows and keep the answers; with a label it scores them, too."""
        from woodlot.service.orders import PredictRowsOrder

        return PredictRowsOrder(**self._parts(self.parties, label), model=model)

    # --- for the estimators ---

    def train(
        self,
        plan: HorizontalPlan,
        label: str,
        *,
        settings: Mapping[str, Any],
        on_progress: Callable[[Progress], None] | None = None,
    ) -> tuple[GrownForest, Account]:
        """Have a whole forest grown; used by the estimators.

        Parameters
        ----------
        plan : HorizontalPlan
            What to grow, and by which method.
        label : str
            The column of the labels, at every party.
        settings : mapping
            The estimator's, to be kept with the model.
        on_progress : callable, optional
            Told how far the trees are.

        Returns
        -------
        GrownForest, Account
            The forest, whole, and who saw what while it grew.
        """
        return whole_grown_forest(self._have_grown(self.train_rows_order(plan, label, settings), on_progress))

    def predict_rows(self, model: str, label: str | None = None) -> JobFacts:
        """Have every party predict its own rows and keep the answers beside its ids, under ``answers/JOB.parquet``.

        Parameters
        ----------
        model : str
            The model's id at the coordinator, such as ``model.forest_.model``.
        label : str, optional
            A column of every party's, with which it scores the answers.

        Returns
        -------
        JobFacts
            Among others ``rows`` and ``scores`` by party, and for classes ``score``, the accuracy over all rows.
        """
        return self.client.finish(self.client.submit(self.predict_rows_order(model, label)).job)


def whole_grown_forest(part: ModelPart) -> tuple[GrownForest, Account]:
    """A whole model as the estimators have it, and the account of its growth."""
    forest, account = grown_forest(part)
    return replace(forest, parts=forest.shared), account
