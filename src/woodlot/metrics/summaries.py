"""What a label holder tells of answers: metrics, counts, intervals and coarse curves; nothing of single rows.

Exact counts tell labels to who asks often enough about rows that hardly differ. A holder can have counts rounded. Then
everything that could give them back is rounded likewise: shares to the same number of rows, other numbers to as many
digits as so many rows have.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import numpy as np

from woodlot.metrics.class_numbers import HIGHER_IS_BETTER, ClassNumbers
from woodlot.metrics.resampling import Resampling, interval, resampled
from woodlot.metrics.target_numbers import WINDOW_ROWS, TargetNumbers

Number = float | None
"""None: not defined."""
_WITHOUT_UNIT = (*HIGHER_IS_BETTER, "r2")


class Summary(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How good answers are.

    Attributes
    ----------
    n_rows : int
        How many rows were evaluated.
    seen : int or None
        How many of them were in the model's training; None: not known.
    metrics, intervals, undefined
        By metric: its value, its confidence interval, and why it has none.
    confidence : float
        Of the intervals.
    classes, confusion, by_class, curves
        Of classes; see `woodlot.evaluation.reports.ClassificationReport`.
    error_quantiles : dict of str to float
        Of numbers: means over the rows beside each quantile.
    round_counts : int
        To multiples of what counts were rounded; 1: they are exact.
    """

    n_rows: int
    seen: int | None
    metrics: dict[str, Number]
    intervals: dict[str, tuple[float, float]]
    undefined: dict[str, str]
    confidence: float
    classes: tuple[str | int | float | bool, ...] = ()
    confusion: tuple[tuple[int, ...], ...] = ()
    by_class: dict[str, dict[str, Number]] = {}
    curves: dict[str, dict[str, dict[str, list[float]]]] = {}
    error_quantiles: dict[str, float] = {}
    round_counts: int = 1


class PooledSummary(Summary, frozen=True, kw_only=True):
    """How good answers are, from counts and sums of all clients.

    Attributes
    ----------
    bins : int
        Bins of probabilities that ranked metrics are from; 0 where there are none.
    errors : dict of str to float
        How far a ranked metric can be from that of the rows, if counts are exact.
    by_client : dict of str to Summary
        What clients tell of their own rows.
    withheld : tuple of str
        Clients that tell nothing of their own.
    """

    bins: int = 0
    errors: dict[str, float] = {}
    by_client: dict[str, Summary] = {}
    withheld: tuple[str, ...] = ()


def summarise(
    rows: ClassNumbers | TargetNumbers, resampling: Resampling, seen: int | None, round_counts: int = 1
) -> Summary:
    """What is told of rows, by the label holder.

    Parameters
    ----------
    rows : ClassNumbers or TargetNumbers
        Labels beside answers.
    resampling : Resampling
        How intervals are found.
    seen : int or None
        How many rows were in the training.
    round_counts : int
        To multiples of what counts are rounded.
    """
    numbers = rows.weighted(np.ones(len(rows)))
    undefined = rows.undefined()
    if isinstance(rows, TargetNumbers):
        middle = rows.coarse_median_error()
        numbers["median_absolute_error"] = np.nan if middle is None else middle
        if middle is None:
            undefined["median_absolute_error"] = f"it would tell of single rows; evaluate {WINDOW_ROWS} rows or more"
    drawn = resampled(rows, resampling.n_bootstrap, resampling.seed)
    ends = {name: interval(values, resampling.confidence) for name, values in drawn.items()}
    exact = Summary(
        n_rows=len(rows),
        seen=seen,
        metrics={name: None if name in undefined else number_of(value) for name, value in numbers.items()},
        intervals={name: pair for name, pair in ends.items() if pair is not None},
        undefined=undefined,
        confidence=resampling.confidence,
    )
    if isinstance(rows, TargetNumbers):
        exact = msgspec.structs.replace(exact, error_quantiles=rows.coarse_quantiles())
    else:
        exact = msgspec.structs.replace(
            exact,
            classes=tuple(rows.classes.tolist()),
            confusion=tuple(tuple(line) for line in rows.confusion().tolist()),
            by_class={label: _numbers(found) for label, found in rows.by_class().items()},
            curves=rows.coarse_curves(),
        )
    return exact if round_counts == 1 else _rounded(exact, round_counts)


def number_of(value: float) -> Number:
    """A number as reports have it; None where it is none."""
    return None if math.isnan(value) else float(value)


def _numbers(values: Mapping[str, float]) -> dict[str, Number]:
    return {name: number_of(value) for name, value in values.items()}


def _rounded(exact: Summary, to: int) -> Summary:
    """The same with counts rounded, and everything that could give them back."""
    n_rows = max(to, _count(exact.n_rows, to))
    step = to / n_rows
    digits = max(1, math.floor(math.log10(n_rows / to)))

    def share(value: float) -> float:
        return min(round(value / step) * step, 1.0) if value <= 1 else round(value / step) * step

    def other(value: float) -> float:
        return float(f"{value:.{digits}g}")

    def metric(name: str) -> Callable[[float], float]:
        return share if name in _WITHOUT_UNIT else other

    return msgspec.structs.replace(
        exact,
        n_rows=n_rows,
        seen=None if exact.seen is None else _seen(exact, n_rows, to),
        metrics={name: None if v is None else metric(name)(v) for name, v in exact.metrics.items()},
        intervals={name: (metric(name)(low), metric(name)(high)) for name, (low, high) in exact.intervals.items()},
        confusion=tuple(tuple(_count(n, to) for n in line) for line in exact.confusion),
        by_class={
            label: {
                name: None if v is None else _count(int(v), to) if name == "rows" else share(v)
                for name, v in found.items()
            }
            for label, found in exact.by_class.items()
        },
        curves=_each_number(exact.curves, share),
        error_quantiles={name: other(value) for name, value in exact.error_quantiles.items()},
        round_counts=to,
    )


def _count(n: int, to: int) -> int:
    return (n + to // 2) // to * to


def _seen(exact: Summary, n_rows: int, to: int) -> int:
    """None and all stay as they are; some are at least one step."""
    seen = exact.seen or 0
    return 0 if seen == 0 else n_rows if seen == exact.n_rows else max(to, _count(seen, to))


def _each_number(value: Any, change: Callable[[float], float]) -> Any:
    if isinstance(value, dict):
        return {name: _each_number(inner, change) for name, inner in value.items()}
    return [change(number) for number in value]
