"""Metrics of class probabilities from counts and sums that clients add up: none of them shows a row to the others.

A client counts its rows by class and by bins of the model's probabilities. Which bins, follows from how many rows of
all clients have which probability, whatever their class: of `GRID` narrow bins so many are merged that each has
`MIN_BIN_ROWS` rows or more. A bin with one row would tell its class to who can compute its probability.

::

    vector of a client   rows, rows of the training, clients that know these, confusion (class by class),
                         for each ranked class and bin: rows of the class, rows of others,
                         limbs of: sum of log losses, of their squares, of Brier's squares, of theirs

Rows of the confusion and sums of losses are exact, so the metrics made of them are those of the pooled rows. Ranked
metrics (`RANKED`) take the rows of one bin as equal: how far that can be off is told, see `_bounds`.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.exceptions import RemoteProtocolError
from woodlot.metrics.class_numbers import (
    CALIBRATION_BINS,
    CURVE_POINTS,
    HIGHER_IS_BETTER,
    LIFT_SHARE,
    MIN_BIN_ROWS,
    RANKED,
    TWO_CLASSES,
    ClassNumbers,
)
from woodlot.metrics.resampling import Interval, Resampling, interval
from woodlot.metrics.summaries import PooledSummary, number_of
from woodlot.metrics.wide_numbers import N_LIMBS, from_limbs, to_limbs

GRID = 1000
"""Narrow bins of probabilities, all of one width."""
COUNTS = 3
"""Numbers at the beginning of every vector: rows, rows of the training, and clients that know the latter."""
LOSSES = 4

Cuts = Sequence[NDArray[np.int64]]
"""For each ranked class, where bins after the first one begin, on the grid."""
Bins = NDArray[np.int64]
"""Rows of the class (first line) and of others by bin, from the highest probability on."""


def ranked_classes(n_classes: int) -> range:
    """The classes that are ranked against the others: of two the second, of more each."""
    return range(1, 2) if n_classes == 2 else range(n_classes)


def grid_counts(rows: ClassNumbers) -> NDArray[np.int64]:
    """At a client: how many rows have which probability, of each ranked class; nothing of their classes."""
    return np.concatenate(
        [np.bincount(_places(rows, k), minlength=GRID) for k in ranked_classes(len(rows.classes))]
    ).astype(np.int64)


def _places(rows: ClassNumbers, k: int) -> NDArray[np.int64]:
    places: NDArray[np.int64] = np.clip((rows.outputs[:, k] * GRID).astype(np.int64), 0, GRID - 1)
    return places


def merged_cuts(counts: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """At the coordinator: where bins begin, each of so many rows of all clients that none stands for one of them."""
    found = []
    for own in counts.reshape(-1, GRID):
        cuts, held = [], 0
        for place, n in enumerate(own.tolist()):
            if held >= MIN_BIN_ROWS:
                cuts.append(place)
                held = 0
            held += n
        if cuts and held < MIN_BIN_ROWS:
            cuts.pop()
        found.append(np.array(cuts, np.int64))
    return found


def check_cuts(cuts: Cuts, n_classes: int) -> None:
    """Refuse bins that are not made of those of the grid."""
    right = len(cuts) == len(ranked_classes(n_classes)) and all(
        len(own) < GRID and (np.diff(own, prepend=0, append=GRID) > 0).all() for own in cuts
    )
    if not right:
        raise RemoteProtocolError("the bins are not made of those of the grid")


def vector_length(n_classes: int, cuts: Cuts) -> int:
    """How many numbers a client's vector has."""
    return COUNTS + n_classes**2 + sum(2 * (len(own) + 1) for own in cuts) + LOSSES * N_LIMBS


def class_vector(rows: ClassNumbers, cuts: Cuts, seen: int | None, to: int) -> NDArray[np.int64]:
    """At a client: its counts and sums, rounded to multiples of ``to``.

    Of bins, the counts up to each of them are rounded, from the highest probability on: rounding each bin alone would
    leave nothing of small ones.
    """
    n = len(rows.classes)
    parts: list[Any] = [
        _counted(np.array([len(rows), seen or 0]), to),
        [0 if seen is None else 1],
        _counted(rows.confusion().ravel(), to),
    ]
    for k, own in zip(ranked_classes(n), cuts, strict=True):
        bins, positive = np.searchsorted(own, _places(rows, k), side="right"), rows.codes == k
        for chosen in (positive, ~positive):
            falling = np.bincount(bins[chosen], minlength=len(own) + 1)[::-1]
            parts.append(np.diff(_counted(np.cumsum(falling), to), prepend=0))
    losses = [rows.surprise, rows.surprise**2, rows.squared, rows.squared**2]
    parts.append(to_limbs([_rounded(float(np.sum(one)), to) for one in losses]))
    return np.concatenate(parts).astype(np.int64)


