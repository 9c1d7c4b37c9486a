"""What a protected training will cost: encrypted splits (RevFRF), secure sums over rows.

As for the plain forest (`woodlot.estimators.forecast`), small trials tell the shape of the trees. What the protection
adds follows from that shape by the laws of the protocols' pages; how much of each there is, in bytes and in seconds, is
found by trials of the protected training itself: as few and as small as its price asks for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, log2
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from woodlot.estimators.forecast_parts import (
    DataShape,
    Forecast,
    Network,
    Profile,
    candidates,
    drawn_rows,
    fit_trial,
    priced,
    quickest,
)
from woodlot.estimators.horizontal_forest import HorizontalForestClassifier, HorizontalForestRegressor
from woodlot.estimators.revocable_forest import SIMULATED, RevocableForest
from woodlot.exceptions import DataError
from woodlot.protocols.revocable.rotate import PHASE as ENCRYPTING
from woodlot.protocols.revocable.share_predict import SHARING
from woodlot.runtime.audit import Cost

LOSSLESS = (HorizontalForestClassifier, HorizontalForestRegressor)
PROTECTED = (RevocableForest, *LOSSLESS)
"""Estimators whose trainings have trials of their own."""
SHAPE_ROWS, SHAPE_TREES = (8_000, 32_000), 12
"""Trials without protection, which tell the shape of the trees."""
KEYED_ROWS = 250
KEYED_DEPTH, SPLIT_TREES = 3, (2, 12)
"""Of the forests whose splits are encrypted to see what a split costs."""
SIMULATED_TREES = (3, 12)
COUNTED_ROWS, COUNTED_TREES = (4_000, 16_000), (3, 12)
_Levels: TypeAlias = NDArray[np.float64]
_TARGET_BITS = 30
"""About what the numbers of a target have beyond those of a weight."""
_BINS = 32
"""Codes of a column where the estimator does not say."""


@dataclass(frozen=True, eq=False)
class _ForestWork:
    """What there is to do for a forest: symbols as in the protocols' pages.

    Attributes
    ----------
    n, trees, depth
        Rows, trees and levels.
    S, R
        Splits, and rows that stand in split nodes, of all trees.
    tried : float
        Columns tried at a node.
    cells : float
        Bytes of all cells that rows are counted in.
    """

    n: int
    trees: int
    depth: int
    S: float
    R: float
    tried: float
    cells: float

    @classmethod
    def of(cls, estimator: Any, shape: DataShape, profile: Profile, rows: int, trees: int) -> _ForestWork:
        f = max(shape.columns.values()) if isinstance(estimator, LOSSLESS) else sum(shape.columns.values())
        drawn, tried, bins = drawn_rows(estimator, rows), candidates(estimator.max_features, f), _bins(estimator)
        nodes = np.maximum(1.0, np.concatenate([[1.0], 2 * profile.splits[:-1]]))[: profile.depth]
        size = np.maximum(2.0, profile.share * drawn / np.maximum(profile.splits, 1e-9))
        bits = np.ceil(np.log2(size * rows / drawn) + 1)  # of a node's weight
        return cls(
            n=rows,
            trees=trees,
            depth=profile.depth,
            S=float(profile.splits.sum()) * trees,
            R=float(profile.share.sum()) * drawn * trees,
            tried=tried,
            cells=trees * tried * float((nodes * _cell_bytes(shape, bins, f, bits)).sum()),
        )


def _cell_bytes(shape: DataShape, bins: int, f: int, bits: _Levels) -> _Levels:
    """Bytes of the counts of one column at a node of each level: every split above leaves half of a column's codes."""
    word = 63 - ceil(log2(max(2, len(shape.columns))))
    codes = bins * (1 - 0.5 / f) ** np.arange(len(bits))
    if shape.classes == 0:
        return np.asarray(8 * codes * (1 / _per_word(word, bits) + 1 / _per_word(word, bits + _TARGET_BITS)))
    return np.asarray(8 * codes * shape.classes / _per_word(word, bits))


