"""What hidden training costs: CPU of all roles, and bytes over all links.

    python benchmarks/hidden.py [--long] [--out FILE]

One tree on numbers, 32 bins, two classes, columns at two simulated parties in this process. CPU seconds are those of
the label holder, the second server, the dealer and everything around them; the best of three fits, after one that
compiles. Bytes are those of all messages. Each forest is compared with that of open training with the same limits.
The script exits 1 when a forest differs, or when a limit is not kept.

``--long`` adds how the cost grows with rows, columns, depth and trees, and 100 trees of depth 10 with what their bytes
take on two kinds of link.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import woodlot as wl
from woodlot.estimators.complete import same_forest

REPEATS = 3
LIMITS: dict[str, Any] = {"min_samples_leaf": 20, "max_bins": 32, "random_state": 0}
LINKS = {"1 Gbit/s": 125e6, "100 Mbit/s": 12.5e6}


@dataclass(frozen=True)
class Shape:
    """A training; limits are None where nothing is required."""

    rows: int
    columns: int
    depth: int
    tried: int
    trees: int = 1
    sampling: str = "node"
    seconds: float | None = None
    megabytes: float | None = None


REQUIRED = (
    Shape(10_000, 20, 6, 20, seconds=0.6, megabytes=40),
    Shape(10_000, 20, 6, 4),
    Shape(50_000, 40, 6, 6, seconds=0.9, megabytes=100),
    Shape(50_000, 40, 10, 6),
    Shape(50_000, 40, 6, 6, sampling="tree"),
    Shape(50_000, 40, 10, 6, sampling="tree"),
)
GROWTH = (
    Shape(20_000, 20, 6, 4),
    Shape(40_000, 20, 6, 4),
    Shape(20_000, 40, 6, 8),
    Shape(20_000, 20, 12, 4),
    Shape(20_000, 20, 6, 4, trees=2),
    Shape(20_000, 20, 6, 4, trees=4),
)
FORESTS = (
    Shape(10_000, 20, 10, 4, trees=100),
    Shape(10_000, 20, 10, 4, trees=100, sampling="tree"),
)


@dataclass(frozen=True)
class Measured:
    """What a hidden training took, and the same training in the open."""

    seconds: float
    open_seconds: float
    megabytes: float
    rounds: int
    same: bool


def table(shape: Shape) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(shape.rows, shape.columns))
    return X, (X[:, 0] + X[:, 1] * X[:, 2] + rng.normal(size=shape.rows) > 0).astype(int)


def fit(shape: Shape, X: np.ndarray, y: np.ndarray, protection: str) -> tuple[float, wl.FederatedForestClassifier]:
    model = wl.FederatedForestClassifier(
        shape.trees, max_depth=shape.depth, max_features=shape.tried, feature_sampling=shape.sampling, n_jobs=1,
        protection=protection, **LIMITS,
    )  # fmt: skip
    start = time.process_time()
    model.fit(X, y)
    return time.process_time() - start, model


def measure(shape: Shape, repeats: int = REPEATS) -> Measured:
    X, y = table(shape)
    best: dict[str, tuple[float, wl.FederatedForestClassifier]] = {}
    for protection in ("hidden", "open"):
        best[protection] = min((fit(shape, X, y, protection) for _ in range(repeats)), key=lambda pair: pair[0])
    (seconds, hidden), (open_seconds, opened) = best["hidden"], best["open"]
    cost = hidden.cost_
    return Measured(
        seconds,
        open_seconds,
        (cost.bytes_sent + cost.bytes_received) / 1e6,
        cost.rounds,
        same_forest(hidden.combine(), opened.combine()),
    )


def keeps(shape: Shape, found: Measured) -> bool:
    """Whether the forest is right and the limits are kept."""
    in_time = shape.seconds is None or found.seconds <= shape.seconds
    return found.same and in_time and (shape.megabytes is None or found.megabytes <= shape.megabytes)


def line(shape: Shape, found: Measured) -> str:
    limit = "" if shape.seconds is None else f"{shape.seconds} s, {shape.megabytes:.0f} MB"
    cells = [
        f"{shape.rows:,} x {shape.columns}", str(shape.trees), str(shape.depth), f"{shape.tried} per {shape.sampling}",
        f"{found.seconds:.2f}", f"{found.open_seconds:.2f}", f"{found.megabytes:.1f}", str(found.rounds), limit,
        "yes" if found.same else "NO",
    ]  # fmt: skip
    return "| " + " | ".join(cells) + " |"


INTRODUCTION = """\
# Hidden training: cost

Written by `python benchmarks/hidden.py --long`. `protection="hidden"` in one process, numbers at two parties, two
classes, 32 bins, leaves of at least 20 rows. CPU seconds are those of all roles together, bytes those of all links
([how it works, and what it rests on](../decisions/0022-hidden-training.md)).

"""
HEAD = (
    "| rows x columns | trees | depth | columns tried | CPU s, hidden | CPU s, open | MB, all links | rounds | limit "
    "| same forest |\n|---|---|---|---|---|---|---|---|---|---|"
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--long", action="store_true", help="growth, and 100 trees")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    measure(Shape(500, 4, 3, 2), 1)  # compiles
    shapes = REQUIRED + (GROWTH if options.long else ())
    found = {shape: measure(shape) for shape in shapes}
    lines = [HEAD, *(line(shape, measured) for shape, measured in found.items())]
    if options.long:
        forests = {shape: measure(shape, 1) for shape in FORESTS}
        found |= forests
        lines += ["", HEAD, *(line(shape, measured) for shape, measured in forests.items()), ""]
        for shape, measured in forests.items():
            took = ", ".join(f"{1e6 * measured.megabytes / speed:.0f} s at {name}" for name, speed in LINKS.items())
            lines.append(f"Bytes of 100 trees, candidates per {shape.sampling}, one after the other: {took}.")
    text = "\n".join(lines) + "\n"
    print(text, end="")
    if options.out is not None:
        options.out.write_text(INTRODUCTION + text, encoding="utf-8")
    return 0 if all(keeps(shape, measured) for shape, measured in found.items()) else 1


if __name__ == "__main__":
    sys.exit(main())
