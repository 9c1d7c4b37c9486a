"""Quantiles of a column that may be told: thresholds that follow the data where no ranges are declared closely.

The declared range is cut into equal cells; only the number of a value's cell is used. Each quantile is chosen among
the edges of the cells by OpenDP's exponential mechanism, so nothing but an edge of the public grid is ever told.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.privacy._libraries import opendp
from woodlot.privacy.accounting import Spend, check_epsilon
from woodlot.privacy.noise import Neighbours, cells_changed

GRID = 1024
"""Cells of the declared range, unless told otherwise."""


@dataclass(frozen=True, eq=False)
class Quantiles:
    """Quantiles that were drawn. They must be stored with their charge: each further draw costs again.

    Attributes
    ----------
    values : array of float
        Edges of the grid in ascending order, one per probability.
    spend : Spend
        What they cost together.

    """

    values: NDArray[np.float64]
    spend: Spend


def private_quantiles(
    column: NDArray[Any],
    probabilities: Sequence[float],
    *,
    lower: float,
    upper: float,
    epsilon: float,
    neighbours: Neighbours = "add-remove",
    grid: int = GRID,
) -> Quantiles:
    """Draw quantiles of one column.

    Parameters
    ----------
    column : array of float
        The values; missing ones (NaN) do not count, values outside the range count at its ends.
    probabilities : sequence of float
        Such as 0.5 for the median; between 0 and 1.
    lower, upper : float
        The declared range. It must not come from the data.
    epsilon : float
        For all quantiles together; it is dealt out evenly and not exceeded.
    neighbours : {"add-remove", "replace"}
        Two columns that nobody shall be able to tell apart.
    grid : int
        Cells of the range.

    Returns
    -------
    Quantiles

    """
    check_epsilon(epsilon)
    if not (math.isfinite(lower) and math.isfinite(upper) and lower < upper and math.isfinite(upper - lower)):
        raise ValueError(f"the declared range needs finite ends with lower < upper, not {lower} and {upper}")
    if not probabilities or not all(0 < p < 1 for p in probabilities):
        raise ValueError("probabilities must be between 0 and 1, and there must be one at least")
    if grid < 2:
        raise ValueError(f"grid must be at least 2, not {grid}")
    cells = _cells(np.asarray(column, np.float64), lower, upper, grid)
    mechanisms, spend = _mechanisms(probabilities, epsilon, neighbours, grid)
    edges = [int(mechanism(cells)) // 2 for mechanism in mechanisms]
    values = lower + np.sort(np.array(edges)) / grid * (upper - lower)
    return Quantiles(values, spend)


def quantiles_spend(
    probabilities: Sequence[float], *, epsilon: float, neighbours: Neighbours = "add-remove", grid: int = GRID
) -> Spend:
    """What `private_quantiles` costs with these terms; it does not depend on the column.

    Parameters
    ----------
    probabilities, epsilon, neighbours, grid
        As for `private_quantiles`.

    Returns
    -------
    Spend

    """
    return _mechanisms(probabilities, epsilon, neighbours, grid)[1]


def _mechanisms(
    probabilities: Sequence[float], epsilon: float, neighbours: Neighbours, grid: int
) -> tuple[list[Any], Spend]:
    """One for each probability, ascending, and what they cost together."""
    rows_changed = cells_changed(neighbours)  # a replaced row is one removed and one added
    share = epsilon / len(probabilities)
    found = [_mechanism(probability, share, rows_changed, grid) for probability in sorted(probabilities)]
    return found, Spend(max(float(mechanism.map(rows_changed)) for mechanism in found), len(found))


def _cells(column: NDArray[np.float64], lower: float, upper: float, grid: int) -> NDArray[np.int64]:
    """Values as odd numbers and, between them, edges as even ones: so no value is ever equal to an edge."""
    column = np.clip(column[~np.isnan(column)], lower, upper)
    cell = np.floor((column - lower) / (upper - lower) * grid)
    return 2 * np.clip(cell, 0, grid - 1).astype(np.int64) + 1


def _mechanism(probability: float, epsilon: float, rows_changed: int, grid: int) -> Any:
    domains = opendp("domains")
    space = domains.vector_domain(domains.atom_domain(T="i64")), opendp("metrics").symmetric_distance()
    measure = opendp("measures").max_divergence()
    edges = list(range(2, 2 * grid, 2))

    def make(scale: float) -> Any:
        return opendp("measurements").make_private_quantile(*space, measure, edges, probability, scale)

    scale = make(1.0).map(rows_changed) / epsilon
    mechanism = make(scale)
    while mechanism.map(rows_changed) > epsilon:
        scale = math.nextafter(scale, math.inf)
        mechanism = make(scale)
    return mechanism
