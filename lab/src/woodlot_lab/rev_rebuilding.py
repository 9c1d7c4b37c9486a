"""RevFRF: time to rebuild the forest after participants have left, against building it anew (Table 7)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
    judge,
)
from woodlot_lab.revocable import SAMPLES, grow, rows_of, splits_of
from woodlot_lab.revocation_cost import expected_work
from woodlot_lab.statistics import curve, distinct, mean, pm, select, values

TREES, DEPTH = 8, 10
LEAVERS = 5
PAPER = {1: (16.1, 1.2), 2: (37.0, 2.7), 3: (50.1, 3.6), 4: (83.1, 6.1), 5: (136.3, 9.8)}
PAPER_ANEW = (432.5, 31.1)
"""Nodes and seconds."""
DEALINGS = 20
"""How often the splits of a forest are dealt to the participants at random."""


def cells(setting: Setting) -> list[Cell]:
    """Others leave in each repeat."""
    size = {"samples": setting.pick(SAMPLES, 500), "trees": setting.pick(TREES, 2), "depth": setting.pick(DEPTH, 5)}
    return [Cell({"set": setting.sets[0], **size}, setting.pick(TIMED_REPEATS, 2))]


def measure(params: Params, seed: int, data: DataSource) -> Sequence[Row]:
    """Five participants leave one forest, one after the other; costs add up."""
    rows = rows_of(data, params["set"], seed, params["samples"])
    columns = [f"x{column}" for column in range(rows.train.shape[1])]

    def build(names: Sequence[str]) -> Any:
        return grow(rows, "simulated", params["trees"], params["depth"], seed, names)

    build(columns).revoke("p0")  # kernels are loaded
    model, seconds = _timed(lambda: build(columns))
    structure, owner = model.forest_.coordinator.structure, model.forest_.coordinator.owner
    found: list[Row] = [{"revoked": 0, "nodes": splits_of(model), "seconds": seconds}]
    leavers_from = np.random.default_rng(seed).permutation(len(columns))
    leavers = [f"p{column}" for column in leavers_from[:LEAVERS]]
    numbers = [model.forest_.coordinator.parties.index(leaver) for leaver in leavers]
    nodes = seconds = 0.0
    for gone, leaver in enumerate(leavers, 1):
        receipt, taken = _timed(partial(model.revoke, leaver, level=1))
        columns.remove(leaver.replace("p", "x"))
        nodes += receipt.statement.cost.nodes_searched
        seconds += taken
        anew, taken = _timed(lambda: build(columns))
        found.append(
            {
                "revoked": gone,
                "nodes": nodes,
                "at_once": destroyed(structure.right, owner, numbers[:gone]),
                "dealt": dealt_at_random(structure.right, owner, gone, len(leavers_from), seed),
                "participants": len(leavers_from),
                "all_nodes": splits_of(anew),
                "seconds": seconds,
                "anew": taken,
            }
        )
    return found


def _timed(work: Callable[[], Any]) -> tuple[Any, float]:
    start = time.process_time()
    return work(), time.process_time() - start


def destroyed(right: NDArray[Any], owner: NDArray[Any], leavers: Sequence[int]) -> int:
    """Splits that are a leaver's or lie under one; nodes are in preorder, a node's left child is the next one."""
    gone = np.isin(owner, leavers)
    for node in np.flatnonzero(right >= 0):
        gone[node + 1] |= gone[node]
        gone[right[node]] |= gone[node]
    return int((gone & (owner >= 0)).sum())


def dealt_at_random(right: NDArray[Any], owner: NDArray[Any], leavers: int, participants: int, seed: int) -> float:
    """`destroyed` in the same trees, were every split dealt to any participant alike; mean over some dealings."""
    rng = np.random.default_rng(seed)
    numbers = range(leavers)
    dealings = (np.where(owner >= 0, rng.integers(participants, size=len(owner)), -1) for _ in range(DEALINGS))
    return float(np.mean([destroyed(right, dealt, numbers) for dealt in dealings]))


def printed_formula(leavers: int, depth: int) -> float:
    """The paper's expectation, depth times leavers, as a share of the splits of a full tree."""
    return depth * leavers / float(2**depth - 1)


def expected_nodes(share: float, depth: int) -> float:
    """Share of the splits of a full tree that go where each is a leaver's with this probability."""
    weights = np.exp2(np.arange(depth))  # splits at each depth
    return float(1 - np.average((1 - share) ** np.arange(1, depth + 1), weights=weights))


