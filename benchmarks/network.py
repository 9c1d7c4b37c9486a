"""The networked federation against the in-process driver, in one run: coordinator and two parties as processes.

    python benchmarks/network.py [--rows 50000] [--columns 40] [--trees 100] [--depth 10] [--repeats 3]

Everything is on localhost with mutual TLS. Reports wall time of a training over gRPC and in process (same rows, same
threads), bytes on the wire against the information needed (one bit per sample, level and tree for the coordinator and
for each party that needs it), and the round trip of a small message. Exits 1 when a requirement is missed.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from sklearn.datasets import make_classification

import woodlot as wl
from woodlot.identity.authority import Authority
from woodlot.identity.identity import Identity, Trust, install, request
from woodlot.protocols.vertical.forest_messages import OpenTraining, Ready
from woodlot.runtime.codec import decode, encode
from woodlot.runtime.drivers.carried import CarriedDriver
from woodlot.runtime.drivers.grpc_hub import Hub
from woodlot.runtime.drivers.grpc_line import PartyLine

MOST_TIME, MOST_BYTES, MOST_MILLISECONDS = 1.5, 1.3, 3.0
PARTIES = ("bank", "shop")
LABELS = {"bank": 'labels = ["y"]', "shop": "labels = []"}
POLICY = """
[policy]
train = ["alice"]
predict = ["alice"]
min_samples_leaf = 1
min_rows = 1
wire_forms = ["sealed", "decisions", "leaves", "ranks", "classical"]
predictions_per_day = "unlimited"
trainings_per_day = "unlimited"
receive = ["alice"]
"""
WOODLOT = [str(Path(sys.executable).with_name("woodlot"))]


def make_member(root: Path, authority: Authority, role: str, name: str) -> Path:
    folder = root / name / "identity"
    folder.parent.mkdir(parents=True)
    bundle = root / name / "bundle.pem"
    bundle.write_bytes(authority.sign(request(folder, role, name), days=2))
    install(folder, bundle)
    return folder


def make_tables(rows: int, columns: int) -> dict[str, pa.Table]:
    X, y = make_classification(
        rows, columns, n_informative=15, n_redundant=5, flip_y=0.05, class_sep=0.8, random_state=0
    )
    half = columns // 2
    tables = {}
    for party, part in zip(PARTIES, (range(half), range(half, columns)), strict=True):
        tables[party] = pa.table({"id": np.arange(rows)} | {f"x{i}": X[:, i].astype(np.float32) for i in part})
    tables["bank"] = tables["bank"].append_column("y", pa.array(y))
    return tables


@contextmanager
def processes(root: Path, tables: dict[str, pa.Table]) -> Iterator[str]:
    """Coordinator and parties, each in a process of its own; yields the coordinator's address."""
    (root / "coordinator" / "coordinator.toml").write_text('listen = "127.0.0.1:0"\n')
    started: list[subprocess.Popen[str]] = []

    def start(kind: str, config: Path) -> subprocess.Popen[str]:
        started.append(
            subprocess.Popen([*WOODLOT, kind, str(config)], stderr=subprocess.PIPE, text=True, env=os.environ)
        )
        return started[-1]

    try:
        coordinator = start("coordinator", root / "coordinator" / "coordinator.toml")
        assert coordinator.stderr is not None
        port = next(line.split()[-1] for line in coordinator.stderr if "listening" in line)
        for party in PARTIES:
            pq.write_table(tables[party], root / party / "rows.parquet")
            (root / party / "party.toml").write_text(
                f'coordinator = "localhost:{port}"\nn_jobs = 1\n'
                '[tables.rows]\npath = "rows.parquet"\nid = "id"\ncolumns = "*"\n'
                f"{LABELS[party]}\n{POLICY}"
            )
            start("party", root / party / "party.toml")
        yield f"localhost:{port}"
    finally:
        for process in started:
            process.send_signal(signal.SIGTERM)
        for process in started:
            process.communicate(timeout=20)


