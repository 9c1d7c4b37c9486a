"""Five million rows and fifty columns on one machine: time, and memory of each party against the size of its codes.

Coordinator and two parties of half the columns each, a process for each, over gRPC with mutual TLS. The parties read
their tables from Parquet files and train under a limit of memory (`memory` in ``party.toml``). A party's peak is that
of its whole process from its first line on, libraries included: its own memory (``RssAnon``) and pages of files that
are mapped into it (``RssFile``), sampled together.

scikit-learn is measured in the same run, on as many rows as it is given time for, which Woodlot grows too.

    python benchmarks/large.py [--rows 5000000] [--compared 1000000] [--write]

Exits 1 when a party takes more than three times its codes. With both cores to itself it takes about ten minutes; with
`--compared 5000000`, for which scikit-learn alone takes most of it, about half an hour.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from network import make_member
from woodlot.data.sources import TableSource
from woodlot.data.spool import Spool
from woodlot.identity.authority import Authority
from woodlot.identity.identity import Identity, Trust
from woodlot.protocols.core.forest_plan import ForestPlan
from woodlot.protocols.core.target import Target
from woodlot.protocols.vertical.party import VerticalParty
from woodlot.protocols.vertical.train import train
from woodlot.runtime.audit import Cost, Ledger
from woodlot.runtime.drivers.carried import CarriedDriver
from woodlot.runtime.drivers.grpc_hub import Hub
from woodlot.runtime.drivers.grpc_line import PartyLine
from woodlot.runtime.run import run
from woodlot.runtime.sessions import Sessions
from woodlot.trees.room import WorkingMemory

PARTIES = ("bank", "shop")
N_COLUMNS = 50
MEMORY = 1_100_000_000
"""Of each party."""
MOST = 3.0
"""Times its codes that a party may take."""
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
    """The most memory that this process has had since it was begun, and of which kind it was then."""

    def __init__(self) -> None:
        self.whole = self.anonymous = self.files = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def _look(self) -> None:
        while not self._done.wait(0.02):
            status = Path("/proc/self/status").read_text()
            sizes = {name: int(size) * 1024 for name, size in re.findall(r"^(Rss\w+):\s+(\d+)", status, re.MULTILINE)}
            files = sizes["RssFile"] + sizes["RssShmem"]
            if sizes["RssAnon"] + files > self.whole:
                self.whole, self.anonymous, self.files = sizes["RssAnon"] + files, sizes["RssAnon"], files

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()


# --- a party's process ---


def serve(name: str, address: str, identity: Path, path: Path, n_jobs: int) -> None:
    """Read a party's table and take part until standard input ends; then tell what that took."""
    with Peak() as peak, tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        room = WorkingMemory(Spool(Path(scratch)), MEMORY)
        began = time.perf_counter()
        loaded = TableSource(name, id="id", path=path).read(room.spool)
        columns = [column for column in loaded.columns if column != "label"]
        table = loaded.stored(columns, np.arange(loaded.n_rows), room.spool)
        target = Target.of_classes(loaded.values("label"), None) if "label" in loaded.columns else None
        party = VerticalParty(name, table, target=target, room=room, n_jobs=n_jobs)
        read = time.perf_counter() - began
        line = PartyLine(address, Identity.load(identity).credentials, Sessions(name, lambda job: party).answer)
        line.start()
        sys.stdin.read()
        line.stop()
        encoded = party._codes
        assert encoded is not None
        codes = encoded.coarse.nbytes + (encoded.fine.nbytes if encoded.fine is not encoded.coarse else 0)
    told = {"codes": codes, "read": read, "whole": peak.whole, "anonymous": peak.anonymous, "files": peak.files}
    print(json.dumps(told))


# --- the coordinator ---


@dataclass(frozen=True)
class Fitted:
    """What a training took: seconds from the start of the parties on, what each party tells, and what travelled."""

    seconds: float
    parties: dict[str, dict[str, float]]
    cost: Cost


