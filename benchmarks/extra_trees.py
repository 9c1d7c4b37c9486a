"""Table 2 of Federated Extra-Trees: accuracy and F1 with the true total epsilon beside each, and the time of a fit.

    python benchmarks/extra_trees.py [set ...] [--data FOLDER] [--repeats 3] [--trees N] [--out FILE]

Every forest gets the same 80/20 split per class. Three clients get the rows at random, sums are secure. Ranges are
those of the training rows, as if they were public; ``private-quantiles`` uses the same as outer ends. F1 is the mean
over the classes (macro), times are of one process with one thread, side by side. scikit-learn gets categories as codes.

The paper publishes neither the parameters of its noise nor the number of trees, so no cell can be the paper's setting.
Noise on every count is slow to draw (some 15 microseconds for a number, from the operating system's chance), so
FET-GDP has fewer and lower trees; the row "FET, as small" has as many without noise.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
from sklearn.ensemble import ExtraTreesClassifier
from sklearn.metrics import f1_score
from sklearn.model_selection import train_test_split

import woodlot as wl


@dataclass(frozen=True)
class Setting:
    """A data set of the paper's table, what the paper reports for it, and what is affordable here."""

    paper: dict[str, str]
    trees: int = 100
    noisy_trees: int = 10
    noisy_depth: int = 8
    private_leaf: int = 3
    repeats: int | None = None


SETTINGS = {
    "spambase": Setting({"ET": ".934", "FET": ".932", "FET-LDP": ".920", "FET-GDP": ".919"}),
    "credit_default": Setting({"ET": ".805", "FET": ".814", "FET-LDP": ".815", "FET-GDP": ".811"}, trees=20, repeats=1),
    "waveform": Setting({"ET": ".842", "FET": ".886", "FET-LDP": ".882", "FET-GDP": ".876"}),
    "letter": Setting(
        {"ET": ".953", "FET": ".971", "FET-LDP": ".940", "FET-GDP": ".972"},
        trees=50,
        noisy_trees=4,
        private_leaf=5,
        repeats=1,
    ),
    "kddcup99_10pct": Setting(
        {"ET": ".994", "FET": ".994", "FET-LDP": ".993", "FET-GDP": ".993"},
        trees=5,
        noisy_trees=3,
        noisy_depth=6,
        private_leaf=5,
        repeats=1,
    ),
}

Maker = Callable[[Setting, int], Any]


def fet(s: Setting, seed: int, **params: Any) -> Any:
    """A federated forest."""
    known: dict[str, Any] = {"n_estimators": s.trees, "min_samples_leaf": 1, "random_state": seed}
    return wl.FederatedExtraTreesClassifier(**(known | params))


FORESTS: dict[str, Maker] = {
    "ET (scikit-learn)": lambda s, seed: ExtraTreesClassifier(s.trees, random_state=seed),
    "FET": fet,
    "FET, leaves of 5 rows": lambda s, seed: fet(s, seed, min_samples_leaf=5),
    "FET, private quantiles": lambda s, seed: fet(s, seed, ranges="private-quantiles", quantile_epsilon=1.0),
    "FET-LDP, the paper's mechanism": lambda s, seed: fet(
        s, seed, privacy=wl.LocalDP.preset("ldp-paper"), min_samples_leaf=s.private_leaf
    ),
    "FET-LDP, label-dp": lambda s, seed: fet(
        s, seed, privacy=wl.LocalDP.preset("label-dp"), min_samples_leaf=s.private_leaf
    ),
    "FET, as small": lambda s, seed: fet(s, seed, n_estimators=s.noisy_trees, max_depth=s.noisy_depth),
    "FET-GDP, 1 per query": lambda s, seed: fet(
        s,
        seed,
        n_estimators=s.noisy_trees,
        max_depth=s.noisy_depth,
        min_samples_leaf=s.private_leaf,
        privacy=wl.GlobalDP(query_epsilon=1.0),
    ),
    "rows protected, leaves only": lambda s, seed: fet(
        s,
        seed,
        n_estimators=20,
        max_depth=10,
        privacy=wl.GlobalDP(epsilon=3.0, leaves_only=True),
        ranges="private-quantiles",
        quantile_epsilon=1.0,
    ),
}


def read(folder: Path, name: str) -> tuple[pd.DataFrame, np.ndarray]:
    """A table and its labels."""
    frame = pq.read_table(folder / f"{name}.parquet").to_pandas()
    return frame.drop(columns="target"), frame["target"].astype(str).to_numpy()


def coded(frame: pd.DataFrame) -> pd.DataFrame:
    """Categories as codes, for scikit-learn."""
    return frame.apply(lambda c: c.astype("category").cat.codes if c.dtype.kind not in "fiub" else c)


