"""How models over columns of different parties are fitted: on one table or a federation; at once or not at all."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator

from woodlot.data.labels import check_weights
from woodlot.data.tables import Table
from woodlot.estimators.callbacks import CallbackSupportMixin, begin_fit, end_fit, watched
from woodlot.estimators.input_tables import check_table
from woodlot.estimators.origin import Origin, SeenRows, fitting, refuse_choice
from woodlot.estimators.parameters import check_parameters
from woodlot.evaluation.cards import Carded
from woodlot.evaluation.evaluated import Evaluated
from woodlot.exceptions import DataError
from woodlot.federation import AnyFederation, Federation, Labels, as_federation, party_name
from woodlot.protocols.core.target import Target


class ColumnsModel(CallbackSupportMixin, Carded, Evaluated, BaseEstimator, ABC):  # type: ignore[misc]
    """A model over columns that lie at different parties."""

    _origin: Origin
    _seen: SeenRows = SeenRows()
    parties: int | Mapping[str, Sequence[Any]]

    @watched
    def fit(
        self, X: Any, y: Any = None, sample_weight: Any = None, *, features: Any = None, exclude: Any = None
    ) -> Self:
        """Fit the model. If it fails, the model is what it was before.

        Parameters
        ----------
        X : array, data frame, Arrow table or Federation
            One table, whose columns are dealt to simulated ``parties``; or a federation of parties.
        y : array-like or str
            Labels; on a federation, where they are: ``"party.column"``. In one process also an array with one label per
            row, such as ``fed["party.column"]``, which is then not learnt from.
        sample_weight : array-like or str, optional
            Weight of each row; on a federation, a column of the label holder: ``"party.column"``. A forest's weights
            go to the coordinator and to every party in clear; between organisations their owner must have listed the
            column under ``weights``.
        features : mapping, optional
            On a federation in this process, what to learn from: by party its columns, or None for all of them. Every
            party must be named.
        exclude : mapping, optional
            Likewise, what not to learn from: by party some of its columns.

        Returns
        -------
        self
        """
        check_parameters(self)
        begin_fit(self)
        with fitting(self) as fitted:
            federation = as_federation(X)
            if federation is None:
                refuse_choice(features, exclude)
                fitted._fit_table(X, y, sample_weight)
            else:
                fitted._fit_federation(federation, y, sample_weight, features, exclude)
        end_fit(self)
        return self

    def _fit_table(self, X: Any, y: Any, sample_weight: Any) -> None:
        table, y = check_table(self, X, y)
        target = self._make_target(y, check_weights(sample_weight, y))
        dealing = deal_columns(table, self.parties)
        self._origin = Origin(table.names, dealing, None, self._improved)
        self._seen = SeenRows()
        self._learn(Federation.dealt(table, dealing), Labels(next(iter(dealing)), target=target))

    def _fit_federation(
        self, federation: AnyFederation, y: Any, sample_weight: Any, features: Any, exclude: Any
    ) -> None:
        labels = federation.labels_for_training(y, sample_weight, self._make_target)
        weight = None if labels.weight is None else f"{labels.holder}.{labels.weight}"
        self._origin = Origin((), None, labels.place, self._improved, weight)
        self._learn(federation.choose_columns(features, exclude, labels), labels)
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


# --- one table, dealt to simulated parties ---


def deal_columns(table: Table, parties: int | Mapping[str, Sequence[Any]]) -> dict[str, list[str]]:
    """Columns of each party: an integer deals them in turn, a mapping names them (or their positions).

    Parties that get no column are parties all the same.
    """
    if isinstance(parties, Mapping):
        return _named(table, parties)
    names = [f"party-{k + 1}" for k in range(parties)]
    return {name: list(table.names[k::parties]) for k, name in enumerate(names)}


def _named(table: Table, parties: Mapping[str, Sequence[Any]]) -> dict[str, list[str]]:
    if not parties:
        raise DataError("parties must name at least one party")
    dealt: dict[str, list[str]] = {}
    owner: dict[str, str] = {}
    for party, columns in ((party_name(name, " in parties"), columns) for name, columns in parties.items()):
        if isinstance(columns, str) or not hasattr(columns, "__iter__"):
            raise DataError(f"parties[{party!r}] must be a list of columns, not {columns!r}")
        dealt[party] = [str(c) for c in columns]
        for column in table.absent(dealt[party]):
            raise DataError(
                f"parties[{party!r}] names column {column!r}, which X does not have; "
                f"the columns of X are {list(table.names)}"
            )
        for column in dealt[party]:
            if column in owner:
                raise DataError(
                    f"column {column!r} is dealt to both {owner[column]!r} and {party!r}; deal each column once"
                )
            owner[column] = party
    left_out = [c for c in table.names if c not in owner]
    if left_out:
        raise DataError(f"parties leaves out columns of X: {left_out}; deal them to a party or drop them from X")
    return dealt
