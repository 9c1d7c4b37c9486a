"""Which rows a model was fitted on, so that a score on them is not taken for one on new rows."""

from __future__ import annotations

import warnings
import weakref
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.federation import AnyFederation, as_federation


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
