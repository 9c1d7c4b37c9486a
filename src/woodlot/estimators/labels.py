"""Labels and the weights of their classes, checked before anything is grown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.multiclass import check_classification_targets

from woodlot.data.values import is_null, natural_type
from woodlot.estimators.checks import is_real
from woodlot.exceptions import DataError

ClassWeights = Literal["balanced", "balanced_subsample"] | tuple[tuple[str, float], ...] | None


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
    check_classification_targets(y)
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
    return values


def _complete(y: NDArray[Any]) -> NDArray[Any]:
    missing = int(is_null(y).sum())
    if missing:
        raise DataError(f"Input y contains NaN: {missing} rows have no label; drop them first")
    return y


def class_array(classes: tuple[Any, ...], kind: Any = None) -> NDArray[Any]:
    """The classes as an array of the labels' own type, where that is known."""
    return np.array(classes, dtype=kind)


def name_class_weights(class_weight: Any, classes: tuple[Any, ...]) -> ClassWeights:
    """Weights of the classes that occur, by the text that stands for each class in a message.

    As in scikit-learn, a class without a weight has 1, and weights of classes that do not occur are ignored if all
    classes that do occur have one.
    """
    if class_weight is None or isinstance(class_weight, str):
        return class_weight  # type: ignore[return-value]
    weights: Mapping[Any, Any] = class_weight
    for label, weight in weights.items():
        if not is_real(weight) or not 0 <= weight < np.inf:
            raise ValueError(f"class_weight[{label!r}] must be a number of at least 0. Got {weight!r} instead.")
    named = {label: weights[label] for label in classes if label in weights}
    without = [label for label in classes if label not in named]
    if without and len(named) < len(weights):
        unknown = [label for label in weights if label not in named]
        raise ValueError(
            f"The classes, {without}, are not in class_weight, which names {unknown} that do not occur; "
            f"name the classes as they are in y: {list(classes)}"
        )
    return tuple((str(label), float(weight)) for label, weight in named.items())
