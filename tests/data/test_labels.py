"""Labels and weights are judged as scikit-learn judges them, which services do without."""

from __future__ import annotations

from datetime import date
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array

from woodlot.data.labels import check_classes, check_weights
from woodlot.exceptions import DataError

NUMBERS = st.sampled_from([-1.0, 0.0, 0.5, 1.0, 2.0, 3e9, -0.25, np.inf, -np.inf])


def is_refused(check: Any, *arguments: Any, **more: Any) -> bool:
    try:
        with np.errstate(invalid="ignore"):  # scikit-learn warns of infinities before it refuses them
            check(*arguments, **more)
    except ValueError:  # of which DataError is one
        return True
    return False


@given(arrays.arrays(np.float64, st.integers(1, 20), elements=NUMBERS))
@pytest.mark.filterwarnings("ignore:The number of unique classes:UserWarning")
def test_numbers_are_classes_where_scikit_learn_takes_them(y: Any) -> None:
    assert is_refused(check_classes, y) == is_refused(check_classification_targets, y)


@given(arrays.arrays(np.float64, st.integers(1, 20), elements=NUMBERS | st.just(np.nan)))
def test_weights_are_numbers_where_scikit_learn_takes_them(weights: Any) -> None:
    refused = is_refused(check_array, weights, ensure_2d=False) or (weights < 0).any() or not weights.any()
    assert is_refused(check_weights, weights, np.zeros(len(weights))) == refused


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        (["heavy", "light"], "must be numbers; it holds <U5"),
        (np.array(["heavy", 1.0], object), "must be numbers; it holds float, str"),
        (np.array([date(2020, 1, 1)] * 2, object), "must be numbers; it holds date"),
        (np.array([1, 2], "datetime64[s]"), "must be numbers; it holds datetime64"),
        (np.array([1j, 2]), "must be numbers; it holds complex128"),
        (np.ones((2, 1)), "must be 1D array or scalar"),
        (np.ones(3), r"inconsistent numbers of samples: \[2, 3\]"),
        (np.array([1, np.nan]), "contains NaN or infinity"),
        (np.array([1, -1]), "Negative values"),
        (np.zeros(2), "at least one non-zero"),
        (np.full(2, 1e308), "out of range"),
        ("column", "only on a federation"),
    ],
)
def test_bad_weights_are_named(weights: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check_weights(weights, np.zeros(2))


@pytest.mark.parametrize("weights", [[1, 2], (1.0, 2.0), np.array([1, 2], object), np.array([True, True]), 3, None])
def test_good_weights_are_taken(weights: Any) -> None:
    found = check_weights(weights, np.zeros(2))
    assert (found is None) == (weights is None)
    assert found is None or (found.dtype == np.float64 and found.shape == (2,))


@pytest.mark.parametrize("y", [[0.5, 1.0], [np.inf, 1.0]])
def test_continuous_labels_are_refused_with_the_remedy(y: Any) -> None:
    with pytest.raises(DataError, match=r"Unknown label type: continuous.*use a regressor"):
        check_classes(np.array(y))
