"""What compression of frames saves on the line, and what it costs, by kind of message.

Grows a forest in one process, with its out-of-bag score, takes every message as it would leave the machine, and makes
its frames with and without compression. Work is CPU time. Writes docs/results/compression.md.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from pathlib import Path

import numpy as np

import woodlot as wl
from woodlot.runtime import codec
from woodlot.runtime.frames import FrameKind, Label, split

PAGE = Path(__file__).resolve().parents[1] / "docs" / "results" / "compression.md"
LABEL = Label(FrameKind.request, "0" * 32, 1)
LINES = {"20 Mb/s": 20e6 / 8, "100 Mb/s": 100e6 / 8, "1 Gb/s": 1e9 / 8}
N_ROWS = 100_000


def made_up(n_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Columns as real ones are: some numbers, some counts, some rare flags."""
    rng = np.random.default_rng(4)
    X = rng.standard_normal((n_rows, 12))
    X[:, 4:8] = rng.poisson(2, (n_rows, 4))
    X[:, 8:] = rng.random((n_rows, 4)) < 0.05
    return X, (X[:, 0] + X[:, 5] * X[:, 9] + rng.standard_normal(n_rows) > 0).astype(int)


def main() -> None:
    """Grow, predict, measure, print and write."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    X, y = made_up(N_ROWS)
    said: list[bytes] = []
    codec.listeners.append(said.append)
    wl.FederatedForestClassifier(20, max_depth=12, parties=2, oob_score=True, random_state=0, n_jobs=-1).fit(X, y)
    codec.listeners.clear()
    plain: dict[str, int] = defaultdict(int)
    packed: dict[str, int] = defaultdict(int)
    seconds: dict[str, float] = defaultdict(float)
    for data in said:
        kind = type(codec.decode(data)).__name__
        plain[kind] += sum(map(len, split(LABEL, data)))
        began = time.thread_time()
        packed[kind] += sum(map(len, split(LABEL, data, compress=True)))
        seconds[kind] += time.thread_time() - began
    lines = [
        "# Compression of frames", "",
        "Made by `benchmarks/compression.py`: 100,000 rows of 12 made-up columns at two parties, 20 trees of depth 12.",
        "All messages of the training, framed as for a line that leaves the machine; the work is CPU time.", "",
        "| message | MB plain | MB compressed | share | ms of work | saves at 20 Mb/s | at 100 Mb/s | at 1 Gb/s |",
        "|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    kinds = sorted((k for k in plain if plain[k] > 10_000), key=lambda k: -plain[k])
    for name, chosen in [*((k, [k]) for k in kinds), ("all", list(plain))]:
        before, after = sum(plain[k] for k in chosen), sum(packed[k] for k in chosen)
        work = sum(seconds[k] for k in chosen)
        saves = [f"{1000 * ((before - after) / speed - work):,.0f} ms" for speed in LINES.values()]
        cells = [f"{before / 1e6:.2f}", f"{after / 1e6:.2f}", f"{after / before:.2f}", f"{1000 * work:.0f}", *saves]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    lines += ["", "Negative: the work costs more than the line. What would keep more than three quarters of its length",
              "is sent as it is; masked and encrypted numbers always are."]  # fmt: skip
    print("\n".join(lines))
    PAGE.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
