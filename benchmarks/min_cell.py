"""What the floors of hidden training cost in accuracy: leaves of 20 rows, 32 bins, and coarser bins in small nodes.

    python benchmarks/min_cell.py [--data DIR] [--seeds N] [--out FILE]

Forests of 100 trees on 80 % of the rows of public data sets, scored on the rest. They are grown by open training, which
gives the same forest as hidden training (``tests/protocols/test_min_cell.py``). To see it on real tables, ten trees
with the default ``min_cell`` are grown both ways. In columns of categories, nodes whose classes weigh the same may be
split otherwise (docs/decisions/0022-hidden-training.md); the script exits 1 when anything else differs.
Data: parquet files in $WOODLOT_DATASETS, or in shared/datasets beside the repository.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.model_selection import train_test_split

import woodlot as wl

SETS = (
    ("ionosphere", None),
    ("spambase", 1000),
    ("spambase", None),
    ("credit_default", None),
    ("adult", None),
    ("letter", None),
)
"""Data sets, and how many of their rows are used; None for all."""
TREES = 100
CHECKED = 10
"""Trees of the hidden training that is compared."""
FLOORS: dict[str, Any] = {"min_samples_leaf": 20, "max_bins": 32}
SETTINGS: dict[str, dict[str, Any]] = {
    "no floors": {},
    "leaves of 20, 32 bins": FLOORS,
    **{f"and `min_cell={cell}`": {**FLOORS, "min_cell": cell} for cell in (20, 50)},
    "and the default": {**FLOORS, "min_cell": "auto"},
}
INTRODUCTION = """\
# Coarser bins in small nodes: accuracy

Written by `python benchmarks/min_cell.py`. Accuracy on 20 % of the rows of forests of 100 trees, mean of {seeds} splits
with its standard error. The default of `protection="hidden"` is a `min_cell` of 150, or a sixth of the rows of a
table of fewer than 900, with the floors ([0032](../decisions/0032-cells-by-the-size-of-the-table.md)). Open training
has neither ([how it works](../decisions/0027-coarser-cells-in-small-nodes.md)). The last column compares ten trees of
a hidden training with those of an open one with the same parameters. In columns of categories, nodes whose classes
weigh the same may be split otherwise ([the exception](../decisions/0022-hidden-training.md#consequences), with every
`min_cell`).

"""


def folder() -> Path:
    beside = Path(__file__).resolve().parents[2] / "shared" / "datasets"
    return Path(os.environ.get("WOODLOT_DATASETS", beside))


def model(trees: int, seed: int, **params: Any) -> wl.FederatedForestClassifier:
    return wl.FederatedForestClassifier(trees, random_state=seed, n_jobs=1, **params)


def measure(frame: pd.DataFrame, seeds: int) -> tuple[dict[str, list[float]], str, bool]:
    """Accuracy by setting and split; how a hidden forest compares, in words, and whether that is right."""
    X, y = frame.drop(columns="target"), frame["target"]
    found: dict[str, list[float]] = {name: [] for name in SETTINGS}
    for seed in range(seeds):
        train, test, labels, truth = train_test_split(X, y, test_size=0.2, random_state=seed)
        for name, params in SETTINGS.items():
            forest = model(TREES, seed, **params).fit(train, labels)
            found[name].append(float((forest.predict(test) == truth.to_numpy()).mean()))
            print(f"  seed {seed}, {name}: {found[name][-1]:.4f}", file=sys.stderr, flush=True)
    hidden = model(CHECKED, 0, protection="hidden").fit(X, y).forest_.coordinator
    opened = model(CHECKED, 0, min_cell="auto", **FLOORS).fit(X, y).forest_.coordinator
    if not np.array_equal(hidden.structure.offset, opened.structure.offset):
        return found, "another", False
    differ = (hidden.structure.right != opened.structure.right) | (hidden.feature != opened.feature)
    differ |= hidden.gain != opened.gain
    if not differ.any():
        return found, "the same", True
    has_categories = any(not pd.api.types.is_numeric_dtype(kind) for kind in X.dtypes)
    return found, f"{differ.sum():,} of {len(differ):,} nodes differ", has_categories


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=folder())
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if not options.data.is_dir():
        print("No data sets: give their folder with --data or WOODLOT_DATASETS. Nothing measured.")
        return 0
    lines = ["| data | rows | " + " | ".join(SETTINGS) + " | hidden forest |", "|---" * (3 + len(SETTINGS)) + "|"]
    as_documented = True
    for name, n_rows in SETS:
        print(name, file=sys.stderr)
        frame = pd.read_parquet(options.data / f"{name}.parquet")
        if n_rows is not None:
            frame = frame.sample(n_rows, random_state=0).reset_index(drop=True)
        found, compared, right = measure(frame, options.seeds)
        cells = [
            f"{np.mean(scores):.4f} ± {np.std(scores, ddof=1) / np.sqrt(len(scores)):.4f}"
            if len(scores) > 1
            else f"{scores[0]:.4f}"
            for scores in found.values()
        ]
        lines.append(f"| {name} | {len(frame):,} | {' | '.join(cells)} | {compared} |")
        as_documented &= right
    text = "\n".join(lines) + "\n"
    print(text, end="")
    if options.out is not None:
        options.out.write_text(INTRODUCTION.format(seeds=options.seeds) + text, encoding="utf-8")
    return 0 if as_documented else 1


if __name__ == "__main__":
    sys.exit(main())
