"""The method `explain` of forests: Shapley values on a federation, or on one table with the whole model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.data.tables import Table
from woodlot.estimators.complete import CompleteForest
from woodlot.evaluation.explanations import Explanation, make_explanation
from woodlot.exceptions import DataError
from woodlot.federation import AnyFederation
from woodlot.protocols.vertical.answers import values_in_words
from woodlot.protocols.vertical.explain import ExplainedRows
from woodlot.trees.predict import Vote
from woodlot.trees.ranks import n_blocks
from woodlot.trees.shapley import ForestShapley, ShapleyValues, SideTeller
from woodlot.trees.wire import row_words

_ROWS_AT_ONCE = 1 << 22
"""Words of sides that are held at a time."""


def explanation_of(found: ExplainedRows, classes: NDArray[Any] | None, federation: AnyFederation) -> Explanation:
    """What parties of a federation have explained."""
    named = [(party, party if column is None else f"{party}.{column}") for party, column in found.features]
    return make_explanation(
        named,
        found.values,
        found.base,
        found.outputs,
        classes=classes,
        uncertain=found.uncertain,
        texts=found.texts,
        ids=federation.ids,
    )


class CompleteShapley:
    """A complete forest, prepared to explain tables.

    Parameters
    ----------
    complete : CompleteForest
        The forest.
    vote : {"soft", "majority"}
        How the trees' answers become the forest's.
    """

    def __init__(self, complete: CompleteForest, vote: Vote) -> None:
        self._complete = complete
        structure, splits = complete.coordinator.structure, complete.splits
        feature = np.full(structure.n_nodes, -1, np.int32)
        feature[splits.node] = splits.feature
        owner = np.where(feature >= 0, 0, -1).astype(np.int16)
        places = np.arange(len(complete.feature_names))
        self._shapley = ForestShapley(structure, complete.coordinator.leaves, feature, owner, places, 1, vote)
        self._sides = SideTeller(splits)

    def explain(
        self, X: Any, n_jobs: int, owners: Mapping[str, str] | None = None, *, by_owner: bool = False
    ) -> Explanation:
        """Divide the answers for the rows of a table among its columns.

        Parameters
        ----------
        X : table
            The rows.
        n_jobs : int
            Threads.
        owners : mapping of str to str, optional
            The party of each column.
        by_owner : bool
            Whether names have the party before them.
        """
        complete, table = self._complete, self._complete.read(X)
        if table.n_rows == 0:
            raise DataError("there are no rows to explain; give at least one")
        columns = complete.matched(table)
        step = 64 * max(1, _ROWS_AT_ONCE // complete.coordinator.structure.n_nodes)
        parts = [
            self._some(columns, slice(first, min(first + step, table.n_rows)), table, n_jobs)
            for first in range(0, table.n_rows, step)
        ]
        names = complete.feature_names
        owner = [("" if owners is None else owners[name]) for name in names]
        return make_explanation(
            [(o, f"{o}.{name}" if by_owner else name) for o, name in zip(owner, names, strict=True)],
            np.concatenate([part.values for part in parts]),
            self._shapley.base,
            np.concatenate([part.outputs for part in parts]),
            classes=complete.classes if len(complete.classes) else None,
            uncertain=np.concatenate([part.uncertain for part in parts]),
            texts={
                k: tuple(values_in_words(columns[k], coding))
                for k, coding in enumerate(complete.codings)
                if coding is not None
            },
        )

    def _some(self, columns: list[NDArray[Any]], rows: slice, table: Table, n_jobs: int) -> ShapleyValues:
        n = rows.stop - rows.start
        sides = np.zeros((n_blocks(n), self._complete.coordinator.structure.n_nodes), np.uint64)
        sides[:, self._complete.splits.node] = self._sides.answer(columns, None, table.n_rows, rows)
        return self._shapley.explain(sides, row_words(n, None)[None, :], n, n_jobs)
