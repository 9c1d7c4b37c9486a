"""What a training will cost: rounds, bytes, memory and time, before anything is paid.

Bytes follow exactly from the shape of the trees (docs/protocol/vertical.md), which small trial forests on made-up rows
tell in a few seconds (`forecast_parts.py`). Seconds per row, node and round are measured by the same trials, on this
machine. Hidden and protected trainings have trials of their own (`forecast_hidden.py`, `forecast_protected.py`,
`forecast_private.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls
from sklearn.base import clone

from woodlot.estimators.base import FederatedForest
from woodlot.estimators.forecast_hidden import forecast_hidden
from woodlot.estimators.forecast_parts import (
    DataShape,
    Forecast,
    Network,
    Profile,
    candidates,
    drawn_rows,
    fit_made_up,
    made_up_rows,
    quickest,
)
from woodlot.estimators.forecast_private import PRIVATE, forecast_private
from woodlot.estimators.forecast_protected import PROTECTED, forecast_protected
from woodlot.exceptions import DataError
from woodlot.protocols.core.forest_plan import DEFAULT_MEMORY

__all__ = ["DataShape", "Forecast", "Network", "fit_made_up", "forecast", "made_up_rows"]

HEADER = 70
"""Bytes of a message besides its arrays, on average."""
TRIAL_ROWS = (8_000, 32_000)
TRIAL_TREES = (6, 18)
MOST_TRIAL_ROWS = 96_000
"""Where more are planned than twice `TRIAL_ROWS`: a row costs more when the rows of a tree do not fit a cache."""
_MIN_ROWS = 50
_IN_FLIGHT = 8
"""Bytes of a drawn row of a tree that grows."""


def forecast(
    estimator: Any, shape: DataShape, network: Network | None = None, *, lead: str = "coordinator"
) -> Forecast:
    """What fitting a forest will cost.

    Parameters
    ----------
    estimator : FederatedForest*, RevocableForest*, HorizontalForest* or PrivateForest*
        With the parameters of the planned training.
    shape : DataShape
        The size of the planned data.
    network : Network, optional
        The parties' links.
    lead : {"coordinator", "holder"}
        Whose process runs the training, as for `woodlot.connect`.

    Returns
    -------
    Forecast
    """
    network = network or Network()
    protected = isinstance(estimator, (*PROTECTED, *PRIVATE))
    if lead == "holder":
        if protected:
            raise DataError("lead='holder' is for FederatedForest estimators; use lead='coordinator' with others")
        return forecast(estimator, shape, network).led(next(iter(shape.columns)), network)
    if not protected and not (isinstance(estimator, FederatedForest) and estimator.max_leaf_nodes is None):
        raise DataError(
            "a forecast is made for FederatedForest estimators without max_leaf_nodes, RevocableForest, "
            "HorizontalForest and PrivateForest; for others fit a part of the rows and read cost_"
        )
    if getattr(estimator, "protection", "open") == "hidden":
        return forecast_hidden(estimator, shape, network)
    if isinstance(estimator, PRIVATE):
        return forecast_private(estimator, shape, network)
    if protected:
        return forecast_protected(estimator, shape, network)
    n_trees = int(estimator.n_estimators)
    small, large = (min(max(shape.rows, _MIN_ROWS), rows) for rows in TRIAL_ROWS)
    large = max(large, min(shape.rows // 2, MOST_TRIAL_ROWS))
    sizes = [(rows, min(n_trees, trees)) for rows in (small, large) for trees in TRIAL_TREES]
    models = quickest(clone(estimator).set_params(oob_score=False), shape, sizes)
    trials = [_Trial.of(model, *size) for model, size in zip(models, sizes, strict=True)]
    profile = Profile.carried(trials[1].profile, trials[-1].profile, shape.rows, estimator.max_depth)
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


# --- the bill ---


class _Bill:
    """Rounds, bytes and memory of a forest whose trees have this profile; symbols as in the protocol's page."""

    def __init__(self, shape: DataShape, profile: Profile, n_trees: int, estimator: Any) -> None:
        n, T = shape.rows, n_trees
        columns = np.array(list(shape.columns.values()))
        f = int(columns.sum())
        active = (columns > 0) | (np.arange(len(columns)) == 0)
        m = int(active.sum())
        c = 8 if shape.classes == 0 else 1 if shape.classes <= 256 else 2
        drawn = drawn_rows(estimator, n)
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
        tried = candidates(estimator.max_features, f)
        self.prepare_work = n * f * log2(n)
        self.grow_work = (R * (tried + m), S * (tried + m), self.rounds * len(shape.columns))


# --- the speed of this machine ---


@dataclass(frozen=True)
class _Trial:
    """A small forest on made-up rows: its profile, and what it took."""

    rows: int
    trees: int
    profile: Profile
    prepare_seconds: float
    grow_seconds: float

    @classmethod
    def of(cls, model: Any, rows: int, trees: int) -> _Trial:
        prepare = model.cost_.seconds["prepare"]
        return cls(rows, trees, Profile.of(model, rows), prepare, model.cost_.total_seconds - prepare)


@dataclass(frozen=True, eq=False)
class _Speed:
    """Seconds for each unit of work: of preparing a column's row; of growing, by rows, nodes and messages."""

    prepare: float
    grow: NDArray[np.float64]

    def seconds(self, bill: _Bill) -> float:
        return float(self.prepare * bill.prepare_work + self.grow @ np.array(bill.grow_work))


def _speed(trials: list[_Trial], shape: DataShape, estimator: Any) -> _Speed:
    bills = [
        _Bill(DataShape(t.rows, shape.columns, shape.classes, shape.noise), t.profile, t.trees, estimator)
        for t in trials
    ]
    prepare = max(trial.prepare_seconds / bill.prepare_work for trial, bill in zip(trials[2:], bills[2:], strict=True))
    work, seconds = np.array([bill.grow_work for bill in bills]), np.array([trial.grow_seconds for trial in trials])
    scale = work.max(axis=0)
    # relative errors count, so that the small trials have a say
    found, _ = nnls((work / scale) / seconds[:, None], np.ones(len(seconds)))
    return _Speed(float(prepare), found / scale)
