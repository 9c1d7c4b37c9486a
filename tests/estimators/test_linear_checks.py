"""scikit-learn's own checks of the linear models."""

from __future__ import annotations

from typing import Any

from sklearn.utils.estimator_checks import parametrize_with_checks

import woodlot as wl


def expected_failures(estimator: Any) -> dict[str, str]:
    if not estimator.standardize:
        return {}
    return {
        "check_sample_weight_equivalence_on_dense_data": (
            "parties scale their columns by the spread over all rows; the rows' weights stay with the label holder"
        )
    }


@parametrize_with_checks(
    [
        wl.FederatedLogisticRegression(),
        wl.FederatedLogisticRegression(parties=3, C=10.0, standardize=False, max_iter=500, tol=1e-11),
        wl.FederatedLinearRegression(),
        wl.FederatedLinearRegression(parties=1, alpha=1.0, fit_intercept=False, standardize=False),
    ],
    expected_failed_checks=expected_failures,
)
def test_scikit_learns_checks(estimator: Any, check: Any) -> None:
    check(estimator)
