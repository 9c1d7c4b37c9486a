"""RevFRF: accuracy and error against the number of trees (Figures 7 and 8)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import woodlot as wl
from woodlot_lab.data import SPECS, DataSource
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
    Verdict,
    judge,
)
from woodlot_lab.forests import central, features, filled, growing, halves, split
from woodlot_lab.rev_revocations import CLASSES, TARGETS
from woodlot_lab.statistics import curve, distinct, mean, pm, select, values

DEPTH = 10
NON_FED, REVFRF = "Non.Fed", "RevFRF"
STEPS = (1, 2, 5, 10, 20, 40, 60, 80, 100)
SHOWN = (1, 10, 100)
CLOSE = {"classes": 0.01, "targets": 0.02}
"""How far apart both may be at the end: points of accuracy, share of the error."""


def cells(setting: Setting) -> list[Cell]:
    """Both forests on each set."""
    params = {"trees": setting.pick(100, 10), "rows": setting.pick(20_000, 2_000)}
    return [
        Cell({"set": name, "forest": forest, **params}, setting.pick(5, 1))
        for name in setting.sets
        for forest in (NON_FED, REVFRF)
    ]


def measure(params: Params, seed: int, data: DataSource) -> Sequence[Row]:
    """Accuracy, or MSE, of the first 1, 2, ... trees of one forest."""
    rows = filled(split(data.load(params["set"]), seed, most_rows=params["rows"]))
    size: dict[str, Any] = {"n_estimators": params["trees"], "max_depth": DEPTH}
    if params["forest"] == NON_FED:
        model, rows = central(rows, seed, **size)
    else:
        kind = wl.RevocableForestClassifier if rows.classes else wl.RevocableForestRegressor
        model = kind(
            parties=halves(rows.train.shape[1], seed), encryption="simulated", max_features=features(rows),
            random_state=seed, n_jobs=1, **size,
        )  # fmt: skip
        model.fit(rows.train, rows.y_train)
    steps = [n for n in STEPS if n <= params["trees"]]
    scores = growing(model.estimators_, rows, steps)
    return [{"n": n, "score": score} for n, score in zip(steps, scores, strict=True)]


def report(rows: Sequence[Row], setting: Setting) -> Report:
    """A curve for each set."""
    steps = distinct(rows, "n")
    lines: list[list[str]] = []
    panels: list[Panel] = []
    apart: dict[str, dict[str, float]] = {"classes": {}, "targets": {}}
    for name in setting.sets:
        task = SPECS[name].task
        series = []
        for number, forest in enumerate((NON_FED, REVFRF)):
            samples = [values(select(rows, set=name, forest=forest, n=n), "score") for n in steps]
            means = [*map(mean, samples)]
            style = "--" if forest == NON_FED else "-"
            series.append(curve(forest, steps, samples, style, colour=number))
            digits = 3 if task == "classes" or means[-1] < 1 else 1
            lines.append([name, forest, *(pm(samples[steps.index(n)], digits) for n in SHOWN if n in steps)])
        ends = [each.y[-1] for each in series]
        apart[task][name] = ends[0] - ends[1] if task == "classes" else ends[1] / ends[0] - 1
        panels.append(Panel(name, "trees", "accuracy" if task == "classes" else "mean squared error", series))
    verdicts: list[Verdict] = []
    for task, item in (("classes", "rev-figure-7"), ("targets", "rev-figure-8")):
        if apart[task]:
            close = [name for name, value in apart[task].items() if value < CLOSE[task]]
            text = ", ".join(f"{name} {100 * value:+.2f}" for name, value in apart[task].items())
            unit = "points of accuracy" if task == "classes" else "per cent of MSE"
            verdicts.append(
                judge(item, "with more trees RevFRF comes to the original forest's performance",
                      (len(close) == len(apart[task]), bool(close)), f"worse at {steps[-1]} trees, in {unit}: {text}")
            )  # fmt: skip
    caption = "Mean ± standard deviation over the repeats: accuracy, or mean squared error."
    figure = Figure("rev-convergence", "Quality against the number of trees; bars: one standard deviation.", panels)
    return Report(
        [figure, Table(("data set", "forest", *(f"{n} trees" for n in SHOWN if n in steps)), lines, caption)], verdicts
    )


EXPERIMENT = Experiment(
    name="rev-convergence",
    title="RevFRF: quality against the number of trees",
    what=(
        "Figures 7 and 8 of *Revocable Federated Learning*: 1 to 100 trees of depth "
        f"{DEPTH}; Non.Fed is scikit-learn's forest, RevFRF Woodlot's revocable forest (keys do not change it). Up to "
        "20,000 rows of each set."
    ),
    sets=(*CLASSES, *TARGETS),
    stand_ins=("breast_cancer", "friedman"),
    cells=cells,
    measure=measure,
    report=report,
    minutes=30,
)