def train(root: Path, tables: dict[str, pa.Table], trees: int, depth: int, repeats: int) -> bool:
    def forest() -> wl.FederatedForestClassifier:
        return wl.FederatedForestClassifier(trees, max_depth=depth, random_state=0, n_jobs=2)

    here = wl.Federation.local(tables, id="id")
    wl.FederatedForestClassifier(2, max_depth=depth, random_state=0, n_jobs=2).fit(here, y="bank.y")
    seconds: dict[str, list[float]] = {"in process": [], "over gRPC": []}
    with (
        processes(root, tables) as address,
        wl.connect(address, root / "alice" / "identity", tables="rows", parties=PARTIES) as fed,
    ):
        while not all(fed.client.parties().get(party) for party in PARTIES):
            time.sleep(0.1)
        facts = fed.align()
        model = forest().fit(fed, y="bank.y")  # the first fills the processes' caches
        for _ in range(repeats):
            for name, federation in (("in process", here), ("over gRPC", fed)):
                start = time.perf_counter()
                model = forest().fit(federation, y="bank.y")
                seconds[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(taken) for name, taken in seconds.items()}
    ratio = medians["over gRPC"] / medians["in process"]
    cost = model.cost_
    partitions = sum(row.bytes for row in model.disclosure_ if row.kind == "Partition")
    needed = len(PARTIES) * partitions  # up from the winner, and down to each of the others
    sent = cost.bytes_sent + cost.bytes_received
    print(f"  in process  {medians['in process']:6.2f} s")
    print(f"  over gRPC   {medians['over gRPC']:6.2f} s   {ratio:.2f} times (at most {MOST_TIME})")
    print(f"  {cost.rounds} rounds, {sent / 1e6:.2f} MB on the wire; information needed {needed / 1e6:.2f} MB: "
          f"{sent / needed:.2f} times (at most {MOST_BYTES})")  # fmt: skip
    print(f"  alignment before it: {sum(facts.bytes_by_party.values()) / 1e6:.2f} MB for {facts.n_rows:,} rows")
    print("  phases: " + ", ".join(f"{phase} {taken:.2f} s" for phase, taken in cost.seconds.items()))
    return ratio <= MOST_TIME and sent / needed <= MOST_BYTES


def answer_ready(address: str, identity: str) -> None:
    """A party that answers at once: the other end of the round trips."""
    ready = encode(Ready())
    line = PartyLine(address, Identity.load(identity).credentials, lambda job, number, data: decode(data) and ready)
    line.start()
    sys.stdin.read()
    line.stop()


def round_trips(root: Path, repeats: int = 300) -> bool:
    identity = Identity.load(root / "coordinator" / "identity")
    trust = Trust(identity.authority, None)
    hub = Hub("127.0.0.1:0", identity.credentials, admit=trust.admit, serve_user=lambda user, data: b"")
    port = hub.start()
    ends = [
        subprocess.Popen(
            [sys.executable, __file__, "--answer", f"localhost:{port}", str(root / party / "identity")],
            stdin=subprocess.PIPE,
        )
        for party in PARTIES
    ]
    try:
        while len(hub.connected()) < len(PARTIES):
            time.sleep(0.05)
        taken = []
        with CarriedDriver(hub.carrier("0" * 32, wait_seconds=10), PARTIES) as driver:
            for _ in range(repeats):
                start = time.perf_counter()
                driver.ask(dict.fromkeys(PARTIES, OpenTraining(max_bins=None)))
                taken.append(time.perf_counter() - start)
    finally:
        for end in ends:
            end.communicate()
        hub.close()
    median = 1e3 * statistics.median(taken[repeats // 10 :])
    print(f"  round trip of a small message to both parties: {median:.2f} ms (under {MOST_MILLISECONDS})")
    return median < MOST_MILLISECONDS


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("rows", 50_000), ("columns", 40), ("trees", 100), ("depth", 10), ("repeats", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--answer", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.answer:
        answer_ready(*options.answer)
        return 0
    print(f"{options.rows:,} x {options.columns}, {options.trees} trees, depth {options.depth}, 2 parties, localhost")
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        authority = Authority.create(root / "authority", "benchmark", days=3)
        for role, name in (("coordinator", "coordinator"), ("user", "alice"), ("party", "bank"), ("party", "shop")):
            make_member(root, authority, role, name)
        quick = round_trips(root)
        tables = make_tables(options.rows, options.columns)
        good = train(root, tables, options.trees, options.depth, options.repeats)
    return 0 if quick and good else 1


if __name__ == "__main__":
    sys.exit(main())
