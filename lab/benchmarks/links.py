"""Training over lines of given latency and bandwidth: coordinator and parties as processes, gRPC with mutual TLS.

    python lab/benchmarks/links.py [--rows 20000] [--columns 20] [--depth 8] [--trees 10 50 100] [--repeats 3]

Every party dials the coordinator through a relay that delays and slows what it passes on
(`woodlot_lab.link`). Writes docs/results/links.md. Exits 1 when rounds depend on the number of trees or are
more than about 2 per level, or the time does not follow the latency. Takes about three minutes.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import make_classification

import woodlot as wl
from woodlot.runtime.audit import Cost
from woodlot_lab.forests import Split
from woodlot_lab.link import Link
from woodlot_lab.network import LABEL, Network, networked, tables_of

PAGE = Path(__file__).resolve().parents[2] / "docs" / "results" / "links.md"
PARTIES = ("one", "two")
LATENCIES = (0, 20, 50)
"""Milliseconds there and back."""
RATES = (None, 100, 20)
"""Megabits per second in each direction of each party's line; None: no limit."""
DEPTHS = (4, 8, 12)
"""Over which rounds are counted."""
MOST_PER_LEVEL = 2.2
SLACK = 0.3
"""By how much the seconds that latency adds may differ from rounds times latency."""


def data(rows: int, columns: int) -> Split:
    """Generated rows with noise in the labels, so that no tree is done before its last level."""
    X, y = make_classification(
        rows, columns, n_informative=10, n_redundant=4, flip_y=0.1, class_sep=0.7, random_state=0
    )
    return Split(X.astype(np.float32), X[:0].astype(np.float32), y, y[:0], np.arange(2))


def fit(network: Network, federation: Any, link: Link, trees: int, depth: int, repeats: int) -> Cost:
    """The median of some trainings over a link, by time."""
    network.link = link
    model = wl.FederatedForestClassifier(trees, max_depth=depth, random_state=0)
    costs = [model.fit(federation, y=f"{PARTIES[0]}.{LABEL}").cost_ for _ in range(repeats)]
    return sorted(costs, key=lambda cost: cost.total_seconds)[repeats // 2]


def slope(points: dict[float, float]) -> float:
    """Of a straight line through some points."""
    return float(np.polyfit(list(points), list(points.values()), 1)[0])


def table(headings: list[str], rows: list[list[str]]) -> list[str]:
    return [
        f"| {' | '.join(headings)} |",
        "|---" * len(headings) + "|",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("rows", 20_000), ("columns", 20), ("depth", 8), ("repeats", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--trees", type=int, nargs="+", default=[10, 50, 100])
    options = parser.parse_args()
    rows = data(options.rows, options.columns)
    half = options.columns // 2
    columns = {PARTIES[0]: list(range(half)), PARTIES[1]: list(range(half, options.columns))}
    found: dict[tuple[int, int, int | None], Cost] = {}
    with networked({"train": tables_of(rows, columns, test=False)}) as network, network.rows("train", PARTIES) as fed:
        fit(network, fed, Link(), 2, options.depth, 1)  # kernels are loaded
        rounds = {
            (trees, depth): fit(network, fed, Link(), trees, depth, 1).rounds
            for trees in options.trees
            for depth in DEPTHS
        }
        for trees in options.trees:
            for rate in RATES:
                for latency in LATENCIES:
                    link = Link(delay=latency / 2e3, rate=None if rate is None else rate * 1e6)
                    found[trees, latency, rate] = cost = fit(network, fed, link, trees, options.depth, options.repeats)
                    print(f"{trees} trees, {link}: {cost.rounds} rounds, {cost.total_seconds:.2f} s", flush=True)
    return report(rounds, found, options)


def report(
    rounds: dict[tuple[int, int], int], found: dict[tuple[int, int, int | None], Cost], options: argparse.Namespace
) -> int:
    """Print and write the page; 1 if a requirement is missed."""
    faults, shown = [], []
    lines = [
        "# Training over slow lines", "",
        f"{options.rows:,} rows, {options.columns} columns at two parties; coordinator and parties as processes, gRPC "
        f"with mutual TLS, each party behind a line of its own. Medians of {options.repeats}.",
        "Made by `lab/benchmarks/links.py`. How the cost grows with rows, columns, trees, depth and parties is in "
        "[cost-scaling.md](cost-scaling.md).", "",
        "## Rounds", "",
        "All trees grow together, so rounds follow from the depth alone: 2 per level, and those at the begin and the "
        "end.", "",
    ]  # fmt: skip
    faults += [
        f"depth {depth}: rounds depend on the number of trees"
        for depth in DEPTHS
        if len({rounds[trees, depth] for trees in options.trees}) > 1
    ]
    for trees in options.trees:
        per_level = slope({depth: rounds[trees, depth] for depth in DEPTHS})
        shown.append([f"{trees}", *(f"{rounds[trees, depth]}" for depth in DEPTHS), f"{per_level:.2f}"])
        if per_level > MOST_PER_LEVEL:
            faults.append(f"{trees} trees: {per_level:.2f} rounds per level")
    lines += table(["trees", *(f"depth {depth}" for depth in DEPTHS), "per level"], shown)
    lines += [
        "", "## Time", "",
        f"Seconds of one training to depth {options.depth}, and in brackets the network's share of them as "
        "`cost_.network_seconds` has it. Latency is there and back.", "",
    ]  # fmt: skip
    shown = []
    for trees in options.trees:
        for rate in RATES:
            costs = [found[trees, latency, rate] for latency in LATENCIES]
            cells = [f"{cost.total_seconds:.2f} ({cost.network_seconds:.2f})" for cost in costs]
            wire = statistics.median(cost.wire_bytes for cost in costs) / 1e6
            sent = (costs[0].bytes_sent + costs[0].bytes_received) / 1e6
            name = "unlimited" if rate is None else f"{rate} Mb/s"
            shown.append([f"{trees}", name, f"{sent:.2f}", f"{wire:.2f}", *cells])
    latencies = [f"{latency} ms" for latency in LATENCIES]
    lines += table(["trees", "bandwidth", "MB of messages", "MB on the wire", *latencies], shown)
    lines += [
        "", "## What a line adds", "",
        "Seconds that each second of latency adds to a training: one for every round, whatever the number of trees. "
        "And seconds that 20 Mb/s add to a line without limit, beside what the bytes of one party take at that rate.",
        "",
    ]  # fmt: skip
    shown = []
    for trees in options.trees:
        added = slope({latency / 1e3: found[trees, latency, None].network_seconds for latency in LATENCIES})
        n_rounds = found[trees, 0, None].rounds
        quick, slow = found[trees, 0, None], found[trees, 0, RATES[-1]]
        each = slow.wire_bytes / len(PARTIES) * 8 / (RATES[-1] * 1e6)
        more = slow.network_seconds - quick.network_seconds
        shown.append([f"{trees}", f"{added:.1f}", f"{n_rounds}", f"{more:.2f}", f"{each:.2f}"])
        if abs(added / n_rounds - 1) > SLACK:
            faults.append(f"{trees} trees: a second of latency adds {added:.1f} s to {n_rounds} rounds")
    lines += table(["trees", "per second of latency", "rounds", "more at 20 Mb/s", "bytes at 20 Mb/s"], shown)
    print("\n".join(lines))
    PAGE.write_text("\n".join(lines) + "\n", encoding="utf-8")
    for fault in faults:
        print(f"missed: {fault}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
