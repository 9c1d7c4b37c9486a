"""What a training will cost: rounds, bytes, memory and time, before anything is paid.

Bytes follow exactly from the shape of the trees (docs/protocol/vertical.md). The shape is found by small trial
forests on made-up rows, grown here in a few seconds, and carried over to the planned size: a tree on twice the rows
is, nearly, a split with two such trees below it, so its levels are those of the smaller tree, moved down by about one.
How far they move, and how the number of splits grows, is measured between two trials. Seconds per row, node and round
are measured by the same trials, on this machine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import ceil, isfinite, log2
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls
from sklearn.base import clone

from woodlot.data.markup import html_facts
from woodlot.exceptions import DataError
from woodlot.protocols.vertical.plan import DEFAULT_MEMORY
from woodlot.runtime.audit import Cost, readable_bytes, readable_seconds
from woodlot.trees.forest import subtree_ends

HEADER = 70
"""Bytes of a message besides its arrays, on average."""
TRIAL_ROWS = (8_000, 32_000)
TRIAL_TREES = (6, 18)
REPEATS = 3
"""Each trial is repeated, and the quickest counts: others were held up by something else."""
_MIN_ROWS = 50
_IN_FLIGHT = 8
"""Bytes of a drawn row of a tree that grows."""


@dataclass(frozen=True)
class Shape:
    """The size of the data.

    Attributes
    ----------
    rows : int
        Rows that the parties have in common.
    columns : mapping of str to int
        Columns to learn from, by party; the first party has the labels.
    classes : int
        Number of classes; 0 for regression.
    noise : float
        Share of labels that no column explains: the more, the deeper the trees.
    """

    rows: int
    columns: Mapping[str, int]
    classes: int = 2
    noise: float = 0.1

    def __post_init__(self) -> None:
        if self.rows < 2:
            raise ValueError(f"rows must be at least 2, not {self.rows}")
        if not self.columns or min(self.columns.values()) < 0 or sum(self.columns.values()) < 1:
            raise ValueError("columns must name the parties and how many columns each has, at least one in all")
        if self.classes < 0 or self.classes == 1:
            raise ValueError(f"classes must be 0 for regression, or at least 2, not {self.classes}")
        if not 0 <= self.noise < 1:
            raise ValueError(f"noise must be from 0 to below 1, not {self.noise}")


@dataclass(frozen=True)
class Network:
    """The link of each party: seconds there and back, and bytes per second; by default none that is felt."""

    latency: float = 0.0
    bandwidth: float = float("inf")

    def __post_init__(self) -> None:
        if self.latency < 0 or not self.bandwidth > 0:
            raise ValueError("latency must not be negative, and bandwidth must be positive")

    def seconds(self, rounds: float, n_bytes: float) -> float:
        """Time that rounds and bytes of one party take on its link."""
        return rounds * self.latency + (n_bytes / self.bandwidth if isfinite(self.bandwidth) else 0.0)


@dataclass(frozen=True, repr=False)
class Forecast:
    """What a training will cost.

    Attributes
    ----------
    rounds : int
        Exchanges with the parties.
    bytes_by_party : dict of str to int
        Both ways together.
    memory_by_party : dict of str to int
        Bytes at the peak of the training: codes, labels, and rows of trees in flight.
    compute_seconds, network_seconds : float
        Time of all parties on a machine like this, and on the links.
    """

    rounds: int
    bytes_by_party: dict[str, int]
    memory_by_party: dict[str, int]
    compute_seconds: float
    network_seconds: float
    details: dict[str, float] = field(default_factory=dict)

    @property
    def total_seconds(self) -> float:
        """Time in all."""
        return self.compute_seconds + self.network_seconds

    @property
    def bytes_total(self) -> int:
        """Bytes of all parties."""
        return sum(self.bytes_by_party.values())

    def facts(self) -> dict[str, str]:
        """For people, line by line."""
        lines = {
            "rounds": f"{self.rounds:,}",
            "bytes": readable_bytes(self.bytes_total),
            "time": f"{readable_seconds(self.total_seconds)}, of it network {readable_seconds(self.network_seconds)}",
        }
        lines |= {f"bytes, {p}": readable_bytes(n) for p, n in self.bytes_by_party.items()}
        return lines | {f"memory, {p}": readable_bytes(n) for p, n in self.memory_by_party.items()}

    def beside(self, cost: Cost) -> list[tuple[str, str, str, str]]:
        """Foreseen beside measured, and by how much it is off: one line each for rounds, bytes and time."""
        pairs: dict[str, tuple[float, float, Callable[[float], str]]] = {
            "rounds": (self.rounds, cost.rounds, lambda value: f"{value:,.0f}"),
            "bytes": (
                self.bytes_total,
                cost.bytes_sent + cost.bytes_received,
                lambda value: readable_bytes(int(value)),
            ),
            "seconds": (self.total_seconds, cost.total_seconds, readable_seconds),
        }
        return [
            (name, show(foreseen), show(measured), f"{100 * (foreseen / measured - 1):+.0f} %" if measured else "")
            for name, (foreseen, measured, show) in pairs.items()
        ]

    def __repr__(self) -> str:
        facts = self.facts()
        width = max(map(len, facts))
        return "\n".join(["Forecast of a training", *(f"  {name:<{width}}  {value}" for name, value in facts.items())])

    def _repr_html_(self) -> str:
        return html_facts("Forecast of a training", self.facts())


def forecast(estimator: Any, shape: Shape, network: Network | None = None) -> Forecast:
    """What fitting a Federated Forest will cost.

    Parameters
    ----------
    estimator : FederatedForestClassifier or FederatedForestRegressor
        With the parameters of the planned training.
    shape : Shape
        The size of the planned data.
    network : Network, optional
        The parties' links.

    Returns
    -------
    Forecast
    """
    if getattr(estimator, "labels", None) != "shared" or estimator.max_leaf_nodes is not None:
        raise DataError(
            "a forecast is made for FederatedForest estimators with labels='shared' and without max_leaf_nodes; "
            "for others fit a part of the rows and read cost_"
        )
    network = network or Network()
    n_trees = int(estimator.n_estimators)
    small, large = (min(shape.rows, rows) for rows in TRIAL_ROWS)
    few, many = (min(n_trees, trees) for trees in TRIAL_TREES)
    _Trial.run(estimator, shape, min(shape.rows, 400), 2)  # compiles and loads the kernels
    sizes = ((small, few), (small, many), (large, few), (large, many))
    trials = [_Trial.run(estimator, shape, rows, trees, REPEATS) for rows, trees in sizes]
    profile = _Profile.carried(trials[1].profile, trials[-1].profile, shape.rows, estimator.max_depth)
    bill = _Bill(shape, profile, n_trees, estimator)
    compute = _speed(trials, shape, estimator).seconds(bill)
    slowest = max(bill.bytes_by_party.values())
    return Forecast(
        rounds=bill.rounds,
        bytes_by_party=bill.bytes_by_party,
        memory_by_party=bill.memory_by_party,
        compute_seconds=compute,
        network_seconds=network.seconds(bill.rounds, slowest),
        details={"splits": bill.splits, "depth": float(profile.depth), "rows in splits": bill.rows_split},
    )


# --- the shape of trees ---


@dataclass(frozen=True, eq=False)
class _Profile:
    """The mean tree, level by level: splits, and the share of its rows that stand in split nodes."""

    rows: int
    splits: NDArray[np.float64]
    share: NDArray[np.float64]

    @property
    def depth(self) -> int:
        return len(self.splits)

    @classmethod
    def of(cls, model: Any, rows: int) -> _Profile:
        forest = model.forest_.coordinator
        right = forest.structure.right
        inner = right >= 0
        depth = np.zeros(len(right), np.int64)
        for node in np.flatnonzero(inner):
            depth[node + 1] = depth[right[node]] = depth[node] + 1
        below = np.concatenate([[0.0], np.cumsum(np.where(inner, 0.0, forest.leaves.weight[forest.structure.leaf]))])
        weight = below[subtree_ends(right)] - below[:-1]
        n_trees = forest.structure.n_trees
        levels = int(depth.max()) if len(depth) else 0
        splits = np.bincount(depth[inner], minlength=levels) / n_trees
        whole = weight[forest.structure.offset[:-1]].sum()
        share = np.bincount(depth[inner], weights=weight[inner], minlength=levels) / whole
        return cls(rows, splits.astype(float), share)

    @property
    def mean_depth(self) -> float:
        return float(self.share.sum())

    @classmethod
    def carried(cls, small: _Profile, large: _Profile, rows: int, max_depth: int | None) -> _Profile:
        """The profile at another number of rows, from those at two smaller ones."""
        if rows <= large.rows:
            return large
        doublings = log2(rows / large.rows)
        per_doubling, growth = 1.0, 1.0
        if large.rows > small.rows:
            between = log2(large.rows / small.rows)
            limited = max_depth is not None and large.depth >= max_depth
            if not limited:  # where the limit cuts, the levels above it say nothing of how far the tree would go
                per_doubling = float(np.clip((large.mean_depth - small.mean_depth) / between, 0.5, 2.0))
                growth = float(np.clip(log2(large.splits.sum() / max(small.splits.sum(), 1.0)) / between, 0.0, 1.2))
        shift = per_doubling * doublings
        n_levels = ceil(large.depth + shift)
        n_levels = n_levels if max_depth is None else min(n_levels, max_depth)
        levels = np.arange(n_levels)
        source = levels - shift
        known = np.arange(large.depth)
        share = np.interp(source, known, large.share, left=1.0, right=0.0)
        splits = 2 ** (growth * doublings) * np.interp(source, known, large.splits, left=0.0, right=0.0)
        full = 2.0**levels
        return cls(rows, np.where(source < 0, full * share, np.minimum(splits, full)), share)


# --- the bill ---


class _Bill:
    """Rounds, bytes and memory of a forest whose trees have this profile; symbols as in the protocol's page."""

    def __init__(self, shape: Shape, profile: _Profile, n_trees: int, estimator: Any) -> None:
        n, T = shape.rows, n_trees
        columns = np.array(list(shape.columns.values()))
        f = int(columns.sum())
        active = (columns > 0) | (np.arange(len(columns)) == 0)
        m = int(active.sum())
        c = 8 if shape.classes == 0 else 1 if shape.classes <= 256 else 2
        drawn = n * (1 - (1 - 1 / n) ** n) if estimator.bootstrap else n
        limit, D = estimator.max_depth, profile.depth
        S = float(profile.splits.sum()) * T
        R = float(profile.share.sum()) * drawn * T
        leaves = S + T
        at_limit = limit is not None and limit <= D
        last = profile.splits[-1] * 2 * T if at_limit and D else 0.0
        N = 2 * S + T - last
        pairs = leaves * (1 if shape.classes == 0 else min(shape.classes, 1 + 0.6 * (at_limit or shape.noise > 0)))
        heaviest = max(1.0, n / max(1.0, leaves / T))
        v = 1 if heaviest < 256 else 2 if heaviest < 65_536 else 4
        memory = int(estimator.memory_limit or DEFAULT_MEMORY)
        batches = max(1, ceil(T * drawn * _IN_FLIGHT / memory))
        wins = columns / max(1, f)
        per_batch = 2 * D + 1 if at_limit else 2 * D + 2
        self.rounds = 3 + batches * per_batch
        self.splits, self.rows_split = S, R
        self.bytes_by_party, self.memory_by_party = {}, {}
        for number, (party, own) in enumerate(shape.columns.items()):
            if not active[number]:
                self.bytes_by_party[party] = 2 * HEADER
                self.memory_by_party[party] = 0
                continue
            messages = 4 + 2 * batches * (D + 1 if at_limit else D + 2) + 2 * batches * D * (own > 0)
            total = 8 * own + c * n + N * (1 if own < 256 else 2) + S / 8 + (1 - wins[number]) * R / 8
            total += (8 + (1 if own < 256 else 2)) * S * (own > 0) + S / 8 * (own > 0) + wins[number] * R / 8
            if number == 0:
                total += c * n + 8 * S + N / 8 + 4 * T + leaves + pairs * (1 + v) + (8 * pairs if c == 8 else 0)
                messages += 2
            self.bytes_by_party[party] = int(total + HEADER * messages)
            codes = 1 if estimator.max_bins is not None else 2 if n < 65_536 else 4
            fine = n * own * (codes + (1 if estimator.max_bins is None else 0))
            self.memory_by_party[party] = int(fine + 4 * n * own + c * n + min(memory, T * drawn * _IN_FLIGHT))
        tried = _candidates(estimator.max_features, f)
        self.prepare_work = n * f * log2(n)
        self.grow_work = (R * (tried + m), S * (tried + m), self.rounds * len(shape.columns))


