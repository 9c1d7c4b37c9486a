"""Federated Forest: prediction time of one round against the classical method, over real gRPC behind a slow link."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, TypeAlias

import woodlot as wl
from woodlot.connected import ConnectedFederation
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
    Verdict,
    judge,
)
from woodlot_lab.forests import Split, halves, split
from woodlot_lab.network import LABEL, NO_LINK, PAPER_LINK, networked, tables_of
from woodlot_lab.statistics import STRAIGHT, curve, distinct, line, mean, pm, select, straightness, values

Finding: TypeAlias = tuple[str, tuple[bool, bool], str]
"""A claim, whether all and whether some of it holds, and the numbers."""
PARTIES = ("one", "two")
TREES, DEPTH, SHARE = 8, 4, 0.2
"""What is held fixed while something else is varied."""
MOST_SHARE = 0.4
ROWS_ALONE = 3
"""Rows of the smallest share that are predicted one by one; of twice the share it is twice as many, and so on.

What all rows of the share take is what these take, times a factor that is the same for every share."""
HARDLY = 1.5
"""What does not depend on something grows by less than this from one end to the other."""
SWEEPS = {
    "trees": (8, 16, 24, 32),
    "depth": (4, 8, 12, 16),
    "share": (0.1, 0.2, 0.3, 0.4),
}
QUICK_SWEEPS = {"trees": (4, 8), "depth": (4, 8), "share": (0.1, 0.4)}
AXES = {"trees": "trees", "depth": "maximum depth", "share": "share of the rows to predict"}
ITEMS = {"trees": ("ff19-figure-4", "ffj-figure-6"), "depth": ("ff19-figure-5", "ffj-figure-7"),
         "share": ("ff19-figure-6", "ffj-figure-8")}  # fmt: skip
WAYS = {
    ("classical", "row by row"): "classical, tree by tree and row by row (the paper's)",
    ("classical", "tree by tree"): "classical, tree by tree, all rows of a level together",
    ("one-round", "tree by tree"): "one round for each tree (the paper's)",
    ("classical", "forest"): "classical, all trees together",
    ("one-round", "forest"): "one round for the whole forest",
}


def cells(setting: Setting) -> list[Cell]:
    """One running federation for each set and sweep."""
    sweeps = QUICK_SWEEPS if setting.quick else SWEEPS
    return [
        Cell({"set": name, "sweep": sweep, "points": list(points)}, setting.pick(TIMED_REPEATS, 1))
        for name in setting.sets
        for sweep, points in sweeps.items()
    ]


def measure(params: Params, seed: int, data: DataSource) -> Sequence[Row]:
    """Times of all ways of prediction at each point of a sweep."""
    rows = split(data.load(params["set"]), seed, MOST_SHARE)
    columns = halves(rows.train.shape[1], seed)
    total = len(rows.y_train) + len(rows.y_test)
    shares = params["points"] if params["sweep"] == "share" else [SHARE]
    tables = {"train": tables_of(rows, columns, test=False)}
    for share in shares:
        tables[_test(share)] = tables_of(_rows(rows, 0, round(share * total)), columns, test=True)
    counts = [round(ROWS_ALONE * share / shares[0]) for share in shares] if params["sweep"] == "share" else [0]
    single_rows = range(max(counts))
    tables |= {f"row{row}": tables_of(_rows(rows, row, row + 1), columns, test=True) for row in single_rows}
    found: list[Row] = []
    with networked(tables) as network, ExitStack() as stack:
        train, *others = [stack.enter_context(network.rows(name, PARTIES)) for name in tables]
        tests, alone = others[: len(shares)], others[len(shares) :]

        def grow(trees: int, depth: int, number: int) -> wl.FederatedForestClassifier:
            network.link = NO_LINK  # only prediction is measured
            model = wl.FederatedForestClassifier(trees, max_depth=depth, random_state=1000 * seed + number)
            return model.fit(train, y=f"{PARTIES[0]}.{LABEL}")

        single: dict[tuple[int, int], wl.FederatedForestClassifier] = {}
        for place, (point, trees, depth, test) in enumerate(_points(params, tests)):
            for number in range(trees):
                if (depth, number) not in single:
                    single[depth, number] = grow(1, depth, number)
            models = [single[depth, number] for number in range(trees)]
            whole = grow(trees, depth, 0)
            network.link = PAPER_LINK
            for method, way in WAYS:
                if way == "row by row" and not alone:
                    continue
                asked = alone[: counts[place]] if way == "row by row" else [test]
                growing = [whole] if way == "forest" else models
                costs = [_predict(model, one, method) for one in asked for model in growing]
                times = test.n_rows / len(asked) if way == "row by row" else 1
                found.append(
                    {
                        "x": float(point),
                        "method": method,
                        "way": way,
                        "seconds": times * sum(cost.total_seconds for cost in costs),
                        "rounds": round(times * sum(cost.rounds for cost in costs)),
                        "bytes": round(times * sum(cost.bytes_sent + cost.bytes_received for cost in costs)),
                        "rows": test.n_rows,
                    }
                )
    return found


def _points(params: Params, tests: list[ConnectedFederation]) -> list[tuple[float, int, int, ConnectedFederation]]:
    """Each point with its trees, depth and rows to predict."""
    if params["sweep"] == "share":
        return [(share, TREES, DEPTH, test) for share, test in zip(params["points"], tests, strict=True)]
    if params["sweep"] == "trees":
        return [(trees, trees, DEPTH, tests[0]) for trees in params["points"]]
    return [(depth, TREES, depth, tests[0]) for depth in params["points"]]


def _predict(model: wl.FederatedForestClassifier, test: ConnectedFederation, method: Any) -> Any:
    model.predict(test, method=method)
    return model.prediction_cost_


def _test(share: float) -> str:
    return f"test{round(100 * share)}"


def _rows(rows: Split, start: int, stop: int) -> Split:
    return Split(rows.train, rows.test[start:stop], rows.y_train, rows.y_test[start:stop], rows.classes)


def report(rows: Sequence[Row], setting: Setting) -> Report:
    """A table and a figure for each sweep."""
    blocks: list[Table | Figure] = []
    verdicts: list[Verdict] = []
    for sweep in distinct(rows, "sweep"):
        own = select(rows, sweep=sweep)
        blocks += [_table(own, sweep), _figure(own, setting, sweep)]
        verdicts += _JUDGES[sweep](own, setting)
    return Report(blocks, verdicts)


def _seconds(rows: Sequence[Row], name: str, way: tuple[str, str], x: float) -> list[float]:
    return values(select(rows, set=name, method=way[0], way=way[1], x=x), "seconds")


def _table(rows: Sequence[Row], sweep: str) -> Table:
    points = distinct(rows, "x")
    lines = []
    for name in distinct(rows, "set"):
        for way, label in WAYS.items():
            own = select(rows, set=name, method=way[0], way=way[1])
            if not own:
                continue
            rounds = [mean(values(select(own, x=x), "rounds")) for x in (points[0], points[-1])]
            lines.append(
                [name, label, *(pm(_seconds(rows, name, way, x), 2) for x in points),
                 f"{rounds[0]:.0f} to {rounds[1]:.0f}"]
            )  # fmt: skip
    return Table(
        ("data set", "method", *(f"{AXES[sweep]} {x:g}" for x in points), "rounds"),
        lines,
        f"Seconds of a prediction against {AXES[sweep]}; mean ± standard deviation over the repeats.",
    )


def _figure(rows: Sequence[Row], setting: Setting, sweep: str) -> Figure:
    points = distinct(rows, "x")
    panels = []
    for name in setting.sets:
        series = []
        for number, (way, label) in enumerate(WAYS.items()):
            if not select(rows, set=name, method=way[0], way=way[1]):
                continue
            samples = [_seconds(rows, name, way, x) for x in points]
            style, marker = ("-", "o") if way[0] == "classical" else ("--", "x")
            series.append(curve(label, points, samples, style, marker, number))
        panels.append(Panel(name, AXES[sweep], "prediction time (s)", series, log_y=True))
    caption = f"Time of a prediction against {AXES[sweep]} over a link of {PAPER_LINK}; bars: one standard deviation."
    return Figure(f"ff-prediction-{sweep}", caption, panels)


# --- verdicts ---


def _ends(rows: Sequence[Row], name: str, way: tuple[str, str]) -> tuple[float, float]:
    points = distinct(rows, "x")
    first, last = (mean(_seconds(rows, name, way, x)) for x in (points[0], points[-1]))
    return first, last


def _rounds(rows: Sequence[Row], way: tuple[str, str], x: float) -> float:
    """Exchanges of a way of prediction, mean over the sets."""
    return mean(values(select(rows, method=way[0], way=way[1], x=x), "rounds"))


def _span(numbers: Sequence[float]) -> str:
    return f"{numbers[0]:,.0f} to {numbers[-1]:,.0f}"


def _both(sweep: str, exchanges: Finding, times: Finding) -> list[Verdict]:
    """What is said of exchanges, which no machine changes, and of times; for both papers."""
    return [judge(item, *found, timed=found is times) for item in ITEMS[sweep] for found in (exchanges, times)]


BY_ROW, CLASSICAL, PER_TREE, TOGETHER, ONE_ROUND = WAYS


def _judge_trees(rows: Sequence[Row], setting: Setting) -> list[Verdict]:
    points = distinct(rows, "x")
    ratios, slopes, straight = [], [], []
    for name in setting.sets:
        classical, own = ([mean(_seconds(rows, name, way, x)) for x in points] for way in (CLASSICAL, PER_TREE))
        slopes.append((line(points, classical)[0], line(points, own)[0]))
        straight += [straightness(points, classical), straightness(points, own)]
        ratios.append(_ends(rows, name, TOGETHER)[1] / _ends(rows, name, ONE_ROUND)[1])
    less = all(own < classical for classical, own in slopes)
    linear = min(straight) > STRAIGHT
    reason = (
        "slope per tree, classical against one round per tree: "
        + "; ".join(
            f"{name} {1e3 * c:.0f} and {1e3 * o:.0f} ms" for name, (c, o) in zip(setting.sets, slopes, strict=True)
        )
        + f", on lines with correlations of at least {min(straight):.3f}; with all trees together one round is "
        f"{min(ratios):.1f} to {max(ratios):.1f} times faster at {points[-1]:g} trees"
    )
    claim = "time grows linearly with the trees for both, far less for one round per tree"
    sent = "exchanges grow linearly with the trees for both, far fewer for one round per tree"
    rounds = {way: [_rounds(rows, way, x) for x in points] for way in (CLASSICAL, PER_TREE)}
    few = all(own < other for own, other in zip(rounds[PER_TREE], rounds[CLASSICAL], strict=True))
    even = min(straightness(points, numbers) for numbers in rounds.values()) > STRAIGHT
    told = f"{points[0]:g} to {points[-1]:g} trees: classical {_span(rounds[CLASSICAL])}, one round per tree "
    told += f"{_span(rounds[PER_TREE])}"
    return _both("trees", (sent, (few and even, few), told), (claim, (less and linear, less), reason))


def _judge_depth(rows: Sequence[Row], setting: Setting) -> list[Verdict]:
    points = distinct(rows, "x")
    grows, flat, text = [], [], []
    for name in setting.sets:
        classical, own = _ends(rows, name, CLASSICAL), _ends(rows, name, ONE_ROUND)
        grows.append(classical[1] / classical[0])
        flat.append(own[1] / own[0])
        text.append(f"{name} {classical[0]:.2f} to {classical[1]:.2f} s and {own[0]:.2f} to {own[1]:.2f} s")
    rounds = {way: [_rounds(rows, way, x) for x in points] for way in (CLASSICAL, ONE_ROUND)}
    reason = f"depth {points[0]:g} to {points[-1]:g}, classical and one round: {'; '.join(text)}"
    less = all(g > f for g, f in zip(grows, flat, strict=True))
    same, more = len(set(rounds[ONE_ROUND])) == 1, rounds[CLASSICAL][-1] > rounds[CLASSICAL][0]
    told = f"depth {points[0]:g} to {points[-1]:g}: classical, tree by tree {_span(rounds[CLASSICAL])}, one round for "
    told += f"the whole forest {_span(rounds[ONE_ROUND])}, of which one carries it"
    claim = "the time of one round does not depend on the depth, that of the classical method does"
    sent = "the exchanges of one round do not depend on the depth, those of the classical method do"
    return _both("depth", (sent, (same and more, same), told), (claim, (less and max(flat) < HARDLY, less), reason))


def _judge_share(rows: Sequence[Row], setting: Setting) -> list[Verdict]:
    points = distinct(rows, "x")
    text, faster, linear, hardly = [], [], [], []
    for name in setting.sets:
        by_row, classical, own = (
            [mean(_seconds(rows, name, way, x)) for x in points] for way in (BY_ROW, CLASSICAL, PER_TREE)
        )
        text.append(
            f"{name} {by_row[0]:.0f} to {by_row[-1]:.0f} s, {classical[0]:.2f} to {classical[-1]:.2f} s and "
            f"{own[0]:.2f} to {own[-1]:.2f} s"
        )
        linear.append(straightness(points, by_row) > STRAIGHT)
        faster.append(all(one < other for one, other in zip(own, by_row, strict=True)))
        hardly.append(own[-1] - own[0] < (by_row[-1] - by_row[0]) / 10)
    reason = (
        f"{points[-1] / points[0]:g} times the rows, classical row by row, classical with all rows of a level together "
        f"(Woodlot's) and one round, tree by tree: {'; '.join(text)}"
    )
    claim = "the classical method's time grows linearly with the rows to predict, that of one round hardly"
    holds = (all(faster) and all(linear) and all(hardly), all(faster))
    rounds = {way: [_rounds(rows, way, x) for x in points] for way in (BY_ROW, PER_TREE)}
    same, even = len(set(rounds[PER_TREE])) == 1, straightness(points, rounds[BY_ROW]) > STRAIGHT
    told = f"{points[-1] / points[0]:g} times the rows: classical row by row {_span(rounds[BY_ROW])}, one round "
    told += f"{_span(rounds[PER_TREE])}"
    sent = "the classical method's exchanges grow linearly with the rows to predict, those of one round not at all"
    return _both("share", (sent, (same and even, same), told), (claim, holds, reason))


_JUDGES: dict[str, Callable[[Sequence[Row], Setting], list[Verdict]]] = {
    "trees": _judge_trees,
    "depth": _judge_depth,
    "share": _judge_share,
}

EXPERIMENT = Experiment(
    name="ff-prediction",
    title="Federated Forest: prediction in one round against the classical method",
    what=(
        "Figures 4 to 6 (2019) and 6 to 8 (journal) of *Federated Forest*. Coordinator and two parties are processes "
        "of their own and talk over gRPC with mutual TLS; between them stands a relay that delays every byte by 10 ms "
        "and passes 20 Mb/s in each direction of each line (the papers name the rate, not the delay). Time is that of "
        "the exchanges and of the coordinator's work, without alignment and without the user's order. The paper "
        "predicts tree by tree, so forests of one tree are predicted one after the other as well; Woodlot's own "
        f"methods take all trees together. Row by row, as the paper's classical method goes, {ROWS_ALONE} rows of the "
        "smallest share, and in proportion of the others, are measured and multiplied. Fixed where not varied: "
        f"{TREES} trees, depth {DEPTH}, {SHARE:.0%} of the rows. The paper repeats 20 times."
    ),
    sets=("spambase", "waveform"),
    stand_ins=("waveform_generated",),
    cells=cells,
    measure=measure,
    report=report,
    minutes=60,
    parallel=False,
    version=2,
)