def fit(root: Path, n_rows: int, n_jobs: int) -> Fitted:
    """Write the tables, start the parties, and grow the forest."""
    paths = write_tables(root, n_rows)
    coordinator = Identity.load(root / "coordinator" / "identity")
    hub = Hub(
        "127.0.0.1:0",
        coordinator.credentials,
        admit=Trust(coordinator.authority, None).admit,
        serve_user=lambda user, data: b"",
    )
    port = hub.start()
    began = time.perf_counter()
    command = [sys.executable, __file__, "--serve"]
    running = {
        party: subprocess.Popen(
            [*command, party, f"localhost:{port}", str(root / party / "identity"), str(paths[party]), str(n_jobs)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for party in PARTIES
    }
    ledger, told = Ledger(), {}
    try:
        while len(hub.connected()) < len(PARTIES):
            if any(process.poll() is not None for process in running.values()):
                raise SystemExit("a party has ended before it was asked anything")
            time.sleep(0.05)
        with CarriedDriver(hub.carrier(secrets.token_hex(16), wait_seconds=60), PARTIES, ledger=ledger) as driver:
            forest = run(train(PLAN, PARTIES, "bank", n_jobs), driver, ledger=ledger)
        seconds = time.perf_counter() - began
        assert forest.structure.n_trees == PLAN.n_estimators
    finally:
        for party, process in running.items():
            told[party], _ = process.communicate()
        hub.close()
    return Fitted(seconds, {party: json.loads(words) for party, words in told.items()}, ledger.cost())


def sklearn_seconds(n_rows: int, n_jobs: int) -> float:
    """What scikit-learn takes for as many trees of the same depth, with the table in memory."""
    from sklearn.ensemble import RandomForestClassifier  # not in the parties' processes, whose memory counts

    chunks = [rows_of(chunk, min(CHUNK, n_rows - start)) for chunk, start in enumerate(range(0, n_rows, CHUNK))]
    X, y = (np.concatenate(parts) for parts in zip(*chunks, strict=True))
    del chunks
    began = time.perf_counter()
    RandomForestClassifier(PLAN.n_estimators, max_depth=PLAN.max_depth, n_jobs=n_jobs, random_state=0).fit(X, y)
    return time.perf_counter() - began


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--compared", type=int, default=1_000_000, help="rows of the comparison with scikit-learn")
    parser.add_argument("--write", action="store_true", help="write docs/results/large.md")
    parser.add_argument("--folder", type=Path, default=None, help="where the tables go; about 6 GB for 5,000,000 rows")
    parser.add_argument("--serve", nargs=5, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        name, address, identity, path, jobs = given.serve
        serve(name, address, Path(identity), Path(path), int(jobs))
        return 0
    cores = os.cpu_count() or 1
    n_jobs = max(1, cores // len(PARTIES))
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        root = Path(name)
        authority = Authority.create(root / "authority", "benchmark", days=3)
        for role, member in (("coordinator", "coordinator"), *(("party", party) for party in PARTIES)):
            make_member(root, authority, role, member)
        fit(root, 70_000, n_jobs)  # compiles the kernels of as many codes, or loads them
        sklearn = sklearn_seconds(given.compared, cores)
        print(f"scikit-learn, {given.compared:,} rows: {sklearn:.1f} s", flush=True)
        small = fit(root, given.compared, n_jobs)
        print(f"Woodlot, {given.compared:,} rows: {small.seconds:.1f} s", flush=True)
        large = small if given.rows == given.compared else fit(root, given.rows, n_jobs)
    text, worst = page(given, cores, sklearn, small, large)
    print(text)
    if given.write:
        PAGE.write_text(text, encoding="utf-8")
    return 1 if worst > MOST else 0


def page(given: argparse.Namespace, cores: int, sklearn: float, small: Fitted, large: Fitted) -> tuple[str, float]:
    """The page, and how many times its codes the worst party takes."""
    lines, worst = [], 0.0
    for party, told in large.parties.items():
        ratios = [told[kind] / told["codes"] for kind in ("whole", "anonymous", "files")]
        cells = [
            f"{told[kind] / 1e6:,.0f} ({ratio:.2f})"
            for kind, ratio in zip(("whole", "anonymous", "files"), ratios, strict=True)
        ]
        lines.append(f"| {party} | {told['codes'] / 1e6:,.0f} | " + " | ".join(cells) + " |")
        worst = max(worst, ratios[0])
    read = max(told["read"] for told in large.parties.values())
    cost = large.cost
    memory, threads = "\n".join(lines), max(1, cores // len(PARTIES))
    sizes = {given.compared: small.seconds, given.rows: large.seconds}
    grown = "\n".join(
        f"| Woodlot, from Parquet to forest, {threads} for each party | {rows:,} | {seconds:.1f} |"
        for rows, seconds in sizes.items()
    )
    text = f"""# A large table on one machine

Made by `python benchmarks/large.py --rows {given.rows} --compared {given.compared} --write` on {platform.machine()},
{cores} cores. Seconds are of the clock: on a machine that does other work meanwhile only their ratio tells something.

{N_COLUMNS} generated columns of distinct numbers; coordinator and two parties of {N_COLUMNS // 2} columns each as
processes, over gRPC with mutual TLS, `memory = "{MEMORY // 10**6} MB"`; {PLAN.n_estimators} trees of depth
{PLAN.max_depth}, exact splits (`max_bins=None`).

| | rows | seconds |
|---|---|---|
| scikit-learn, table in memory, {cores} threads | {given.compared:,} | {sklearn:.1f} |
{grown}
| of this, reading | {given.rows:,} | {read:.1f} |

At {given.compared:,} rows Woodlot takes {small.seconds / sklearn:.2f} times scikit-learn's time, start of the processes
and reading included.

The most memory that each party's process has had, MB (and times its codes), libraries included; pages of files can be
taken back by the system when it needs them, and still count here:

| at {given.rows:,} rows | codes | at the peak (at most {MOST:g}) | of this, own memory | of this, pages of files |
|---|---|---|---|---|
{memory}

{cost.rounds:,} rounds; {cost.bytes_sent / 1e6:,.0f} MB sent and {cost.bytes_received / 1e6:,.0f} MB received by the
coordinator, {cost.wire_bytes / 1e6:,.0f} MB on the wire. The network took {cost.network_seconds:.1f} s.
"""
    return text, worst


if __name__ == "__main__":
    sys.exit(main())
