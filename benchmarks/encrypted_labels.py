"""What encrypted labels cost: against shared labels, against a textbook twin, and with the number of rows.

    python benchmarks/encrypted_labels.py [--rows 10000] [--trees 10] [--bits 2048] [--out FILE]

10,000 rows, 20 columns at two simulated parties in process, 10 trees of depth 6, 32 bins. Times are seconds of CPU of
all roles together, so that other work on the machine does not count. The twin does what a first implementation would:
a ciphertext per row and class with r^n from an exponentiation, a sum per (node, column, bin, class), new noise for each
of them, and a decryption of each by the primes; no packing, no sums from the node above. It is run on a part of the
rows and sums, and its time is scaled to all of them. The script exits 1 when the forests differ, or the twin is less
than 15 times slower.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gmpy2
import numpy as np
from sklearn.datasets import make_classification, make_regression

import woodlot as wl
from woodlot.crypto.paillier import PrivateKey
from woodlot.crypto.streams import SecretStream
from woodlot.trees.blind import BlindGrower, Level

COLUMNS, DEPTH, BINS = 20, 6, 32
REQUIRED = 15.0
TWIN_ROWS, TWIN_SUMS = 150, 4


@dataclass
class Work:
    """What one training asked of the party without labels: its nodes by candidate columns."""

    pairs: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = field(default_factory=list)
    """Rows of the node, their weights and their bins in the column."""


def watched(work: Work) -> Callable[..., Level]:
    """``BlindGrower.list_cuts``, which also notes what it was asked."""
    plain = BlindGrower.list_cuts

    def list_cuts(self: BlindGrower, counts: Any, shuffle: Any) -> Level:
        level = plain(self, counts, shuffle)
        for cuts in self._listed:
            rows = slice(int(self.start[cuts.node]), int(self.end[cuts.node]))
            bins = self.table.fine[cuts.feature, self.rows[rows]]
            work.pairs.append((self.rows[rows].copy(), self.weights[rows].copy(), bins))
        return level

    return list_cuts


@dataclass(frozen=True)
class Outcome:
    """A training: its forest, seconds of CPU, bytes and rounds."""

    model: Any
    seconds: float
    bytes: int
    rounds: int


def fit(model: Any, X: np.ndarray, y: np.ndarray) -> Outcome:
    start = time.process_time()
    model.fit(X, y)
    seconds = time.process_time() - start
    return Outcome(model, seconds, model.cost_.bytes_sent + model.cost_.bytes_received, model.cost_.rounds)


def same(a: Any, b: Any) -> bool:
    one, other = a.combine(), b.combine()
    return all(
        np.array_equal(x, y, equal_nan=True)
        for x, y in (
            (one.coordinator.structure.right, other.coordinator.structure.right),
            (one.splits.feature, other.splits.feature),
            (one.splits.threshold, other.splits.threshold),
            (one.coordinator.leaves.value, other.coordinator.leaves.value),
            (one.coordinator.gain, other.coordinator.gain),
        )
    )


def classes(n: int) -> tuple[np.ndarray, np.ndarray]:
    X, y = make_classification(n, COLUMNS, n_informative=10, n_redundant=4, flip_y=0.1, random_state=0)
    return X.astype(np.float32), y


def compare(n: int, trees: int, bits: int, task: str = "classes", **params: Any) -> tuple[Outcome, Outcome, bool]:
    """The same training with shared and with encrypted labels."""
    common = {"n_estimators": trees, "max_depth": DEPTH, "max_bins": BINS, "parties": 2, "random_state": 0, **params}
    if task == "classes":
        (X, y), kind = classes(n), wl.FederatedForestClassifier
    else:
        X, y = make_regression(n, COLUMNS, n_informative=10, noise=10.0, random_state=0)
        X, kind = X.astype(np.float32), wl.FederatedForestRegressor
    kind(**{**common, "n_estimators": 1}).fit(X[:500], y[:500])  # kernels are compiled before anything counts
    shared = fit(kind(**common), X, y)
    encrypted = fit(kind(**common, labels="encrypted", key_bits=bits), X, y)
    return shared, encrypted, same(shared.model, encrypted.model)


# --- the textbook twin ---


class Textbook:
    """Paillier as in the paper: every ciphertext with noise of its own from an exponentiation."""

    def __init__(self, bits: int) -> None:
        self.key = PrivateKey.generate(bits, SecretStream.fresh())
        self.n, self.square = self.key.public.n, self.key.public.square
        self._random = gmpy2.random_state(int(time.time()))

    def noise(self) -> Any:
        return gmpy2.powmod(gmpy2.mpz_random(self._random, self.n - 1) + 1, self.n, self.square)

    def encrypt(self, plain: int) -> Any:
        return (1 + plain * self.n) * self.noise() % self.square


def twin_seconds(work: Work, y: np.ndarray, bits: int) -> tuple[float, dict[str, float]]:
    """Seconds of CPU that the twin would take, from a part of its work; the sums that it makes are checked."""
    book, rng = Textbook(bits), np.random.default_rng(0)
    chosen = rng.choice(len(y), TWIN_ROWS, replace=False)
    start = time.process_time()
    ciphers = {int(i): [book.encrypt(int(y[i] == k)) for k in (0, 1)] for i in chosen}
    per_row = (time.process_time() - start) / TWIN_ROWS
    drawn = list(ciphers)

    adds = cells = 0
    add_seconds = cell_seconds = 0.0
    for index in rng.choice(len(work.pairs), TWIN_SUMS, replace=False):
        rows, weights, bins = work.pairs[index]
        start = time.process_time()
        stand_in = [drawn[i % TWIN_ROWS] for i in rows.tolist()]  # any row's ciphertext takes as long as any other's
        sums: dict[tuple[int, int], Any] = {}
        for row, weight, place in zip(stand_in, weights.tolist(), bins.tolist(), strict=True):
            for k in (0, 1):
                cipher = ciphers[row][k]
                for _ in range(weight):
                    held = sums.get((place, k))
                    sums[place, k] = cipher if held is None else held * cipher % book.square
                    adds += 1
        add_seconds += time.process_time() - start
        start = time.process_time()
        told = {key: cipher * book.noise() % book.square for key, cipher in sums.items()}
        found = dict(zip(told, book.key.decrypt(list(told.values())), strict=True))
        cell_seconds += time.process_time() - start
        cells += len(told)
        for (place, k), total in found.items():
            here = bins == place
            assert total == sum(
                w for r, w in zip(np.array(stand_in)[here], weights[here].tolist(), strict=True) if y[r] == k
            )
    all_adds = 2 * sum(int(weights.sum()) for _, weights, _ in work.pairs)
    all_cells = 2 * sum(len(np.unique(bins)) for _, _, bins in work.pairs)
    parts = {
        "encryption": per_row * len(y),
        "sums": add_seconds / adds * all_adds,
        "noise and decryption": cell_seconds / cells * all_cells,
    }
    return sum(parts.values()), parts


# --- the report ---


def row(what: str, shared: Outcome, encrypted: Outcome, equal: bool) -> str:
    ratio = encrypted.seconds / shared.seconds
    return (
        f"| {what} | {'yes' if equal else '**no**'} | {shared.seconds:.2f} | {encrypted.seconds:.1f} | {ratio:.0f}x | "
        f"{shared.bytes / 1e6:.2f} | {encrypted.bytes / 1e6:.2f} | {shared.rounds} | {encrypted.rounds} |"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--trees", type=int, default=10)
    parser.add_argument("--bits", type=int, default=2048)
    parser.add_argument("--out", type=Path, default=Path("docs/results/encrypted-labels.md"))
    args = parser.parse_args()
    n, trees, bits = args.rows, args.trees, args.bits

    work = Work()
    plain, BlindGrower.list_cuts = BlindGrower.list_cuts, watched(work)  # type: ignore[method-assign]
    try:
        main_case = compare(n, trees, bits)
    finally:
        BlindGrower.list_cuts = plain  # type: ignore[method-assign]
    twin, parts = twin_seconds(work, classes(n)[1], bits)
    ratio = twin / main_case[1].seconds
    few = max(1, trees // 5)
    cases = [
        (f"{n:,} rows, {trees} trees, {bits} bits", main_case),
        (f"{n:,} rows, {trees} trees, 3072 bits", compare(n, trees, 3072)),
        (f"{n:,} rows, {few} trees, all columns tried", compare(n, few, bits, max_features=None)),
        (f"{n // 4:,} rows, {few} trees, regression, all columns", compare(n // 4, few, bits, "targets")),
    ]
    points = [(m, compare(m, trees, bits)) for m in (n // 4, n // 2)] + [(n, main_case)]
    lines = [
        "# Encrypted labels: cost",
        "",
        f"Written by `python benchmarks/encrypted_labels.py`. {COLUMNS} columns at two parties in process, trees of",
        f"depth {DEPTH}, {BINS} bins; square root of the columns tried unless said; two classes. Seconds of CPU of all",
        "roles together.",
        "",
        "| case | same forest | shared s | encrypted s | ratio | shared MB | encrypted MB | shared rounds | rounds |",
        "|---|---|---|---|---|---|---|---|---|",
        *(row(what, *outcome) for what, outcome in cases),
        "",
        "## Against a textbook twin",
        "",
        "The twin has a ciphertext per row and class and a sum per (node, column, bin, class), noise from an",
        f"exponentiation each, no packing, no sums from the node above. Run on {TWIN_ROWS} rows and {TWIN_SUMS} of",
        f"{len(work.pairs):,} (node, column) pairs of the first case, scaled to all.",
        "",
        "| part | twin s |",
        "|---|---|",
        *(f"| {name} | {seconds:,.0f} |" for name, seconds in parts.items()),
        f"| **together** | **{twin:,.0f}** |",
        "",
        f"Woodlot: {main_case[1].seconds:.1f} s, **{ratio:.0f} times faster** (required: {REQUIRED:.0f}).",
        "",
        "## Rows",
        "",
        "| rows | encrypted s | s per 1,000 rows | MB |",
        "|---|---|---|---|",
        *(f"| {m:,} | {e.seconds:.1f} | {e.seconds / m * 1000:.2f} | {e.bytes / 1e6:.2f} |" for m, (_, e, _) in points),
        "",
    ]
    text = "\n".join(lines)
    print(text)
    args.out.write_text(text)
    failed = ratio < REQUIRED or not all(equal for _, (_, _, equal) in cases + points)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
