"""Linear models: accuracy beside scikit-learn's at default settings, and what encrypted residuals cost.

    python benchmarks/linear.py [--rows 1000] [--columns 10] [--steps 5] [--out FILE]

Accuracies are means of ten folds with their standard deviations; both sides have the same folds. The descents whose
cost is compared make the same steps through the in-process driver, one after the other in one run; seconds are CPU
time of all parties and the coordinator together.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_wine, make_classification
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import KFold, StratifiedKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import woodlot as wl

CASES: tuple[tuple[str, Any, Any, Any], ...] = (
    ("digits, accuracy", load_digits, wl.FederatedLogisticRegression, LogisticRegression(max_iter=1000)),
    ("wine, accuracy", load_wine, wl.FederatedLogisticRegression, LogisticRegression(max_iter=1000)),
    ("breast cancer, accuracy", load_breast_cancer, wl.FederatedLogisticRegression, LogisticRegression(max_iter=1000)),
    ("diabetes, R2", load_diabetes, wl.FederatedLinearRegression, LinearRegression()),
)


def accuracies() -> list[str]:
    """One line per data set."""
    lines = [
        "| data set | three parties | scikit-learn, all columns | largest difference of a fold |",
        "|---|---|---|---|",
    ]
    for name, load, ours, theirs in CASES:
        X, y = load(return_X_y=True)
        folds = (KFold if ours is wl.FederatedLinearRegression else StratifiedKFold)(10, shuffle=True, random_state=0)
        mine = cross_val_score(ours(parties=3), X, y, cv=folds)
        his = cross_val_score(make_pipeline(StandardScaler(), theirs), X, y, cv=folds)
        told = [f"{scores.mean():.4f} +- {scores.std():.4f}" for scores in (mine, his)]
        lines.append(f"| {name} | {told[0]} | {told[1]} | {np.abs(mine - his).max():.4f} |")
    return lines


def costs(rows: int, columns: int, steps: int) -> list[str]:
    """Clear beside encrypted: one line per length of the key."""
    X, y = make_classification(rows, columns, n_informative=columns // 2, random_state=0)
    lines = [
        "| residuals | CPU s | ratio | bytes | ratio | rounds | largest difference of a weight |",
        "|---|---|---|---|---|---|---|",
    ]
    base: tuple[float, int, Any] | None = None
    for name, settings in (
        ("clear", {}),
        ("encrypted, 2048 bits", {"residuals": "encrypted", "key_bits": 2048}),
        ("encrypted, 3072 bits", {"residuals": "encrypted", "key_bits": 3072}),
    ):
        model = wl.FederatedLogisticRegression(parties=2, max_iter=steps, tol=0.0, **settings)
        start = time.process_time()
        model.fit(X, y)
        seconds, sent = time.process_time() - start, model.cost_.bytes_sent + model.cost_.bytes_received
        base = base or (seconds, sent, model.coef_)
        lines.append(
            f"| {name} | {seconds:.2f} | {seconds / base[0]:.0f} | {sent:,} | {sent / base[1]:.1f} "
            f"| {model.cost_.rounds} | {np.abs(model.coef_ - base[2]).max():.1e} |"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--columns", type=int, default=10)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)  # descents of a given number of steps
    costs(100, 4, 1)  # imports, and what is made once
    text = "\n".join(
        [
            "# Linear models: accuracy, and what encrypted residuals cost",
            "",
            "Written by `python benchmarks/linear.py --out docs/results/linear.md`; what it is: "
            "[linear.md](../protocol/linear.md). Ten folds, default settings:",
            "",
            *accuracies(),
            "",
            f"Residuals in clear and encrypted: {options.rows:,} rows, {options.columns} columns at two parties, "
            f"{options.steps} steps, key generation included.",
            "",
            *costs(options.rows, options.columns, options.steps),
            "",
        ]
    )
    sys.stdout.write(text)
    if options.out:
        options.out.write_text(text)


if __name__ == "__main__":
    main()
