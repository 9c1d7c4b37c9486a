"""Federated extra-trees: what a fit costs beside scikit-learn's extra-trees, by how it is protected.

    python benchmarks/extra_trees.py [--rows 4000] [--columns 20] [--clients 3] [--repeats 3] [--out FILE]

Accuracy and epsilon are the experiments' affair: ``woodlot reproduce fet-accuracy`` and ``privacy-accuracy``. Seconds
are CPU time of all clients and the coordinator together, one after the other in one run, the least of the repeats; sums
are secure. Noise on every count is slow to draw (some 15 microseconds for a number, from the operating system's
chance), so forests with it have fewer and lower trees, and "as small" has as many without noise.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from sklearn.datasets import make_classification
from sklearn.ensemble import ExtraTreesClassifier

import woodlot as wl

LARGE = {"n_estimators": 50, "max_depth": None}
SMALL = {"n_estimators": 10, "max_depth": 8}
LEAVES = {"n_estimators": 20, "max_depth": 10}
FORESTS: dict[str, dict[str, Any]] = {
    "FET": LARGE,
    "FET, leaves of 5 rows": LARGE | {"min_samples_leaf": 5},
    "FET, private quantiles": LARGE | {"ranges": "private-quantiles", "quantile_epsilon": 1.0},
    "FET-LDP, the paper's mechanism": LARGE | {"privacy": wl.LocalDP.preset("ldp-paper")},
    "FET-LDP, label-dp": LARGE | {"privacy": wl.LocalDP.preset("label-dp")},
    "FET, as small": SMALL,
    "FET-GDP, 1 per query": SMALL | {"privacy": wl.GlobalDP(query_epsilon=1.0)},
    "rows protected, leaves only": LEAVES | {"privacy": wl.GlobalDP(epsilon=3.0, leaves_only=True)},
}


def fit(model: Any, X: Any, y: Any, repeats: int) -> tuple[Any, float]:
    """A fitted model, and the CPU seconds of its quickest fit."""
    seconds = []
    for _ in range(repeats):
        start = time.process_time()
        model.fit(X, y)
        seconds.append(time.process_time() - start)
    return model, min(seconds)


def lines_of(rows: int, columns: int, clients: int, repeats: int) -> list[str]:
    """One line for each forest, beside scikit-learn's of as many trees and levels."""
    X, y = make_classification(rows, columns, n_informative=columns // 2, flip_y=0.05, random_state=0)
    lines = [
        "| forest | trees | most levels | CPU s | times scikit-learn's | rounds | bytes |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, params in FORESTS.items():
        size = {key: params[key] for key in ("n_estimators", "max_depth")}
        _, base = fit(ExtraTreesClassifier(**size, n_jobs=1, random_state=0), X, y, repeats)
        common = {"min_samples_leaf": 1, "parties": clients, "n_jobs": 1, "random_state": 0}
        model, seconds = fit(wl.FederatedExtraTreesClassifier(**(common | params)), X, y, repeats)
        sent = model.cost_.bytes_sent + model.cost_.bytes_received
        lines.append(
            f"| {name} | {size['n_estimators']} | {size['max_depth'] or 'any'} | {seconds:.2f} | {seconds / base:.1f} "
            f"| {model.cost_.rounds} | {sent:,} |"
        )
    return lines


def main() -> None:
    """Measure, and print the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--columns", type=int, default=20)
    parser.add_argument("--clients", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    lines_of(60, 4, options.clients, 1)  # compiled before anything is timed
    text = "\n".join(
        [
            "# Federated extra-trees: time of a fit",
            "",
            "Written by `python benchmarks/extra_trees.py --out docs/results/extra-trees.md`, which says how. Accuracy "
            "and epsilon: [fet-accuracy](fet-accuracy.md) and `woodlot reproduce privacy-accuracy`.",
            "",
            f"{options.rows:,} rows, {options.columns} columns, {options.clients} clients, secure sums, declared "
            "ranges unless the forest says otherwise; beside scikit-learn's extra-trees of as many trees and levels.",
            "",
            *lines_of(options.rows, options.columns, options.clients, options.repeats),
            "",
        ]
    )
    sys.stdout.write(text)
    if options.out:
        options.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
