"""What forgetting one row of a forest over rows costs against training: CPU seconds of this process, one thread.

python benchmarks/forget_rows.py [--rows 200000] [--clients 10] [--trees 100]
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import numpy as np

import woodlot as wl

METHODS: dict[str, tuple[Any, dict[str, Any]]] = {
    "LocalForestsClassifier": (wl.LocalForestsClassifier, {}),
    "HorizontalForestClassifier": (wl.HorizontalForestClassifier, {"max_depth": 4}),
}


def seconds(call: Any) -> float:
    began = time.process_time()
    call()
    return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--trees", type=int, default=100)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    X = rng.normal(size=(args.rows, 10))
    y = (X[:, 0] + X[:, 1] * X[:, 2] + rng.normal(size=args.rows) > 0).astype(int)
    client = np.array([f"client-{k}" for k in rng.integers(0, args.clients, args.rows)])
    print("| model | training | forget one row | faster |\n|---|---|---|---|")
    for name, (kind, settings) in METHODS.items():
        training, forgetting = [], []
        for seed in range(4):
            model = kind(args.trees, parties=client, random_state=seed, n_jobs=1, **settings)
            took = seconds(lambda model=model: model.fit(X, y)), seconds(lambda model=model: model.forget([7]))
            if seed:  # the first one compiles
                training.append(took[0])
                forgetting.append(took[1])
        fit, forget = statistics.median(training), statistics.median(forgetting)
        print(f"| {name} | {fit:.3f} | {forget:.3f} | {fit / forget:.1f} |")


if __name__ == "__main__":
    main()
