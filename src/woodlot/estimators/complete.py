"""The complete model, where all parties agree to put their parts together: local prediction and export."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.data.tables import Table, read_table
from woodlot.exceptions import ModelFileError
from woodlot.protocols.vertical.answers import match_columns
from woodlot.protocols.vertical.model import CoordinatorForest, PartyForest
from woodlot.trees.encoding import CategoryCoding, Coding
from woodlot.trees.forest import Splits, join_splits
from woodlot.trees.predict import Predictor, Vote


class CompleteForest:
    """All parts of a forest in one hand.

    Parameters
    ----------
    coordinator : CoordinatorForest
        Structure and leaves.
    parts : mapping of str to PartyForest
        The splits of every party that has any.

    Attributes
    ----------
    feature_names : tuple of str
        Columns of all parties, in the order that ``splits.feature`` counts them.
    """

    def __init__(
        self, coordinator: CoordinatorForest, parts: Mapping[str, PartyForest], feature_names: tuple[str, ...] | None = None
    ) -> None:
        owners = {p for i, p in enumerate(coordinator.parties) if (coordinator.owner == i).any()}
        absent = sorted(owners - set(parts))
        if absent:
            raise ModelFileError(f"the parts of {absent} are missing: a complete model needs every party's part")
        for party, part in parts.items():
            if not np.array_equal(part.structure.right, coordinator.structure.right):
                raise ModelFileError(f"the part of {party} belongs to another forest")
        self.coordinator = coordinator
        all_names = tuple(name for p in coordinator.parties if p in parts for name in parts[p].names)
        self.feature_names = feature_names or all_names
        position = {name: i for i, name in enumerate(self.feature_names)}
        codings: list[Coding | None] = [None] * len(self.feature_names)
        renumbered = []
        for p in coordinator.parties:
            if p not in parts:
                continue
            part = parts[p]
            places = np.array([position[name] for name in part.names], np.int32)
            for name, coding in zip(part.names, part.codings, strict=True):
                codings[position[name]] = coding
            s = part.splits
            feature = places[s.feature] if len(places) else s.feature
            renumbered.append(Splits(s.node, feature, s.threshold, s.missing_left, s.set_start, s.sets))
        self.codings = tuple(c for c in codings if c is not None)
        self.splits = join_splits(renumbered, [0] * len(renumbered))
        self._predictor = Predictor(coordinator.structure, self.splits, coordinator.leaves)

    def outputs(self, X: Any, vote: Vote = "soft", n_jobs: int = 1) -> NDArray[np.float64]:
        """Mean answer of the trees: class probabilities, or one column of targets."""
        table = self._table(X)
        columns = match_columns(self.feature_names, self.codings, table)
        return self._predictor.predict_outputs(columns, table.n_rows, vote, n_jobs)

    def apply(self, X: Any, n_jobs: int = 1) -> NDArray[np.int32]:
        """Leaf of every row in every tree, numbered over the whole forest."""
        table = self._table(X)
        return self._predictor.apply(match_columns(self.feature_names, self.codings, table), table.n_rows, n_jobs)

    def _table(self, X: Any) -> Table:
        table = read_table(X)
        if table.positional and table.names != self.feature_names and len(table.names) == len(self.feature_names):
            return Table(self.feature_names, table.columns, table.n_rows)
        return table

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Class probabilities."""
        return self.outputs(X)

    def predict(self, X: Any) -> NDArray[Any]:
        """Class or target of each row."""
        outputs = self.outputs(X)
        if not self.coordinator.classes:
            return outputs[:, 0]
        classes: NDArray[Any] = np.array(self.coordinator.classes)
        return classes[outputs.argmax(axis=1)]

    def to_sklearn(self) -> Any:
        """A scikit-learn forest that predicts the same. Categorical columns cannot be exported."""
        from woodlot.estimators.export import to_sklearn

        return to_sklearn(self)

    @property
    def categorical_features(self) -> tuple[str, ...]:
        """Columns that are split as categories."""
        pairs = zip(self.feature_names, self.codings, strict=True)
        return tuple(name for name, coding in pairs if isinstance(coding, CategoryCoding))
