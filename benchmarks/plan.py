"""How well `woodlot plan` foresees: five shapes that its trials did not use, foreseen and then measured.

Writes docs/results/plan.md.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import woodlot as wl
from woodlot.estimators.forecast import Shape, forecast, made_up_rows

PAGE = Path(__file__).resolve().parents[1] / "docs" / "results" / "plan.md"
CASES = [
    (wl.FederatedForestClassifier(50, max_depth=10), Shape(60_000, {"bank": 10, "shop": 10})),
    (wl.FederatedForestClassifier(30), Shape(30_000, {"bank": 8, "shop": 4, "telco": 4}, classes=5)),
    (wl.FederatedForestClassifier(20, max_depth=12), Shape(150_000, {"bank": 15, "shop": 25})),
    (wl.FederatedForestRegressor(20, max_features=1 / 3), Shape(25_000, {"bank": 12, "shop": 12}, classes=0)),
    (wl.FederatedForestClassifier(100, max_depth=6), Shape(40_000, {"bank": 30, "shop": 10}, noise=0.3)),
]


def main() -> None:
    """Foresee, measure, print and write."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    lines = [
        "# How well a plan foresees", "",
        "Shapes that the trials of `woodlot plan` did not use: foreseen, then grown in one process on made-up rows.",
        "Made by `benchmarks/plan.py`, on two cores.", "",
        "| rows, columns | forest | planning took | rounds | bytes | seconds |", "|---|---|---|---|---|---|",
    ]  # fmt: skip
    for estimator, shape in CASES:
        estimator.set_params(n_jobs=-1, random_state=1)
        start = time.perf_counter()
        foreseen = forecast(estimator, shape)
        took = time.perf_counter() - start
        X, y, dealing = made_up_rows(shape, shape.rows)
        cost = estimator.set_params(parties=dealing).fit(X, y).cost_
        cells = [f"{seen} / {real} ({off})" for _, seen, real, off in foreseen.beside(cost)]
        columns = " + ".join(map(str, shape.columns.values()))
        kind = "regression" if shape.classes == 0 else f"{shape.classes} classes"
        depth = "unlimited" if estimator.max_depth is None else f"depth {estimator.max_depth}"
        what = f"{kind}, {estimator.n_estimators} trees, {depth}"
        lines.append(f"| {shape.rows:,}; {columns} | {what} | {took:.1f} s | " + " | ".join(cells) + " |")
        print(lines[-1], flush=True)
    lines += ["", "Each cell: foreseen / measured (off by)."]
    PAGE.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
