"""The few statistics of the pages."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from woodlot_lab.experiment import Row, Series

CLEARLY = 2.0
"""Standard errors of paired differences from which on one sample is better than another."""
STRAIGHT = 0.99
"""Correlation above which points lie on a line."""


def select(rows: Iterable[Row], /, **wanted: Any) -> list[Row]:
    """The rows with these values."""
    return [row for row in rows if all(row.get(name) == value for name, value in wanted.items())]


def values(rows: Iterable[Row], name: str) -> list[float]:
    """One column, where it has a value, in the order of the repeats."""
    ordered = sorted(rows, key=lambda row: row.get("repeat", 0))
    return [float(row[name]) for row in ordered if row.get(name) is not None]


def distinct(rows: Iterable[Row], name: str) -> list[Any]:
    """The different values of a column, in the order in which they come."""
    return list(dict.fromkeys(row[name] for row in rows if row.get(name) is not None))


def mean(sample: Sequence[float]) -> float:
    """Mean; nan of nothing."""
    return float(np.mean(sample)) if sample else math.nan


def spread(sample: Sequence[float]) -> float:
    """Standard deviation of the sample; 0 of a single value."""
    return float(np.std(sample, ddof=1)) if len(sample) > 1 else 0.0


def curve(
    label: str,
    x: Sequence[Any],
    samples: Sequence[Sequence[float]],
    style: str = "-",
    marker: str = "o",
    colour: int | None = None,
) -> Series:
    """Means with their standard deviations as error bars, a sample for each point."""
    return Series(label, x, [*map(mean, samples)], [*map(spread, samples)], style, marker, colour)


def pm(sample: Sequence[float], digits: int = 3) -> str:
    """``mean ± standard deviation``, or a dash."""
    if not sample:
        return "-"
    return f"{mean(sample):.{digits}f} ± {spread(sample):.{digits}f}" if len(sample) > 1 else f"{sample[0]:.{digits}f}"


def z_test(one: Sequence[float], other: Sequence[float]) -> float:
    """p-value of the two-sided Z-test that two samples have the same mean; nan for fewer than two values each."""
    if min(len(one), len(other)) < 2:
        return math.nan
    error = math.sqrt(spread(one) ** 2 / len(one) + spread(other) ** 2 / len(other))
    difference = abs(mean(one) - mean(other))
    if error == 0:
        return 1.0 if difference == 0 else 0.0
    return math.erfc(difference / error / math.sqrt(2))


def paired_z(one: Sequence[float], other: Sequence[float]) -> float:
    """Mean of the paired differences in units of its standard error; 0 where nothing differs."""
    differences = [a - b for a, b in zip(one, other, strict=False)]
    error = spread(differences) / math.sqrt(len(differences)) if differences else 0.0
    return mean(differences) / error if error > 0 else 0.0


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Exponent of y in x: slope of the line through their logarithms."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def straightness(x: Sequence[float], y: Sequence[float]) -> float:
    """Correlation of y with x: 1 for a line that rises, whatever its height at zero; 0 where y does not change."""
    return float(np.corrcoef(x, y)[0, 1]) if np.ptp(y) > 0 else 0.0


def line(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """Slope and height at zero of the straight line through the points."""
    a, b = np.polyfit(x, y, 1)
    return float(a), float(b)
