"""Horizontal forests against their slides and against scikit-learn on the pooled rows: accuracy, and time of a fit.

    python lab/benchmarks/horizontal.py [set ...] [--data FOLDER] [--seeds 5] [--trees 100] [--out FILE]

The slides' setting: 10 clients, entropy, square root of the features, an 80/20 split per class, alpha chunking
(pendigits 2, letter 1), trees that grow until their leaves are pure. For each seed all forests get the same split and
the same dealing of the rows. The script exits 1 where the collaborative forest stays below the slides' number, or the
lossless forest is not within noise of the centralised one.

The slides' numbers for NCFF are not those of their alpha chunking: a client's trees know its two or three classes only,
so on a row of another class all of them agree on a wrong one. scikit-learn forests, one per client, put together the
same way, are as low (`woodlot reproduce collaborative-accuracy`). With rows dealt evenly NCFF comes near the slides'
numbers, so that is measured too.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier
from sklearn.model_selection import train_test_split

import woodlot as wl
from woodlot.data.partition import deal_alpha_chunks, deal_evenly, most_classes

CLIENTS = 10
JOBS = 2
NOISE = 3.0
"""Standard errors by which the lossless forest may differ from the centralised one."""


@dataclass(frozen=True)
class Slides:
    """A data set of the slides, whose values are whole numbers from 0 on, and what they report for it."""

    n_classes: int
    highest: float
    alpha: int
    centralised: float
    local: float
    collaborative: float


SETS = {
    "pendigits": Slides(n_classes=10, highest=100.0, alpha=2, centralised=0.991, local=0.957, collaborative=0.973),
    "letter": Slides(n_classes=26, highest=15.0, alpha=1, centralised=0.963, local=0.886, collaborative=0.946),
}


@dataclass(frozen=True)
class Forest:
    """A row of the table: how it is made, how its rows are dealt, and what it is timed against."""

    name: str
    make: Callable[..., Any]
    reported: str | None = None
    dealing: str | None = "alpha chunks"
    yardstick: str = "centralised"


PURE: dict[str, Any] = {"min_samples_leaf": 1}
RANDOM_FOREST, EXTRA_TREES = "centralised", "extra-trees"
LOSSLESS, COLLABORATIVE, FEDERATED = "lossless, secure sums", "collaborative", "federated extra-trees"
FORESTS = (
    Forest(RANDOM_FOREST, lambda n, **p: RandomForestClassifier(n, criterion="entropy", **p), "centralised", None),
    Forest(LOSSLESS, lambda n, **p: wl.HorizontalForestClassifier(n, criterion="entropy", **PURE, **p)),
    Forest(
        "lossless, plain sums",
        lambda n, **p: wl.HorizontalForestClassifier(n, criterion="entropy", sums="plain", **PURE, **p),
    ),
    Forest(COLLABORATIVE, lambda n, **p: wl.CollaborativeForestClassifier(n, **PURE, **p), "collaborative"),
    Forest("local forests (NCFF)", lambda n, **p: wl.LocalForestsClassifier(n, **PURE, **p), "local"),
    Forest("local forests (NCFF)", lambda n, **p: wl.LocalForestsClassifier(n, **PURE, **p), None, "evenly"),
    Forest(EXTRA_TREES, lambda n, **p: ExtraTreesClassifier(n, **p), None, None, EXTRA_TREES),
    Forest(FEDERATED, lambda n, **p: wl.FederatedExtraTreesClassifier(n, **PURE, **p), yardstick=EXTRA_TREES),
)


def folder() -> Path:
    """Where the data sets are unless --data says otherwise."""
    beside = Path(__file__).resolve().parents[3] / "shared" / "datasets"
    return Path(os.environ.get("WOODLOT_DATASETS", beside))


def read(name: str, data: Path) -> tuple[np.ndarray, np.ndarray]:
    """Features as float32, and the classes."""
    table = pq.read_table(data / f"{name}.parquet")
    columns = [c for c in table.column_names if c != "target"]
    X = np.column_stack([table.column(c).to_numpy().astype(np.float32) for c in columns])
    return X, np.array(table.column("target").to_pylist())


def measure(name: str, data: Path, seeds: range, trees: int) -> list[tuple[np.ndarray, np.ndarray, Any]]:
    """Accuracy and seconds of every forest for every seed, and the last model."""
    X, y = read(name, data)
    scores, seconds = np.zeros((2, len(FORESTS), len(seeds)))
    last: list[Any] = [None] * len(FORESTS)
    for k, seed in enumerate(seeds):
        train, test, y_train, y_test = train_test_split(X, y, test_size=0.2, random_state=seed, stratify=y)
        dealt = {
            "alpha chunks": deal_alpha_chunks(y_train, CLIENTS, SETS[name].alpha, seed),
            "evenly": deal_evenly(len(y_train), CLIENTS, seed),
        }
        for f, forest in enumerate(FORESTS):
            params: dict[str, Any] = {} if forest.dealing is None else {"parties": dealt[forest.dealing]}
            if forest.name == FEDERATED:
                params["declared"] = {str(column): (0.0, SETS[name].highest) for column in range(X.shape[1])}
            model = forest.make(trees, random_state=seed, n_jobs=JOBS, **params)
            start = time.perf_counter()
            model.fit(train, y_train)
            seconds[f, k] = time.perf_counter() - start
            scores[f, k] = model.score(test, y_test)
            last[f] = model
    return [(scores[f], seconds[f], last[f]) for f in range(len(FORESTS))]


def rows_of(name: str, measured: list[tuple[np.ndarray, np.ndarray, Any]]) -> tuple[list[str], bool]:
    """The table's rows of one data set, and whether the claims hold."""
    found = {f.name: result for f, result in zip(FORESTS, measured, strict=True) if f.dealing != "evenly"}
    rows, good = [], True
    for forest, (scores, seconds, model) in zip(FORESTS, measured, strict=True):
        claim = getattr(SETS[name], forest.reported) if forest.reported else None
        ratio = float(np.median(seconds / found[forest.yardstick][1]))
        cost = getattr(model, "cost_", None)
        megabytes = "" if cost is None else f"{max(cost.bytes_by_party.values()) / 1e6:.1f}"
        rows.append(
            f"| {name} | {forest.name} | {forest.dealing or 'pooled'} | {'' if claim is None else f'{claim:.3f}'} "
            f"| {scores.mean():.4f} ± {scores.std(ddof=1) if len(scores) > 1 else 0.0:.4f} | {np.median(seconds):.1f} "
            f"| {ratio:.1f} | {'' if cost is None else cost.rounds} | {megabytes} |"
        )
    good &= bool(found[COLLABORATIVE][0].mean() >= SETS[name].collaborative)
    difference = found[LOSSLESS][0] - found[RANDOM_FOREST][0]
    if len(difference) > 1:
        error = max(float(difference.std(ddof=1)), 1e-3) / np.sqrt(len(difference))
        good &= bool(abs(difference.mean()) <= NOISE * error)
    return rows, good


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("sets", nargs="*", default=list(SETS))
    parser.add_argument("--data", type=Path, default=folder())
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--trees", type=int, default=100)
    parser.add_argument("--out")
    arguments = parser.parse_args()
    if not arguments.data.is_dir():
        print("No data sets: give their folder with --data or WOODLOT_DATASETS. Nothing measured.")
        return 0
    lines = [
        "| data set | forest | rows | slides | accuracy | seconds | times scikit-learn | rounds | MB of a client |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    print("\n".join(lines), flush=True)
    good = True
    for name in arguments.sets:
        rows, holds = rows_of(name, measure(name, arguments.data, range(arguments.seeds), arguments.trees))
        good &= holds
        lines += rows
        print("\n".join(rows), flush=True)
    if arguments.out:
        chunks = ", ".join(
            f"{name} alpha {s.alpha} (at most {most_classes(s.n_classes, CLIENTS, s.alpha)} classes at a client)"
            for name, s in SETS.items()
            if name in arguments.sets
        )
        text = [
            "# Horizontal forests against their slides and scikit-learn",
            "",
            f"Accuracy on a held-out fifth of each class, mean ± standard deviation over {arguments.seeds} seeds; "
            f"{arguments.trees} trees, {CLIENTS} clients, leaves grown until they are pure; {chunks}. Seconds: the "
            f"median fit on {JOBS} threads, all clients in one process on the same cores, messages encoded and "
            "decoded as on a network; beside it the median of its ratio to scikit-learn's forest on the pooled rows "
            "in the same run (random forest, or extra-trees for extra-trees). Rounds and megabytes of one client, "
            "sent and received: the last fit.",
            "",
            *lines,
            "",
            "NCFF stays below the slides' number with the slides' own dealing: a client's trees know its two or three "
            "classes only, and on a row of any other class all of them agree on a wrong one. With rows dealt evenly it "
            "comes near the slides' number. scikit-learn's forests, one for each client and put together the same way, "
            "do the same (`woodlot reproduce collaborative-accuracy`).",
            "",
            "Written by `python lab/benchmarks/horizontal.py --out`.",
        ]
        Path(arguments.out).write_text("\n".join(text) + "\n", encoding="utf-8")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
