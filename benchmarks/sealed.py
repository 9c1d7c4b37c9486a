"""Sealed prediction beside the plain one: bytes and CPU time per row, and where the limits of blocks lie.

    python benchmarks/sealed.py [--rows 500] [--trees 50] [--out FILE]

Every line is one forest, predicted in the open and under seal through the in-process driver with one thread; both must
give the same probabilities. CPU time is that of all parties and the coordinator together, bytes are those of one party,
and the agreement on masks is counted with the sealed rows.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np
from sklearn.datasets import make_classification

import woodlot as wl

CASES = ((2, 6), (3, 6), (5, 6), (3, 10), (3, None))
"""Parties and depth of the trees."""


def measure(model: wl.FederatedForestClassifier, X: np.ndarray, sealed: bool) -> tuple[float, float, int, np.ndarray]:
    """CPU microseconds and bytes of one party per row, rounds, and the answers."""
    options = {"sealed": True} if sealed else {"method": "one-round"}
    model.predict_proba(X[:64], **options)  # compiled before the clock runs
    start = time.process_time()
    answers = model.predict_proba(X, **options)
    seconds = time.process_time() - start
    cost = model.prediction_cost_
    received = cost.bytes_received / len(model.forest_.coordinator.parties)
    return 1e6 * seconds / len(X), received / len(X), cost.rounds, answers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=500)
    parser.add_argument("--trees", type=int, default=50)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    X, y = make_classification(4000 + options.rows, 20, n_informative=8, random_state=0)
    lines = [
        f"{options.rows:,} rows, {options.trees} trees, 20 columns, trained on 4,000 rows. Per row to be predicted.",
        "",
        "| parties | depth | leaves | plain: bytes of a party | CPU us | sealed: bytes of a party | CPU us "
        "| bytes, ratio | CPU, ratio | rounds, plain | sealed |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for parties, depth in CASES:
        model = wl.FederatedForestClassifier(
            options.trees, parties=parties, max_depth=depth, random_state=0, n_jobs=1
        ).fit(X[: -options.rows], y[: -options.rows])
        rows = X[-options.rows :]
        plain_us, plain_bytes, plain_rounds, expected = measure(model, rows, sealed=False)
        us, sent, rounds, answers = measure(model, rows, sealed=True)
        if not np.array_equal(expected, answers):
            raise AssertionError("the sealed prediction differs from the plain one")
        leaves = model.forest_.coordinator.structure.n_leaves
        lines.append(
            f"| {parties} | {depth or 'unlimited'} | {leaves:,} | {plain_bytes:,.0f} | {plain_us:,.0f} | {sent:,.0f} "
            f"| {us:,.0f} | {sent / plain_bytes:,.0f}x | {us / plain_us:,.1f}x | {plain_rounds} | {rounds} |"
        )
    text = "\n".join(lines) + "\n"
    sys.stdout.write(text)
    if options.out:
        options.out.write_text(
            "# Sealed prediction, beside the plain form\n\nWritten by `python benchmarks/sealed.py --out "
            f"docs/results/sealed.md`; what it is: [sealed.md](../protocol/sealed.md).\n\n{text}"
        )


if __name__ == "__main__":
    main()
