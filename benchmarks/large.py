"""Five million rows and fifty columns on one machine: time, and memory against the size of the codes.

Two parties of half the columns each, in one process with the coordinator, read their tables from Parquet files and
train under a limit of memory (`memory` in ``party.toml``). The peak is that of the whole process's own memory
(``RssAnon``, sampled); pages of mapped files, which the system can take back, are told apart.

scikit-learn is measured beside it in the same run on fewer rows, which Woodlot grows too.

    python benchmarks/large.py [--rows 5000000] [--compared 250000] [--write]
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from sklearn.ensemble import RandomForestClassifier

from woodlot.data.sources import TableSource
from woodlot.data.spool import Spool
from woodlot.protocols.vertical.party import VerticalParty
from woodlot.protocols.vertical.plan import ForestPlan
from woodlot.protocols.vertical.target import Target
from woodlot.protocols.vertical.train import train
from woodlot.runtime.audit import Ledger
from woodlot.runtime.drivers.inprocess import InProcessDriver
from woodlot.runtime.run import run
from woodlot.trees.room import Room

PARTIES = ("bank", "shop")
N_COLUMNS = 50
MEMORY = 1_500_000_000
"""Of each party; the process has both, so twice."""
PLAN = ForestPlan(
    task="classes", n_estimators=20, entropy=False, max_depth=12, min_samples_split=2, min_samples_leaf=1,
    min_weight_fraction_leaf=0.0, max_features="sqrt", max_leaf_nodes=None, min_impurity_decrease=0.0, bootstrap=True,
    max_samples=None, class_weight=None, feature_sampling="node", max_bins=None, out_of_bag=None, seed=1,
)  # fmt: skip
CHUNK = 250_000
PAGE = Path(__file__).parent.parent / "docs" / "results" / "large.md"


def rows_of(chunk: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Generated rows, float32, the same for every run; and their labels."""
    rng = np.random.default_rng([7, chunk])
    X = rng.standard_normal((n, N_COLUMNS), dtype=np.float32)
    signal = X[:, 0] + X[:, 30] * X[:, 1] + 0.5 * (X[:, 40] > 1) + rng.standard_normal(n, dtype=np.float32)
    return X, (signal > 0).astype(np.int64)


def write_tables(folder: Path, n_rows: int) -> dict[str, Path]:
    """A Parquet file for each party; the labels are the bank's."""
    half = N_COLUMNS // 2
    paths = {party: folder / f"{party}.parquet" for party in PARTIES}
    writers: dict[str, pq.ParquetWriter] = {}
    for chunk, start in enumerate(range(0, n_rows, CHUNK)):
        n = min(CHUNK, n_rows - start)
        X, y = rows_of(chunk, n)
        ids = np.arange(start, start + n)
        for number, party in enumerate(PARTIES):
            columns = {f"c{i}": X[:, i] for i in range(number * half, (number + 1) * half)}
            table = pa.table({"id": ids, **({"label": y} if number == 0 else {}), **columns})
            if party not in writers:
                writers[party] = pq.ParquetWriter(paths[party], table.schema, compression="none", use_dictionary=False)
            writers[party].write_table(table)
    for writer in writers.values():
        writer.close()
    return paths


class Peak:
    """The most memory that the process has had since it was begun, by kind."""

    def __init__(self) -> None:
        self.anonymous = self.files = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def _look(self) -> None:
        while not self._done.wait(0.02):
            status = Path("/proc/self/status").read_text()
            sizes = {name: int(size) * 1024 for name, size in re.findall(r"^(Rss\w+):\s+(\d+)", status, re.MULTILINE)}
            self.anonymous = max(self.anonymous, sizes["RssAnon"])
            self.files = max(self.files, sizes["RssFile"] + sizes["RssShmem"])

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()


