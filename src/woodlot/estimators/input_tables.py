"""Tables and labels that come into an estimator: scikit-learn's checks and words, our own reader, class weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.base import is_regressor
from sklearn.utils.validation import check_consistent_length, validate_data

from woodlot.data.column_readers import is_pandas_frame
from woodlot.data.tables import Table, read_table
from woodlot.exceptions import DataError


def check_table(estimator: Any, X: Any, y: Any) -> tuple[Table, NDArray[Any]]:
    """X and y to fit on; sets ``n_features_in_`` and ``feature_names_in_`` of the estimator."""
    if isinstance(y, str):
        raise DataError(
            f"y should be a 1d array of as many values as X has rows, not the text {y!r}; names of columns are for "
            "federations"
        )
    numeric = {"y_numeric": is_regressor(estimator)}
    if y is None or not _is_frame(X):
        X, y = validate_data(estimator, X, y, dtype=np.float32, ensure_all_finite="allow-nan", **numeric)
        return read_table(X), y
    table = read_table(X)
    y = validate_data(estimator, y=y, **numeric)  # first, for it takes the feature names away
    validate_data(estimator, _known_frame(X), skip_check_array=True)
    _require_rows(table, estimator)
    if not table.names:
        raise DataError(f"Found array with 0 feature(s) (shape={(table.n_rows, 0)}) while a minimum of 1 is required.")
    check_consistent_length(np.empty(table.n_rows), y)
    return table, y


def check_table_again(estimator: Any, X: Any, names: tuple[str, ...]) -> Table:
    """X to predict, under the names of the training's columns, with which scikit-learn has compared its own."""
    if _is_frame(X):
        table = read_table(X)
        validate_data(estimator, _known_frame(X), reset=False, skip_check_array=True)
        _require_rows(table, estimator)
    else:
        table = read_table(validate_data(estimator, X, reset=False, dtype=np.float32, ensure_all_finite="allow-nan"))
    return Table(names, table.columns, table.n_rows)


def _is_frame(X: Any) -> bool:
    """A table with named columns, as against an array."""
    return is_pandas_frame(X) or (hasattr(X, "__arrow_c_stream__") and len(getattr(X, "shape", (0, 0))) == 2)


def _known_frame(X: Any) -> Any:
    """A table of a kind whose column names scikit-learn knows how to find."""
    if is_pandas_frame(X) or type(X).__module__.startswith("polars."):
        return X
    import pyarrow as pa

    return pa.table(X)


def _require_rows(table: Table, estimator: Any) -> None:
    if table.n_rows == 0:
        raise DataError(
            f"Found array with 0 sample(s) (shape={(0, len(table.names))}) while a minimum of 1 is required by "
            f"{type(estimator).__name__}."
        )


# --- labels ---


ClassWeights = Literal["balanced", "balanced_subsample"] | tuple[tuple[str, float], ...] | None


def class_array(classes: tuple[Any, ...], kind: Any = None) -> NDArray[Any]:
    """The classes as an array of the labels' own type, where that is known."""
    return np.array(classes, dtype=kind)


def name_class_weights(class_weight: Any, classes: tuple[Any, ...] | None) -> ClassWeights:
    """Weights of the classes that occur, by the text that stands for each class in a message.

    As in scikit-learn, a class without a weight has 1, and weights of classes that do not occur are ignored if all
    classes that do occur have one. Where only the label holder knows the classes, it checks their names.
    """
    if class_weight is None or isinstance(class_weight, str):
        return class_weight  # type: ignore[return-value]
    weights: Mapping[Any, Any] = class_weight
    if classes is None:
        return tuple((str(label), float(weight)) for label, weight in weights.items())
    named = {label: weights[label] for label in classes if label in weights}
    without = [label for label in classes if label not in named]
    if without and len(named) < len(weights):
        unknown = [label for label in weights if label not in named]
        raise ValueError(
            f"The classes, {without}, are not in class_weight, which names {unknown} that do not occur; "
            f"name the classes as they are in y: {list(classes)}"
        )
    return tuple((str(label), float(weight)) for label, weight in named.items())
