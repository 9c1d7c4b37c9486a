"""Counts with noise: integer Laplace noise under a key that the operating system has drawn for each answer.

One query is one histogram; what one row changes in it is its sensitivity:

==============  ===========================================================  ========================================
neighbours      what may differ between two tables                           changes in a histogram of weighted rows
==============  ===========================================================  ========================================
``add-remove``  a row is there or not                                        one cell, by the row's weight
``replace``     a row has another label, or all of it is different           two cells, each by the row's weight
==============  ===========================================================  ========================================

Histograms of disjoint sets of rows (the nodes of one level of a tree, the two sides of a split) are one query
together. Each further level, candidate feature and tree is another query.

The noise cannot be derived again: whoever could would take it off. So an answer is drawn once, stored together with
its charge, and sent again when it is asked for again. See `woodlot.privacy.budget`.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from woodlot.privacy.accounting import Spend, check_epsilon
from woodlot.privacy.exact import float_up
from woodlot.privacy.laplace import draw_laplace

Neighbours = Literal["add-remove", "replace"]
"""Two tables that nobody shall be able to tell apart."""

_LARGEST_SCALE = 2.0**40
KEY_BYTES = 32
_LARGEST_COUNT = 2**53


@dataclass(frozen=True, eq=False)
class NoisyCounts:
    """An answer that was drawn.

    Attributes
    ----------
    released : array of int
        What may be sent: counts and noise. Some are negative; to clip them costs nothing.
    noise : array of int
        What was added. It must not be sent, and whoever has both has the true counts.

    """

    released: NDArray[np.int64]
    noise: NDArray[np.int64]


class CountNoise:
    """Integer (discrete) Laplace noise for histograms.

    Parameters
    ----------
    epsilon : float
        For one query; it is not exceeded.
    neighbours : {"add-remove", "replace"}
        See `Neighbours`.
    max_weight : int
        How often a row counts at most in one histogram: more than 1 for a bootstrap.

    Attributes
    ----------
    scale : float
        Of the noise.
    epsilon : float
        Of one query: what a row changes, divided by the scale, rounded up. At most what was asked for.

    """

    def __init__(self, epsilon: float, *, neighbours: Neighbours = "add-remove", max_weight: int = 1) -> None:
        check_epsilon(epsilon)
        self._cells = cells_changed(neighbours)
        if isinstance(max_weight, bool) or not isinstance(max_weight, int) or max_weight < 1:
            raise ValueError(f"max_weight must be a positive whole number, not {max_weight!r}")
        change = self._cells * max_weight
        scale = change / epsilon
        if scale > _LARGEST_SCALE:
            raise ValueError(f"epsilon {epsilon} is too small: the answers would be nothing but noise")
        while _epsilon(change, scale) > epsilon:
            scale = math.nextafter(scale, math.inf)
        self.scale = scale
        self.epsilon = _epsilon(change, scale)
        self._epsilon_of_a_cell = _epsilon(max_weight, scale)

    @property
    def deviation(self) -> float:
        """Standard deviation of the noise on one count."""
        q = math.exp(-1 / self.scale)
        return math.sqrt(2 * q) / (1 - q)

    def spend(self, queries: int = 1) -> Spend:
        """What so many queries cost a row, cell by cell, which composes better than query by query."""
        return Spend(self._epsilon_of_a_cell, self._cells * queries)

    def release(self, counts: NDArray[Any]) -> NoisyCounts:
        """Draw noise for some counts. Each call draws again and costs again.

        Parameters
        ----------
        counts : array of int
            Any shape.

        Returns
        -------
        NoisyCounts

        """
        counts = np.asarray(counts)
        if counts.dtype.kind not in "iu":
            raise ValueError(f"counts must be whole numbers, not {counts.dtype}")
        if counts.size and int(np.abs(counts.astype(np.int64)).max()) > _LARGEST_COUNT:
            raise ValueError(f"counts must not exceed {_LARGEST_COUNT}")
        noise = draw_laplace(self.scale, os.urandom(KEY_BYTES), counts.size).reshape(counts.shape)
        return NoisyCounts(counts.astype(np.int64) + noise, noise)


def cells_changed(neighbours: str) -> int:
    """How many cells of a histogram differ between two neighbours."""
    if neighbours not in get_args(Neighbours):
        raise ValueError(f"neighbours must be one of {', '.join(get_args(Neighbours))}, not {neighbours!r}")
    return 1 if neighbours == "add-remove" else 2


def _epsilon(change: int, scale: float) -> float:
    """Of noise of this scale on counts that a row changes by so much, rounded up."""
    return float_up(change / Fraction(scale))
