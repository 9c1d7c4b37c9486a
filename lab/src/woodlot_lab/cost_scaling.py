"""Beyond the papers: cost of the federated forest against rows, columns, trees, depth and parties."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from sklearn.datasets import make_classification

import woodlot as wl
from woodlot_lab.data import DataSource
from woodlot_lab.experiment import (
    TIMED_REPEATS,
    Cell,
    Experiment,
    Figure,
    Panel,
    Params,
    Report,
    Row,
    Setting,
    Table,
)
from woodlot_lab.statistics import curve, distinct, mean, pm, select, slope, values

BASE: Mapping[str, int] = {"rows": 32_000, "columns": 32, "trees": 64, "depth": 8, "parties": 2}
QUICK_BASE: Mapping[str, int] = {"rows": 1_000, "columns": 16, "trees": 8, "depth": 4, "parties": 2}
SWEEPS: Mapping[str, Sequence[int]] = {
    "rows": (8_000, 16_000, 32_000, 64_000, 128_000),
    "columns": (8, 16, 32, 64, 128),
    "trees": (16, 32, 64, 128, 256),
    "depth": (2, 4, 8, 16),
    "parties": (1, 2, 4, 8),
}
MEASURES = {"cpu": "CPU seconds", "megabytes": "MB sent", "rounds": "rounds"}
EXPECTED = {
    "rows": "one bit per row, level and tree: linear",
    "columns": "a node tries the square root of the columns: below linear",
    "trees": "linear; all trees grow together, so rounds stay",
    "depth": "linear while levels are full, then leaves are pure",
    "parties": "bytes: all parties hear of all splits, linear; time: the search is dealt out among them, below linear",
}


def cells(setting: Setting) -> list[Cell]:
    """One factor after the other, around a base."""
    base = QUICK_BASE if setting.quick else BASE
    found = []
    for factor, points in SWEEPS.items():
        shown = setting.pick(points, [base[factor] // 2, base[factor], 2 * base[factor]])
        found += [Cell({"factor": factor, **base, factor: point}, setting.pick(TIMED_REPEATS, 1)) for point in shown]
    return found


def measure(params: Params, seed: int, data: DataSource) -> Sequence[Row]:
    """Cost of one fit."""
    rows, columns = params["rows"], params["columns"]
    X, y = make_classification(
        rows, columns, n_informative=6, n_redundant=2, flip_y=0.1, class_sep=0.7, random_state=seed
    )
    model = wl.FederatedForestClassifier(
        params["trees"], max_depth=params["depth"], parties=params["parties"], random_state=seed, n_jobs=1
    )
    X = X.astype(np.float32)
    model.fit(X, y)  # kernels are loaded, caches warm
    start = time.process_time()
    model.fit(X, y)
    cpu = time.process_time() - start
    cost = model.cost_
    return [{"cpu": cpu, "megabytes": (cost.bytes_sent + cost.bytes_received) / 1e6, "rounds": cost.rounds}]


def report(rows: Sequence[Row], setting: Setting) -> Report:
    """Exponents of the cost in each factor, and the curves."""
    lines, panels = [], []
    for factor in distinct(rows, "factor"):
        own = select(rows, factor=factor)
        points = sorted(distinct(own, factor))
        per: dict[str, list[list[float]]] = {
            what: [values(select(own, **{factor: point}), what) for point in points] for what in MEASURES
        }
        exponents = [slope(points, [mean(sample) for sample in per[what]]) for what in MEASURES]
        ends = [f"{pm(per['cpu'][0], 2)} to {pm(per['cpu'][-1], 2)}"]
        lines.append(
            [factor, f"{points[0]:,} to {points[-1]:,}", *ends, *(f"{e:.2f}" for e in exponents), EXPECTED[factor]]
        )
        series: list[Any] = [
            curve(MEASURES[what], points, per[what], colour=number) for number, what in enumerate(MEASURES)
        ]
        panels.append(Panel(f"against {factor}", factor, "CPU s, MB, rounds", series, log_x=True, log_y=True))
    headings = ("factor", "from, to", "CPU s", *(f"exponent of {what}" for what in MEASURES.values()), "expected")
    caption = (
        "Exponent: slope of a straight line through the logarithms; 1 is linear, 0 is constant. Where an exponent lies "
        "below the expected one, a cost that does not depend on the factor is still felt."
    )
    return Report([Table(headings, lines, caption), Figure("cost-scaling", "Cost of one training; bars: one standard "
                   "deviation.", panels)])  # fmt: skip


EXPERIMENT = Experiment(
    name="cost-scaling",
    title="Cost against rows, columns, trees, depth and parties",
    what=(
        "Beyond the papers. Training of a federated forest in one process, every message through the codec, one thread "
        f"per party; CPU time of all parties and the coordinator together. Base: {BASE['rows']:,} rows, "
        f"{BASE['columns']} columns, {BASE['trees']} trees, depth {BASE['depth']}, {BASE['parties']} parties; two "
        "classes, generated; one factor is varied at a time."
    ),
    sets=(),
    stand_ins=(),
    cells=cells,
    measure=measure,
    report=report,
    minutes=15,
    parallel=False,
)
