"""Tables of very many columns: fit and predict in CPU seconds, two parties in process, made-up numbers.

    python benchmarks/wide.py [--shapes 801x20531 1000x100000] [--trees 100]

The first shape is that of the RNA-Seq gene expression data of the Federated Forest paper. The first prediction also
puts the parties' parts together; the second has them. The script exits 1 when the gene shape takes longer than it may.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import woodlot as wl

CLASSES, INFORMATIVE, PREDICTED, JOBS = 5, 50, 200, 2
REQUIRED = {"801x20531": (5.0, 0.3)}
"""CPU seconds of a fit, and of a prediction of 200 rows."""


def made_up(n_rows: int, n_columns: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    y = rng.integers(0, CLASSES, n_rows)
    X = rng.standard_normal((n_rows, n_columns), np.float32)
    X[:, :INFORMATIVE] += 0.5 * y[:, np.newaxis]
    return X, y


def cpu(call: Callable[[], Any]) -> tuple[Any, float]:
    start = time.process_time()
    result = call()
    return result, time.process_time() - start


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--shapes", nargs="*", default=["801x20531", "1000x100000"])
    parser.add_argument("--trees", type=int, default=100)
    arguments = parser.parse_args()
    print("| rows x columns | fit CPU s | first prediction of 200 rows | second |\n|---|---|---|---|", flush=True)
    good = True
    for shape in arguments.shapes:
        n_rows, n_columns = map(int, shape.split("x"))
        X, y = made_up(n_rows, n_columns)
        small = wl.FederatedForestClassifier(2, parties=2, n_jobs=JOBS, random_state=0).fit(X[:, :100], y)
        small.predict(X[:PREDICTED, :100])  # kernels are compiled or loaded before any clock runs
        model = wl.FederatedForestClassifier(arguments.trees, parties=2, n_jobs=JOBS, random_state=0)
        _, fit = cpu(lambda model=model, X=X, y=y: model.fit(X, y))
        first, second = (cpu(lambda model=model, X=X: model.predict(X[:PREDICTED]))[1] for _ in range(2))
        print(f"| {shape} | {fit:.2f} | {first:.2f} | {second:.2f} |", flush=True)
        most_fit, most_predict = REQUIRED.get(shape, (np.inf, np.inf))
        good &= fit <= most_fit and first <= most_predict
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
