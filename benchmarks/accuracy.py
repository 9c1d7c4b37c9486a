"""Accuracy against scikit-learn with sampling: is the difference over many seeds within noise?

    python benchmarks/accuracy.py [set ...] [--seeds 20] [--trees 100] [--out FILE]

For every seed both libraries get the same stratified 80/20 split and grow a forest from that seed; they draw different
bootstraps and candidates. The table has mean and standard deviation of accuracy (R2 for regression) over the seeds, the
mean of the paired differences, and z: that mean in units of its standard error. With nine sets |z| above 3 would be a
finding; the script then exits 1. Data: parquet files in $WOODLOT_DATASETS, or in shared/datasets beside the repository.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.model_selection import train_test_split

import woodlot as wl

JOBS = 2
LIMIT = 3.0
NOT_FEATURES = {"appliance_energy": ["date"]}
CLASSIFICATION = ["ionosphere", "spambase", "waveform", "wine_quality_white", "pendigits", "letter", "credit_default"]
REGRESSION = ["superconduct_subset", "appliance_energy"]


@dataclass(frozen=True)
class Result:
    """Scores of both libraries, paired by seed."""

    ours: np.ndarray
    theirs: np.ndarray

    @property
    def difference(self) -> float:
        return float((self.ours - self.theirs).mean())

    @property
    def z(self) -> float:
        """Mean difference in units of its standard error."""
        differences = self.ours - self.theirs
        error = differences.std(ddof=1) / np.sqrt(len(differences))
        return float(differences.mean() / error) if error > 0 else 0.0


def folder() -> Path:
    """Where the data sets are."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "datasets"
    return Path(os.environ.get("WOODLOT_DATASETS", beside))


def read(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Features as float32, and the target."""
    table = pq.read_table(folder() / f"{name}.parquet").drop_columns(NOT_FEATURES.get(name, []))
    columns = [c for c in table.column_names if c != "target"]
    X = np.column_stack([table.column(c).to_numpy().astype(np.float32) for c in columns])
    return X, np.array(table.column("target").to_pylist())


def compare(name: str, seeds: range, trees: int) -> Result:
    """Fit and score both libraries once per seed."""
    X, y = read(name)
    regression = name in REGRESSION
    ours: list[float] = []
    theirs: list[float] = []
    params: dict[str, Any] = {"n_estimators": trees, "n_jobs": JOBS}
    if regression:
        params["max_features"] = 1 / 3
    kinds = (
        (wl.FederatedForestRegressor, RandomForestRegressor)
        if regression
        else (wl.FederatedForestClassifier, RandomForestClassifier)
    )
    for seed in seeds:
        train, test, y_train, y_test = train_test_split(
            X, y, test_size=0.2, random_state=seed, stratify=None if regression else y
        )
        for kind, scores in zip(kinds, (ours, theirs), strict=True):
            scores.append(kind(random_state=seed, **params).fit(train, y_train).score(test, y_test))
    return Result(np.array(ours), np.array(theirs))


def row(name: str, result: Result) -> str:
    ours, theirs = result.ours, result.theirs
    return (
        f"| {name} | {theirs.mean():.4f} ± {theirs.std(ddof=1):.4f} | {ours.mean():.4f} ± {ours.std(ddof=1):.4f} "
        f"| {result.difference:+.4f} | {result.z:+.2f} |"
    )


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("sets", nargs="*", default=CLASSIFICATION + REGRESSION)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--trees", type=int, default=100)
    parser.add_argument("--out")
    arguments = parser.parse_args()
    if not folder().is_dir():
        print("No data sets: set WOODLOT_DATASETS to a folder of parquet files (see the docstring). Nothing measured.")
        return 0
    lines = ["| data set | scikit-learn | Woodlot | difference | z |", "|---|---|---|---|---|"]
    print("\n".join(lines), flush=True)
    good = True
    for name in arguments.sets:
        result = compare(name, range(arguments.seeds), arguments.trees)
        good &= abs(result.z) <= LIMIT
        lines.append(row(name, result))
        print(lines[-1], flush=True)
    if arguments.out:
        head = [
            "# Accuracy with sampling, against scikit-learn",
            "",
            f"Accuracy (R2 for {' and '.join(REGRESSION)}) on a held-out fifth: mean ± standard deviation over "
            f"{arguments.seeds} seeds, {arguments.trees} trees, two parties. Both libraries get the same splits and "
            "grow with the same parameters; difference: mean over the seeds; z: that mean in units of its standard "
            f"error. Written by `python benchmarks/accuracy.py --out`, which fails when |z| exceeds {LIMIT:g}.",
            "",
        ]
        Path(arguments.out).write_text("\n".join(head + lines) + "\n", encoding="utf-8")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
