"""Beyond the papers: what each protection costs in seconds and bytes, training and predicting."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
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
from woodlot_lab.forests import Split
from woodlot_lab.network import LABEL, networked, tables_of
from woodlot_lab.statistics import curve, distinct, mean, pm, select, values

PARTIES = ("a", "b", "c")
BINS = 32
PREDICTED = 20
"""Rows of a prediction."""
LENGTH = 2048
OPEN, HIDDEN, REVFRF = "open (the paper's)", "hidden", "RevFRF: encrypted splits"
FORESTS: Mapping[str, Callable[..., Any]] = {
    OPEN: lambda **p: wl.FederatedForestClassifier(max_bins=BINS, **p),
    HIDDEN: lambda **p: wl.FederatedForestClassifier(protection="hidden", max_bins=BINS, **p),
    REVFRF: lambda **p: wl.RevocableForestClassifier(scheme="paper", encryption=LENGTH, **p),
}
SERVICES = "between services"
LED: Sequence[tuple[str, Literal["holder", "coordinator"]]] = (
    (OPEN, "coordinator"), (OPEN, "holder"), (HIDDEN, "holder"),
)  # fmt: skip
"""What is grown over real processes, and who leads."""
HIDES = {
    OPEN: "values and thresholds; others learn which rows have equal labels, and the order of values",
    HIDDEN: "labels and which row goes where; counts of rows by bin stay visible; leaves of 20 rows or more",
    REVFRF: "thresholds, even from their own forest; labels stay with the coordinator; participants can leave",
    "one round, plain": "values; the coordinator learns the outcome of every reachable split",
    "one round, sealed": "outcomes off the path too: the coordinator learns the leaf",
    "encrypted request": "the row from everybody, and the splits from the requester",
}


def cells(setting: Setting) -> list[Cell]:
    """All forests of one size, and at two numbers of rows."""
    size = {"trees": setting.pick(5, 2), "depth": setting.pick(6, 3), "columns": 12}
    sizes = setting.pick((1_000, 4_000), (300,))
    return [
        Cell({"forest": f, "rows": rows, **size}, setting.pick(TIMED_REPEATS, 1))
        for rows in sizes
        for f in (*FORESTS, SERVICES)
    ]


def measure(params: Params, seed: int, data: DataSource) -> Sequence[Row]:
    """CPU of all roles together, bytes and rounds of a training and of a prediction."""
    X, y = make_classification(params["rows"], params["columns"], n_informative=6, flip_y=0.1, random_state=seed)
    names = [f"x{i}" for i in range(params["columns"])]
    parties = {party: names[k :: len(PARTIES)] for k, party in enumerate(PARTIES)}
    frame = pa.table({name: X[:, i].astype(np.float32) for i, name in enumerate(names)})
    options: dict[str, Any] = {"n_estimators": params["trees"], "max_depth": params["depth"]}
    if params["forest"] == SERVICES:
        return _between_services(X.astype(np.float32), y, options, seed)
    make = FORESTS[params["forest"]]
    few = frame.slice(0, PREDICTED)
    make(parties=parties, random_state=seed, n_jobs=1, n_estimators=1, max_depth=1).fit(few, y[:PREDICTED])  # kernels
    model = make(parties=parties, random_state=seed, n_jobs=1, **options)
    start = time.process_time()
    model.fit(frame, y)
    found = [_cost("training", time.process_time() - start, model.cost_)]
    ways: dict[str, Callable[[], Any]] = {
        "one round, plain": lambda: model.predict(few, method="one-round"),
        "one round, sealed": lambda: model.predict(few, method="one-round", sealed=True),
    }
    if params["forest"] == REVFRF:
        ways = {"encrypted request": lambda: model.predict_encrypted(few)}
    elif params["forest"] == HIDDEN:
        ways = {}  # the finished forest is of the same kind
    for way, predict in ways.items():
        start = time.process_time()
        predict()
        found.append(_cost(way, time.process_time() - start, model.prediction_cost_))
    return found


def _between_services(X: NDArray[np.float32], y: NDArray[Any], options: Mapping[str, Any], seed: int) -> list[Row]:
    """The same trainings over a coordinator and parties as processes of their own, led by the one or the other."""
    rows = Split(X, X, y, y, classes=True)
    columns = {party: list(range(X.shape[1]))[k :: len(PARTIES)] for k, party in enumerate(PARTIES)}
    found, answers = [], []
    with networked({"train": tables_of(rows, columns, test=False)}) as network:
        for forest, lead in LED:
            with network.rows("train", PARTIES, lead) as train:
                FORESTS[forest](n_estimators=1, max_depth=1, random_state=seed).fit(train, y=f"{PARTIES[0]}.{LABEL}")
                start = time.perf_counter()
                model = FORESTS[forest](random_state=seed, **options).fit(train, y=f"{PARTIES[0]}.{LABEL}")
                seconds = time.perf_counter() - start
                answers.append(np.asarray(model.predict_proba(train)))
            sent = model.cost_.bytes_sent + model.cost_.bytes_received
            same = bool((answers[-1] == answers[0]).all())
            what = f"{forest}, led by the {lead}"
            found.append({"what": what, "seconds": seconds, "bytes": sent, "rounds": model.cost_.rounds, "same": same})
    return found


def _cost(what: str, cpu: float, cost: Any) -> Row:
    sent = cost.bytes_sent + cost.bytes_received
    keys = {"key_seconds": cost.seconds["keys"]} if "keys" in cost.seconds else {}
    return {"what": what, "cpu": cpu, "bytes": sent, "rounds": cost.rounds, **keys}


def report(rows: Sequence[Row], setting: Setting) -> Report:
    """Training and prediction, each against the plainest form."""
    blocks: list[str | Table | Figure] = []
    sizes = distinct(rows, "rows")
    lines = []
    for size in sizes:
        base = select(rows, what="training", forest=OPEN, rows=size)
        for forest in FORESTS:
            own = select(rows, what="training", forest=forest, rows=size)
            cpu, sent = values(own, "cpu"), mean(values(own, "bytes"))
            lines.append(
                [f"{size:,}", forest, pm(cpu, 2), f"{mean(cpu) / mean(values(base, 'cpu')):,.0f}", f"{sent / 1e6:.2f}",
                 f"{sent / mean(values(base, 'bytes')):.1f}", f"{mean(values(own, 'rounds')):.0f}", HIDES[forest]]
            )  # fmt: skip
    headings = ("rows", "training", "CPU s", "times open", "MB", "times open", "rounds", "what it hides")
    blocks.append(Table(headings, lines, f"RevFRF: keys of {LENGTH} bits; their making is in the CPU seconds."))
    lines = []
    in_process = [row for row in rows if row["forest"] != SERVICES]
    for way in [what for what in distinct(in_process, "what") if what != "training"]:
        own = select(in_process, what=way, rows=sizes[-1])
        lines.append([way, f"{1e3 * mean(values(own, 'cpu')) / PREDICTED:.2f}",
                      f"{mean(values(own, 'bytes')) / PREDICTED / 1e3:.2f}", f"{mean(values(own, 'rounds')):.0f}",
                      HIDES[way]])  # fmt: skip
    predicting = ("prediction", "CPU ms per row", "kB per row", "rounds", "what it hides")
    blocks.append(Table(predicting, lines, f"{PREDICTED} rows at once, forests of {sizes[-1]:,} rows."))
    lines = []
    for size in sizes:
        services = select(rows, forest=SERVICES, rows=size)
        for what in distinct(services, "what"):
            own = select(services, what=what)
            same = "-" if what.startswith(HIDDEN) else "yes" if all(values(own, "same")) else "NO"
            lines.append(
                [f"{size:,}", what, pm(values(own, "seconds"), 2), f"{mean(values(own, 'bytes')) / 1e6:.2f}",
                 f"{mean(values(own, 'rounds')):.0f}", same]
            )  # fmt: skip
    over_tls = ("rows", "training", "wall s", "MB with the leader", "rounds", "answers as led by the coordinator")
    caption = (
        "Coordinator and parties as processes of their own on this machine, over gRPC with TLS. Hidden training has "
        "limits of its own, so that its forest is another one."
    )
    blocks.append(Table(over_tls, lines, caption))
    names = [forest.split(" (")[0].split(":")[0] for forest in FORESTS]
    series = []
    for number, size in enumerate(sizes):
        samples = [values(select(rows, what="training", forest=f, rows=size), "cpu") for f in FORESTS]
        series.append(curve(f"{size:,} rows", names, samples, colour=number))
    panel = Panel("", "protection", "CPU time (s)", series, log_y=True)
    blocks.append(Figure("protection-cost", "CPU time of a training; bars: one standard deviation.", [panel]))
    return Report(blocks)


EXPERIMENT = Experiment(
    name="protection-cost",
    title="Cost of protection",
    what=(
        f"Beyond the papers. Three parties with four columns each, two classes, 5 trees of depth 6, {BINS} bins "
        "(RevFRF: its own candidates), generated data; everything in one process and one thread, so CPU seconds are "
        "those of all roles together. Beside it the same between services, led by the coordinator and by the label "
        "holder."
    ),
    sets=(),
    stand_ins=(),
    cells=cells,
    measure=measure,
    report=report,
    minutes=10,
    parallel=False,
    version=4,
)