def _per_word(word: int, bits: _Levels) -> _Levels:
    """How many numbers of so many bits fit a word."""
    return np.maximum(1.0, np.floor(word / bits))


def _bins(estimator: Any) -> int:
    """Codes of a column that a node may have."""
    return int(getattr(estimator, "max_bins", None) or _BINS)


@dataclass(frozen=True, eq=False)
class _ProtectedTrial:
    """A small forest, its work and its cost."""

    work: _ForestWork
    profile: Profile
    cost: Cost

    @classmethod
    def run(cls, estimator: Any, shape: DataShape, rows: int, trees: int, **params: Any) -> _ProtectedTrial:
        return cls.of(fit_trial(estimator, shape, rows, trees, **params), shape, rows, trees)

    @classmethod
    def of(cls, model: Any, shape: DataShape, rows: int, trees: int) -> _ProtectedTrial:
        profile = Profile.of(model, rows)
        return cls(_ForestWork.of(model, shape, profile, rows, trees), profile, model.cost_)

    @property
    def n_bytes(self) -> int:
        return self.cost.bytes_sent + self.cost.bytes_received


def forecast_protected(estimator: Any, shape: DataShape, network: Network) -> Forecast:
    """What fitting a protected forest will cost; parameters as for `woodlot.estimators.forecast.forecast`."""
    if isinstance(estimator, LOSSLESS):
        return _lossless(estimator, shape, network)
    return _revocable(estimator, shape, network)


# --- RevFRF ---


def _revocable(estimator: Any, shape: DataShape, network: Network) -> Forecast:
    plain = clone(estimator).set_params(encryption=SIMULATED)
    parties = len(shape.columns)
    work = _ForestWork.of(estimator, shape, *_planned(plain, shape, estimator))

    def byte_work(w: _ForestWork) -> list[float]:
        return [w.S, w.R, w.depth * parties]

    def time_work(w: _ForestWork) -> list[float]:
        return [w.n * sum(shape.columns.values()), w.R * w.tried, w.S * w.tried, w.depth * parties]

    trials = _trials(plain, shape, SHAPE_ROWS, SIMULATED_TREES)
    memory = {
        party: int(8 * shape.rows * own + 8 * work.trees * drawn_rows(estimator, shape.rows))
        for party, own in shape.columns.items()
    }
    base = _forecast(trials, work, byte_work, time_work, memory, network, rounds_per_level=1)
    if estimator.encryption == SIMULATED:
        return base
    # What keys add does not depend on rows: some for each split, and some once.
    few, more = (_Keyed.run(estimator, plain, shape, trees) for trees in SPLIT_TREES)
    more_splits = max(1.0, more.splits - few.splits)
    per_split = (more.n_bytes - few.n_bytes) / more_splits
    seconds_each = max(0.0, more.seconds - few.seconds) / more_splits
    keys = (few.key_seconds + more.key_seconds) / 2  # the search for primes is a matter of luck
    each = (more.n_bytes + per_split * (work.S - more.splits)) / parties
    roles = {
        role: int(n + (n - few.roles[role]) / more_splits * (work.S - more.splits)) for role, n in more.roles.items()
    }
    total = {party: int(n + each) for party, n in base.bytes_by_party.items()} | roles
    rounds = base.rounds + more.rounds
    return Forecast(
        rounds=rounds,
        bytes_by_party=total,
        memory_by_party=base.memory_by_party,
        compute_seconds=base.compute_seconds + keys + more.seconds + seconds_each * (work.S - more.splits),
        network_seconds=network.seconds(rounds, max(total.values())),
        details=base.details | {"keys": keys},
    )