def report(rows: Sequence[Row], setting: Setting) -> Report:
    """Table 7."""
    whole = select(rows, revoked=0)
    all_nodes = mean(values(whole, "nodes"))
    numbers = [n for n in distinct(rows, "revoked") if n]
    per = {n: select(rows, revoked=n) for n in numbers}
    shares = {n: [row["seconds"] / row["anew"] for row in per[n]] for n in numbers}
    at_once = {n: [row["at_once"] / all_nodes for row in per[n]] for n in numbers}
    depth, participants = whole[0]["depth"], mean(values(per[numbers[0]], "participants"))
    dealt = {n: [row["dealt"] / all_nodes for row in per[n]] for n in numbers}
    full = {n: expected_nodes(n / participants, depth) for n in numbers}
    lines = [
        [str(n), f"{printed_formula(n, depth):.2f}", f"{full[n]:.2f}", f"{mean(dealt[n]):.2f}",
         f"{mean(values(per[n], 'at_once')):,.0f} ({mean(at_once[n]):.2f})",
         f"{mean(values(per[n], 'nodes')):,.0f}", pm(values(per[n], "seconds"), 2), f"{mean(shares[n]):.2f}",
         f"{PAPER[n][0]:g} ({PAPER[n][0] / PAPER_ANEW[0]:.2f})", f"{PAPER[n][1]:g} ({PAPER[n][1] / PAPER_ANEW[1]:.2f})"]
        for n in numbers
    ]  # fmt: skip
    lines.append(["built anew", "1.00", "1.00", "1.00", f"{all_nodes:,.0f} (1.00)", "",
                  pm(values(whole, "seconds"), 2), "1.00",
                  f"{PAPER_ANEW[0]:g} (1.00)", f"{PAPER_ANEW[1]:g} (1.00)"])  # fmt: skip
    headings = ("revoked", "the paper's formula", "expected, full trees", "simulated, our trees",
                "nodes destroyed at once (share)", "nodes rebuilt one by one", "CPU s one by one",
                "against anew", "paper: nodes (share)", "paper: s (share)")  # fmt: skip
    series = [
        curve("nodes, all leave at once", numbers, [at_once[n] for n in numbers]),
        curve("CPU time, one after the other", numbers, [shares[n] for n in numbers]),
        Series("the paper's time", numbers, [PAPER[n][1] / PAPER_ANEW[1] for n in numbers], None, "--", "x"),
    ]
    series.append(Series("expected in full trees", numbers, [full[n] for n in numbers], None, ":", "", 3))
    figure = Figure(
        "rev-rebuilding",
        "Work of rebuilding after some have left, against building anew; bars: one standard deviation.",
        [Panel("", "revoked participants", "share of building anew", series, from_zero=True)],
    )
    one, some = mean(shares[numbers[0]]), [mean(at_once[n]) for n in numbers]
    return Report(
        [Table(headings, lines, CAPTION), figure],
        [
            judge(
                "rev-table-7",
                "far fewer nodes are rebuilt than built anew, and more of them with more leavers",
                (some[-1] < 0.5 and some == sorted(some), some[0] < 0.5 and some == sorted(some)),
                f"one leaver destroys {some[0]:.2f} of the nodes (paper {PAPER[1][0] / PAPER_ANEW[0]:.2f}), "
                f"{numbers[-1]} at once {some[-1]:.2f} (paper {PAPER[5][0] / PAPER_ANEW[0]:.2f}): everything under a "
                f"leaver's node goes. With all of {participants:.0f} participants chosen alike one leaver has "
                f"{full[1]:.2f} of the nodes of full trees, and {expected_work(1 / participants, depth):.2f} of the "
                f"rows to search; {mean(dealt[1]):.2f} of the nodes in our trees. The paper's formula, depth times "
                f"leavers, gives {printed_formula(1, depth):.2f}: it is the expectation of one single node that goes",
            ),
            judge(
                "rev-table-7",
                "rebuilding takes far less time than building anew",
                (one < 0.2, one < 1),
                f"one leaver costs {one:.2f} of building anew (paper {PAPER[1][1] / PAPER_ANEW[1]:.2f})",
                timed=True,
            ),
        ],
    )


CAPTION = (
    "Shares of the nodes: by the paper's formula; expected where each split of a full tree is any participant's alike; "
    "the same in our trees, dealt at random; and as it came. "
    "Destroyed at once: splits of the leavers and all under them in the first forest, and their share of all splits. "
    "One by one: five revocations in a row, whose work adds up; CPU seconds of all roles, against those of building "
    "the forest of the remaining anew."
)
EXPERIMENT = Experiment(
    name="rev-rebuilding",
    title="RevFRF: rebuilding after participants have left",
    what=(
        f"Table 7 of *Revocable Federated Learning*: {SAMPLES:,} samples of Adult Income, one participant per column, "
        f"{TREES} trees of depth {DEPTH}. Up to five participants, drawn at random, leave at level 1: their nodes and "
        "all under them are destroyed and rebuilt. Beside it, building the forest of those who stay anew, as a "
        "federation without revocation must. Keys are left out: every new split is encrypted once in both."
    ),
    sets=("adult",),
    stand_ins=("breast_cancer",),
    cells=cells,
    measure=measure,
    report=report,
    minutes=2,
    parallel=False,
    version=3,
)
