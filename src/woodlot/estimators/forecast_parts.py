"""What forecasts are made of: the shape of the data, the links, what is foreseen; made-up rows, and shapes of trees.

The shape of trees is found by small trial forests on made-up rows, and carried over to the planned size: a tree on
twice the rows is, nearly, a split with two such trees below it, so its levels are those of the smaller tree, moved down
by about one. How far they move, and how the number of splits grows, is measured between two trials.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, isfinite, log2
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls
from sklearn.base import clone

from woodlot.data.markup import html_facts
from woodlot.estimators.whole import WholeForest
from woodlot.jobs.padding import LENGTH_BYTES, padded_length
from woodlot.protocols.core.message import Role
from woodlot.runtime.audit import Cost, readable_bytes, readable_seconds
from woodlot.trees.forest import subtree_ends

DEALER = Role.dealer.value
TRIAL_SECONDS = 2.0
"""For how long trial forests are grown again and again, so that the quickest of each size can count."""


@dataclass(frozen=True)
class DataShape:
    """The size of the data.

    Attributes
    ----------
    rows : int
        Rows that the parties have in common; of a forest over rows, those of all parties together.
    columns : mapping of str to int
        Columns to learn from, by party; the first party has the labels. Over rows, every party has as many.
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


@dataclass(frozen=True)
class Outlook:
    """What a private training costs a row, and what public shape alone tells of its answers.

    Attributes
    ----------
    epsilon, delta : float
        What the training costs a row of each client, once.
    epsilon_outside : float
        With the same delta, against who knows no client's noise.
    rows_per_leaf, noise_per_leaf : float
        In one tree: rows of all clients, on average, and the standard deviation of the noise in their sum, counted in
        rows that the trees before are entirely wrong about.
    measure : str
        What scores are: "accuracy" or "R2".
    simulated_rows : int
        Made-up rows that were trained on.
    score, spread : float
        On fresh made-up rows: mean and standard deviation over some draws of trees and noise.
    without_noise : float
        The same trees with hardly any noise.
    constant : float
        The score of one answer for all rows.
    """

    epsilon: float
    delta: float
    epsilon_outside: float
    rows_per_leaf: float
    noise_per_leaf: float
    measure: str
    simulated_rows: int
    score: float
    spread: float
    without_noise: float
    constant: float

    def facts(self) -> dict[str, str]:
        """For people, line by line."""
        return {
            "budget spent": f"epsilon {self.epsilon:g}, delta {self.delta:g} of rows at each party, once",
            "against outsiders": f"epsilon {self.epsilon_outside:.2f}, who know no party's noise",
            "noise of a leaf": f"{self.noise_per_leaf:,.0f} rows, beside {self.rows_per_leaf:,.0f}; in each tree",
            f"{self.measure}, simulated": f"{self.score:.3f} ±{self.spread:.3f} on made-up rows, after training on "
            f"{self.simulated_rows:,}; without noise {self.without_noise:.3f}, one answer for all {self.constant:.3f}",
        }


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
    opened : dict of str to str
        What each role is told of rows and labels, in words; of a hidden training.
    outlook : Outlook or None
        What a private training costs a row, and what may be expected of its answers.
    """

    rounds: int
    bytes_by_party: dict[str, int]
    memory_by_party: dict[str, int]
    compute_seconds: float
    network_seconds: float
    details: dict[str, float] = field(default_factory=dict)
    opened: dict[str, str] = field(default_factory=dict)
    outlook: Outlook | None = None

    def led(self, leader: str, network: Network) -> Forecast:
        """The same, where a party leads: its line carries the frames of all others, and its own messages stay with it.

        Every frame crosses the coordinator: a round takes the leader's line and that of the party asked. Frames are
        padded. What a dealer sends is not: it is the coordinator, to whom nothing is sealed.
        """
        others = {
            party: n_bytes
            if party == DEALER
            else int(n_bytes + 2 * self.rounds * _padding(n_bytes / (2 * self.rounds)))
            for party, n_bytes in self.bytes_by_party.items()
            if party != leader
        }
        at_leader = sum(others.values())
        return replace(
            self,
            bytes_by_party={leader: at_leader} | others,
            network_seconds=network.seconds(2 * self.rounds, at_leader + max(others.values(), default=0)),
        )

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
        lines |= {f"memory, {p}": readable_bytes(n) for p, n in self.memory_by_party.items()}
        lines |= {f"opened, {p}": words for p, words in self.opened.items()}
        return lines | (self.outlook.facts() if self.outlook else {})

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


def _padding(length: float) -> float:
    """Bytes that padding adds to a frame of about this length: half of the step between lengths in use."""
    around = np.linspace(0.7, 1.4, 64) * max(length, 2.0)
    return float(np.mean([padded_length(ceil(one) + LENGTH_BYTES) - one for one in around]))


# --- the shape of trees ---


@dataclass(frozen=True, eq=False)
class Profile:
    """The mean tree, level by level: splits, and the share of its rows that stand in split nodes."""

    rows: int
    splits: NDArray[np.float64]
    share: NDArray[np.float64]

    @property
    def depth(self) -> int:
        return len(self.splits)

    @classmethod
    def of(cls, model: Any, rows: int) -> Profile:
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
    def carried(cls, small: Profile, large: Profile, rows: int, max_depth: int | None) -> Profile:
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


def made_up_rows(shape: DataShape, rows: int) -> tuple[NDArray[np.float32], NDArray[Any], dict[str, list[int]]]:
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


def candidates(max_features: Any, n_features: int) -> float:
    """Columns that are tried at a node."""
    if max_features is None:
        return n_features
    if isinstance(max_features, str):
        return max(1.0, n_features**0.5 if max_features == "sqrt" else log2(n_features))
    return float(max_features) if isinstance(max_features, int) else max(1.0, max_features * n_features)


def drawn_rows(estimator: Any, rows: int) -> float:
    """Different rows that a tree draws, on average."""
    return float(rows * (1 - (1 - 1 / rows) ** rows)) if estimator.bootstrap else float(rows)


def quickest(estimator: Any, shape: DataShape, sizes: Sequence[tuple[int, int]]) -> list[Any]:
    """Forests of these rows and trees each, fitted on made-up rows: of each size, the quickest of all that were.

    All sizes in turn, again and again for `TRIAL_SECONDS`, and once at least: a machine that does something else for
    half a second would hold up all runs of a size that were made one after the other.
    """
    fit_trial(estimator, shape, min(sizes[0][0], 100), 1)  # compiles and loads what there is to load
    until = time.perf_counter() + TRIAL_SECONDS
    best = [fit_trial(estimator, shape, *size) for size in sizes]
    while time.perf_counter() < until:
        best = [
            min(model, fit_trial(estimator, shape, *size), key=lambda each: float(each.cost_.total_seconds))
            for model, size in zip(best, sizes, strict=True)
        ]
    return best


def priced(work: Sequence[Sequence[float]], paid: Sequence[float], planned: Sequence[float]) -> float:
    """What planned work costs at the prices, none negative, that explain best, relatively, what was paid for others."""
    known, target = np.array(work, float), np.array(paid, float)
    scale = np.maximum(known.max(axis=0), 1e-300)
    found: NDArray[np.float64]
    found, _ = nnls((known / scale) / target[:, None], np.ones(len(target)))
    return float(found / scale @ np.array(planned, float))


def fit_trial(estimator: Any, shape: DataShape, rows: int, trees: int, **params: Any) -> Any:
    """Fit a forest of so many trees, else with the parameters of an estimator, on made-up rows."""
    small = clone(estimator).set_params(n_estimators=trees, verbose=0, random_state=0, **params)
    return fit_made_up(small, shape, rows)


def fit_made_up(estimator: Any, shape: DataShape, rows: int, beyond: int = 0) -> Any:
    """Fit an estimator on made-up rows of a shape; where parties have rows and not columns, all columns are alike.

    With ``beyond`` the rows are the first ones of so many more.
    """
    if not isinstance(estimator, WholeForest):
        table, y, dealing = made_up_rows(shape, rows)
        return estimator.set_params(parties=dealing).fit(table, y)
    table, y = made_up_table(shape, rows + beyond)
    clients = np.array(list(shape.columns))[np.arange(rows) % len(shape.columns)]
    return estimator.set_params(parties=clients).fit(table[:rows], y[:rows])


def made_up_table(shape: DataShape, rows: int) -> tuple[NDArray[np.float32], NDArray[Any]]:
    """Rows that are dealt to parties with the same columns, and their labels."""
    columns = max(shape.columns.values())
    table, y, _ = made_up_rows(DataShape(shape.rows, {"all": columns}, shape.classes, shape.noise), rows)
    return table, y
