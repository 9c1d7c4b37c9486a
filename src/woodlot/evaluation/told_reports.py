"""Reports as a label holder tells them: the numbers are there, and the rows stay with the holder."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from woodlot.evaluation.client_scores import ClientScores
from woodlot.evaluation.reports import ClassificationReport, EvaluationReport, RegressionReport
from woodlot.exceptions import DataError
from woodlot.metrics.class_numbers import HIGHER_IS_BETTER
from woodlot.metrics.resampling import Resampling
from woodlot.metrics.summaries import PooledSummary, Summary
from woodlot.metrics.target_numbers import TARGET_METRICS

Curves = dict[str, dict[str, dict[str, NDArray[np.float64]]]]


def told_report(
    summary: Summary, bootstrap: Resampling, training_rows: str
) -> ToldClassificationReport | ToldRegressionReport:
    """A report of what a label holder has told."""
    kind = ToldClassificationReport if summary.classes else ToldRegressionReport
    clients = None
    if isinstance(summary, PooledSummary):
        better = HIGHER_IS_BETTER if summary.classes else TARGET_METRICS
        own = summary.by_client
        clients = ClientScores(
            {client: one.n_rows for client, one in own.items()},
            {client: _metrics_of(one, better) for client, one in own.items()},
            {client: dict(one.undefined) for client, one in own.items()},
            better,
            summary.withheld,
        )
    return kind(summary, bootstrap, training_rows, None, clients)


def _metrics_of(told: Summary, names: Iterable[str]) -> dict[str, float]:
    found = {name: np.nan if value is None else value for name, value in told.metrics.items()}
    return {name: found.get(name, np.nan) for name in names}


@dataclass(frozen=True, eq=False, repr=False)
class ToldReport(EvaluationReport):
    """A report of rows that stay with the label holder; see `EvaluationReport`.

    Attributes
    ----------
    round_counts : int
        To multiples of what the label holder has rounded counts, and metrics likewise; 1: they are exact.
    """

    def __post_init__(self) -> None:
        told = self.told
        object.__setattr__(self, "metrics", _metrics_of(told, self._better))
        object.__setattr__(self, "undefined", dict(told.undefined))
        object.__setattr__(self, "intervals", dict(told.intervals))

    @property
    def told(self) -> Summary:
        """What the label holder has told."""
        summary: Summary = self.rows
        return summary

    @property
    def n_rows(self) -> int:
        """How many rows."""
        return self.told.n_rows

    @property
    def round_counts(self) -> int:
        """To multiples of what counts are rounded."""
        return self.told.round_counts

    @property
    def title(self) -> str:
        """What was evaluated, in one line."""
        rounded = "" if self.round_counts == 1 else f" (counts are rounded to multiples of {self.round_counts})"
        return super().title + rounded

    @property
    def errors(self) -> dict[str, float]:
        """How far ranked metrics can be from those of the rows, where they are from bins; empty: not at all."""
        return dict(self.told.errors) if isinstance(self.told, PooledSummary) else {}

    def lines(self) -> list[tuple[str, str, str]]:
        """Each metric with its value and its interval, in words; where it is from bins, how far it can be off."""
        lines = super().lines()
        if not self.errors or not isinstance(self.told, PooledSummary):
            return lines
        return [
            (name, value, f"{ends}  from {self.told.bins:,} bins, error at most {self.errors[name]:.2g}".strip())
            if name in self.errors
            else (name, value, ends)
            for name, value, ends in lines
        ]

    def to_dict(self) -> dict[str, Any]:
        """Everything that was told, in plain values that JSON can hold; NaN is None."""
        found = super().to_dict()
        if isinstance(self.told, PooledSummary):
            found |= {"bins": self.told.bins, "errors": self.errors, "withheld": list(self.told.withheld)}
        return found

    def compare(self, other: EvaluationReport) -> NoReturn:
        """Refuse: to draw the same rows for both models needs the rows."""
        raise DataError(
            "paired comparisons need the rows, which stay with the label holder; compare the intervals of both reports"
        )


class ToldClassificationReport(ToldReport, ClassificationReport):
    """How good the probabilities of classes are, as the label holder tells it; see `ClassificationReport`.

    Curves have few points, each at the end of an equal share of the rows.
    """

    @property
    def classes(self) -> NDArray[Any]:
        """The classes of the model."""
        return np.array(self.told.classes)

    @property
    def confusion(self) -> NDArray[np.int64]:
        """Rows by their class (down) and the predicted one (across)."""
        return np.array(self.told.confusion, np.int64)

    @property
    def by_class(self) -> dict[str, dict[str, float]]:
        """Metrics of each class."""
        by_class = self.told.by_class.items()
        return {c: {name: np.nan if v is None else v for name, v in found.items()} for c, found in by_class}

    @property
    def curves(self) -> Curves:
        """Curves as numbers."""
        return {
            label: {kind: {axis: np.array(v) for axis, v in one.items()} for kind, one in kinds.items()}
            for label, kinds in self.told.curves.items()
        }

    def plot(self) -> Any:
        """Draw the ROC, precision-recall and calibration curves and the confusion matrix; returns the figure."""
        return ClassificationReport.plot(self)


class ToldRegressionReport(ToldReport, RegressionReport):
    """How good predicted numbers are, as the label holder tells it; see `RegressionReport`."""

    @property
    def error_quantiles(self) -> dict[str, float]:
        """Quantiles of the errors, target less prediction."""
        return dict(self.told.error_quantiles)

    def plot(self) -> NoReturn:
        """Refuse: predictions against targets are rows."""
        raise DataError("a plot of predictions against targets shows rows, which stay with the label holder")
