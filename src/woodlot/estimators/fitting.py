"""How models over columns of different parties are fitted: on one table, or on a federation; at once or not at all."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator

from woodlot.data.labels import check_weights
from woodlot.estimators.dealing import deal_columns
from woodlot.estimators.input_tables import check_table
from woodlot.estimators.origin import Origin, check_names, fitting
from woodlot.estimators.parameters import check_parameters
from woodlot.estimators.seen_rows import SeenRows
from woodlot.federation import AnyFederation, Federation, Labels, as_federation
from woodlot.protocols.core.target import Target


class ColumnsModel(BaseEstimator, ABC):  # type: ignore[misc]
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
            federation = as_federation(X)
            if federation is None:
                fitted._fit_table(X, y, sample_weight)
            else:
                fitted._fit_federation(federation, y, sample_weight)
        return self

    def _fit_table(self, X: Any, y: Any, sample_weight: Any) -> None:
        table, y = check_table(self, X, y)
        target = self._make_target(y, check_weights(sample_weight, y))
        dealing = deal_columns(table, self.parties)
        self._origin = Origin(table.names, dealing, None, self._improved)
        self._seen = SeenRows()
        self._learn(Federation.dealt(table, dealing), Labels(next(iter(dealing)), target=target))

    def _fit_federation(self, federation: AnyFederation, y: Any, sample_weight: Any) -> None:
        check_names(y, sample_weight)
        labels = federation.labels_for_training(y, sample_weight, self._make_target)
        self._origin = Origin((), None, y, self._improved, sample_weight)
        self._learn(federation, labels)
        self._seen = SeenRows(federation)

    @property
    def _improved(self) -> str:
        """What splits improve; empty where there are none."""
        return str(getattr(self, "criterion", ""))

    # --- what each does in its way ---

    @abstractmethod
    def _make_target(self, y: NDArray[Any], weights: NDArray[np.float64] | None) -> Target:
        """Check labels and weights: classes of a classifier, numbers of a regressor."""

    @abstractmethod
    def _learn(self, federation: AnyFederation, labels: Labels) -> None:
        """Fit the forest or the linear model, and set the fitted attributes."""
