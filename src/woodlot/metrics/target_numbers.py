"""Metrics of predicted numbers, under weights for a bootstrap, without scikit-learn."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.data.labels import check_targets

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Of the errors, target less prediction."""
WINDOW_ROWS = 20
"""What leaves the label holder in place of a quantile is the mean over so many rows beside it: a quantile is the error
of one row or two, and its target where predictions are known."""
TARGET_METRICS: dict[str, bool | None] = {
    "r2": True,
    "rmse": False,
    "mae": False,
    "median_absolute_error": False,
    "mean_error": None,
}
"""Whether more is better; of the mean error neither is."""


class TargetNumbers:
    """Rows with their targets and what a model predicted.

    Parameters
    ----------
    y : array
        The target of each row.
    predicted : array
        The predictions.
    """

    def __init__(self, y: NDArray[Any], predicted: NDArray[np.float64]) -> None:
        self.y = check_targets(y)
        self.predicted = np.asarray(predicted, np.float64)
        self.errors = self.y - self.predicted

    def __len__(self) -> int:
        return len(self.y)

    def same_rows(self, other: TargetNumbers) -> bool:
        """Whether another model was asked about rows with the same targets."""
        return bool(np.array_equal(self.y, other.y))

    def undefined(self) -> dict[str, str]:
        """Metrics that these rows do not have, and why."""
        return {"r2": "all targets are the same; evaluate rows with different ones"} if np.ptp(self.y) == 0 else {}

    def weighted(self, weights: NDArray[np.float64]) -> dict[str, float]:
        """The same where rows count with these weights, which are whole numbers; without the median."""
        total = weights.sum()
        # sums of products, not @: small products in many threads cost more than they save
        spread = np.sum(weights * (self.y - np.sum(weights * self.y) / total) ** 2)
        squares = np.sum(weights * self.errors**2)
        return {
            "r2": float(1 - squares / spread) if spread > 0 else np.nan,
            "rmse": float(np.sqrt(squares / total)),
            "mae": float(np.sum(weights * np.abs(self.errors)) / total),
            "mean_error": float(np.sum(weights * self.errors) / total),
        }

    def error_quantiles(self) -> dict[str, float]:
        """Quantiles of the errors."""
        return {f"{q:g}": float(v) for q, v in zip(QUANTILES, np.quantile(self.errors, QUANTILES), strict=True)}

    def coarse_quantiles(self) -> dict[str, float]:
        """Quantiles as the label holder tells them: means over `WINDOW_ROWS` rows; where there are too few, none."""
        told = {f"{q:g}": _around(np.sort(self.errors), q) for q in QUANTILES}
        return {q: value for q, value in told.items() if value is not None}

    def coarse_median_error(self) -> float | None:
        """The median absolute error likewise."""
        return _around(np.sort(np.abs(self.errors)), 0.5)


def _around(rising: NDArray[np.float64], q: float) -> float | None:
    """The mean of the values beside a quantile, as many on both sides; None where there are not so many."""
    first = round(q * len(rising) - WINDOW_ROWS / 2)
    if first < 0 or first + WINDOW_ROWS > len(rising):
        return None
    return float(rising[first : first + WINDOW_ROWS].mean())
