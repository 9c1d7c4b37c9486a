"""Trains in a process whose memory the system limits; see `test_memory.py`."""

from __future__ import annotations

import hashlib
import json
import resource
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from small_jobs import PLAN

from woodlot.data.sources import TableSource
from woodlot.data.spool import Spool
from woodlot.exceptions import DataError
from woodlot.protocols.core.target import Target
from woodlot.protocols.vertical.party import VerticalParty
from woodlot.protocols.vertical.train import train
from woodlot.runtime.audit import Ledger
from woodlot.runtime.drivers.inprocess import InProcessDriver
from woodlot.runtime.run import run
from woodlot.trees.room import LABEL_BYTES, PROCESS_BYTES, SEARCH_BYTES, TREE_BYTES, WorkingMemory

N_ROWS = 120_000


def write(path: Path, n_rows: int, n_columns: int) -> Path:
    """A table of distinct numbers."""
    rng = np.random.default_rng(5)
    columns = {f"c{i}": rng.normal(size=n_rows) for i in range(n_columns)}
    label = (columns["c0"] + columns["c1"] * columns["c0"] > 0).astype(np.int64)
    table = pa.table({"id": np.arange(n_rows), "label": label, **columns})
    pq.write_table(table, path, row_group_size=n_rows // 8, compression="none", use_dictionary=False)
    return path


def fingerprint(path: Path, room: WorkingMemory | None) -> tuple[str, int]:
    """The forest of one party's table, in short, and in how many batches its trees grew."""
    loaded = TableSource("t", id="id", path=path).read(None if room is None else room.spool)
    columns = [name for name in loaded.columns if name != "label"]
    rows = np.arange(loaded.n_rows)
    table = loaded.table().select(columns) if room is None else loaded.stored(columns, rows, room.spool)
    party = VerticalParty("bank", table, target=Target.of_classes(loaded.values("label"), None), room=room)
    ledger = Ledger()
    planted = 0

    class Counting:
        def handle(self, message: object) -> object:
            nonlocal planted
            planted += type(message).__name__ == "PlantTrees"
            return party.handle(message)  # type: ignore[arg-type]

    with InProcessDriver({"bank": Counting()}, ledger=ledger) as driver:  # type: ignore[dict-item]
        forest = run(train(PLAN, ("bank",), "bank"), driver, ledger=ledger)
    part = party.grown_forest()
    sha = hashlib.sha256()
    for array in (forest.structure.right, part.splits.feature, part.splits.threshold, forest.leaves.value):
        sha.update(np.ascontiguousarray(array).tobytes())
    return sha.hexdigest(), planted


def data_bytes() -> int:
    """What the system counts against RLIMIT_DATA: private memory that can be written to."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData:"))


def main(folder: Path) -> None:
    small = write(folder / "small.parquet", 70_000, 2)  # as many codes as the large table needs: the same kernels
    large = write(folder / "large.parquet", N_ROWS, 60)
    state = folder / "state"
    state.mkdir()
    spool = Spool(state)
    for room in (None, WorkingMemory(spool)):
        fingerprint(small, room)
    allowed = 45_000_000  # the table alone has 58 million bytes
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (data_bytes() + allowed, hard))
    one_tree = (LABEL_BYTES + SEARCH_BYTES + TREE_BYTES) * N_ROWS
    on_disk, batches = fingerprint(large, WorkingMemory(spool, PROCESS_BYTES + one_tree))
    try:
        fingerprint(large, None)
        in_memory = "fits"
    except DataError as error:
        in_memory = str(error)
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
    whole, _ = fingerprint(large, None)
    left = [path.name for path in state.iterdir()]
    json.dump({"in_memory": in_memory, "same": whole == on_disk, "batches": batches, "left": left}, sys.stdout)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
