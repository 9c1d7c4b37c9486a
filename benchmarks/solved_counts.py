"""How much of others' columns the two servers of a hidden training solve from the counts that it opens.

    python benchmarks/solved_counts.py [--part sizes|settings] [--out FILE]

Made-up tables of 8 columns, half of them at each of two parties, and 100 trees. The attack is that of ``woodlot
leak-test --part hidden``: chances of every row, fitted to all counts of all trees. Beside it a regression on what the
server has anyway, given half of the true values. ``sizes``: tables of different sizes, with the default ``min_cell``
and with others; the rule of docs/decisions/0032-cells-by-the-size-of-the-table.md comes from it. ``settings``: other
parameters, on one table of 1,000 rows, as in docs/decisions/0026-counts-are-solved-for-rows.md. Exits 1 where the
default tells more than the leak test's margin, and what is left to chance, above the regression, on average over the
tables of a size of up to 2,000 rows.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from woodlot.leaks.case import MARGIN, made_up_case
from woodlot.leaks.hidden_attacks import HiddenTest
from woodlot.trees.coarsening import cell_for

TREES = 100
SMALL = 2000
"""Rows of tables for which the default must hold what the documents say of it."""
CHANCE = 0.01
"""About the standard error of a mean over the tables of one size."""
SEEDS = {300: 4, 500: 4, 1000: 4, 2000: 3, 4000: 2, 8000: 1}
"""Tables of each size: the attack takes longer on large ones, and varies less."""
CELLS = (0, 20, 50, 100)
"""Values of ``min_cell`` beside the default."""
LARGE, CELLS_OF_LARGE = 1000, (20,)
"""Tables of more rows than this are attacked with fewer: fine cells take long there."""
SETTINGS: tuple[dict[str, Any], ...] = (
    *({"n_estimators": n, "min_cell": 0} for n in (10, 25, 100)),
    *({"max_depth": n, "min_cell": 0} for n in (6, 3)),
    {"min_samples_leaf": 100, "min_cell": 0},
    *({"max_bins": n, "min_cell": 0} for n in (8, 4, 2)),
    *({"min_cell": n} for n in (20, 50, 100)),
    {"min_cell": 100, "n_estimators": 400},
    {"max_features": 1.0},
    {},
)
HEAD = """\
# Counts of hidden trainings, solved for rows

Written by `python benchmarks/solved_counts.py --out docs/results/solved-counts.md`. Mean rank correlation of what a
server finds with the other's columns, and in brackets what a regression on its own columns (and the labels, at the
label holder) finds that was given half of the true values. Made-up tables of 8 columns, {trees} trees. The attack:
[0026](../decisions/0026-counts-are-solved-for-rows.md). The rule:
[0032](../decisions/0032-cells-by-the-size-of-the-table.md).
"""


@dataclass(frozen=True)
class Solved:
    """What both servers found in one table."""

    second: float
    second_without: float
    holder: float
    holder_without: float
    seconds: float


def solve(n_rows: int, seed: int, params: dict[str, Any]) -> Solved:
    """Train hidden and attack."""
    case, start = made_up_case(n_rows, seed=seed), time.process_time()
    test = HiddenTest(case, {"n_estimators": TREES, "random_state": seed, **params}, lambda text: None)
    found = {f.role: (f.value or 0.0, f.baseline or 0.0) for f in test.values() if f.attack == "fit to all counts"}
    holder, second = found[case.holder], found[f"{case.passive} (second server)"]
    return Solved(*second, *holder, time.process_time() - start)


def mean(solved: list[Solved]) -> Solved:
    """The mean over tables."""
    rows = np.array([list(asdict(one).values()) for one in solved])
    return Solved(*rows.mean(axis=0).tolist())


def cell(value: float, without: float) -> str:
    return f"{value:.2f} ({without:.2f})"


def sizes_table(found: dict[str, dict[str, float]]) -> list[str]:
    """One line for every size and ``min_cell``."""
    lines = ["| rows | tables | `min_cell` | second server | label holder |", "|---" * 5 + "|"]
    for key, one in found.items():
        n_rows, shown = key.split(", ")
        rest = cell(one["second"], one["second_without"]), cell(one["holder"], one["holder_without"])
        lines.append(f"| {int(n_rows):,} | {SEEDS[int(n_rows)]} | {shown} | {rest[0]} | {rest[1]} |")
    return lines


def settings_table(found: dict[str, dict[str, float]]) -> list[str]:
    """One line for every setting."""
    lines = ["| 1,000 rows, one table | second server | label holder |", "|---" * 3 + "|"]
    for name, one in found.items():
        rest = cell(one["second"], one["second_without"]), cell(one["holder"], one["holder_without"])
        lines.append(f"| {name} | {rest[0]} | {rest[1]} |")
    return lines


def page(found: dict[str, dict[str, dict[str, float]]]) -> str:
    lines = [HEAD.format(trees=TREES)]
    if "sizes" in found:
        lines += ["## By the size of the table", "", *sizes_table(found["sizes"]), ""]
    if "settings" in found:
        lines += ["## Other settings", "", *settings_table(found["settings"]), ""]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("sizes", "settings"), help="the other one is left out")
    parser.add_argument("--out", type=Path, help="the page; what the .json file beside it has is not measured again")
    options = parser.parse_args()
    store = None if options.out is None else options.out.with_suffix(".json")
    found = json.loads(store.read_text()) if store is not None and store.is_file() else {}
    told = []

    def keep() -> None:
        if store is not None:
            store.write_text(json.dumps(found, indent=1) + "\n")
            options.out.write_text(page(found), encoding="utf-8")

    if options.part != "settings":
        sizes = found.setdefault("sizes", {})
        for n_rows, n_seeds in SEEDS.items():
            for min_cell in (None, *CELLS):
                if min_cell is not None and (
                    min_cell >= cell_for(n_rows) or (n_rows > LARGE and min_cell not in CELLS_OF_LARGE)
                ):
                    continue
                shown = f"{cell_for(n_rows)} by default" if min_cell is None else str(min_cell)
                name = f"{n_rows}, {shown}"
                if name not in sizes:
                    sizes[name] = asdict(mean([solve(n_rows, seed, {"min_cell": min_cell}) for seed in range(n_seeds)]))
                    keep()
                one = Solved(**sizes[name])
                print(f"{n_rows:,} rows, min_cell {shown}: {one}", file=sys.stderr, flush=True)
                if (
                    n_rows <= SMALL
                    and min_cell is None
                    and max(one.second - one.second_without, one.holder - one.holder_without) > MARGIN + CHANCE
                ):
                    told.append(f"{n_rows:,} rows: {one}")
    if options.part != "sizes":
        settings = found.setdefault("settings", {})
        for params in SETTINGS:
            name = ", ".join(f"`{key}={value}`" for key, value in params.items()) or "defaults"
            if name not in settings:
                settings[name] = asdict(solve(1000, 0, params))
                keep()
            print(f"{name}: {settings[name]}", file=sys.stderr, flush=True)
    if store is None:
        print(page(found))
    else:
        keep()
    for line in told:
        print(f"the default tells more than a regression: {line}", file=sys.stderr)
    return 1 if told else 0


if __name__ == "__main__":
    sys.exit(main())
