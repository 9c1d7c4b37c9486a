"""Linear models: accuracy beside scikit-learn's at default settings, and what hidden residuals cost.

    python benchmarks/linear.py [--rows 1000] [--columns 10] [--steps 5] [--before FOLDER] [--out FILE]

Accuracies are means of ten folds with their standard deviations; both sides have the same folds. The descents whose
cost is compared make the same steps through the in-process driver, one after the other in one run; seconds are CPU
time of all roles together. ``--before`` is a checkout from before decision 0028 (commit fa56b97): there residuals are
encrypted with Paillier, on the same data in the same run. Exits 1 if dealt products take more than a fiftieth of it, or
give other weights.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
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


FEWEST_TIMES = 50
"""How many times less CPU dealt products must take than Paillier did."""
SAME = 1e-9
"""By how much weights may differ: the descents with Paillier rounded columns to 32 bits."""
BEFORE = """
import json, sys, time, warnings
import woodlot as wl
from sklearn.datasets import make_classification
warnings.simplefilter("ignore")
rows, columns, steps, bits = map(int, sys.argv[1:])
X, y = make_classification(rows, columns, n_informative=columns // 2, random_state=0)
settings = dict(parties=2, max_iter=steps, tol=0.0, residuals="encrypted", key_bits=bits)
wl.FederatedLogisticRegression(**settings | {"max_iter": 1}).fit(X[:50], y[:50])
start = time.process_time()
model = wl.FederatedLogisticRegression(**settings).fit(X, y)
cost = model.cost_
sent = cost.bytes_sent + cost.bytes_received
print(json.dumps([time.process_time() - start, sent, cost.rounds, model.coef_.tolist()]))
"""
Measured = tuple[float, int, int, Any]


def fitted(rows: int, columns: int, steps: int, **settings: Any) -> Measured:
    """CPU seconds, bytes, rounds and weights of a descent here."""
    X, y = make_classification(rows, columns, n_informative=columns // 2, random_state=0)
    model = wl.FederatedLogisticRegression(parties=2, max_iter=steps, tol=0.0, **settings)
    start = time.process_time()
    model.fit(X, y)
    seconds, cost = time.process_time() - start, model.cost_
    return seconds, cost.bytes_sent + cost.bytes_received, cost.rounds, model.coef_


def fitted_before(folder: Path, rows: int, columns: int, steps: int, bits: int) -> Measured:
    """The same with encrypted residuals, in a process of the older version."""
    arguments = [sys.executable, "-c", BEFORE, *map(str, (rows, columns, steps, bits))]
    environment = {**os.environ, "PYTHONPATH": str(folder / "src")}
    done = subprocess.run(arguments, env=environment, capture_output=True, text=True, check=True)
    seconds, sent, rounds, coef = json.loads(done.stdout.splitlines()[-1])
    return seconds, sent, rounds, np.array(coef)


def costs(rows: int, columns: int, steps: int, before: Path | None) -> tuple[list[str], bool]:
    """Open beside hidden and, where there is an older version, encrypted; and whether hidden is as it must be."""
    runs = {
        "open": fitted(rows, columns, steps),
        "hidden: dealt products": fitted(rows, columns, steps, protection="hidden"),
    }
    if before is not None:
        for bits in (2048, 3072):
            runs[f"before: Paillier, {bits} bits"] = fitted_before(before, rows, columns, steps, bits)
    base, hidden = runs["open"], runs["hidden: dealt products"]
    lines = [
        "| residuals | CPU s | times hidden | MB | rounds | largest difference of a weight from open |",
        "|---|---|---|---|---|---|",
    ]
    right = True
    for name, (seconds, sent, rounds, coef) in runs.items():
        apart = float(np.abs(coef - base[3]).max())
        right &= apart <= SAME and (not name.startswith("before") or seconds >= FEWEST_TIMES * hidden[0])
        lines.append(
            f"| {name} | {seconds:.3f} | {seconds / hidden[0]:,.1f} | {sent / 1e6:.2f} | {rounds} | {apart:.1e} |"
        )
    return lines, right


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--columns", type=int, default=10)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--before", type=Path, help="a checkout in which residuals are encrypted")
    options = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)  # descents of a given number of steps
    costs(100, 4, 1, None)  # imports, and what is made once
    compared, right = costs(options.rows, options.columns, options.steps, options.before)
    large, right_too = costs(100 * options.rows, 2 * options.columns, options.steps, None)
    text = "\n".join(
        [
            "# Linear models: accuracy, and what hidden residuals cost",
            "",
            "Written by `python benchmarks/linear.py --before FOLDER --out docs/results/linear.md`; what it is: "
            "[linear.md](../protocol/linear.md). Ten folds, default settings:",
            "",
            *accuracies(),
            "",
            "Residuals in the open, by dealt products, and under Paillier as they were before "
            "[0028](../decisions/0028-no-paillier.md) (commit fa56b97, key generation included): "
            f"{options.rows:,} rows, {options.columns} columns at two parties, {options.steps} steps, one process for "
            "all roles.",
            "",
            *compared,
            "",
            f"{100 * options.rows:,} rows, {2 * options.columns} columns:",
            "",
            *large,
            "",
            f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, load average "
            f"{os.getloadavg()[0]:.1f}; CPU seconds of one run.",
            "",
        ]
    )
    sys.stdout.write(text)
    if options.out:
        options.out.write_text(text)
    return 0 if right and right_too else 1


if __name__ == "__main__":
    sys.exit(main())
