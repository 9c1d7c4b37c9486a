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


def check_names(y: Any, sample_weight: Any) -> None:
    """Refuse labels and weights that are not named, as they are on a federation."""
    if not isinstance(y, str):
        raise DataError("on a federation y names the labels: 'party.column', such as y='bank.default'")
    if sample_weight is not None and not isinstance(sample_weight, str):
        raise DataError("on a federation sample_weight names the weights: 'party.column', at the label holder")


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

    def __reduce__(self) -> tuple[type[SeenRows], tuple[()]]:
        return SeenRows, ()

    def count(self, X: object) -> str:
        """How many rows of a federation were in the training, in words; empty if none that is known."""
        federation = as_federation(X)
        if federation is None:
            return ""
        if federation is self._federation() or (self._source is not None and self._source == federation.source):
            return "all rows"
        if self._ids is None or federation.ids is None or self._ids.dtype.kind != federation.ids.dtype.kind:
            return ""
        seen = int(np.isin(federation.ids, self._ids).sum())
        return f"{seen:,} of {len(federation.ids):,} rows" if seen else ""

    def warn(self, X: object, remedy: str) -> None:
        """Warn the caller of a public method's helper if it scores rows of the training."""
        seen = self.count(X)
        if seen:
            warnings.warn(
                f"{seen} were in the training, so this score says little about new rows; {remedy}",
                TrainingRowsWarning,
                stacklevel=4,
            )
