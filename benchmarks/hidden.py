"""What hidden training costs: CPU of all roles, and bytes over all links.

    python benchmarks/hidden.py [--long] [--services] [--out FILE]
    python benchmarks/hidden.py --only-services [--rows N] [--trees N] [--out FILE]

One tree on numbers, 32 bins, two classes, columns at two simulated parties in this process. CPU seconds are those of
the label holder, the second server, the dealer and everything around them; the best of three fits, after one that
compiles. Bytes are those of all messages. Each forest is compared with that of open training with the same limits.
The script exits 1 when a forest differs, or when a limit is not kept.

``--long`` adds how the cost grows with rows, columns, depth and trees, and 100 trees of depth 10 with what their bytes
take on two kinds of link.

``--services`` adds 100 trees of depth 10 between real processes on this machine: a coordinator that deals, and three
parties, the label holder among them. Each has a third of the columns. Candidates are drawn per node and per tree, and
every party's line to the coordinator is first loopback, then one of 1 Gbit/s and one of 100 Mbit/s: a relay of
`woodlot_lab` delays what passes through it. ``--only-services`` measures nothing else, and leaves the rest of the page
as it is. With 10,000 rows and 100 trees it takes some ten minutes, nearly all of them for the slowest link.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import woodlot as wl
from woodlot.estimators.complete import same_forest
from woodlot.service.local import LocalFederation, local_federation
from woodlot_lab.link import Link, Relay

REPEATS = 3
LIMITS: dict[str, Any] = {"min_samples_leaf": 20, "max_bins": 32, "min_cell": 20, "random_state": 0}
LINKS = {"1 Gbit/s": 125e6, "100 Mbit/s": 12.5e6}
LINES = {
    "loopback": Link(),
    "1 Gbit/s, 1 ms round trip": Link(delay=0.0005, rate=1e9),
    "100 Mbit/s, 10 ms round trip": Link(delay=0.005, rate=1e8),
}
"""What every party's line to the coordinator is like, in trainings between processes."""
BETWEEN = "## Between processes\n"
"""Where the last part of the page begins."""


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


@dataclass(frozen=True)
class Served:
    """What a hidden training between processes took, over one kind of line."""

    shape: Shape
    line: str
    seconds: float
    open_seconds: float
    cpu: dict[str, float]
    megabytes: dict[str, float]
    open_megabytes: float
    rounds: int
    journals: dict[str, float]
    load: float
    """Processes that wanted to run on the machine, on average."""

    def row(self) -> str:
        cells = [
            self.line, f"per {self.shape.sampling}", f"{self.seconds:.1f}", f"{self.open_seconds:.1f}",
            f"{sum(self.megabytes.values()):.0f}", f"{self.open_megabytes:.0f}", str(self.rounds),
            f"{sum(self.cpu.values()):.1f}", f"{self.load:.0f}",
        ]  # fmt: skip
        return "| " + " | ".join(cells) + " |"


PARTIES = ("bank", "shop", "club")


def serve(shapes: tuple[Shape, ...]) -> list[Served]:
    """Train between processes on this machine, with TLS, over every kind of line; the coordinator relays and deals."""
    first = shapes[0]
    X, y = table(first)
    relays: list[Relay] = []

    def dial(address: str) -> str:
        relays.append(Relay(address, LINES["loopback"]))
        return relays[-1].address

    with local_federation(PARTIES) as federation:
        of = np.array_split(np.arange(first.columns), len(PARTIES))
        for party, columns in zip(PARTIES, of, strict=True):
            held = {"id": np.arange(first.rows), **{f"c{k}": X[:, k] for k in columns}}
            pq.write_table(
                pa.table(held | ({"label": y} if party == "bank" else {})), federation.root / party / "t.parquet"
            )
        try:
            federation.start({p: {"t": "t.parquet"} for p in PARTIES}, "id", 1, {"bank": ["label"]}, dial=dial)
            federation.wait_connected()
            with wl.connect(federation.address, federation.identity, tables="t", parties=PARTIES, lead="holder") as fed:
                fed.align()
                for shape in shapes:
                    for protection in ("open", "hidden"):
                        grow(fed, shape, protection, 1)  # compiles
                return [_served(federation, fed, shape, relays[0], line) for line in LINES for shape in shapes]
        finally:
            for relay in relays:
                relay.close()


def grow(fed: Any, shape: Shape, protection: str, trees: int) -> tuple[float, Any]:
    """Seconds until the user has the model, and the model."""
    model = wl.FederatedForestClassifier(
        trees, max_depth=shape.depth, max_features=shape.tried, feature_sampling=shape.sampling,
        protection=protection, **LIMITS | {"min_cell": "auto"},
    )  # fmt: skip
    start = time.perf_counter()
    model.fit(fed, y="bank.label")
    return time.perf_counter() - start, model


