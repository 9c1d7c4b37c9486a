"""How well `woodlot plan` foresees: shapes that its trials did not use, foreseen and then measured.

    python benchmarks/plan.py [--only plain|protected] [--repeats 3]

Writes docs/results/plan.md. Exits 1 when bytes are off by more than a tenth, or seconds by more than 35 %. On a machine
that does other work meanwhile seconds tell nothing: run it alone. It takes about ten minutes.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import woodlot as wl
from woodlot.estimators.forecast import DataShape, fit_made_up, forecast
from woodlot.runtime.audit import Cost

PAGE = Path(__file__).resolve().parents[1] / "docs" / "results" / "plan.md"
MOST_BYTES, MOST_SECONDS = 0.10, 0.35
Case = tuple[str, Any, DataShape]
PLAIN: list[Case] = [
    ("open", wl.FederatedForestClassifier(50, max_depth=10), DataShape(60_000, {"bank": 10, "shop": 10})),
    (
        "open",
        wl.FederatedForestClassifier(30),
        DataShape(30_000, {"bank": 8, "shop": 4, "telco": 4}, classes=5),
    ),
    ("open", wl.FederatedForestClassifier(20, max_depth=12), DataShape(150_000, {"bank": 15, "shop": 25})),
    (
        "open",
        wl.FederatedForestRegressor(20, max_features=1 / 3),
        DataShape(25_000, {"bank": 12, "shop": 12}, classes=0),
    ),
    (
        "open",
        wl.FederatedForestClassifier(100, max_depth=6),
        DataShape(40_000, {"bank": 30, "shop": 10}, noise=0.3),
    ),
]
PROTECTED: list[Case] = [
    (
        "RevFRF, 2048 bits",
        wl.RevocableForestClassifier(20, max_depth=6, scheme="paper", encryption=2048),
        DataShape(12_000, {"bank": 6, "shop": 6, "telco": 4}),
    ),
    (
        "RevFRF, 2048 bits",
        wl.RevocableForestClassifier(15, max_depth=8, scheme="paper", encryption=2048),
        DataShape(50_000, {"bank": 8, "shop": 8}, classes=3),
    ),
    (
        "secure sums over rows",
        wl.HorizontalForestClassifier(30, max_depth=8),
        DataShape(40_000, {"north": 10, "south": 10, "west": 10}),
    ),
    (
        "secure sums over rows",
        wl.HorizontalForestRegressor(10, max_depth=10, max_features=0.5),
        DataShape(30_000, {"north": 8, "south": 8, "west": 8, "east": 8}, classes=0),
    ),
]


def measured(estimator: Any, shape: DataShape, repeats: int) -> Cost:
    """The quickest of some trainings: the trials of a forecast count their quickest too."""
    costs: list[Cost] = [fit_made_up(estimator, shape, shape.rows).cost_ for _ in range(repeats)]
    return min(costs, key=lambda cost: cost.total_seconds)


def main() -> int:
    """Foresee, measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("plain", "protected"))
    parser.add_argument("--repeats", type=int, default=3, help="of trainings without encryption; the quickest counts")
    given = parser.parse_args()
    cases = {"plain": PLAIN, "protected": PROTECTED}.get(given.only, PLAIN + PROTECTED)
    lines = [
        "# How well a plan foresees", "",
        "Shapes that the trials of `woodlot plan` did not use: foreseen, then grown in one process on made-up rows.",
        "Made by `benchmarks/plan.py`, on two cores. Each cell: foreseen / measured (off by).", "",
        "| protection | rows, columns | forest | planning took | rounds | bytes | seconds |",
        "|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    print("\n".join(lines), flush=True)
    missed = []
    for protection, estimator, shape in cases:
        estimator.set_params(n_jobs=-1, random_state=1)
        start = time.perf_counter()
        foreseen = forecast(estimator, shape)
        took = time.perf_counter() - start
        cost = measured(estimator, shape, 1 if "bits" in protection else given.repeats)
        cells = [f"{seen} / {real} ({off})" for _, seen, real, off in foreseen.beside(cost)]
        columns = " + ".join(map(str, shape.columns.values()))
        kind = "regression" if shape.classes == 0 else f"{shape.classes} classes"
        depth = "unlimited" if estimator.max_depth is None else f"depth {estimator.max_depth}"
        what = f"{kind}, {estimator.n_estimators} trees, {depth}"
        start_of_line = f"| {protection} | {shape.rows:,}; {columns} | {what} | {took:.1f} s | "
        lines.append(start_of_line + " | ".join(cells) + " |")
        print(lines[-1], flush=True)
        if abs(foreseen.bytes_total / (cost.bytes_sent + cost.bytes_received) - 1) > MOST_BYTES:
            missed.append(f"bytes: {what}")
        if abs(foreseen.total_seconds / cost.total_seconds - 1) > MOST_SECONDS:
            missed.append(f"seconds: {what}")
    PAGE.write_text("\n".join(lines) + "\n", encoding="utf-8")
    for each in missed:
        print(f"missed: {each}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
