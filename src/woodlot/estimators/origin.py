"""Where a model's columns, labels and rows came from, and how it becomes the fitted one: at once or not at all."""

from __future__ import annotations

import copy
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from woodlot.exceptions import DataError
from woodlot.federation import AnyFederation, as_federation
from woodlot.federation.interface import KnownRows

Scalar = TypeVar("Scalar", bound=np.generic)
Model = TypeVar("Model")


@dataclass(frozen=True)
class Origin:
    """What a fitted model must know of the data it was fitted on.

    Attributes
    ----------
    names : tuple of str
        Columns of the table; empty on a federation.
    dealing : dict or None
        Which simulated party got which of them; None on a federation.
    label : str or None
        Party and column of the labels, on a federation.
    criterion : str
        What its splits improved.
    weight : str or None
        Party and column of the rows' weights, on a federation.
    """

    names: tuple[str, ...]
    dealing: dict[str, list[str]] | None
    label: str | None
    criterion: str
    weight: str | None = None

    def reorder(self, by_feature: NDArray[Scalar]) -> NDArray[Scalar]:
        """Rows in the order of the table's columns, from one per feature of party after party."""
        if self.dealing is None:
            return by_feature
        dealt = [name for columns in self.dealing.values() for name in columns]
        position = {name: i for i, name in enumerate(dealt)}
        return by_feature[np.array([position[name] for name in self.names], np.int64)]

    def label_column(self, y: Any) -> Any:
        """What labels to score with on a federation: as given, or else where those of the training were."""
        where = self.label if y is None else y
        if where is None:
            raise DataError("this model was not fitted on a federation; say where the labels are: y='party.column'")
        return where


def refuse_choice(features: Any, exclude: Any) -> None:
    """Refuse to choose columns of one table, which its owner can do."""
    if features is not None or exclude is not None:
        raise DataError("features and exclude are for federations; select the columns of X instead")


@contextmanager
def fitting(model: Model) -> Iterator[Model]:
    """A copy to fit, which has forgotten earlier fits; the model becomes it at the end, unless there was an error."""
    fitted = copy.copy(model)
    _forget_fit(fitted)
    yield fitted
    _forget_fit(model)
    model.__dict__.update(fitted.__dict__)


def _forget_fit(model: object) -> None:
    """Remove what a fit has left: all that scikit-learn takes for a fitted attribute."""
    for name in [name for name in vars(model) if name.endswith("_") and not name.startswith("_")]:
        delattr(model, name)


# --- rows ---


class TrainingRowsWarning(UserWarning):
    """A score was computed on rows that the model was fitted on."""


class SeenRows:
    """The rows of a training, as far as this process can tell; copies in files and pickles know of none.

    Parameters
    ----------
    federation : AnyFederation, optional
        What the model was fitted on. It is not kept alive: tables may be large.
    """

    def __init__(self, federation: AnyFederation | None = None) -> None:
        self._federation = (lambda: None) if federation is None else weakref.ref(federation)
        self._ids: NDArray[Any] | None = None if federation is None else federation.ids
        self._source = None if federation is None else federation.source
        self._lineage = None if federation is None else federation.lineage

    def __reduce__(self) -> tuple[type[SeenRows], tuple[()]]:
        return SeenRows, ()

    def count(self, X: object) -> str:
        """How many rows of a federation were in the training, in words; empty if none that is known."""
        federation = as_federation(X)
        if federation is None:
            return ""
        if isinstance(self._source, KnownRows) and isinstance(federation.source, KnownRows):
            return federation.source.seen_in(self._source)
        if federation is self._federation() or (self._source is not None and self._source == federation.source):
            return "all rows"
        mine, asked = self._lineage, federation.lineage
        if mine is not None and asked is not None and mine.root == asked.root:
            return self.in_words(int(np.isin(asked.positions, mine.positions).sum()), len(asked.positions))
        if self._ids is None or federation.ids is None or self._ids.dtype.kind != federation.ids.dtype.kind:
            return ""
        return self.in_words(int(np.isin(federation.ids, self._ids).sum()), len(federation.ids))

    def warn(self, X: object, remedy: str, stacklevel: int = 4) -> None:
        """Warn the caller of a public method's helper if it scores rows of the training."""
        self.tell(self.count(X), remedy, stacklevel=5)

    def tell(self, seen: str, remedy: str, *, stacklevel: int) -> None:
        """Warn if some rows were in the training, which are counted in words."""
        if seen:
            warnings.warn(
                f"{seen} were in the training, so this score says little about new rows; {remedy}",
                TrainingRowsWarning,
                stacklevel=stacklevel,
            )

    @staticmethod
    def in_words(seen: int, rows: int) -> str:
        """How many rows were in the training; empty if none."""
        if not seen:
            return ""
        return "all rows" if seen == rows else f"{seen:,} of {rows:,} rows"
