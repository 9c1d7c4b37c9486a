"""Participants leave: what the forest loses, and what rebuilding costs against growing everything anew.

Tables 2, 3 and 7 of the RevFRF paper, on the data sets that are in the folder that WOODLOT_DATASETS names: one feature
per participant, 100 trees of depth 10. Leavers are drawn at random; every row of the tables is a mean over some draws.
"Non-federated" is scikit-learn's forest on the columns that are left. Prints Markdown and writes
docs/results/revocation.md.

    WOODLOT_DATASETS=datasets python benchmarks/revocation.py [--quick]
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.metrics import accuracy_score, f1_score, mean_absolute_error, mean_squared_error, r2_score, recall_score
from sklearn.model_selection import train_test_split

import woodlot as wl

OUT = Path(__file__).resolve().parents[1] / "docs" / "results" / "revocation.md"
LEAVERS = 5
TREES, DEPTH = 100, 10

PAPER: dict[str, dict[int, tuple[float, float]]] = {
    # accuracy of RevFRF and the non-federated forest in the paper's Table 2, MSE in Table 3, by number of leavers
    "adult": {0: (85.63, 85.63), 1: (85.28, 85.37), 5: (83.44, 83.15)},
    "bank": {0: (90.77, 90.97), 1: (90.83, 90.32), 5: (90.61, 90.17)},
    "drug": {0: (90.53, 90.62), 1: (90.62, 90.49), 5: (89.97, 90.09)},
    "wine": {0: (68.51, 68.52), 1: (67.43, 67.69), 5: (64.49, 64.49)},
    "superconduct": {0: (1005.21, 994.69), 1: (1009.98, 995.24), 5: (1029.26, 1021.2)},
    "energy": {0: (6058.42, 6038.64), 1: (6057.77, 6052.24), 5: (6178.1, 6135.74)},
    "insurance": {0: (0.065, 0.065), 1: (0.065, 0.065), 5: (0.065, 0.065)},
}
SETS = {
    "adult": ("adult", "classes"),
    "bank": ("bank_full", "classes"),
    "drug": ("drug_consumption_heroin_ever", "classes"),
    "wine": ("wine_quality_white", "classes"),
    "superconduct": ("superconduct_subset", "targets"),
    "energy": ("appliance_energy", "targets"),
    "insurance": ("insurance_coil2000", "targets"),
}
PAPER_REBUILDING = {1: (16.1, 1.2), 2: (37.0, 2.7), 3: (50.1, 3.6), 4: (83.1, 6.1), 5: (136.3, 9.8)}
PAPER_WHOLE = (432.5, 31.1)


def read(folder: Path, name: str) -> tuple[pd.DataFrame, np.ndarray]:
    """A data set with categories as numbers, as the comparison forest needs them."""
    data = pd.read_parquet(folder / f"{name}.parquet")
    y = data.pop("target").to_numpy()
    data = data.drop(columns=[c for c in data.columns if c == "date"])
    for column in data.columns:
        if not pd.api.types.is_numeric_dtype(data[column]):
            data[column] = data[column].astype("category").cat.codes
        data[column] = data[column].astype("float64").fillna(-1.0)
    return data, y


def forest(task: str, X: pd.DataFrame, y: np.ndarray, seed: int) -> Any:
    kind = wl.RevocableForestClassifier if task == "classes" else wl.RevocableForestRegressor
    parties = {column: [column] for column in X.columns}
    return kind(TREES, max_depth=DEPTH, parties=parties, encryption="simulated", random_state=seed, n_jobs=2).fit(X, y)


def judge(task: str, y: np.ndarray, said: np.ndarray) -> tuple[float, float, float]:
    if task == "classes":
        return (
            100 * accuracy_score(y, said),
            100 * recall_score(y, said, average="macro", zero_division=0),
            100 * f1_score(y, said, average="weighted"),
        )
    return mean_squared_error(y, said), mean_absolute_error(y, said), r2_score(y, said)


def leaving(folder: Path, key: str, repeats: int, rows: int) -> list[str]:
    """Lines of Table 2 or 3 for one data set."""
    name, task = SETS[key]
    X, y = read(folder, name)
    if len(X) > rows:
        chosen = np.random.default_rng(0).choice(len(X), rows, replace=False)
        X, y = X.iloc[chosen], y[chosen]
    found: dict[int, list[tuple[float, ...]]] = {k: [] for k in range(LEAVERS + 1)}
    for seed in range(repeats):
        a, b, ya, yb = train_test_split(X, y, test_size=0.2, random_state=seed)
        model = forest(task, a, ya, seed)
        order = np.random.default_rng(seed).permutation(X.columns)
        plain: Any = RandomForestClassifier if task == "classes" else RandomForestRegressor
        for k in range(LEAVERS + 1):
            if k:
                model.revoke(order[k - 1])
            rest = [c for c in X.columns if c not in order[:k]]
            alone = plain(TREES, max_depth=DEPTH, max_features="sqrt", random_state=seed, n_jobs=2).fit(a[rest], ya)
            found[k].append((*judge(task, yb, model.predict(b[rest])), *judge(task, yb, alone.predict(b[rest]))))
    lines = []
    for k, values in found.items():
        ours = np.mean(values, axis=0)
        told = PAPER[key].get(k)
        paper = "" if told is None else f"{told[0]:g} / {told[1]:g}"
        digits = 2 if ours[0] > 1 else 4
        shown = " | ".join(f"{v:.{digits}f}" for v in ours)
        lines.append(f"| {key} ({len(X):,} rows, {X.shape[1]} columns) | {k} | {shown} | {paper} |")
    return lines


def theory(participants: int, depth: int) -> tuple[float, float]:
    """Share of the splits, and of the work, that one leaver's nodes and all under them are, if evenly spread.

    A split at depth d stays if neither it nor one of the d above it is the leaver's: (1 - 1/participants)^(d + 1). A
    full tree has 2^d splits at depth d; every level is the same work, for it has the same rows.
    """
    stays = (1 - 1 / participants) ** np.arange(1, depth + 1)
    counts = 2.0 ** np.arange(depth)
    return float(1 - (counts * stays).sum() / counts.sum()), float(1 - stays.mean())


def rebuilding(repeats: int) -> list[str]:
    """Lines of Table 7's shape: ten participants of equal worth, one feature each, leave one after the other."""
    participants, n = 10, 4000
    points: dict[int, list[tuple[float, ...]]] = {k: [] for k in range(1, LEAVERS + 1)}
    for seed in range(repeats):
        rng = np.random.default_rng(seed)
        X = pd.DataFrame(rng.normal(size=(n, participants)), columns=[f"f{i}" for i in range(participants)])
        y = (X.to_numpy() @ rng.choice([-1.0, 1.0], participants) + rng.normal(size=n) * 2 > 0).astype(int)
        models = {level: forest("classes", X, y, seed) for level in (1, 3)}
        for k in points:
            rest = X[[c for c in X.columns if int(c[1:]) >= k]]
            told = {level: model.revoke(f"f{k - 1}", level=level).statement for level, model in models.items()}
            whole = forest("classes", rest, y, seed)
            nodes, seconds = int((whole.forest_.coordinator.owner >= 0).sum()), whole.cost_.total_seconds
            points[k].append(
                tuple(v for s in told.values() for v in (s.cost.nodes_searched / nodes, s.cost.seconds / seconds))
            )
    lines = []
    for k, found in points.items():
        shares = " | ".join(f"{value:.0%}" for value in np.median(found, axis=0))
        splits, work = theory(participants - k + 1, DEPTH)
        nodes_paper, seconds_paper = PAPER_REBUILDING[k]
        lines.append(
            f"| {k} | {splits:.0%} / {work:.0%} | {shares} | {nodes_paper / PAPER_WHOLE[0]:.0%} / "
            f"{seconds_paper / PAPER_WHOLE[1]:.0%} |"
        )
    return lines