def _candidates(max_features: Any, n_features: int) -> float:
    if max_features is None:
        return n_features
    if isinstance(max_features, str):
        return max(1.0, n_features**0.5 if max_features == "sqrt" else log2(n_features))
    return float(max_features) if isinstance(max_features, int) else max(1.0, max_features * n_features)


# --- the speed of this machine ---


@dataclass(frozen=True)
class _Trial:
    """A small forest on made-up rows: its profile, and what it took."""

    rows: int
    trees: int
    profile: _Profile
    prepare_seconds: float
    grow_seconds: float

    @classmethod
    def run(cls, estimator: Any, shape: Shape, rows: int, trees: int, repeats: int = 1) -> _Trial:
        rows = max(rows, _MIN_ROWS)
        table, y, dealing = made_up_rows(shape, rows)
        model = clone(estimator).set_params(
            n_estimators=trees, parties=dealing, oob_score=False, verbose=0, random_state=0
        )
        costs = [model.fit(table, y).cost_ for _ in range(repeats)]
        prepare = min(cost.seconds["prepare"] for cost in costs)
        grow = min(cost.total_seconds - cost.seconds["prepare"] for cost in costs)
        return cls(rows, trees, _Profile.of(model, rows), prepare, grow)


def made_up_rows(shape: Shape, rows: int) -> tuple[NDArray[np.float32], NDArray[Any], dict[str, list[int]]]:
    """Rows of such a shape: columns of numbers, of which a third tells something of the label; labels; the dealing."""
    rng = np.random.default_rng(0)
    f = sum(shape.columns.values())
    X = rng.normal(size=(rows, f)).astype(np.float32)
    order = rng.permutation(f)[: max(1, f // 3)]
    signal = np.asarray(X[:, order], float)
    score = signal.sum(axis=1) + (signal[:, :1] * signal[:, -1:]).sum(axis=1)
    score = score / score.std() if rows > 1 and score.std() > 0 else score
    if shape.classes == 0:
        y: NDArray[Any] = score + shape.noise * rng.normal(size=rows)
    else:
        edges = np.quantile(score, np.linspace(0, 1, shape.classes + 1)[1:-1])
        y = np.searchsorted(edges, score)
        flipped = rng.random(rows) < shape.noise
        y = np.where(flipped, rng.integers(0, shape.classes, rows), y)
        y[: shape.classes] = np.arange(shape.classes)
    ends = np.cumsum(list(shape.columns.values()))
    dealing = {
        party: list(range(int(end) - own, int(end)))
        for (party, own), end in zip(shape.columns.items(), ends, strict=True)
    }
    return X, y, dealing


@dataclass(frozen=True, eq=False)
class _Speed:
    """Seconds for each unit of work: of preparing a column's row; of growing, by rows, nodes and messages."""

    prepare: float
    grow: NDArray[np.float64]

    def seconds(self, bill: _Bill) -> float:
        return float(self.prepare * bill.prepare_work + self.grow @ np.array(bill.grow_work))


def _speed(trials: list[_Trial], shape: Shape, estimator: Any) -> _Speed:
    bills = [
        _Bill(Shape(t.rows, shape.columns, shape.classes, shape.noise), t.profile, t.trees, estimator) for t in trials
    ]
    prepare = max(trial.prepare_seconds / bill.prepare_work for trial, bill in zip(trials[2:], bills[2:], strict=True))
    work, seconds = np.array([bill.grow_work for bill in bills]), np.array([trial.grow_seconds for trial in trials])
    scale = work.max(axis=0)
    # relative errors count, so that the small trials have a say
    found, _ = nnls((work / scale) / seconds[:, None], np.ones(len(seconds)))
    return _Speed(float(prepare), found / scale)