def fit(folder: Path, paths: dict[str, Path], n_jobs: int) -> tuple[float, float, int, Ledger]:
    """Seconds to read and encode, and to grow; bytes of all codes; and what travelled."""
    room = Room(Spool(folder), MEMORY)
    began = time.perf_counter()
    parties = {}
    for party, path in paths.items():
        loaded = TableSource(party, id="id", path=path).read(room.spool)
        columns = [name for name in loaded.columns if name != "label"]
        table = loaded.stored(columns, np.arange(loaded.n_rows), room.spool)
        target = Target.of_classes(loaded.values("label"), None) if "label" in loaded.columns else None
        parties[party] = VerticalParty(party, table, target=target, room=room, n_jobs=n_jobs)
    read = time.perf_counter() - began
    ledger = Ledger()
    with InProcessDriver(dict(parties), ledger=ledger) as driver:
        forest = run(train(PLAN, PARTIES, "bank", n_jobs), driver, ledger=ledger)
    assert forest.structure.n_trees == PLAN.n_estimators
    codes = 0
    for held in parties.values():
        encoded = held._codes
        assert encoded is not None
        codes += encoded.coarse.nbytes + (encoded.fine.nbytes if encoded.fine is not encoded.coarse else 0)
    return read, time.perf_counter() - began, codes, ledger


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--compared", type=int, default=250_000)
    parser.add_argument("--write", action="store_true", help="write docs/results/large.md")
    parser.add_argument("--folder", type=Path, default=None, help="where the tables go; about 6 GB for 5,000,000 rows")
    given = parser.parse_args()
    n_jobs = os.cpu_count() or 1
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        folder = Path(name)
        fit(folder, write_tables(folder, 70_000), n_jobs)  # compiles the kernels of as many codes, or loads them
        paths = write_tables(folder, given.compared)
        X, y = (np.concatenate(parts) for parts in zip(*_chunks(given.compared), strict=True))
        began = time.perf_counter()
        RandomForestClassifier(20, max_depth=12, n_jobs=n_jobs, random_state=0).fit(X, y)
        sklearn = time.perf_counter() - began
        del X, y
        _, small, _, _ = fit(folder, paths, n_jobs)
        paths = write_tables(folder, given.rows)
        with Peak() as peak:
            read, large, codes, ledger = fit(folder, paths, n_jobs)
    cost = ledger.cost()
    text = f"""# A large table on one machine

Made by `python benchmarks/large.py --rows {given.rows} --compared {given.compared} --write` on {platform.machine()},
{n_jobs} threads. Seconds are of the clock: on a machine that does other work meanwhile they tell little, and the
ratio is that of [speed.md](speed.md).

{N_COLUMNS} generated columns of distinct numbers, two parties of {N_COLUMNS // 2} columns each with
`memory = "{MEMORY // 10**6} MB"`, {PLAN.n_estimators} trees of depth {PLAN.max_depth}, exact splits (`max_bins=None`).

| | rows | seconds |
|---|---|---|
| scikit-learn, table in memory | {given.compared:,} | {sklearn:.1f} |
| Woodlot, from Parquet to forest | {given.compared:,} | {small:.1f} |
| Woodlot, from Parquet to forest | {given.rows:,} | {large:.1f} |
| of this, reading | {given.rows:,} | {read:.1f} |

At {given.compared:,} rows Woodlot takes {small / sklearn:.2f} times scikit-learn's time, reading included. At
{given.rows:,} rows scikit-learn was not run: in proportion to the rows it would take
{sklearn * given.rows / given.compared:,.0f} s, more if its time grows faster than the rows.

| memory at {given.rows:,} rows, both parties and the coordinator together | MB | of the codes |
|---|---|---|
| codes | {codes / 1e6:,.0f} | 1.00 |
| peak of the process's own memory | {peak.anonymous / 1e6:,.0f} | {peak.anonymous / codes:.2f} |
| peak of mapped pages, which the system can take back | {peak.files / 1e6:,.0f} | {peak.files / codes:.2f} |

{cost.rounds:,} rounds, {cost.bytes_sent / 1e6:,.0f} MB sent and {cost.bytes_received / 1e6:,.0f} MB received by the
coordinator.
"""
    print(text)
    if given.write:
        PAGE.write_text(text)


def _chunks(n_rows: int) -> list[tuple[np.ndarray, np.ndarray]]:
    return [rows_of(chunk, min(CHUNK, n_rows - start)) for chunk, start in enumerate(range(0, n_rows, CHUNK))]


if __name__ == "__main__":
    main()
