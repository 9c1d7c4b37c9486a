"""RevFRF: seconds and bytes of building and of encrypted prediction (Table 6, Figure 9)."""

from __future__ import annotations

import time
from collections.abc import Sequence

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
    judge,
)
from woodlot_lab.revocable import SAMPLES, bits_of, grow, rows_of, splits_of, table, timed_keys
from woodlot_lab.statistics import STRAIGHT, curve, distinct, line, mean, pm, select, straightness, values

TREES, DEPTH = 10, 10
LENGTHS = ("paper", "2048")
SIZES = (1, 2, 4, 8)
DEPTHS = (2, 4, 6, 8, 10)
UNITS = {"seconds": "CPU time (s)", "megabytes": "data sent (MB)"}
NODES = 100
"""The paper gives costs of building so many nodes."""
PAPER = {"building": (3.09 + 2.27, 1.07), "prediction": (13.33 + 0.08, 0.78)}
"""Seconds of server and participants together, and megabytes."""


def cells(setting: Setting) -> list[Cell]:
    """Building against the number of nodes, and prediction against the depth, at each length of keys."""
    lengths = setting.pick(LENGTHS, LENGTHS[:1])
    common = {"set": setting.sets[0], "samples": setting.pick(SAMPLES, 500)}
    repeats = setting.pick(TIMED_REPEATS, 1)
    return [
        *(
            Cell({**common, "what": "building", "encryption": e, "trees": trees, "depth": DEPTH}, repeats)
            for e in lengths
            for trees in setting.pick(SIZES, (1, 2))
        ),
        *(
            Cell(
                {**common, "what": "prediction", "encryption": e, "trees": setting.pick(TREES, 2), "depth": depth},
                repeats,
            )
            for e in lengths
            for depth in setting.pick(DEPTHS, (2, 4))
        ),
    ]


def measure(params: Params, seed: int, data: DataSource) -> Sequence[Row]:
    """Cost of building a forest, or of one encrypted prediction."""
    rows = rows_of(data, params["set"], seed, params["samples"])
    columns = [f"x{column}" for column in range(rows.train.shape[1])]
    if params["what"] == "building":
        grow(rows, "simulated", 1, 2, seed, columns)  # kernels are loaded
    keys, making = timed_keys(params["encryption"])
    start = time.process_time()
    model = grow(rows, keys, params["trees"], params["depth"], seed, columns)
    if params["what"] == "building":
        seconds = time.process_time() - start - sum(making)
        sent = model.cost_.bytes_sent + model.cost_.bytes_received
        return [{"nodes": splits_of(model), "seconds": seconds, "megabytes": sent / 1e6}]
    request = table(rows.test[:1], columns)
    start = time.process_time()
    answer = model.predict_encrypted(request)
    seconds = time.process_time() - start
    cost = model.prediction_cost_
    return [
        {
            "seconds": seconds,
            "megabytes": (cost.bytes_sent + cost.bytes_received) / 1e6,
            "rounds": cost.rounds,
            "agrees": bool((answer == model.predict_proba(request)).all()),
        }
    ]


