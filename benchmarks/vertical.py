"""Training speed of the vertical forest against scikit-learn, interleaved in one run.

    python benchmarks/vertical.py [case ...] [--repeats 3] [--out FILE]

Two simulated parties in process, every message through the codec. Each repeat fits both libraries one after the other
on the same data with two threads; the ratio is that of the medians. The script exits 1 when a required ratio is missed.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.datasets import make_classification, make_regression
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

import woodlot as wl

JOBS = 2


@dataclass(frozen=True)
class Case:
    what: str
    make: Callable[[], tuple[np.ndarray, np.ndarray]]
    params: dict[str, Any]
    required: float
    classify: bool = True


def binary(n_rows: int, n_features: int, informative: int) -> tuple[np.ndarray, np.ndarray]:
    X, y = make_classification(
        n_rows,
        n_features,
        n_informative=informative,
        n_redundant=5,
        flip_y=0.05,
        class_sep=0.8,
        random_state=0,
    )
    return X.astype(np.float32), y


def many_classes(integers: bool) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    centres = rng.uniform(3, 12, size=(26, 3, 16))
    y = rng.integers(0, 26, 20_000)
    X = centres[y, rng.integers(0, 3, 20_000)] + rng.normal(0, 1.6, size=(20_000, 16))
    return (np.clip(np.rint(X), 0, 15) if integers else X).astype(np.float32), y


def regression() -> tuple[np.ndarray, np.ndarray]:
    X, y = make_regression(20_000, 80, n_informative=20, noise=20.0, random_state=0)
    return X.astype(np.float32), y + 50 * np.sin(3 * X[:, 0])


CASES = {
    "a": Case("50k x 40, 2 classes, 100 trees, depth 10", lambda: binary(50_000, 40, 15), {"max_depth": 10}, 8.0),
    "b": Case("50k x 40, 2 classes, 100 trees, unlimited", lambda: binary(50_000, 40, 15), {}, 5.0),
    "c": Case("20k x 16 integers, 26 classes, 100 trees, unlimited", lambda: many_classes(True), {}, 2.5),
    "cc": Case("20k x 16, 26 classes, 100 trees, unlimited", lambda: many_classes(False), {}, 5.0),
    "d": Case(
        "20k x 80, regression, 1/3 features, 100 trees, unlimited",
        regression,
        {"max_features": 1 / 3},
        3.5,
        classify=False,
    ),
    "e": Case(
        "500k x 50, 2 classes, 20 trees, depth 12",
        lambda: binary(500_000, 50, 20),
        {"max_depth": 12, "n_estimators": 20},
        8.0,
    ),
}


def seconds(fit: Callable[[], object]) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    fit()
    return time.perf_counter() - wall, time.process_time() - cpu


def run(name: str, case: Case, repeats: int) -> tuple[str, bool]:
    X, y = case.make()
    ours = wl.FederatedForestClassifier if case.classify else wl.FederatedForestRegressor
    theirs = RandomForestClassifier if case.classify else RandomForestRegressor
    fits = {
        "scikit-learn": lambda: theirs(n_jobs=JOBS, random_state=0, **case.params).fit(X, y),
        "exact": lambda: ours(parties=2, n_jobs=JOBS, random_state=0, **case.params).fit(X, y),
        "255 bins": lambda: ours(parties=2, n_jobs=JOBS, random_state=0, max_bins=255, **case.params).fit(X, y),
    }
    if name == "a":
        fits["1 party"] = lambda: ours(parties=1, n_jobs=JOBS, random_state=0, **case.params).fit(X, y)
        fits["5 parties"] = lambda: ours(parties=5, n_jobs=JOBS, random_state=0, **case.params).fit(X, y)
        fits["1 party, 1 thread"] = lambda: ours(parties=1, n_jobs=1, random_state=0, **case.params).fit(X, y)
    small = ours(parties=2, random_state=0, **{**case.params, "n_estimators": 2})
    small.fit(X, y)  # kernels compiled or loaded before any clock runs: all rows, for their number decides the types
    small.set_params(max_bins=255).fit(X, y)
    times: dict[str, list[tuple[float, float]]] = {what: [] for what in fits}
    for _ in range(repeats):
        for what, fit in fits.items():
            times[what].append(seconds(fit))
    wall = {what: statistics.median(t for t, _ in ts) for what, ts in times.items()}
    cpu = {what: statistics.median(t for _, t in ts) for what, ts in times.items()}
    ratio = wall["scikit-learn"] / wall["exact"]
    row = (
        f"| {name}: {case.what} | {wall['scikit-learn']:.2f} | {wall['exact']:.2f} "
        f"| **{ratio:.1f}x** | {case.required}x "
        f"| {wall['255 bins']:.2f} ({wall['scikit-learn'] / wall['255 bins']:.1f}x) "
        f"| {cpu['scikit-learn'] / cpu['exact']:.1f}x |"
    )
    if name == "a":
        row += (
            f"\n\nCase a, CPU of five parties against one: {cpu['5 parties'] / cpu['1 party']:.2f} "
            "(each party holds and partitions the rows of all trees itself). "
            f"One party, two threads against one: {wall['1 party, 1 thread'] / wall['1 party']:.2f} times as fast.\n"
        )
    return row, ratio >= case.required


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("cases", nargs="*", default=list(CASES), help=f"some of {list(CASES)}")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out")
    arguments = parser.parse_args()
    head = (
        "| case | scikit-learn s | Woodlot s | ratio | required | 255 bins s | CPU ratio |\n"
        "|---|---|---|---|---|---|---|"
    )
    print(head, flush=True)
    lines, good = [head], True
    for name in arguments.cases:
        row, met = run(name, CASES[name], arguments.repeats)
        print(row, flush=True)
        lines.append(row)
        good &= met
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    lines.append(f"\nPeak memory of the whole run, scikit-learn included: {peak:.0f} MB.")
    print(lines[-1])
    if arguments.out:
        with open(arguments.out, "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
