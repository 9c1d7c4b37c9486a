"""Participants leave: what the forest loses, and what rebuilding costs against growing everything anew.

Tables 6 and 7 of the RevFRF paper on drawn data, against a textbook twin; Tables 2 and 3 on the data sets that are in
the folder that WOODLOT_DATASETS names: one feature per participant, 100 trees of depth 10. Leavers are drawn at random;
every row of the tables is a mean over some draws. "Non-federated" is scikit-learn's forest on the columns left.
Prints Markdown and writes docs/results/revocation.md, where sections that are not asked for stay as they are.

    WOODLOT_DATASETS=datasets python benchmarks/revocation.py [--quick] [--sections rebuilding costs accuracy]
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.metrics import accuracy_score, f1_score, mean_absolute_error, mean_squared_error, r2_score, recall_score
from sklearn.model_selection import train_test_split

import woodlot as wl
from dtpkc import COMPARISONS, Bench, seconds
from woodlot.experiments.rev_rebuilding import destroyed
from woodlot.revocable_federation import Encryption

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


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """What some work returns, and its CPU seconds, of all roles and threads."""
    start = time.process_time()
    return work(), time.process_time() - start


def splits_of(model: Any) -> int:
    return int((model.forest_.coordinator.owner >= 0).sum())


def drawn(seed: int, n: int, weights: np.ndarray) -> tuple[pd.DataFrame, np.ndarray]:
    """Rows of one feature per participant, and labels that depend on them by these weights."""
    rng = np.random.default_rng(seed)
    X = pd.DataFrame(rng.normal(size=(n, len(weights))), columns=[f"f{i}" for i in range(len(weights))])
    signs = rng.choice([-1.0, 1.0], len(weights))
    return X, (X.to_numpy() @ (weights * signs) + rng.normal(size=n) * 2 > 0).astype(int)


def rebuilding(repeats: int) -> list[str]:
    """Lines: ten participants of equal worth, one feature each, leave one after the other."""
    participants = 10
    points: dict[int, list[tuple[float, ...]]] = {k: [] for k in range(1, LEAVERS + 1)}
    for seed in range(repeats):
        X, y = drawn(seed, 4000, np.ones(participants))
        models = {level: forest("classes", X, y, seed) for level in (1, 3)}
        for k in points:
            rest = X[[c for c in X.columns if int(c[1:]) >= k]]
            told = {}
            for level, model in models.items():
                receipt, spent = timed(lambda model=model, level=level, k=k: model.revoke(f"f{k - 1}", level=level))
                told[level] = (receipt.statement.cost.nodes_searched, spent)
            whole, spent = timed(lambda rest=rest, y=y, seed=seed: forest("classes", rest, y, seed))
            points[k].append(tuple(v for nodes, own in told.values() for v in (nodes / splits_of(whole), own / spent)))
    lines = []
    for k, found in points.items():
        shares = " | ".join(f"{value:.0%}" for value in np.median(found, axis=0))
        splits, work = theory(participants - k + 1, DEPTH)
        lines.append(f"| {k} | {splits:.0%} / {work:.0%} | {shares} |")
    return lines


def single(repeats: int) -> list[str]:
    """One leaver of ten, by how often its feature is chosen: strong, even and weak features."""
    lines = []
    for strength, what in ((0.0, "never informative"), (1.0, "as good as the others"), (3.0, "three times as good")):
        points = []
        for seed in range(repeats):
            X, y = drawn(seed, 4000, np.r_[strength, np.ones(9)])
            model = forest("classes", X, y, seed)
            owner = model.forest_.coordinator.owner
            share = float((owner == 0).sum() / (owner >= 0).sum())
            receipt, spent = timed(lambda model=model: model.revoke("f0"))
            whole, anew = timed(lambda X=X, y=y, seed=seed: forest("classes", X.drop(columns="f0"), y, seed))
            points.append((share, receipt.statement.cost.nodes_searched / splits_of(whole), spent / anew))
        share, searched, spent = np.median(points, axis=0)
        lines.append(f"| {what} | {share:.0%} | {searched:.0%} | {spent:.0%} |")
    return lines


# --- Tables 6 and 7, encrypted, beside the textbook twin ---


def path_lengths(model: Any, X: pd.DataFrame) -> int:
    """Comparisons that the first row of X makes in all trees."""
    structure = model.forest_.coordinator.structure
    depth = np.zeros(structure.n_nodes, int)
    for node in np.flatnonzero(structure.right >= 0):
        depth[[node + 1, structure.right[node]]] = depth[node] + 1
    return int(depth[structure.offset[:-1] + model.apply(X[:1])[0]].sum())


def costs(bits: int, rows: int) -> tuple[list[str], list[str]]:
    """Lines of Table 6 and of Table 7 at one length of keys."""
    bench = Bench(bits, textbook=1)
    book, _ = bench.book()
    encrypting = seconds(lambda: book.encrypt(bench.requester.public.h, 12345))
    comparing = bench.textbook_holt() / COMPARISONS
    keys = Encryption(bits, "standard", lambda *_, **__: bench.master)  # the modulus is made once

    def grow(X: pd.DataFrame, y: np.ndarray, trees: int, encryption: Any) -> tuple[Any, float]:
        parties = {column: [column] for column in X.columns}
        options = {"max_depth": DEPTH, "encryption": encryption, "random_state": 0, "n_jobs": 1}
        return timed(lambda: wl.RevocableForestClassifier(trees, parties=parties, **options).fit(X, y))

    X, y = drawn(0, rows, np.ones(14))
    plain, growing = grow(X, y, 2, "simulated")
    model, spent = grow(X, y, 2, keys)
    nodes = splits_of(model)
    sent = (model.cost_.bytes_sent + model.cost_.bytes_received) / 1e6
    twin = growing + nodes * encrypting
    first = [
        f"| {bits} | construction, 100 nodes | {100 * spent / nodes:.2f} | {100 * sent / nodes:.2f} | "
        f"{100 * twin / nodes:.2f} | {twin / spent:.1f}x |"
    ]
    few = X[:1000]
    guesses = np.random.default_rng(1).integers(0, 2, len(few))  # noise: trees grow deep
    asked, _ = grow(few, guesses, 10, keys)
    answer, spent = timed(lambda: asked.predict_encrypted(few[:1]))
    assert (answer == asked.predict_proba(few[:1])).all()
    cost = asked.prediction_cost_
    twin = path_lengths(asked, few) * comparing
    first.append(
        f"| {bits} | prediction of a row, 10 trees, {path_lengths(asked, few)} comparisons | {spent:.2f} | "
        f"{(cost.bytes_sent + cost.bytes_received) / 1e6:.2f} | {twin:.1f} | {twin / spent:.1f}x |"
    )
    second = []
    for k in range(1, LEAVERS + 1):
        leavers, rest = [f"f{i}" for i in range(k)], X[[c for c in X.columns if int(c[1:]) >= k]]
        model, _ = grow(X, y, 2, keys)
        forest = model.forest_.coordinator
        gone = destroyed(forest.structure.right, forest.owner, list(range(k)))
        before = splits_of(model)
        receipts, spent = timed(lambda model=model, leavers=leavers: model.revoke_together(leavers))
        plain, _ = grow(X, y, 2, "simulated")
        _, growing = timed(lambda plain=plain, leavers=leavers: plain.revoke_together(leavers))
        new = splits_of(model) - (before - gone)
        twin = growing + new * encrypting
        anew, whole = grow(rest, y, 2, keys)
        told = receipts[0].statement.cost
        paper = (PAPER_REBUILDING[k][0] / PAPER_WHOLE[0], PAPER_REBUILDING[k][1] / PAPER_WHOLE[1])
        second.append(
            f"| {bits} | {k} | {new:,} of {splits_of(anew):,} | {new / splits_of(anew):.0%} | "
            f"{spent:.2f} of {whole:.2f} | {spent / whole:.0%} | {told.bytes / 1e6:.2f} of "
            f"{(anew.cost_.bytes_sent + anew.cost_.bytes_received) / 1e6:.2f} | {twin:.1f} | {twin / spent:.1f}x | "
            f"{paper[0]:.0%} / {paper[1]:.0%} |"
        )
    return first, second


# --- the page ---


def rebuilding_section(repeats: int) -> str:
    text = [
        "## What rebuilding costs",
        "",
        "Ten participants with one feature each, equally good, leave one after the other; 4,000 rows, 100 trees of "
        "depth 10. Share of what growing the forest anew without them costs, at each leaver: nodes searched, and CPU "
        f"seconds of all roles in the same run, medians of {repeats} (without encryption, which costs one operation "
        "per new split). Revoking includes the receipt. Theory for level 1, with m participants before: of the splits "
        "1 - sum(2^d (1 - 1/m)^(d+1)) / sum(2^d), of the work (rows times levels) 1 - mean((1 - 1/m)^(d+1)), over the "
        "depths d = 0..9.",
        "",
        "| leaver | theory: splits / work | level 1: nodes | CPU | level 3: nodes | CPU |",
        "|---|---|---|---|---|---|",
        *rebuilding(repeats),
        "",
        "One leaver of ten, by how often its feature is chosen (level 1):",
        "",
        "| the leaver's feature | its share of the splits | nodes searched | CPU |",
        "|---|---|---|---|",
        *single(repeats),
    ]
    return "\n".join(text)


def costs_section(lengths: list[int], rows: int) -> str:
    first: list[str] = []
    second: list[str] = []
    for bits in lengths:
        one, two = costs(bits, rows)
        first += one
        second += two
        print("\n".join(one + two), flush=True)
    text = [
        "## Encrypted, beside a textbook twin",
        "",
        f"14 participants with one feature each, {rows:,} rows; CPU seconds of all roles together, one thread, in one "
        "run; the modulus is made before, all other keys and tables are counted. The twin does what the paper writes, "
        "one exponentiation after the other (`tests/crypto/textbook.py`): one operation is measured, and taken as "
        "often as there are splits or comparisons; what is not encryption it does as fast as Woodlot. Table 6:",
        "",
        "| bits | what | CPU s | MB | textbook, s | ratio |",
        "|---|---|---|---|---|---|",
        *first,
        "",
        "Table 7: two trees of depth 10 (some 800 splits; the paper has 432 nodes); some leave together, at level 1. "
        "New splits, CPU seconds and megabytes of rebuilding, of those of growing everything anew. The paper reports "
        "far fewer nodes destroyed than [theory](#what-rebuilding-costs) gives at depth 10.",
        "",
        "| bits | left | new splits | share | CPU s | share | MB | textbook, s | ratio | paper: nodes / seconds |",
        "|---|---|---|---|---|---|---|---|---|---|",
        *second,
    ]
    return "\n".join(text)


def accuracy_section(folder: str, repeats: int, rows: int) -> str:
    text: list[str] = []
    for title, task, head in (
        ("Classification", "classes", "accuracy | recall | F1 | alone: accuracy | recall | F1"),
        ("Regression", "targets", "MSE | MAE | R2 | alone: MSE | MAE | R2"),
    ):
        text += [
            *([""] if text else []),
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
    return "\n".join(text)


SECTIONS = {"rebuilding": "## What", "costs": "## Encrypted", "accuracy": "## Classification"}
"""By name, how each section begins, in their order."""


def stored() -> dict[str, str]:
    """The sections that were written before."""
    text = OUT.read_text(encoding="utf-8") if OUT.exists() else ""
    found = {name: text.find(mark) for name, mark in SECTIONS.items()}
    places = [*sorted(at for at in found.values() if at >= 0), len(text)]
    return {name: text[at : places[places.index(at) + 1]].strip() for name, at in found.items() if at >= 0}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--quick", action="store_true", help="one repeat, few rows, nothing written")
    arguments.add_argument("--sections", nargs="*", choices=list(SECTIONS), default=list(SECTIONS))
    options = arguments.parse_args()
    quick, folder = options.quick, os.environ.get("WOODLOT_DATASETS")
    made = stored()
    if "rebuilding" in options.sections:
        made["rebuilding"] = rebuilding_section(1 if quick else 5)
    if "costs" in options.sections:
        made["costs"] = costs_section([2048] if quick else [2048, 3072], 500 if quick else 5_000)
    if "accuracy" in options.sections and folder is not None:
        made["accuracy"] = accuracy_section(folder, *((1, 4_000) if quick else (2, 6_000)))
    head = "# Participants leave\n\nWritten by `benchmarks/revocation.py`."
    text = "\n\n".join([head, *(made[name] for name in SECTIONS if name in made)])
    print(text)
    if not quick:
        OUT.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
