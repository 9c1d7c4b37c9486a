"""Metrics of predicted numbers from sums that clients add up.

::

    vector of a client   rows, rows of the training, clients that know these,
                         limbs of the sums over its rows of e, |e|, e^2, e^4, t, t^2, t^3, t^4, e^2 t, e^2 t^2

where e is the error and t the target less a centre that all clients know from the model: the mean of its leaves. With
it little is lost where targets are large and differ little. The last sums are for intervals only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from woodlot.exceptions import RemoteProtocolError
from woodlot.metrics.pooled_classes import COUNTS, mean_interval
from woodlot.metrics.resampling import Interval, Resampling
from woodlot.metrics.summaries import PooledSummary, number_of
from woodlot.metrics.target_numbers import TARGET_METRICS, TargetNumbers
from woodlot.metrics.wide_numbers import N_LIMBS, from_limbs, to_limbs

SUMS = 10
NOT_TOLD = "it needs the rows of all clients together"


def target_length() -> int:
    """How many numbers a client's vector has."""
    return COUNTS + SUMS * N_LIMBS


def centre_of(leaves: Sequence[float]) -> float:
    """The centre that targets are taken from: the same at every client that has the same model."""
    return math.fsum(leaves) / max(1, len(leaves))


def target_vector(rows: TargetNumbers, centre: float, seen: int | None, to: int) -> NDArray[np.int64]:
    """At a client: its counts rounded to multiples of ``to``, and its sums to as many digits as so many rows have."""
    e, t = rows.errors, rows.y - centre
    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is refused as such
        terms = (e, np.abs(e), e**2, e**4, t, t**2, t**3, t**4, e**2 * t, e**2 * t**2)
        sums = [float(np.sum(one)) for one in terms]
    if to > 1:
        digits = max(1, math.floor(math.log10(max(1.0, len(rows) / to))))
        sums = [float(f"{value:.{digits}g}") for value in sums]
    counts = [(n + to // 2) // to * to for n in (len(rows), seen or 0)]
    return np.concatenate([counts, [0 if seen is None else 1], to_limbs(sums)]).astype(np.int64)


def target_summary(sums: NDArray[np.int64], n_clients: int, resampling: Resampling, to: int) -> PooledSummary:
    """At the user: the report of the sums of all clients' vectors; parameters as for `class_summary`."""
    if len(sums) != target_length():
        raise RemoteProtocolError("the sums of an evaluation are not as long as they must be")
    n_rows, seen, knowing = sums[:COUNTS].tolist()
    n = max(n_rows, 1)
    e, size, e2, e4, t, t2, t3, t4, e2t, e2t2 = (value / n for value in from_limbs(sums[COUNTS:]))
    spread = t2 - t**2
    undefined = {"median_absolute_error": NOT_TOLD}
    # rounding of floats leaves a little of nothing
    if spread <= 1e-14 * t2 or n_rows < 2:
        undefined["r2"] = "all targets are the same; evaluate rows with different ones"
    metrics = {
        "r2": np.nan if "r2" in undefined else 1 - e2 / spread,
        "rmse": math.sqrt(max(0.0, e2)),
        "mae": size,
        "mean_error": e,
    }
    ends: dict[str, Interval] = {}
    if resampling.n_bootstrap and n_rows > 1:
        ends = {
            "mae": mean_interval(size, e2, n, resampling.confidence),
            "mean_error": mean_interval(e, e2, n, resampling.confidence),
        }
        low, high = mean_interval(e2, e4, n, resampling.confidence)
        ends["rmse"] = math.sqrt(max(0.0, low)), math.sqrt(max(0.0, high))
        if "r2" not in undefined:
            # 1 - mean(e^2) / mean((t - mean t)^2), by its first derivatives in both means
            share = e2 / spread
            fourth = t4 - 4 * t * t3 + 6 * t**2 * t2 - 3 * t**4
            both = e2t2 - 2 * t * e2t + t**2 * e2
            variance = (e4 - e2**2) - 2 * share * (both - e2 * spread) + share**2 * (fourth - spread**2)
            width = NormalDist().inv_cdf((1 + resampling.confidence) / 2) * math.sqrt(max(0.0, variance) / n) / spread
            ends["r2"] = 1 - share - width, 1 - share + width
    return PooledSummary(
        n_rows=n_rows,
        seen=seen if knowing == n_clients else None,
        metrics={name: None if name in undefined else number_of(metrics[name]) for name in TARGET_METRICS},
        intervals=ends,
        undefined=undefined,
        confidence=resampling.confidence,
        round_counts=to,
    )
