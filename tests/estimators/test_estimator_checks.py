"""scikit-learn's own checks of an estimator."""

from __future__ import annotations

from typing import Any

from sklearn.utils.estimator_checks import parametrize_with_checks

import woodlot as wl

SMALL: dict[str, Any] = {"n_estimators": 5}


def expected_failures(estimator: Any) -> dict[str, str]:
    if not estimator.bootstrap:
        return {}
    return {
        "check_sample_weight_equivalence_on_dense_data": (
            "a row of weight 2 is drawn as two rows are, but not in the same draws; as in scikit-learn's forests"
        )
    }


@parametrize_with_checks(
    [
        wl.FederatedForestClassifier(**SMALL),
        wl.FederatedForestRegressor(**SMALL),
        wl.FederatedForestClassifier(**SMALL, bootstrap=False, parties=3),
        wl.FederatedForestRegressor(**SMALL, bootstrap=False, parties=3),
        wl.FederatedForestClassifier(**SMALL, criterion="entropy", voting="majority", max_bins=16),
    ],
    expected_failed_checks=expected_failures,
)
def test_scikit_learns_checks(estimator: Any, check: Any) -> None:
    check(estimator)
