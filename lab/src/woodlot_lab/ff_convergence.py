"""Federated Forest: accuracy against the number of trees (journal, Figure 5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from woodlot_lab.data import DataSource
from woodlot_lab.experiment import (
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
from woodlot_lab.forests import central, federated, growing, halves, split
from woodlot_lab.statistics import curve, distinct, mean, paired_z, pm, select, values

DEPTH = 6
FORESTS = {
    "FF": "federated",
    "FF per tree": "federated, features drawn once for each tree (the paper's)",
    "RF": "scikit-learn, in one place",
}
STEPS = (1, 2, 3, 5, 7, 10, 15, 20, 25, 30, 40, 50, 60, 70, 80, 90, 100)
SHOWN = (1, 5, 10, 20, 50, 100)
STABLE = 0.005
"""A forest has converged where twice as many trees change its mean accuracy by less."""


def cells(setting: Setting) -> list[Cell]:
    """Both forests on each set."""
    trees = setting.pick(100, 30)
    return [Cell({"set": s, "forest": f, "trees": trees}, setting.pick(20, 3)) for s in setting.sets for f in FORESTS]


def measure(params: Params, seed: int, data: DataSource) -> Sequence[Row]:
    """Accuracy of the first 1, 2, ... trees of one forest."""
    rows = split(data.load(params["set"]), seed)
    options: dict[str, Any] = {"n_estimators": params["trees"], "max_depth": DEPTH}
    if params["forest"] == "RF":
        model, rows = central(rows, seed, **options)
    else:
        sampling = "node" if params["forest"] == "FF" else "tree"
        model = federated(rows, halves(rows.train.shape[1], seed), seed, feature_sampling=sampling, **options)
    steps = [n for n in STEPS if n <= params["trees"]]
    scores = growing(model.estimators_, rows, steps)
    return [{"n": n, "score": score} for n, score in zip(steps, scores, strict=True)]


def report(rows: Sequence[Row], setting: Setting) -> Report:
    """The curves, and where they are flat."""
    steps = distinct(rows, "n")
    lines, flat, equal, stable = [], [], [], []
    for name in setting.sets:
        scores = {f: {n: values(select(rows, set=name, forest=f, n=n), "score") for n in steps} for f in FORESTS}
        for forest in FORESTS:
            shown = [pm(scores[forest][n]) for n in SHOWN if n in steps]
            lines.append([name, FORESTS[forest], *shown, str(_converged(scores[forest]))])
        stable.append({forest: _converged(scores[forest]) for forest in FORESTS})
        flat.append(stable[-1]["FF"] < steps[-1])
        equal.append(abs(paired_z(scores["FF"][steps[-1]], scores["RF"][steps[-1]])) < 3)
    named = list(zip(setting.sets, stable, strict=True))
    slower = [n["FF per tree"] > n["RF"] for n in stable]
    return Report(
        [
            Table(
                ("data set", "forest", *(f"{n} tree{'s' * (n > 1)}" for n in SHOWN if n in steps), "stable from"),
                lines,
                "Accuracy, mean ± standard deviation over the repeats. Stable from: the first number of trees from "
                f"which on no larger forest's mean is more than {STABLE} better.",
            ),
            _figure(rows, setting, steps),
        ],
        [
            judge(
                "ffj-figure-5",
                "the federated forest converges with the number of trees, to the accuracy of the conventional one",
                (all(flat) and all(equal), all(flat) or all(equal)),
                f"stable before {steps[-1]} trees on {sum(flat)} of {len(flat)} sets; at {steps[-1]} trees within 3 "
                f"standard errors of scikit-learn on {sum(equal)}",
            ),
            judge(
                "ffj-figure-5",
                "it needs more trees than the conventional one",
                (all(slower), any(slower)),
                "with features drawn once for each tree, as the paper does, stable from "
                + ", ".join(f"{n['FF per tree']} trees on {s} ({n['RF']} in one place)" for s, n in named)
                + "; drawn at each node, Woodlot's default, from "
                + " and ".join(str(n["FF"]) for n in stable)
                + ": that is the forest of all columns in one place, bit by bit",
            ),
        ],
    )


def _converged(scores: dict[int, list[float]]) -> int:
    means = {n: mean(sample) for n, sample in scores.items()}
    return next(n for n in means if max(means[m] for m in means if m >= n) - means[n] <= STABLE)


def _figure(rows: Sequence[Row], setting: Setting, steps: Sequence[int]) -> Figure:
    panels = []
    for name in setting.sets:
        series = []
        for number, (forest, label) in enumerate(FORESTS.items()):
            samples = [values(select(rows, set=name, forest=forest, n=n), "score") for n in steps]
            style = "--" if forest == "RF" else "-"
            series.append(curve(label, steps, samples, style, colour=number))
        panels.append(Panel(name, "trees", "accuracy on the test rows", series, log_x=False))
    return Figure("ff-convergence", f"Accuracy against the number of trees, depth {DEPTH}; bars: one standard "
                  "deviation over the repeats.", panels)  # fmt: skip


EXPERIMENT = Experiment(
    name="ff-convergence",
    title="Federated Forest: convergence with the number of trees",
    what=(
        f"Figure 5 of *Federated Forest* (journal): 1 to 100 trees of depth at most {DEPTH}, two parties with half of "
        "the columns each, 80 % of the rows to learn from, 20 repeats with another split each. The curve of a repeat "
        "is of the first n trees of one forest."
    ),
    sets=("waveform", "spambase"),
    stand_ins=("waveform_generated", "breast_cancer"),
    cells=cells,
    measure=measure,
    report=report,
    minutes=15,
)