@dataclass(frozen=True)
class _Keyed:
    """What keys add to a small forest: bytes of the parties with columns, those of other roles, rounds and seconds."""

    splits: float
    n_bytes: float
    roles: dict[str, int]
    rounds: int
    key_seconds: float
    seconds: float

    @classmethod
    def run(cls, estimator: Any, plain: Any, shape: DataShape, trees: int) -> _Keyed:
        rows = min(shape.rows, KEYED_ROWS)
        keyed, bare = (
            _ProtectedTrial.run(kind, shape, rows, trees, max_depth=KEYED_DEPTH) for kind in (estimator, plain)
        )
        by_party = keyed.cost.bytes_by_party
        return cls(
            splits=keyed.work.S,
            n_bytes=float(sum(by_party[party] - bare.cost.bytes_by_party[party] for party in shape.columns)),
            roles={role: n for role, n in by_party.items() if role not in shape.columns},
            rounds=keyed.cost.rounds - bare.cost.rounds,
            key_seconds=keyed.cost.seconds["keys"],
            seconds=sum(keyed.cost.seconds.get(phase, 0.0) for phase in (ENCRYPTING, SHARING)),
        )


# --- rows, counted under secure sums ---


def _lossless(estimator: Any, shape: DataShape, network: Network) -> Forecast:
    if len(set(shape.columns.values())) > 1:
        raise DataError("parties of a forest over rows have the same columns: give each the same number")
    clients, f = len(shape.columns), max(shape.columns.values())
    trials = _trials(estimator, shape, COUNTED_ROWS, COUNTED_TREES)
    profile = Profile.carried(trials[1].profile, trials[-1].profile, shape.rows, estimator.max_depth)
    trees = int(estimator.n_estimators)
    work = _ForestWork.of(estimator, shape, profile, shape.rows, trees)

    def byte_work(w: _ForestWork) -> list[float]:
        return [clients * f, clients * w.cells, clients * w.S, clients * w.depth]

    def time_work(w: _ForestWork) -> list[float]:
        return [clients * f, w.n * f, w.R * w.tried, clients * w.cells, clients * w.depth]

    own = shape.rows / clients
    drawn = drawn_rows(estimator, shape.rows) / clients
    memory = dict.fromkeys(shape.columns, int(own * f * 5 + own * 8 + 5 * trees * drawn))
    return _forecast(trials, work, byte_work, time_work, memory, network, rounds_per_level=1)


# --- laws ---


def _trials(estimator: Any, shape: DataShape, rows: Sequence[int], trees: Sequence[int]) -> list[_ProtectedTrial]:
    """Trials of two numbers of rows and of trees each, the largest last."""
    sizes = [(min(shape.rows, n), min(int(estimator.n_estimators), t)) for n in rows for t in trees]
    models = quickest(estimator, shape, sizes)
    return [_ProtectedTrial.of(model, shape, *size) for model, size in zip(models, sizes, strict=True)]


def _planned(plain: Any, shape: DataShape, estimator: Any) -> tuple[Profile, int, int]:
    """The shape of the planned trees, from trials without protection; rows and trees."""
    trees = int(estimator.n_estimators)
    small, large = (
        Profile.of(fit_trial(plain, shape, rows, min(trees, SHAPE_TREES)), rows)
        for rows in (min(shape.rows, rows) for rows in SHAPE_ROWS)
    )
    return Profile.carried(small, large, shape.rows, estimator.max_depth), shape.rows, trees


def _forecast(
    trials: Sequence[_ProtectedTrial],
    work: _ForestWork,
    byte_work: Any,
    time_work: Any,
    memory: Mapping[str, int],
    network: Network,
    *,
    rounds_per_level: int,
) -> Forecast:
    """Fit both laws to the trials, and apply them to the planned work."""
    last = trials[-1]
    total = priced([byte_work(t.work) for t in trials], [t.n_bytes for t in trials], byte_work(work))
    seconds = priced([time_work(t.work) for t in trials], [t.cost.total_seconds for t in trials], time_work(work))
    shares = {party: n / last.n_bytes for party, n in last.cost.bytes_by_party.items()}
    by_party = {party: int(share * total) for party, share in shares.items()}
    rounds = last.cost.rounds + rounds_per_level * (work.depth - last.work.depth)
    return Forecast(
        rounds=rounds,
        bytes_by_party=by_party,
        memory_by_party=dict(memory),
        compute_seconds=seconds,
        network_seconds=network.seconds(rounds, max(by_party.values())),
        details={"splits": work.S, "depth": float(work.depth), "rows in splits": work.R},
    )