def split(frame: pd.DataFrame, y: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows to train and to test on: each class in both, but for those of one row."""
    classes, counts = np.unique(y, return_counts=True)
    alone = np.isin(y, classes[counts < 2])
    some = np.flatnonzero(~alone)
    train, test = train_test_split(some, test_size=0.2, random_state=seed, stratify=y[some])
    return np.concatenate([train, np.flatnonzero(alone)]), test


def measure(name: str, setting: Setting, folder: Path, repeats: int) -> list[dict[str, Any]]:
    """All forests on one data set."""
    frame, y = read(folder, name)
    numbers = coded(frame)
    rows = []
    for label, make in FORESTS.items():
        found = []
        for seed in range(repeats):
            train, test = split(frame, y, seed)
            model = make(setting, seed)
            table = numbers if isinstance(model, ExtraTreesClassifier) else frame
            begin = time.perf_counter()
            model.fit(table.iloc[train], y[train])
            seconds = time.perf_counter() - begin
            guess = model.predict(table.iloc[test])
            score = f1_score(y[test], guess, average="macro", zero_division=0)
            found.append((float((guess == y[test]).mean()), score, seconds))
        claim = getattr(model, "privacy_", None)
        rows.append(
            {
                "forest": label,
                "trees": model.n_estimators,
                "accuracy": [one[0] for one in found],
                "f1": [one[1] for one in found],
                "seconds": float(np.median([one[2] for one in found])),
                "claim": claim,
                "quantiles": getattr(model, "ranges", "") == "private-quantiles",
                "rounds": model.cost_.rounds if claim is not None else None,
            }
        )
        print(f"{name} {label}: {np.mean(rows[-1]['accuracy']):.3f} in {rows[-1]['seconds']:.1f} s", file=sys.stderr)
    return rows


def shown(values: list[float]) -> str:
    """Mean and spread."""
    mean = f"{np.mean(values):.3f}"
    return mean if len(values) == 1 else f"{mean} ± {np.std(values, ddof=1):.3f}"


def epsilon_of(row: dict[str, Any]) -> str:
    """The total of one row or label, and whose it is."""
    claim = row["claim"]
    if claim is None or claim.epsilon is None:
        return "1 for the quantiles alone; labels: none" if row["quantiles"] else "none"
    delta = f" (delta {claim.delta:g}; {claim.plain_epsilon:.4g} without)" if claim.delta else ""
    return f"{claim.epsilon:.4g}{delta}, {claim.unit}"


def table(name: str, setting: Setting, rows: list[dict[str, Any]], repeats: int) -> str:
    """The results of one data set as Markdown."""
    baseline = rows[0]["seconds"]
    lines = [
        f"## {name}, {repeats} split{'s' if repeats > 1 else ''}",
        "",
        "| forest | trees | accuracy | F1 | total epsilon | paper's accuracy | fit, times scikit-learn | rounds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        paper = next((v for k, v in setting.paper.items() if row["forest"].split(" (")[0].split(",")[0] == k), "")
        rounds = "" if row["rounds"] is None else row["rounds"]
        lines.append(
            f"| {row['forest']} | {row['trees']} | {shown(row['accuracy'])} | {shown(row['f1'])} | {epsilon_of(row)} | "
            f"{paper} | {row['seconds'] / baseline:.1f} | {rounds} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="*", default=list(SETTINGS), metavar="set", help=", ".join(SETTINGS))
    parser.add_argument("--data", type=Path, default=os.environ.get("WOODLOT_DATASETS"))
    parser.add_argument("--repeats", type=int, default=3, help="splits of the small sets; the large ones have one")
    parser.add_argument("--trees", type=int, help="at most so many trees in a forest")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.data is None:
        parser.error("name the folder of the data sets with --data or WOODLOT_DATASETS")
    warnings.simplefilter("ignore")
    text = [
        "# Federated extra-trees",
        "",
        "Made by `benchmarks/extra_trees.py`, which says how. Epsilons are totals over the whole training, for what is "
        "named beside them. 3 clients, secure sums, ranges of the training rows taken as public.",
        "",
        "- **FET-LDP** protects labels only: not columns, not that a row is there.",
        "- **FET-GDP** as in the paper protects nobody: that is what its epsilon says.",
        "- **rows protected** is another design: splits by chance alone, noise in the leaves, an epsilon that means "
        "something, and the accuracy that is left.",
    ]
    small = wl.FederatedExtraTreesClassifier(1, random_state=0)  # compiled before anything is timed
    for privacy in (None, wl.LocalDP()):
        small.set_params(privacy=privacy).fit(np.arange(60.0)[:, None], np.arange(60) % 2)
    for name in options.sets:
        setting = SETTINGS[name]
        if options.trees is not None:
            setting = replace(setting, trees=min(setting.trees, options.trees))
        repeats = setting.repeats or options.repeats
        rows = measure(name, setting, options.data, repeats)
        text += ["", table(name, setting, rows, repeats)]
        if options.out is not None:  # what is there is kept, should a later set fail
            options.out.write_text("\n".join(text) + "\n", encoding="utf-8")
    print("\n".join(text))


if __name__ == "__main__":
    main()
