"""FRF-Predict: does it agree with the same forest in clear on every row, and what does a prediction cost.

    python lab/benchmarks/encrypted_prediction.py [--data FOLDER] [--bits 2048 3072] [--out FILE]

Agreement is checked on every row of three of the papers' data sets, with short keys (the answer does not depend on
their length, and rows are many). Costs are those of one row in ten trees of depth ten, as in the paper's Table 6, with
real keys; all roles run in this process, and their CPU seconds are added up. The script exits 1 where a row disagrees.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import woodlot as wl
from woodlot.federation import GrownForest
from woodlot.federation.local_revocable import Encryption
from woodlot.keyring import LocalKeyring
from woodlot.protocols.revocable.revocable_model import CoordinatorRevocable
from woodlot.runtime.audit import readable_bytes
from woodlot_lab.data import DataSource

ROOT = Path(__file__).resolve().parents[2]
SETS = ("ionosphere", "drug_consumption_heroin_ever", "wine_quality_white")
SHIPPED = ("breast_cancer",)
"""What scikit-learn has, where the papers' data sets are not at hand."""
PARTIES = 8
ROWS_AT_A_TIME = 1000
SHORT_BITS = 512


def ring_for(grown: GrownForest, **keys: Any) -> LocalKeyring:
    """The keys of a forest's parties."""
    splits = {name: lambda part=part: part.splits for name, part in grown.parts.items()}
    return LocalKeyring(splits, allow_same_host=True, **keys)


def in_feature_order(grown: GrownForest, names: Sequence[str], X: NDArray[Any]) -> NDArray[np.float64]:
    """Columns as the coordinator numbers features; those that no node splits are not looked at."""
    forest = grown.coordinator
    columns = np.zeros(len(forest.feature_keys), np.int64)
    for part in grown.parts.values():
        columns[forest.feature[part.splits.node]] = [names.index(part.names[f]) for f in part.splits.feature]
    return X[:, columns].astype(np.float64)


def agreement(source: DataSource, name: str, trees: int, depth: int) -> tuple[str, int]:
    """A line of the table, and how many rows disagree."""
    data = source.load(name)
    rows = np.nan_to_num(data.X.astype(np.float32))
    model = wl.RevocableForestClassifier(
        trees,
        parties=min(PARTIES, rows.shape[1]),
        max_depth=depth,
        scheme="paper",
        encryption=Encryption(SHORT_BITS, "test"),
        random_state=0,
    ).fit(rows, data.y)
    start, wrong = time.process_time(), 0
    for first in range(0, len(rows), ROWS_AT_A_TIME):
        part = rows[first : first + ROWS_AT_A_TIME]
        found = model.predict_encrypted(part)
        wrong += int((np.abs(found - model.predict_proba(part)) > 1e-12).any(axis=1).sum())
    spent = time.process_time() - start
    n = len(rows)
    return f"| {name} | {n:,} | {trees} of depth {depth} | {n - wrong:,} | {1000 * spent / n:.1f} |", wrong


def _frame(X: NDArray[np.float32], names: Sequence[str]) -> Any:
    import pandas as pd

    return pd.DataFrame(X, columns=list(names))


def cost(bits: int) -> str:
    """A line of the table: one row in ten trees of depth ten."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(20_000, 14)).astype(np.float32)
    y = rng.integers(0, 2, len(X))  # noise: every tree grows to its full depth
    names = [f"x{i}" for i in range(X.shape[1])]
    model = wl.FederatedForestClassifier(10, parties=PARTIES, max_depth=10, random_state=0).fit(_frame(X, names), y)
    grown = model.forest_
    row = in_feature_order(grown, names, X[:1])
    with ring_for(grown, bits=bits) as ring:
        forest = CoordinatorRevocable(grown.coordinator, ring.encrypt(grown.coordinator))
        before = ring.ledger.cost()
        start = time.process_time()
        request = ring.request(row, "benchmark")
        asked = time.process_time() - start
        found = ring.predict(forest, request)
        spent = time.process_time() - start
        after = ring.ledger.cost()
    np.testing.assert_allclose(found, model.predict_proba(_frame(X[:1], names)))
    sent = sum(after.bytes_by_party.values()) - sum(before.bytes_by_party.values())
    size = readable_bytes(request.values.nbytes + sent)
    return f"| {bits} | {spent:.2f} | {asked:.2f} | {after.rounds - before.rounds} | {size} |"


def main() -> int:
    """Measure, print, and write the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--data", type=Path, help="folder of the papers' data sets, as Parquet files; only with it the page is written"
    )
    parser.add_argument("--bits", type=int, nargs="*", default=[2048, 3072])
    parser.add_argument("--trees", type=int, default=5)
    parser.add_argument("--depth", type=int, default=5)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results" / "encrypted-prediction.md")
    options = parser.parse_args()
    source = DataSource(options.data, stand_ins=options.data is None)
    lines = ["| data set | rows | trees | rows that agree | CPU ms per row |", "|---|---|---|---|---|"]
    disagreeing = 0
    for name in SETS if options.data else SHIPPED:
        line, wrong = agreement(source, name, options.trees, options.depth)
        print(line, flush=True)
        lines.append(line)
        disagreeing += wrong
    costs = ["| bits | CPU seconds | of them at the requester | exchanges | bytes |", "|---|---|---|---|---|"]
    for bits in options.bits:
        costs.append(cost(bits))
        print(costs[-1], flush=True)
    text = (
        "# Encrypted prediction\n\n"
        "Made by `python lab/benchmarks/encrypted_prediction.py`: all roles in one process, their CPU time added up."
        f"\n\nAgreement with the same forest in clear ({PARTIES} parties, keys of {SHORT_BITS} bits, good for tests "
        "only):\n\n" + "\n".join(lines) + "\n\nOne row of 14 features, ten trees of depth ten, 8 parties (the paper's "
        "Table 6):\n\n" + "\n".join(costs) + "\n"
    )
    if options.data:
        options.out.write_text(text, encoding="utf-8")
    return 1 if disagreeing else 0


if __name__ == "__main__":
    sys.exit(main())
