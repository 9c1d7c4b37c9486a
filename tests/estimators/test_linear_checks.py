"""scikit-learn's own checks of the linear models."""

from __future__ import annotations

from typing import Any

from sklearn.utils.estimator_checks import parametrize_with_checks

import woodlot as wl


@parametrize_with_checks(
    [
        wl.FederatedLogisticRegression(),
        wl.FederatedLogisticRegression(parties=3, C=10.0, standardize=False, max_iter=500, tol=1e-11),
        wl.FederatedLinearRegression(),
        wl.FederatedLinearRegression(parties=1, alpha=1.0, fit_intercept=False, standardize=False),
        wl.FederatedLogisticRegression(parties=1, C=10.0),
    ]
)
def test_scikit_learns_checks(estimator: Any, check: Any) -> None:
    check(estimator)
