"""The complete model, where all parties agree to put their parts together: local prediction and export."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from woodlot.data.tables import Table, read_table
from woodlot.exceptions import DataError, DeviceError, ModelFileError
from woodlot.protocols.core.forest_parts import CoordinatorForest, PartyForest, splitting_parties
from woodlot.protocols.core.soundness import check_splits
from woodlot.protocols.vertical.answers import match_columns
from woodlot.trees.arrays.array_module import choose
from woodlot.trees.arrays.array_predict import ArrayPredictor, PackedForest
from woodlot.trees.encoding import CategoryCoding, Coding
from woodlot.trees.forest import Splits, join_splits
from woodlot.trees.predict import Predictor, Vote

logger = logging.getLogger(__name__)
T = TypeVar("T")


class CompleteForest:
    """A forest with the parts of all parties: it predicts and is exported without them.

    Parameters
    ----------
    coordinator : CoordinatorForest
        Structure and leaves.
    parts : mapping of str to PartyForest
        The splits of every party that has any.
    feature_names : tuple of str, optional
        All columns in the order of the training's table; by default party after party.
    classes : array, optional
        The classes in the type of the labels.
    vote : {"soft", "majority"}
        How the trees' answers become the forest's.
    criterion : str, optional
        What the splits improved, for export.

    Attributes
    ----------
    feature_names : tuple of str
        Columns of all parties, in the order that ``splits.feature`` counts them.
    classes : array
        The classes; empty for regression.

    Examples
    --------
    `combine` makes one of a fitted model; simulated parties share everything:

    >>> import woodlot as wl
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> forest = wl.FederatedForestClassifier(n_estimators=5, random_state=0).fit(X, y).combine()
    >>> forest.predict(X[::50]).tolist()
    [0, 1, 2]
    >>> forest.to_sklearn().predict(X[::50]).tolist()
    [0, 1, 2]
    """

    def __init__(
        self,
        coordinator: CoordinatorForest,
        parts: Mapping[str, PartyForest],
        feature_names: tuple[str, ...] | None = None,
        *,
        classes: NDArray[Any] | None = None,
        vote: Vote = "soft",
        criterion: str | None = None,
    ) -> None:
        absent = [party for party in splitting_parties(coordinator) if party not in parts]
        if absent:
            raise ModelFileError(f"the parts of {absent} are missing: a complete model needs every party's part")
        self.coordinator = coordinator
        self.classes: NDArray[Any] = np.array(coordinator.classes) if classes is None else classes
        self.vote = vote
        self.criterion = criterion or ("gini" if coordinator.classes else "squared_error")
        held = [(number, parts[p]) for number, p in enumerate(coordinator.parties) if p in parts]
        self.feature_names = feature_names or tuple(name for _, part in held for name in part.names)
        self.codings, self.splits = _join(coordinator, held, self.feature_names)
        self._predictor = Predictor(coordinator.structure, self.splits, coordinator.leaves)

    def __repr__(self) -> str:
        structure = self.coordinator.structure
        return (
            f"CompleteForest of {structure.n_trees:,} trees, {structure.n_nodes:,} nodes, "
            f"on {len(self.feature_names):,} columns of {len(self.coordinator.parties)} parties"
        )

    def outputs(self, X: Any, vote: Vote | None = None, n_jobs: int = 1, device: str = "cpu") -> NDArray[np.float64]:
        """Mean answer of the trees: class probabilities, or one column of targets."""
        table, vote = self.read(X), vote or self.vote
        columns, n = self.matched(table), table.n_rows
        return self._computed(
            device,
            n,
            lambda card: card.predict_outputs(columns, n, majority=vote == "majority"),
            lambda: self._predictor.predict_outputs(columns, n, vote, n_jobs),
        )

    def apply(self, X: Any, n_jobs: int = 1, device: str = "cpu") -> NDArray[np.int32]:
        """Leaf of every row in every tree, numbered over the whole forest."""
        table = self.read(X)
        columns, n = self.matched(table), table.n_rows
        return self._computed(
            device, n, lambda card: card.apply(columns, n), lambda: self._predictor.apply(columns, n, n_jobs)
        )

    def _computed(self, device: str, n_rows: int, on_card: Callable[[ArrayPredictor], T], on_cpu: Callable[[], T]) -> T:
        """What a card finds if there is one to use, else the CPU: the same to the bit."""
        arrays = choose(device, n_rows, logger.warning)
        if arrays is None:
            return on_cpu()
        try:
            return on_card(ArrayPredictor(arrays, self._packed))
        except DeviceError as error:
            if device != "auto":
                raise
            logger.warning("device=auto: predicting on the CPU. %s", error)
            return on_cpu()

    @cached_property
    def _packed(self) -> PackedForest:
        return PackedForest.of(self.coordinator.structure, self.splits, self.coordinator.leaves)

    def read(self, X: Any) -> Table:
        """A table with the forest's columns; a plain array has them in their order."""
        table = read_table(X)
        if not table.positional:
            return table
        if len(table.names) != len(self.feature_names):
            raise DataError(
                f"X has {len(table.names)} features, but this forest is expecting {len(self.feature_names)} as input: "
                f"{list(self.feature_names)}"
            )
        return Table(self.feature_names, table.columns, table.n_rows)

    def matched(self, table: Table) -> list[NDArray[Any]]:
        """The table's columns as the forest's questions take them; empty where none asks about a column."""
        known = [i for i, coding in enumerate(self.codings) if coding is not None]
        names = [self.feature_names[i] for i in known]
        found = match_columns(names, [c for c in self.codings if c is not None], table)
        columns: list[NDArray[Any]] = [np.empty(0, np.float32)] * len(self.codings)
        for i, column in zip(known, found, strict=True):
            columns[i] = column
        return columns

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Class probabilities."""
        return self.outputs(X)

    def predict(self, X: Any) -> NDArray[Any]:
        """Class or target of each row."""
        outputs = self.outputs(X)
        return self.classes[outputs.argmax(axis=1)] if len(self.classes) else outputs[:, 0]

    def to_sklearn(self) -> Any:
        """A scikit-learn forest that predicts the same. Categorical columns cannot be exported."""
        from woodlot.estimators.export import to_sklearn

        return to_sklearn(self)

    def to_onnx(self, path: str | os.PathLike[str] | None = None) -> Any:
        """The model in ONNX, for any runtime that knows ``ai.onnx.ml``; needs the extra ``export``.

        Parameters
        ----------
        path : path, optional
            Where to write it.

        Returns
        -------
        onnx.ModelProto
            Input ``X``: float32, the columns in the order of ``feature_names``, NaN where missing. Outputs ``label``
            and ``probabilities``, or ``target``. Every row ends in the same leaves; answers are float32.

        Raises
        ------
        DataError
            If a column is split as categories.
        """
        from woodlot.estimators.interchange import to_onnx

        return to_onnx(self, path)

    def to_treelite(self) -> Any:
        """The model for treelite, to compile or to serve; needs the extra ``export``.

        Returns
        -------
        treelite.Model
            Its rows are float64 or float32, the columns in the order of ``feature_names``, NaN where missing. A column
            of categories has their positions in ``categories[name]``, NaN for others. Every row ends in the same
            leaves.
        """
        from woodlot.estimators.interchange import to_treelite

        return to_treelite(self)

    @property
    def categories(self) -> dict[str, tuple[str, ...]]:
        """The categories of the columns that are split as such."""
        pairs = zip(self.feature_names, self.codings, strict=True)
        return {name: coding.categories for name, coding in pairs if isinstance(coding, CategoryCoding)}

    @property
    def categorical_features(self) -> tuple[str, ...]:
        """Columns that are split as categories."""
        return tuple(self.categories)


def same_forest(one: CompleteForest, other: CompleteForest) -> bool:
    """Whether shape, questions and answers of all trees are equal, array by array and bit by bit."""
    mine, yours = one.coordinator, other.coordinator
    pairs: list[tuple[Any, Any]] = [
        (one.splits, other.splits),
        (mine.structure, yours.structure),
        (mine.leaves, yours.leaves),
    ]
    return one.feature_names == other.feature_names and all(
        _same_bits(getattr(a, f.name), getattr(b, f.name)) for a, b in pairs for f in fields(a)
    )


def _same_bits(one: Any, other: Any) -> bool:
    if not isinstance(one, np.ndarray):
        return bool(one == other)
    return one.dtype == other.dtype and one.shape == other.shape and _bytes_of(one) == _bytes_of(other)


def _bytes_of(array: NDArray[Any]) -> bytes:
    return np.ascontiguousarray(array).tobytes()


def _join(
    coordinator: CoordinatorForest, held: list[tuple[int, PartyForest]], feature_names: tuple[str, ...]
) -> tuple[tuple[Coding | None, ...], Splits]:
    """What is known of each column (None: its party splits nothing and is not here), and all questions."""
    position = {name: i for i, name in enumerate(feature_names)}
    codings: list[Coding | None] = [None] * len(feature_names)
    all_splits = [_NO_SPLITS]
    for number, part in held:
        s = part.splits
        try:
            check_splits(s, np.flatnonzero(coordinator.owner == number), part.codings)
        except ValueError as error:
            raise ModelFileError(
                f"the part of {coordinator.parties[number]} belongs to another forest: {error}"
            ) from None
        places = np.array([position[name] for name in part.names], np.int32)
        for place, coding in zip(places, part.codings, strict=True):
            codings[place] = coding
        feature = places[s.feature] if len(places) else s.feature
        all_splits.append(Splits(s.node, feature, s.threshold, s.missing_left, s.set_start, s.sets))
    return tuple(codings), join_splits(all_splits, [0] * len(all_splits))


_NO_SPLITS = Splits(
    node=np.empty(0, np.int32),
    feature=np.empty(0, np.int32),
    threshold=np.empty(0),
    missing_left=np.empty(0, np.bool_),
    set_start=np.zeros(1, np.int64),
    sets=np.empty(0, np.uint8),
)