def report(rows: Sequence[Row], setting: Setting) -> Report:
    """Table 6 and the two halves of Figure 9."""
    lines = []
    building, prediction = (select(rows, what=what) for what in ("building", "prediction"))
    for encryption in distinct(rows, "encryption"):
        own = select(building, encryption=encryption)
        per_node = [NODES * row["seconds"] / row["nodes"] for row in own]
        size = [NODES * row["megabytes"] / row["nodes"] for row in own]
        deepest = max(distinct(prediction, "depth"))
        last = select(prediction, encryption=encryption, depth=deepest)
        lines.append([bits_of(encryption), pm(per_node, 2), f"{mean(size):.2f}", pm(values(last, "seconds"), 2),
                      f"{mean(values(last, 'megabytes')):.3f}", f"{mean(values(last, 'rounds')):.0f}"])  # fmt: skip
    told = PAPER["building"], PAPER["prediction"]
    lines.append(
        ["the paper's, 1024 bits", f"{told[0][0]:.2f}", f"{told[0][1]:g}", f"{told[1][0]:.2f}", f"{told[1][1]:g}", ""]
    )
    headings = (
        "keys",
        f"building {NODES} nodes, s",
        "MB",
        f"prediction, {TREES} trees of depth {DEPTH}, s",
        "MB",
        "exchanges",
    )
    caption = (
        "Table 6: server and participants together, CPU time of all roles. Building is without the making of keys and "
        f"scaled to {NODES} nodes; prediction is of one row. The paper's machine is another one."
    )
    first = distinct(rows, "encryption")[0]
    ours = mean([NODES * row["seconds"] / row["nodes"] for row in select(building, encryption=first)])
    theirs = mean(values(select(prediction, encryption=first, depth=max(distinct(prediction, "depth"))), "seconds"))
    agrees = values(prediction, "agrees")
    deepest = max(distinct(prediction, "depth"))
    sent = (
        mean([NODES * row["megabytes"] / row["nodes"] for row in select(building, encryption=first)]),
        mean(values(select(prediction, encryption=first, depth=deepest), "megabytes")),
    )
    fits = {unit: [_straightness(building, e, unit) for e in distinct(rows, "encryption")] for unit in UNITS}
    depths = distinct(prediction, "depth")
    by_depth = [mean(values(select(prediction, encryption=first, depth=d), "seconds")) for d in depths]
    per_level = line(depths, by_depth)[0]
    straight = [*fits["seconds"], straightness(depths, by_depth)]
    sent_by_depth = [
        straightness(depths, [mean(values(select(prediction, encryption=e, depth=d), "megabytes")) for d in depths])
        for e in distinct(rows, "encryption")
    ]
    return Report(
        [Table(headings, lines, caption), _figure(rows)],
        [
            judge("rev-table-6", "building 100 nodes takes about 5 s of server and participants", ours < told[0][0],
                  f"{ours:.2f} s at the paper's 1024 bits, against {told[0][0]:.2f} s", timed=True),
            judge("rev-table-6", "an encrypted prediction takes about 13 s", theirs < told[1][0],
                  f"{theirs:.2f} s of CPU at 1024 bits, all comparisons of a level at once", timed=True),
            judge("rev-table-6", "building 100 nodes sends 1.07 MB, an encrypted prediction 0.78 MB",
                  (sent[0] < told[0][1] and sent[1] < told[1][1] and all(agrees), min(sent) < told[0][1]),
                  f"{sent[0]:.2f} MB and {sent[1]:.2f} MB at 1024 bits; {sum(agrees):.0f} of {len(agrees)} answers "
                  "equal those in clear, bit by bit"),
            judge("rev-figure-9", "what is sent grows linearly with the nodes built and with the depth",
                  (min(*fits["megabytes"], *sent_by_depth) > STRAIGHT, min(fits["megabytes"]) > STRAIGHT),
                  "correlation of megabytes, by length of keys, with the nodes "
                  f"{', '.join(f'{r:.3f}' for r in fits['megabytes'])}, with the depth of a prediction "
                  f"{', '.join(f'{r:.3f}' for r in sent_by_depth)}"),
            judge("rev-figure-9", "time grows linearly with the nodes built and with the depth",
                  (min(straight) > STRAIGHT and per_level > 0, per_level > 0),
                  "correlation of seconds, by length of keys, with the nodes "
                  f"{', '.join(f'{r:.3f}' for r in fits['seconds'])}; a prediction takes {1e3 * per_level:.0f} ms more "
                  f"per level at 1024 bits, with a correlation of {straight[-1]:.3f}", timed=True),
        ],
    )  # fmt: skip


def _straightness(building: Sequence[Row], encryption: str, unit: str) -> float:
    """How straight the cost grows with the nodes."""
    points = [select(building, encryption=encryption, trees=trees) for trees in distinct(building, "trees")]
    x, y = ([mean(values(point, what)) for point in points] for what in ("nodes", unit))
    return straightness(x, y)


def _figure(rows: Sequence[Row]) -> Figure:
    panels = []
    for what, x, label in (("building", "trees", "encrypted nodes"), ("prediction", "depth", "maximum depth")):
        for unit, y in UNITS.items():
            series = []
            for number, encryption in enumerate(distinct(rows, "encryption")):
                own = select(rows, what=what, encryption=encryption)
                points = [select(own, **{x: value}) for value in distinct(own, x)]
                places = [mean(values(p, "nodes")) if what == "building" else p[0]["depth"] for p in points]
                samples = [values(p, unit) for p in points]
                series.append(curve(bits_of(encryption), places, samples, colour=number))
            panels.append(Panel(f"{what}", label, y, series, from_zero=True))
    return Figure("rev-cost", "Cost of building and of one encrypted prediction; bars: one standard deviation.", panels)


EXPERIMENT = Experiment(
    name="rev-cost",
    title="RevFRF: cost of building and of encrypted prediction",
    what=(
        f"Table 6 and Figure 9 of *Revocable Federated Learning*: {SAMPLES:,} samples of Adult Income, one participant "
        "per column; building a forest whose splits are encrypted by their providers, and predicting one encrypted row "
        f"in {TREES} trees of depth up to {DEPTH}. All roles (server, participants, computation provider, key centre) "
        "in one process, one thread. Keys are made once and not counted."
    ),
    sets=("adult",),
    stand_ins=("breast_cancer",),
    cells=cells,
    measure=measure,
    report=report,
    minutes=25,
    parallel=False,
    version=2,
)
