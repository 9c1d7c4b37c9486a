"""Participants leave: what rebuilding costs against growing everything anew.

Tables 6 and 7 of the RevFRF paper on drawn data, against a textbook twin; what the forest loses (Tables 2 and 3) is the
experiment ``rev-revocations``. Prints Markdown and writes docs/results/revocation.md, where sections that are not asked
for stay as they are.

    python lab/benchmarks/revocation.py [--quick] [--sections rebuilding costs]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import woodlot as wl
from dtpkc import COMPARISONS, Bench, seconds
from woodlot.federation.local_revocable import Encryption
from woodlot_lab.rev_rebuilding import destroyed

OUT = Path(__file__).resolve().parents[2] / "docs" / "results" / "revocation.md"
LEAVERS = 5
TREES, DEPTH = 100, 10

PAPER_REBUILDING = {1: (16.1, 1.2), 2: (37.0, 2.7), 3: (50.1, 3.6), 4: (83.1, 6.1), 5: (136.3, 9.8)}
PAPER_WHOLE = (432.5, 31.1)


def forest(X: pd.DataFrame, y: np.ndarray, seed: int) -> Any:
    """One feature per participant; without encryption, which does not change the forest."""
    parties = {column: [column] for column in X.columns}
    made = wl.RevocableForestClassifier(
        TREES, max_depth=DEPTH, parties=parties, encryption="simulated", random_state=seed, n_jobs=2
    )
    return made.fit(X, y)


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
        models = {level: forest(X, y, seed) for level in (1, 3)}
        for k in points:
            rest = X[[c for c in X.columns if int(c[1:]) >= k]]
            told = {}
            for level, model in models.items():
                receipt, spent = timed(lambda model=model, level=level, k=k: model.revoke(f"f{k - 1}", level=level))
                told[level] = (receipt.statement.cost.nodes_searched, spent)
            whole, spent = timed(lambda rest=rest, y=y, seed=seed: forest(rest, y, seed))
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
            model = forest(X, y, seed)
            owner = model.forest_.coordinator.owner
            share = float((owner == 0).sum() / (owner >= 0).sum())
            receipt, spent = timed(lambda model=model: model.revoke("f0"))
            whole, anew = timed(lambda X=X, y=y, seed=seed: forest(X.drop(columns="f0"), y, seed))
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
        options = {"max_depth": DEPTH, "scheme": "paper", "encryption": encryption, "random_state": 0, "n_jobs": 1}
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


SECTIONS = {"rebuilding": "## What", "costs": "## Encrypted"}
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
    quick = options.quick
    made = stored()
    if "rebuilding" in options.sections:
        made["rebuilding"] = rebuilding_section(1 if quick else 5)
    if "costs" in options.sections:
        made["costs"] = costs_section([2048] if quick else [2048, 3072], 500 if quick else 5_000)
    head = (
        "# Participants leave\n\nWritten by `lab/benchmarks/revocation.py`. What the forest loses: "
        "[rev-revocations](rev-revocations.md)."
    )
    text = "\n\n".join([head, *(made[name] for name in SECTIONS if name in made)])
    print(text)
    if not quick:
        OUT.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
