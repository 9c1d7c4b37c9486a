"""What forgetting rows costs against training, and what drawing rows one by one does to accuracy.

    python benchmarks/forget.py speed [--rows 50000] [--trees 100]
    python benchmarks/forget.py adult DATASETS          1,000 deletions one by one, DynFrs' case
    python benchmarks/forget.py accuracy DATASETS       bootstrap_by="row" against scikit-learn on twelve sets

CPU seconds of this process, one thread. Every figure of ``speed`` is of whole calls: receipt and fingerprints included.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn import datasets
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import train_test_split

import woodlot as wl


def seconds(call: Any) -> tuple[float, Any]:
    began = time.process_time()
    result = call()
    return time.process_time() - began, result


def speed(n_rows: int, n_trees: int) -> None:
    X, y = datasets.make_classification(
        n_rows, 40, n_informative=15, n_redundant=5, flip_y=0.05, class_sep=0.8, random_state=0
    )
    tables = {"all values distinct": X.astype(np.float32), "at most 32 values": _few_values(X)}
    print(
        "| table | depth | training | first | later, mean of 20 | faster | 1,000 rows in one call | searched, stood |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for name, table in tables.items():
        for depth in (10, None):
            params: dict[str, Any] = {"max_depth": depth, "random_state": 0, "bootstrap_by": "row", "n_jobs": 1}
            warm = wl.FederatedForestClassifier(n_estimators=2, parties=2, **params).fit(table, y)
            warm.forget([0])
            warm.forget([1])
            model = wl.FederatedForestClassifier(n_estimators=n_trees, parties=2, **params)
            training, _ = seconds(lambda model=model, table=table: model.fit(table, y))
            rows = np.random.default_rng(0).permutation(n_rows)
            first, _ = seconds(lambda model=model, rows=rows: model.forget(rows[:1]))
            for row in rows[1:40]:
                model.forget([int(row)])
            timed = [seconds(lambda model=model, row=row: model.forget([int(row)])) for row in rows[40:60]]
            later = float(np.mean([spent for spent, _ in timed]))
            batch, receipt = seconds(lambda model=model, rows=rows: model.forget(rows[60:1060]))
            last = timed[-1][1].statement
            print(
                f"| {name} | {depth or 'unlimited'} | {training:.2f} s | {first:.2f} s | {1000 * later:.0f} ms "
                f"| {training / later:.0f} times | {batch:.2f} s{' (grown again)' if receipt.statement.again else ''} "
                f"| {last.searched}, {last.stood} |",
                flush=True,
            )


def _few_values(X: np.ndarray) -> np.ndarray:
    return np.clip(np.rint(X * 4), -16, 15).astype(np.float32)


def _read(path: Path) -> tuple[pd.DataFrame, np.ndarray]:
    frame = pd.read_parquet(path)
    return frame, np.asarray(pd.factorize(frame.pop("target"))[0])


def adult(folder: Path) -> None:
    X, y = _read(folder / "adult.parquet")
    train, test = train_test_split(np.arange(len(y)), test_size=0.2, random_state=0)
    params: dict[str, Any] = {"n_estimators": 100, "max_depth": 10, "random_state": 0, "bootstrap_by": "row"}
    wl.FederatedForestClassifier(**params | {"n_estimators": 2}).fit(X.iloc[train], y[train]).forget([0])
    model = wl.FederatedForestClassifier(**params)
    training, _ = seconds(lambda: model.fit(X.iloc[train], y[train]))
    before = model.score(X.iloc[test], y[test])
    spent = [seconds(lambda row=row: model.forget([row]))[0] for row in range(1000)]
    after = model.score(X.iloc[test], y[test])
    print(f"adult, {len(train):,} rows, 100 trees, depth 10: training {training:.2f} s, accuracy {before:.4f}")
    print(f"1,000 deletions one by one: {sum(spent):.1f} s, the last 100 {10 * sum(spent[-100:]):.1f} ms each")
    print(f"accuracy afterwards {after:.4f}")


def accuracy(folder: Path) -> None:
    sets: dict[str, tuple[Any, np.ndarray]] = {
        "iris": datasets.load_iris(return_X_y=True),
        "wine": datasets.load_wine(return_X_y=True),
        "breast cancer": datasets.load_breast_cancer(return_X_y=True),
        "digits": datasets.load_digits(return_X_y=True),
    }
    for name in ("ionosphere", "spambase", "waveform", "pendigits", "letter", "credit_default", "insurance_coil2000",
                 "wine_quality_white"):  # fmt: skip
        X, y = _read(folder / f"{name}.parquet")
        keep = np.random.default_rng(0).permutation(len(y))[:8000]
        sets[name] = X.iloc[keep].apply(lambda c: c if c.dtype.kind in "iufb" else pd.factorize(c)[0]), y[keep]
    print("| set | rows | scikit-learn | `draw` | `row` | row - scikit-learn | standard error |")
    print("|---|---|---|---|---|---|---|")
    for name, (X, y) in sets.items():
        scores = np.array([_one(X, y, seed) for seed in range(5)])
        gap = scores[:, 2] - scores[:, 0]
        means = " | ".join(f"{mean:.4f}" for mean in scores.mean(axis=0))
        print(f"| {name} | {len(y):,} | {means} | {gap.mean():+.4f} | {gap.std(ddof=1) / 5**0.5:.4f} |", flush=True)


def _one(X: Any, y: np.ndarray, seed: int) -> list[float]:
    values = np.asarray(X, np.float32)
    a, b, c, d = train_test_split(values, y, test_size=0.3, random_state=seed, stratify=y if len(y) < 2000 else None)
    models = [
        RandomForestClassifier(n_estimators=100, random_state=seed),
        wl.FederatedForestClassifier(n_estimators=100, random_state=seed),
        wl.FederatedForestClassifier(n_estimators=100, random_state=seed, bootstrap_by="row"),
    ]
    return [model.fit(a, c).score(b, d) for model in models]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["speed", "adult", "accuracy"])
    parser.add_argument("datasets", type=Path, nargs="?", default=Path("../shared/datasets"))
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--trees", type=int, default=100)
    given = parser.parse_args()
    if given.what == "speed":
        speed(given.rows, given.trees)
    else:
        {"adult": adult, "accuracy": accuracy}[given.what](given.datasets)
