"""Confidence intervals of metrics, by bootstrap over the rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from woodlot.metrics.class_numbers import ClassNumbers
from woodlot.metrics.target_numbers import TargetNumbers

MIN_RESAMPLES = 20
"""Fewer bootstrap samples give no interval."""

Interval = tuple[float, float]


def resampled(rows: ClassNumbers | TargetNumbers, n_bootstrap: int, seed: int) -> dict[str, NDArray[np.float64]]:
    """Metrics of bootstrap samples of the rows: the same samples for the same number of rows and seed."""
    rng = np.random.default_rng(seed)
    found: dict[str, list[float]] = {}
    for _ in range(n_bootstrap):
        drawn = np.bincount(rng.integers(0, len(rows), len(rows)), minlength=len(rows))
        for name, value in rows.weighted(drawn.astype(np.float64)).items():
            found.setdefault(name, []).append(value)
    return {name: np.array(values) for name, values in found.items()}


def interval(values: NDArray[np.float64], confidence: float) -> Interval | None:
    """The middle part of bootstrap values; None where there are too few."""
    known = values[~np.isnan(values)]
    if len(known) < MIN_RESAMPLES:
        return None
    low, high = np.quantile(known, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


@dataclass(frozen=True)
class Resampling:
    """How confidence intervals are found.

    Attributes
    ----------
    n_bootstrap : int
        Samples of the rows, with replacement; 0 for no intervals.
    confidence : float
        Probability that an interval covers the true value.
    seed : int
        Decides the samples.
    """

    n_bootstrap: int = 500
    confidence: float = 0.95
    seed: int = 0

    def __post_init__(self) -> None:
        if self.n_bootstrap != 0 and self.n_bootstrap < MIN_RESAMPLES:
            raise ValueError(f"n_bootstrap must be 0 or at least {MIN_RESAMPLES}, not {self.n_bootstrap!r}")
        if not 0 < self.confidence < 1:
            raise ValueError(f"confidence must be between 0 and 1, such as 0.95, not {self.confidence!r}")