def _served(federation: LocalFederation, fed: Any, shape: Shape, relay: Relay, line: str) -> Served:
    relay.link = LINES[line]
    open_seconds, opened = grow(fed, shape, "open", shape.trees)
    before = {name: cpu_seconds(pid) for name, pid in federation.pids.items()}
    seconds, hidden = grow(fed, shape, "hidden", shape.trees)
    used = {name: cpu_seconds(pid) - before[name] for name, pid in federation.pids.items()}
    sizes = {
        name: sum(p.stat().st_size for p in (federation.root / name / "state").glob("journal.sqlite*")) / 1e6
        for name in federation.pids
    }
    sent, open_cost = hidden.cost_.bytes_by_party, opened.cost_
    found = Served(
        shape, line, seconds, open_seconds, used, {party: n / 1e6 for party, n in sent.items()},
        (open_cost.bytes_sent + open_cost.bytes_received) / 1e6, hidden.cost_.rounds, sizes, os.getloadavg()[0],
    )  # fmt: skip
    print(found.row(), file=sys.stderr, flush=True)
    return found


def cpu_seconds(pid: int) -> float:
    """CPU time of a process so far."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def served_lines(found: list[Served]) -> list[str]:
    """What is told of trainings between processes."""
    first = found[0]
    shape = first.shape
    cpu = ", ".join(f"{name} {seconds:.1f}" for name, seconds in first.cpu.items())
    sent = ", ".join(f"{name} {n:.0f}" for name, n in first.megabytes.items())
    kept = ", ".join(f"{name} {n:.0f}" for name, n in first.journals.items())
    return [
        BETWEEN,
        f"{shape.trees} trees of depth {shape.depth}, {shape.rows:,} x {shape.columns} over three parties, "
        f"{shape.tried} columns tried per",
        'node or per tree, `min_cell="auto"`. A coordinator and three parties, each in a process of its own on one',
        "machine, with TLS. The bank has the labels and leads, the shop is the second server, the coordinator relays",
        "and deals. Each party has a line of its own to the coordinator, through a relay that delays what passes: a",
        "frame from the bank to the shop takes two of them.",
        "",
        "| line of each party | candidates | s, hidden | s, open, led by the bank | MB with the leader, hidden "
        "| MB, open | rounds | CPU s of all services, hidden | load |",
        "|---" * 9 + "|",
        *(one.row() for one in found),
        "",
        f"The first line: CPU seconds of the hidden training: {cpu}.",
        f"MB with the leader: {sent}. Each frame between leader and a party crosses the coordinator.",
        f"Journals take, until the job has ended, MB: {kept}.",
        f"The machine has {os.cpu_count()} cores: with a load above that, seconds are those of a busy machine.",
    ]


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

**Assumption:** no two of the label holder, the second server and the dealer work together
([how it works](../decisions/0022-hidden-training.md)).

Written by `python benchmarks/hidden.py --long --services`. `protection="hidden"`, numbers, two classes, 32 bins, leaves
of at least 20 rows, `min_cell=20`. First in one process, columns at two parties: CPU seconds are those of all roles
together, bytes those of all links.

Squirrel (Lu et al., USENIX Security 2023) publishes under 6 s for a tree of 50,000 x 40, of gradient boosting between
two parties who need no dealer, where hidden training rests on three roles of which no two work together, and opens
counts; its seconds are of other machines, and not CPU seconds of all roles as those below.

"""
HEAD = (
    "| rows x columns | trees | depth | columns tried | CPU s, hidden | CPU s, open | MB, all links | rounds | limit "
    "| same forest |\n|---|---|---|---|---|---|---|---|---|---|"
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--long", action="store_true", help="growth, and 100 trees")
    parser.add_argument("--services", action="store_true", help="100 trees between processes")
    parser.add_argument("--only-services", action="store_true", help="nothing but 100 trees between processes")
    parser.add_argument("--rows", type=int, default=FORESTS[0].rows, help="of trainings between processes")
    parser.add_argument("--trees", type=int, default=FORESTS[0].trees, help="of trainings between processes")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    page = "" if options.out is None or not options.out.exists() else options.out.read_text(encoding="utf-8")
    head, _, tail = page.partition(BETWEEN)
    served, kept = f"{BETWEEN}{tail}" if tail else "", True
    if not options.only_services:
        text, kept = in_one_process(long=options.long)
        print(text)
        head = INTRODUCTION + text + "\n"
    if options.services or options.only_services:
        shapes = tuple(replace(shape, rows=options.rows, trees=options.trees) for shape in FORESTS)
        served = "\n".join(served_lines(serve(shapes))) + "\n"
        print(served)
    if options.out is not None:
        options.out.write_text(f"{head.rstrip()}\n\n{served}".rstrip() + "\n", encoding="utf-8")
    return 0 if kept else 1


def in_one_process(*, long: bool) -> tuple[str, bool]:
    """What is told of trainings in this process, and whether limits are kept."""
    measure(Shape(500, 4, 3, 2), 1)  # compiles
    shapes = REQUIRED + (GROWTH if long else ())
    found = {shape: measure(shape) for shape in shapes}
    lines = [HEAD, *(line(shape, measured) for shape, measured in found.items())]
    if long:
        forests = {shape: measure(shape, 1) for shape in FORESTS}
        found |= forests
        lines += ["", HEAD, *(line(shape, measured) for shape, measured in forests.items()), ""]
        for shape, measured in forests.items():
            took = ", ".join(f"{1e6 * measured.megabytes / speed:.0f} s at {name}" for name, speed in LINKS.items())
            lines.append(f"Bytes of 100 trees, candidates per {shape.sampling}, one after the other: {took}.")
    return "\n".join(lines) + "\n", all(keeps(shape, measured) for shape, measured in found.items())


if __name__ == "__main__":
    sys.exit(main())
