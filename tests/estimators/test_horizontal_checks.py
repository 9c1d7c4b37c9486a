"""scikit-learn's own checks of the horizontal estimators."""

from __future__ import annotations

from typing import Any

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

import woodlot as wl
from woodlot.estimators.whole import WeightedForest

SMALL: dict[str, Any] = {"n_estimators": 5}


def expected_failures(estimator: Any) -> dict[str, str]:
    """Of forests that draw rows by their weights."""
    if not isinstance(estimator, WeightedForest):
        return {}
    return {
        "check_sample_weight_equivalence_on_dense_data": (
            "a row of weight 2 is drawn as two rows are, but not in the same draws; as in scikit-learn's forests"
        )
    }


# a few of the checks fit on fewer rows than clients may report by default
@pytest.mark.filterwarnings("ignore:no client has as many as 5 rows:UserWarning")
@parametrize_with_checks(
    [
        wl.LocalForestsClassifier(**SMALL),
        wl.LocalForestsRegressor(**SMALL),
        wl.CollaborativeForestClassifier(**SMALL),
        wl.CollaborativeForestRegressor(**SMALL),
        wl.CollaborativeForestClassifier(
            **SMALL, min_samples_leaf=1, leaf_average="rows", criterion="gini", max_bins=16, parties=2, sums="plain"
        ),
        wl.CollaborativeForestRegressor(**SMALL, min_samples_leaf=1, leaf_average="rows", bootstrap=False),
        wl.HorizontalForestClassifier(**SMALL),
        wl.HorizontalForestRegressor(**SMALL),
        wl.FederatedExtraTreesClassifier(**SMALL),
        wl.FederatedExtraTreesRegressor(**SMALL),
        wl.FederatedExtraTreesClassifier(**SMALL, privacy=wl.LocalDP(epsilon=9.0), min_samples_leaf=1),
    ],
    expected_failed_checks=expected_failures,
)
def test_scikit_learns_checks(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks([wl.PrivateForestClassifier(**SMALL), wl.PrivateForestRegressor(**SMALL)])
def test_scikit_learns_checks_of_private_forests(estimator: Any, check: Any) -> None:
    check(estimator)
