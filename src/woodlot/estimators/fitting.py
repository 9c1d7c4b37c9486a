"""How models over columns of different parties are fitted: on one table, or on a federation; at once or not at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator

from woodlot.connected import ConnectedFederation
from woodlot.data.labels import check_weights
from woodlot.estimators.dealing import deal_columns
from woodlot.estimators.input_tables import check_table
from woodlot.estimators.origin import Origin, find_labels, fitting
from woodlot.estimators.parameters import check_parameters
from woodlot.estimators.seen_rows import SeenRows
from woodlot.federation import Federation, Labels
from woodlot.protocols.core.target import Target

AnyFederation = Federation | ConnectedFederation


class ColumnsModel(BaseEstimator):  # type: ignore[misc]
    """A model over columns that lie at different parties."""

    _origin: Origin
    _seen: SeenRows = SeenRows()
    parties: int | Mapping[str, Sequence[Any]]

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Fit the model. If it fails, the model is what it was before.

        Parameters
        ----------
        X : array, data frame, Arrow table or Federation
            One table, whose columns are dealt to simulated ``parties``; or a federation of parties.
        y : array-like or str
            Labels; on a federation, where they are: ``"party.column"``.
        sample_weight : array-like or str, optional
            Weight of each row; on a federation, a column of the label holder: ``"party.column"``. A forest's weights
            go to the coordinator and to every party in clear; between organisations their owner must have listed the
            column under ``weights``.

        Returns
        -------
        self
        """
        check_parameters(self)
        with fitting(self) as fitted:
            if isinstance(X, AnyFederation):
                fitted._fit_federation(X, y, sample_weight)
            else:
                fitted._fit_table(X, y, sample_weight)
        return self

    def _fit_table(self, X: Any, y: Any, sample_weight: Any) -> None:
        table, y = check_table(self, X, y)
        target = self._make_target(y, check_weights(sample_weight, y))
        dealing = deal_columns(table, self.parties)
        self._origin = Origin(table.names, dealing, None, self._improved)
        self._seen = SeenRows()
        self._learn(Federation.dealt(table, dealing), Labels(next(iter(dealing)), target=target))

    def _fit_federation(self, federation: AnyFederation, y: Any, sample_weight: Any) -> None:
        labels = find_labels(federation, y, sample_weight)
        if isinstance(federation, Federation):
            labels = replace(labels, target=self._make_target(*federation.label_values(labels)))
        self._origin = Origin((), None, y, self._improved, sample_weight)
        self._learn(federation, labels)
        self._seen = SeenRows(federation)

    @property
    def _improved(self) -> str:
        """What splits improve; empty where there are none."""
        return str(getattr(self, "criterion", ""))

    # --- what each does in its way ---

    def _make_target(self, y: NDArray[Any], weights: NDArray[np.float64] | None) -> Target:
        raise TypeError("a model learns as a classifier or a regressor")

    def _learn(self, federation: AnyFederation, labels: Labels) -> None:
        raise TypeError("a model over columns is a forest or a linear model")
