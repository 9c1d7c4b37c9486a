"""Metrics of predicted numbers: scikit-learn's."""

from __future__ import annotations

import numpy as np
from sklearn import metrics

from woodlot.metrics.target_numbers import TARGET_METRICS, TargetNumbers

__all__ = ["TARGET_METRICS", "TargetRows"]


class TargetRows(TargetNumbers):
    """As `TargetNumbers`, with scikit-learn's own metrics."""

    def scores(self) -> dict[str, float]:
        """All metrics, as scikit-learn computes them."""
        pair = self.y, self.predicted
        return {
            "r2": float("nan") if self.undefined() else float(metrics.r2_score(*pair)),
            "rmse": float(metrics.root_mean_squared_error(*pair)),
            "mae": float(metrics.mean_absolute_error(*pair)),
            "median_absolute_error": float(metrics.median_absolute_error(*pair)),
            "mean_error": float(np.mean(self.errors)),
        }
