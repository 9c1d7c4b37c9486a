"""Labels, targets and weights of rows, checked before anything is learnt from them.

Errors are worded as scikit-learn's, which estimators must raise. It is not imported: services would start with
twice the memory, after twice the time.
"""

from __future__ import annotations

from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.data.values import is_null, natural_type
from woodlot.exceptions import DataError

MOST_TARGET = 1e280
"""The largest target: sums of as many as there can be rows are still floats."""


def check_classes(y: NDArray[Any]) -> NDArray[Any]:
    """Class labels: all text, all whole numbers or all truth values, none missing."""
    y = natural_type(_complete(y))
    if y.dtype.kind == "O":
        kinds = sorted({type(label).__name__ for label in y})
        if kinds != ["str"]:
            raise DataError(
                f"Unknown label type: the labels in y are of type {', '.join(kinds)}; "
                "make them all text, all whole numbers or all truth values"
            )
    elif y.dtype.kind not in "biufUT":
        raise DataError(f"Unknown label type: the labels in y are {y.dtype}; make them text or whole numbers")
    elif y.dtype.kind == "f" and not (np.isfinite(y) & (y == np.trunc(y))).all():
        raise DataError(
            "Unknown label type: continuous. A classifier needs classes, and y holds numbers that are not whole; use a "
            "regressor, or make them text or whole numbers"
        )
    return y


def check_targets(y: NDArray[Any]) -> NDArray[np.float64]:
    """Targets of a regression: finite numbers."""
    if y.dtype.kind in "UTS" or (y.dtype.kind == "O" and any(isinstance(value, str | bytes) for value in y)):
        raise DataError(
            "targets of a regression must be numbers, y holds text; use FederatedForestClassifier for classes"
        )
    y = _complete(y)
    try:
        values = np.asarray(y, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise DataError(f"targets of a regression must be numbers; y holds {y.dtype}") from None
    if y.dtype.kind in "mM" or not np.isfinite(values).all():
        what = "dates or times" if y.dtype.kind in "mM" else "infinity or a value too large for dtype('float64')"
        raise DataError(f"Input y contains {what}.")
    if np.abs(values).max(initial=0.0) > MOST_TARGET:
        raise DataError(f"Input y contains a value beyond {MOST_TARGET:g}; scale the targets.")
    return values


def _complete(y: NDArray[Any]) -> NDArray[Any]:
    missing = int(is_null(y).sum())
    if missing:
        raise DataError(f"Input y contains NaN: {missing} rows have no label; drop them first")
    return y


def check_weights(sample_weight: Any, y: Any) -> NDArray[np.float64] | None:
    """Weights as an array: one per label, finite, none negative, not all zero."""
    if sample_weight is None:
        return None
    if isinstance(sample_weight, Real) and not isinstance(sample_weight, bool | np.bool_):
        sample_weight = np.full(len(y), sample_weight)
    if isinstance(sample_weight, str):
        raise ValueError("sample_weight must be an array of weights; only on a federation it names a column")
    weights = finite_weights(sample_weight)
    if weights.ndim != 1:
        raise ValueError("Sample weights must be 1D array or scalar")
    if len(weights) != len(y):
        raise ValueError(f"Found input variables with inconsistent numbers of samples: {[len(y), len(weights)]}")
    if not (weights > 0).any():
        raise ValueError("Sample weights must contain at least one non-zero number.")
    with np.errstate(over="ignore"):
        total = float(weights.sum())
    if not np.finfo(np.float64).tiny <= total < np.inf:
        raise ValueError(f"Sample weights add up to {total}, which is out of range; scale them.")
    return np.asarray(weights)


def finite_weights(sample_weight: Any) -> NDArray[np.float64]:
    """Weights as finite numbers, none below 0."""
    given = np.asarray(sample_weight)
    try:
        weights = given.astype(np.float64) if given.dtype.kind in "biufO" else None
    except (TypeError, ValueError):
        weights = None
    if weights is None:
        held = (
            sorted({type(each).__name__ for each in given.ravel()}) if given.dtype.kind == "O" else [str(given.dtype)]
        )
        raise ValueError(f"sample_weight must be numbers; it holds {', '.join(held)}")
    if not np.isfinite(weights).all():
        raise ValueError("Input sample_weight contains NaN or infinity.")
    if (weights < 0).any():
        raise ValueError("Negative values in data passed to `sample_weight`.")
    return weights