def single(repeats: int) -> list[str]:
    """One leaver of ten, by how often its feature is chosen: strong, even and weak features."""
    lines = []
    for strength, what in ((0.0, "never informative"), (1.0, "as good as the others"), (3.0, "three times as good")):
        points = []
        for seed in range(repeats):
            rng = np.random.default_rng(seed)
            X = pd.DataFrame(rng.normal(size=(4000, 10)), columns=[f"f{i}" for i in range(10)])
            weights = np.r_[strength, np.ones(9)]
            y = (X.to_numpy() @ weights + rng.normal(size=4000) * 2 > 0).astype(int)
            model = forest("classes", X, y, seed)
            owner = model.forest_.coordinator.owner
            share = float((owner == 0).sum() / (owner >= 0).sum())
            receipt = model.revoke("f0")
            whole = forest("classes", X.drop(columns="f0"), y, seed)
            nodes = int((whole.forest_.coordinator.owner >= 0).sum())
            statement = receipt.statement
            points.append(
                (share, statement.cost.nodes_searched / nodes, statement.cost.seconds / whole.cost_.total_seconds)
            )
        share, searched, seconds = np.mean(points, axis=0)
        lines.append(f"| {what} | {share:.0%} | {searched:.0%} | {seconds:.0%} |")
    return lines


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--quick", action="store_true", help="one repeat, at most 4,000 rows, nothing written")
    quick = arguments.parse_args().quick
    repeats, rows = (1, 4_000) if quick else (2, 6_000)
    text = ["# Participants leave", "", "Written by `benchmarks/revocation.py`.", ""]
    folder = os.environ.get("WOODLOT_DATASETS")
    text += [
        "## What rebuilding costs",
        "",
        "Ten participants with one feature each, equally good, leave one after the other; 4,000 rows, 100 trees of "
        "depth 10. Share of what growing the forest anew without them costs, at each leaver: nodes searched, and "
        "seconds in the same run (without encryption, which costs one operation per new split). Theory for level 1, "
        "with m participants before: of the splits 1 - sum(2^d (1 - 1/m)^(d+1)) / sum(2^d), of the work (rows times "
        "levels) 1 - mean((1 - 1/m)^(d+1)), over the depths d = 0..9. The paper's column is its Table 7, where all "
        "leave at once and trees are small.",
        "",
        "| leaver | theory: splits / work | level 1: nodes | seconds | level 3: nodes | seconds | paper: nodes / "
        "seconds |",
        "|---|---|---|---|---|---|---|",
        *rebuilding(repeats),
        "",
        "One leaver of ten, by how often its feature is chosen (level 1):",
        "",
        "| the leaver's feature | its share of the splits | nodes searched | seconds |",
        "|---|---|---|---|",
        *single(repeats),
    ]
    if folder is not None:
        for title, task, head in (
            ("Classification", "classes", "accuracy | recall | F1 | alone: accuracy | recall | F1"),
            ("Regression", "targets", "MSE | MAE | R2 | alone: MSE | MAE | R2"),
        ):
            text += [
                "",
                f"## {title}",
                "",
                f'RevFRF and the non-federated forest ("alone") on the same columns; means of {repeats} splits, '
                f"at most {rows:,} rows. The paper's figures are {'accuracies' if task == 'classes' else 'MSEs'}, "
                "RevFRF / non-federated.",
                "",
                f"| data | left | {head} | paper |",
                "|---|---|---|---|---|---|---|---|---|",
            ]
            for key, (_, kind) in SETS.items():
                if kind == task:
                    lines = leaving(Path(folder), key, repeats, rows)
                    text += lines
                    print("\n".join(lines), flush=True)
    print("\n".join(text))
    if not quick:
        OUT.write_text("\n".join(text) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
