"""Classes and their weights, as an estimator's user gives and gets them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

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
