"""Federated Extra-Trees: accuracy against the number of clients, trees and levels (Figure 3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from woodlot_lab.data import DataSource
from woodlot_lab.experiment import (
    Cell,
    Experiment,
    Figure,
    Panel,
    Params,
    Report,
    Row,
    Series,
    Setting,
    Table,
    Verdict,
    judge,
)
from woodlot_lab.extra_trees import DEPTH, FET, GDP, LDP, TREES, grow, judged
from woodlot_lab.forests import split
from woodlot_lab.statistics import curve, distinct, pm, select, values

METHODS = (FET, LDP, GDP)
FOLDS = 9
"""Each client has one of so many parts of the rows."""
SWEEPS = {"clients": (1, 3, 5, 7, 9), "trees": (1, 5, 10, 20, 40), "depth": (5, 10, 15, 20, 25)}
QUICK_SWEEPS = {"clients": (1, 3), "trees": (1, 5), "depth": (3, 6)}
ITEMS = {"clients": "fet-figure-3ad", "trees": "fet-figure-3be", "depth": "fet-figure-3cf"}
AXES = {"clients": "clients", "trees": "trees", "depth": "maximum depth"}
ROWS = 10_000
"""Rows at most, so that a curve takes minutes."""


def cells(setting: Setting) -> list[Cell]:
    """One setting after the other; the others are the paper's 20."""
    found = []
    for name in setting.sets:
        for sweep, points in (QUICK_SWEEPS if setting.quick else SWEEPS).items():
            base = {"clients": 3, "trees": setting.pick(TREES, 5), "depth": setting.pick(DEPTH, 6)}
            common = {"set": name, "sweep": sweep, "rows": setting.pick(ROWS, 2_000)}
            found += [
                Cell({**common, **base, sweep: point, "method": method}, setting.pick(5, 1))
                for point in points
                for method in METHODS
            ]
    return found


def measure(params: Params, seed: int, data: DataSource) -> Sequence[Row]:
    """One forest; with fewer clients there are fewer rows, as in the paper."""
    rows = split(data.load(params["set"]), seed, most_rows=params["rows"])
    clients = params["clients"]
    if params["sweep"] == "clients":
        part = np.random.default_rng(seed).permutation(len(rows.y_train)) % FOLDS < clients
        rows = replace(rows, train=rows.train[part], y_train=rows.y_train[part])
    model = grow(rows, params["method"], seed, clients=clients, trees=params["trees"], depth=params["depth"])
    return [judged(model, rows)]


def report(rows: Sequence[Row], setting: Setting) -> Report:
    """Six curves, as in the paper, and their numbers."""
    blocks: list[Table | Figure] = []
    verdicts: list[Verdict] = []
    panels = []
    for name in setting.sets:
        for sweep in distinct(rows, "sweep"):
            own = select(rows, set=name, sweep=sweep)
            points = distinct(own, sweep)
            series, lines = [], []
            for number, method in enumerate(METHODS):
                samples = [values(select(own, method=method, **{sweep: x}), "accuracy") for x in points]
                series.append(curve(method, points, samples, colour=number))
                lines.append([method, *(pm(sample) for sample in samples)])
            panels.append(Panel(name, AXES[sweep], "accuracy on the test rows", series))
            headings = ("forest", *(f"{AXES[sweep]} {x}" for x in points))
            blocks.append(Table(headings, lines, f"`{name}` against {AXES[sweep]}, mean ± standard deviation."))
            verdicts.append(_verdict(name, sweep, series[0]))
    return Report([Figure("fet-settings", "Accuracy against clients, trees and depth; bars: one standard deviation.",
                          panels), *blocks], verdicts)  # fmt: skip


def _verdict(name: str, sweep: str, fet: Series) -> Verdict:
    first, last = fet.y[0], fet.y[-1]
    text = f"FET {first:.3f} at {fet.x[0]}, {last:.3f} at {fet.x[-1]}"
    if sweep == "clients":
        return judge(ITEMS[sweep], f"{name}: more clients, better accuracy", last > first, text)
    if sweep == "trees":
        later = max(fet.y[1:]) - fet.y[1]
        text += f"; from {fet.x[1]} trees on it gains {later:.3f}"
        holds = (last > first and later < (last - first) / 2, last > first)
        return judge(
            ITEMS[sweep], f"{name}: far better with several trees than with one, then little more", holds, text
        )
    late = fet.y[-1] - fet.y[-2]
    text += f"; the last step gains {late:+.3f}"
    return judge(ITEMS[sweep], f"{name}: accuracy rises with the depth and settles at about 20",
                 (last > first and abs(late) < 0.01, last > first), text)  # fmt: skip


EXPERIMENT = Experiment(
    name="fet-settings",
    title="Federated Extra-Trees: clients, trees and depth",
    what=(
        "Figure 3 of *Federated Extra-Trees*: accuracy against the number of clients, each of which brings a ninth of "
        f"the rows, against the number of trees, and against the maximum depth; {TREES} trees and depth {DEPTH} where "
        f"not varied, three clients. Up to {ROWS:,} rows of each set."
    ),
    sets=("credit_default", "letter"),
    stand_ins=("digits",),
    cells=cells,
    measure=measure,
    report=report,
    minutes=45,
)
