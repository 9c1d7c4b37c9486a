"""Beyond the papers: what it costs to take a party out of a forest, against growing the forest anew."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

import woodlot as wl
from woodlot.estimators.complete import same_forest
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
    Series,
    Setting,
    Table,
    Verdict,
    judge,
)
from woodlot_lab.forests import split
from woodlot_lab.statistics import distinct, mean, pm, select, spread, values

PARTIES = 10
TREES, DEPTH = 50, 10
WAYS = {1: "level 1: its nodes and all under them", 3: "level 3: exact", 0: "grown anew without it"}


def cells(setting: Setting) -> list[Cell]:
    """One leaver of ten, each party in turn but the label holder."""
    size = {"trees": setting.pick(TREES, 10), "depth": setting.pick(DEPTH, 6), "rows": setting.pick(30_000, 1_000)}
    return [
        Cell({"set": name, "leaver": leaver, **size}, setting.pick(TIMED_REPEATS, 1))
        for name in setting.sets
        for leaver in setting.pick(range(1, PARTIES), (1, 2))
    ]


def measure(params: Params, seed: int, data: DataSource) -> Sequence[Row]:
    """CPU seconds of both levels and of a new forest, and whether the exact level gives that forest."""
    rows = split(data.load(params["set"]), seed, most_rows=params["rows"])
    names = [f"x{i}" for i in range(rows.train.shape[1])]  # with names, a column keeps its key when others go
    parties = {f"p{k}": names[k::PARTIES] for k in range(PARTIES)}
    leaver = f"p{params['leaver']}"
    kept = [name for name in names if name not in parties[leaver]]

    def grow(columns: list[str], **size: Any) -> Any:
        own = {p: c for p, c in parties.items() if c[0] in columns}
        train = pa.table({name: rows.train[:, names.index(name)] for name in columns})
        return wl.FederatedForestClassifier(parties=own, random_state=seed, n_jobs=1, **size).fit(train, rows.y_train)

    size = {"n_estimators": params["trees"], "max_depth": params["depth"]}
    grow(names, n_estimators=1, max_depth=2).revoke(leaver)  # kernels are loaded
    models, found = {}, []
    for level in (1, 3):
        model = models[level] = grow(names, **size)
        splits = model.forest_.coordinator.owner
        share = float((splits == params["leaver"]).sum() / (splits >= 0).sum())
        start = time.process_time()
        receipt = model.revoke(leaver, level=level)
        seconds = time.process_time() - start
        removed = sum(tree.removed for tree in receipt.statement.trees) / receipt.statement.nodes_before
        found.append({"level": level, "seconds": seconds, "share": share, "removed": removed})
    start = time.process_time()
    models[0] = grow(kept, **size)
    found.append({"level": 0, "seconds": time.process_time() - start})
    test = pa.table({name: rows.test[:, names.index(name)] for name in kept})
    for row in found:
        model = models[row["level"]]
        row["score"] = float((model.predict(test) == rows.y_test).mean())
        if row["level"] == 3:
            row["identical"] = same_forest(model.combine(), models[0].combine())
    return found


def expected_work(share: float, depth: int) -> float:
    """Work of level 1 against growing anew, where the leaver has this share of the splits of every level.

    All rows pass every level. A row's node at depth d stays as it was where none of its d + 1 splits is the leaver's.
    """
    return 1 - sum((1 - share) ** (d + 1) for d in range(depth)) / depth


def report(rows: Sequence[Row], setting: Setting) -> Report:
    """Cost against growing anew, by the leaver's share of the splits."""
    blocks: list[str | Table | Figure] = []
    verdicts: list[Verdict] = []
    panels = []
    for name in setting.sets:
        own = select(rows, set=name)
        anew = mean(values(select(own, level=0), "seconds"))
        points: dict[int, list[tuple[float, float, float]]] = {1: [], 3: []}
        for leaver in distinct(own, "leaver"):
            theirs = select(own, leaver=leaver)
            base = mean(values(select(theirs, level=0), "seconds"))
            for level in points:
                sample = [seconds / base for seconds in values(select(theirs, level=level), "seconds")]
                share = mean(values(select(theirs, level=level), "share"))
                points[level].append((share, mean(sample), spread(sample)))
        lines = [
            [WAYS[level], pm(values(select(own, level=level), "seconds"), 2),
             f"{mean(values(select(own, level=level), 'seconds')) / anew:.2f}",
             "-" if level == 0 else f"{mean(values(select(own, level=level), 'removed')):.0%}",
             pm(values(select(own, level=level), "score"))]
            for level in WAYS
        ]  # fmt: skip
        caption = f"`{name}`, over all leavers; growing anew takes {anew:.2f} s of CPU, all parties together."
        blocks.append(Table(("how", "CPU seconds", "against anew", "nodes removed", "accuracy"), lines, caption))
        depth = own[0]["depth"]
        series = []
        for number, (level, found) in enumerate(points.items()):
            found.sort()
            x, y, error = zip(*found, strict=True)
            series.append(Series(WAYS[level], x, y, error, "none", colour=number))
        grid = [share / 100 for share in range(1, 31)]
        series.append(Series("level 1 in theory", grid, [expected_work(g, depth) for g in grid], None, "--", "", 6))
        series.append(Series("grown anew", grid, [1.0] * len(grid), None, ":", "", 2))
        panels.append(Panel(name, "share of the splits that were the leaver's", "CPU time against growing anew", series,
                            from_zero=True))  # fmt: skip
        same = values(select(own, level=3), "identical")
        cheaper = [y for _, y, _ in points[1]]
        verdicts += [
            judge("beyond-revocation", f"{name}: level 3 gives the forest grown anew, bit by bit", all(same),
                  f"in {sum(same):.0f} of {len(same)} revocations"),
            judge("beyond-revocation", f"{name}: level 1 costs less than growing anew",
                  (max(cheaper) < 1, min(cheaper) < 1),
                  f"{min(cheaper):.2f} to {max(cheaper):.2f} of it, by the leaver's share of the splits", timed=True),
        ]  # fmt: skip
    blocks.append(
        Figure("revocation-cost", "CPU time of a revocation against growing the forest anew, each leaver a point; "
               "bars: one standard deviation.", panels)
    )  # fmt: skip
    blocks.append(
        "In theory, with an even share s of the splits on each of D levels, level 1 does 1 - (sum over d = 1..D of "
        "(1 - s)^d) / D of the work of growing anew: 41 % for one of ten at depth 10."
    )
    return Report(blocks, verdicts)


EXPERIMENT = Experiment(
    name="revocation-cost",
    title="Revocation against growing anew",
    what=(
        f"Beyond the papers. A forest over {PARTIES} parties ({TREES} trees, depth {DEPTH}, up to 30,000 rows, labels "
        "shared, in one process, one thread); one party leaves, each in turn but the label holder. Level 1 destroys "
        "its nodes and all under them, and grows these anew without it, as RevFRF does; level 3 gives exactly the "
        "forest that would have been grown without it; beside them, growing that forest from nothing."
    ),
    sets=("spambase", "letter", "credit_default"),
    stand_ins=("breast_cancer",),
    cells=cells,
    measure=measure,
    report=report,
    minutes=25,
    parallel=False,
)
