"""Where a model's columns and labels came from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Scalar = TypeVar("Scalar", bound=np.generic)


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
