"""Private forests of other libraries, in an environment of their own: one line of JSON for the tables in a file.

PYTHON benchmarks/_private_others.py LIBRARY FILE.npz EPSILON DELTA SEED
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np


def diffprivlib(data: Any, epsilon: float, delta: float, seed: int) -> Any:
    """A random forest of diffprivlib, with the ranges of the training rows as bounds."""
    from diffprivlib.models import RandomForestClassifier

    bounds = data["low"], data["high"]
    classes = np.unique(data["y"])
    model = RandomForestClassifier(100, epsilon=epsilon, bounds=bounds, classes=classes, random_state=seed)
    return model.fit(data["X"], data["y"])


def interpret(data: Any, epsilon: float, delta: float, seed: int) -> Any:
    """An explainable boosting machine under differential privacy."""
    from interpret.privacy import DPExplainableBoostingClassifier

    bounds = np.column_stack([data["low"], data["high"]])
    model = DPExplainableBoostingClassifier(epsilon=epsilon, delta=delta, privacy_bounds=bounds, random_state=seed)
    return model.fit(data["X"], data["y"])


if __name__ == "__main__":
    library, file, epsilon, delta, seed = sys.argv[1:]
    data = np.load(file)
    model = {"diffprivlib": diffprivlib, "interpret": interpret}[library](data, float(epsilon), float(delta), int(seed))
    shares = np.asarray(model.predict_proba(data["X_test"]))
    print(json.dumps({"classes": np.asarray(model.classes_).tolist(), "shares": shares.round(9).tolist()}))