def _counted(counts: NDArray[np.int64], to: int) -> NDArray[np.int64]:
    rounded: NDArray[np.int64] = (counts + to // 2) // to * to
    return rounded


def _rounded(value: float, to: int) -> float:
    return value if to == 1 else round(value / to) * to


# --- at the user ---


def class_summary(
    sums: NDArray[np.int64], classes: Sequence[Any], cuts: Cuts, n_clients: int, resampling: Resampling, to: int
) -> PooledSummary:
    """The report of the sums of all clients' vectors.

    Parameters
    ----------
    sums : array of int
        What the vectors add up to.
    classes : sequence
        Of the model.
    cuts : sequence of array
        Where bins begin.
    n_clients : int
        How many clients there are.
    resampling : Resampling
        How intervals are found: by bootstrap samples of the counts; of losses, by their spread.
    to : int
        To multiples of what clients have rounded, at most.
    """
    n = len(classes)
    if len(sums) != vector_length(n, cuts):
        raise RemoteProtocolError("the sums of an evaluation are not as long as they must be")
    n_rows, seen, knowing = sums[:COUNTS].tolist()
    at = COUNTS + n**2
    confusion = sums[COUNTS:at].reshape(n, n)
    bins: list[Bins] = []
    for own in cuts:
        bins.append(np.maximum(sums[at : at + 2 * (len(own) + 1)].reshape(2, -1), 0))
        at += 2 * (len(own) + 1)
    surprise, surprise_squared, squared, squared_squared = from_limbs(sums[at:])
    rows = max(n_rows, 1)
    undefined = _undefined(confusion, classes)
    ranked = [_ranked(own[0], own[1]) for own in bins]
    metrics = _of_confusion(confusion) | {name: float(np.mean([one[name] for one in ranked])) for name in RANKED}
    metrics |= {"log_loss": surprise / rows, "brier": squared / rows}
    errors = {name: float(np.mean([_bounds(own)[name] for own in bins])) for name in RANKED if name not in undefined}
    ends = _intervals(confusion, bins, resampling)
    for name, total, squares in (("log_loss", surprise, surprise_squared), ("brier", squared, squared_squared)):
        if resampling.n_bootstrap and n_rows > 1:
            ends[name] = mean_interval(total / rows, squares / rows, rows, resampling.confidence)
    by_class = _by_class(confusion, classes, dict(zip(ranked_classes(n), ranked, strict=True)))
    return PooledSummary(
        n_rows=n_rows,
        seen=seen if knowing == n_clients else None,
        metrics={name: None if name in undefined else number_of(metrics[name]) for name in HIGHER_IS_BETTER},
        intervals={name: ends[name] for name in HIGHER_IS_BETTER if name in ends and name not in undefined},
        undefined=undefined,
        confidence=resampling.confidence,
        classes=tuple(classes),
        confusion=tuple(tuple(line) for line in confusion.tolist()),
        by_class=by_class,
        curves=_curves(bins, cuts, classes),
        round_counts=to,
        bins=min((len(own) + 1 for own in cuts), default=0),
        errors=errors,
    )


def mean_interval(mean: float, mean_square: float, n: int, confidence: float) -> Interval:
    """The interval of a mean, from the spread of what it is the mean of."""
    spread = NormalDist().inv_cdf((1 + confidence) / 2) * (max(0.0, mean_square - mean**2) / n) ** 0.5
    return mean - spread, mean + spread


def _undefined(confusion: NDArray[np.int64], classes: Sequence[Any]) -> dict[str, str]:
    reasons = dict.fromkeys(TWO_CLASSES, "it is for two classes") if len(classes) > 2 else {}
    absent = [label for label, n in zip(classes, confusion.sum(axis=1), strict=True) if n <= 0]
    if absent:
        why = f"no row is of class {absent[0]!r}; evaluate rows of every class"
        reasons |= {name: why for name in RANKED if name not in reasons}
    return reasons


def _of_confusion(table: NDArray[Any]) -> dict[str, float]:
    n = len(table)
    rows, columns, right = table.sum(axis=1), table.sum(axis=0), np.diag(table)
    there = rows > 0
    f1 = np.divide(2 * right, rows + columns, out=np.zeros(n), where=rows + columns > 0)
    return {
        "accuracy": float(right.sum() / max(table.sum(), 1)),
        "balanced_accuracy": float(np.mean(right[there] / rows[there])) if there.any() else np.nan,
        "f1": float(f1[1] if n == 2 else f1.mean()),
    }


def _ranked(hits: NDArray[Any], misses: NDArray[Any]) -> dict[str, float]:
    """Ranked metrics of groups of rows, from the highest probability on; rows of one group count as equal."""
    positive, negative = hits.sum(), misses.sum()
    if positive == 0 or negative == 0:
        return dict.fromkeys(RANKED, np.nan)
    before, wrong = np.append(0, np.cumsum(hits)), np.append(0, np.cumsum(misses))
    found = before + wrong
    precision = np.divide(before[1:], found[1:], out=np.zeros(len(hits)), where=found[1:] > 0)
    looked_at = LIFT_SHARE * found[-1]
    share = np.interp(looked_at, found, before) / looked_at
    return {
        "roc_auc": float(np.sum(misses * (before[1:] + before[:-1])) / 2 / positive / negative),
        "average_precision": float(np.sum(hits * precision) / positive),
        "ks": max(0.0, float(np.max(before / positive - wrong / negative))),
        "lift": float(share * found[-1] / positive),
    }


def _bounds(bins: Bins) -> dict[str, float]:
    """How far ranked metrics of bins can be from those of the rows.

    In no order of the rows of a bin is a metric better than with all rows of the class first, and in none is it worse
    than with all of them last. Of average precision the first is a bound where these rows are taken as equal, and the
    second where each of them has the precision of the first.
    """
    hits, misses = bins
    middle = _ranked(hits, misses)
    if np.isnan(middle["roc_auc"]):
        return dict.fromkeys(RANKED, 0.0)
    nothing = np.zeros_like(hits)
    best = _ranked(np.stack([hits, nothing], 1).ravel(), np.stack([nothing, misses], 1).ravel())
    worst = _ranked(np.stack([nothing, hits], 1).ravel(), np.stack([misses, nothing], 1).ravel())
    before = np.cumsum(hits) - hits
    first = (before + 1) / (before + 1 + np.cumsum(misses))
    worst["average_precision"] = float(np.sum(hits * first) / hits.sum())
    return {name: max(best[name] - middle[name], middle[name] - worst[name], 0.0) for name in RANKED}


def _intervals(confusion: NDArray[np.int64], bins: Sequence[Bins], resampling: Resampling) -> dict[str, Interval]:
    """Intervals of what is made of counts: bootstrap samples of rows, of which only the counts matter."""
    rng, cells = np.random.default_rng(resampling.seed), np.maximum(confusion, 0)
    if not resampling.n_bootstrap or cells.sum() == 0 or any(own.sum() == 0 for own in bins):
        return {}
    found: dict[str, list[float]] = {}
    for _ in range(resampling.n_bootstrap):
        drawn = _of_confusion(_redrawn(rng, cells))
        ranked = [_ranked(*_redrawn(rng, own)) for own in bins]
        for name, value in (drawn | {name: float(np.mean([one[name] for one in ranked])) for name in RANKED}).items():
            found.setdefault(name, []).append(value)
    ends = {name: interval(np.array(values), resampling.confidence) for name, values in found.items()}
    return {name: pair for name, pair in ends.items() if pair is not None}


def _redrawn(rng: np.random.Generator, counts: NDArray[np.int64]) -> NDArray[np.int64]:
    total = int(counts.sum())
    return rng.multinomial(total, counts.ravel() / total).reshape(counts.shape).astype(np.int64)


def _by_class(
    confusion: NDArray[np.int64], classes: Sequence[Any], ranked: dict[int, dict[str, float]]
) -> dict[str, dict[str, float | None]]:
    rows, found, right = confusion.sum(axis=1), confusion.sum(axis=0), np.diag(confusion)
    told: dict[str, dict[str, float | None]] = {}
    for k, label in enumerate(classes):
        own = ranked.get(k, {})
        told[str(label)] = {
            "rows": int(rows[k]),
            "precision": float(right[k] / found[k]) if found[k] else 0.0,
            "recall": float(right[k] / rows[k]) if rows[k] else 0.0,
            "f1": float(2 * right[k] / (rows[k] + found[k])) if rows[k] + found[k] else 0.0,
            "roc_auc": number_of(own.get("roc_auc", np.nan)),
            "average_precision": number_of(own.get("average_precision", np.nan)),
        }
    return told


def _curves(bins: Sequence[Bins], cuts: Cuts, classes: Sequence[Any]) -> dict[str, dict[str, dict[str, list[float]]]]:
    """ROC and precision-recall curves at the ends of bins, and calibration by the middles of merged bins."""
    told = {}
    for k, own, cut in zip(ranked_classes(len(classes)), bins, cuts, strict=True):
        positive, negative = own.sum(axis=1)
        if positive == 0 or negative == 0:
            continue
        hits, misses = np.cumsum(own[0]), np.cumsum(own[1])
        found = hits + misses
        ends = np.searchsorted(found, found[-1] * np.arange(1, CURVE_POINTS + 1) / CURVE_POINTS)
        at = np.unique(np.minimum(ends, len(found) - 1))
        edges = np.concatenate([[0], cut, [GRID]]) / GRID
        middles = ((edges[1:] + edges[:-1]) / 2)[::-1]
        group = np.minimum((middles * CALIBRATION_BINS).astype(np.int64), CALIBRATION_BINS - 1)
        rows = np.bincount(group, own.sum(axis=0), CALIBRATION_BINS)
        many = rows >= MIN_BIN_ROWS
        means = (
            np.bincount(group, of, CALIBRATION_BINS)[many] / rows[many] for of in (middles * own.sum(axis=0), own[0])
        )
        told[str(classes[k])] = {
            "roc": {"fpr": [0.0, *(misses[at] / negative).tolist()], "tpr": [0.0, *(hits[at] / positive).tolist()]},
            "precision_recall": {
                "precision": np.divide(hits[at], found[at], out=np.ones(len(at)), where=found[at] > 0)[::-1].tolist(),
                "recall": (hits[at] / positive)[::-1].tolist(),
            },
            "calibration": dict(zip(("predicted", "observed"), (mean.tolist() for mean in means), strict=True)),
        }
    return told
