"""What `model.evaluate` gives: metrics with confidence intervals, details by class, curves, and comparisons."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from woodlot.data.markup import html_table
from woodlot.evaluation.class_metrics import HIGHER_IS_BETTER, ClassRows
from woodlot.evaluation.client_scores import ClientScores
from woodlot.evaluation.target_metrics import TARGET_METRICS, TargetRows
from woodlot.exceptions import DataError
from woodlot.metrics.resampling import Interval, Resampling, interval, resampled

__all__ = [
    "ClassificationReport",
    "EvaluationReport",
    "ModelComparison",
    "RegressionReport",
    "Resampling",
]


@dataclass(frozen=True, eq=False, repr=False)
class EvaluationReport:
    """How good a model's answers for some rows are.

    Attributes
    ----------
    metrics : dict of str to float
        By name; NaN where ``undefined`` says why.
    intervals : dict of str to (float, float)
        Confidence intervals, by bootstrap over the rows.
    undefined : dict of str to str
        Metrics that these rows do not have, and why.
    n_rows : int
        How many rows.
    training_rows : str
        How many of them were in the training; empty if none that is known.
    by_client : ClientScores or None
        Where clients have different rows: rows and metrics of each client, and which one is the worst.
    """

    rows: Any
    bootstrap: Resampling
    training_rows: str = ""
    place: Any = None
    by_client: ClientScores | None = None
    metrics: dict[str, float] = field(init=False)
    intervals: dict[str, Interval] = field(init=False)
    undefined: dict[str, str] = field(init=False)
    _better: ClassVar[Mapping[str, bool | None]] = {}

    def __post_init__(self) -> None:
        drawn = resampled(self.rows, self.bootstrap.n_bootstrap, self.bootstrap.seed)
        found = {name: interval(values, self.bootstrap.confidence) for name, values in drawn.items()}
        object.__setattr__(self, "metrics", self.rows.scores())
        object.__setattr__(self, "undefined", self.rows.undefined())
        object.__setattr__(self, "intervals", {name: ends for name, ends in found.items() if ends is not None})

    @property
    def n_rows(self) -> int:
        """How many rows."""
        return len(self.rows)

    def __getitem__(self, name: str) -> float:
        """One metric."""
        if name not in self.metrics:
            raise DataError(f"there is no metric {name!r}; this report has {list(self.metrics)}")
        return self.metrics[name]

    def lines(self) -> list[tuple[str, str, str]]:
        """Each metric with its value and its interval, in words; for a metric that has none, why."""
        lines = []
        for name, value in self.metrics.items():
            if name in self.undefined:
                lines.append((name, "-", self.undefined[name]))
            else:
                ends = self.intervals.get(name)
                lines.append((name, f"{value:.4f}", "" if ends is None else f"{ends[0]:.4f} to {ends[1]:.4f}"))
        return lines

    @property
    def title(self) -> str:
        """What was evaluated, in one line."""
        return f"Evaluation on {self.n_rows:,} row{'' if self.n_rows == 1 else 's'}" + (
            f"; {self.training_rows} were in the training, so it says little about new rows"
            if self.training_rows
            else ""
        )

    @property
    def _heading(self) -> tuple[str, str, str]:
        return "metric", "value", f"{self.bootstrap.confidence:.0%} interval"

    def __repr__(self) -> str:
        lines = [self._heading, *self.lines()]
        width = max(len(name) for name, *_ in lines)
        text = [self.title, *(f"  {n:<{width}}  {v:>7}  {i}".rstrip() for n, v, i in lines)]
        return "\n".join(text if self.by_client is None else [*text, "By client", repr(self.by_client)])

    def _repr_html_(self) -> str:
        title = html_table((), [(self.title,)]).replace("<td>", "<td><b>").replace("</td>", "</b></td>")
        clients = "" if self.by_client is None else self.by_client._repr_html_()
        return title + html_table(self._heading, self.lines()) + clients

    def to_dict(self) -> dict[str, Any]:
        """Everything but the rows, in plain values that JSON can hold; NaN is None."""
        return {
            "n_rows": self.n_rows,
            "training_rows": self.training_rows,
            "metrics": plain(self.metrics),
            "intervals": {name: list(ends) for name, ends in self.intervals.items()},
            "confidence": self.bootstrap.confidence,
            "undefined": dict(self.undefined),
            **({} if self.by_client is None else {"by_client": self.by_client.to_dict()}),
        }

    def compare(self, other: EvaluationReport) -> ModelComparison:
        """The difference to another model's report on the same rows, with paired confidence intervals.

        Parameters
        ----------
        other : EvaluationReport
            Of the other model.

        Returns
        -------
        ModelComparison
            This report's metrics less the other's.
        """
        if not isinstance(other, type(self)):
            raise DataError(f"compare two reports of the same kind, not with {type(other).__name__}")
        same_place = self.place is None or other.place is None or self.place == other.place
        if len(self.rows) != len(other.rows) or not same_place or not self.rows.same_rows(other.rows):
            raise DataError("the two models were evaluated on different rows; evaluate both on the same ones")
        own = self.bootstrap
        mine, theirs = (resampled(report.rows, own.n_bootstrap, own.seed) for report in (self, other))
        pairs = {name: mine[name] - theirs[name] for name in mine if name in theirs}
        ends = {name: interval(values, own.confidence) for name, values in pairs.items()}
        return ModelComparison(
            {name: self.metrics[name] - other.metrics[name] for name in self.metrics if name in other.metrics},
            {name: found for name, found in ends.items() if found is not None},
            self.n_rows,
            own.confidence,
            self._better,
        )


@dataclass(frozen=True, eq=False, repr=False)
class ClassificationReport(EvaluationReport):
    """How good the probabilities of classes are; see `EvaluationReport`.

    Attributes
    ----------
    classes : array
        The classes of the model; of two, the second is the positive one.
    confusion : array of shape (n_classes, n_classes)
        Rows by their class (down) and the predicted one (across).
    by_class : dict
        Rows, precision, recall, F1, area under the ROC curve and average precision of each class.
    curves : dict
        ROC, precision-recall and calibration curves as numbers: of the positive class, or of each against the others.
    """

    rows: ClassRows
    _better: ClassVar[Mapping[str, bool | None]] = HIGHER_IS_BETTER

    @property
    def classes(self) -> NDArray[Any]:
        """The classes of the model."""
        return self.rows.classes

    @property
    def confusion(self) -> NDArray[np.int64]:
        """Rows by their class (down) and the predicted one (across)."""
        return self.rows.confusion()

    @property
    def by_class(self) -> dict[str, dict[str, float]]:
        """Metrics of each class."""
        return self.rows.by_class()

    @property
    def curves(self) -> dict[str, dict[str, dict[str, NDArray[np.float64]]]]:
        """Curves as numbers."""
        return self.rows.curves()

    def to_dict(self) -> dict[str, Any]:
        """Everything but the rows, in plain values that JSON can hold; NaN is None."""
        return super().to_dict() | {
            "classes": [str(label) for label in self.classes],
            "confusion": self.confusion.tolist(),
            "by_class": {label: plain(found) for label, found in self.by_class.items()},
            "curves": {
                label: {kind: {axis: v.tolist() for axis, v in one.items() if axis != "threshold"}
                        for kind, one in kinds.items()}
                for label, kinds in self.curves.items()
            },
        }  # fmt: skip

    def plot(self) -> Any:
        """Draw the ROC, precision-recall and calibration curves and the confusion matrix; returns the figure."""
        from woodlot.evaluation.report_plots import plot_classes

        return plot_classes(self)


@dataclass(frozen=True, eq=False, repr=False)
class RegressionReport(EvaluationReport):
    """How good predicted numbers are; see `EvaluationReport`.

    Attributes
    ----------
    error_quantiles : dict of str to float
        Quantiles of the errors, target less prediction.
    """

    rows: TargetRows
    _better: ClassVar[Mapping[str, bool | None]] = TARGET_METRICS

    @property
    def error_quantiles(self) -> dict[str, float]:
        """Quantiles of the errors, target less prediction."""
        return self.rows.error_quantiles()

    def to_dict(self) -> dict[str, Any]:
        """Everything but the rows, in plain values that JSON can hold; NaN is None."""
        return super().to_dict() | {"error_quantiles": self.error_quantiles}

    def plot(self) -> Any:
        """Draw predictions against targets, and the errors; returns the figure."""
        from woodlot.evaluation.report_plots import plot_targets

        return plot_targets(self)


@dataclass(frozen=True, eq=False, repr=False)
class ModelComparison:
    """The first model's metrics less the second's, on the same rows.

    Attributes
    ----------
    differences : dict of str to float
        By metric.
    intervals : dict of str to (float, float)
        Paired confidence intervals: both models were scored on the same bootstrap samples.
    """

    differences: dict[str, float]
    intervals: dict[str, Interval]
    n_rows: int
    confidence: float
    _better: Mapping[str, bool | None]

    def verdict(self, name: str) -> str:
        """Whether the first model is "better" or "worse" by a metric, or the interval covers 0: "unclear"."""
        ends, more = self.intervals.get(name), self._better.get(name)
        if ends is None or more is None or ends[0] <= 0 <= ends[1]:
            return "unclear"
        return "better" if (ends[0] > 0) == more else "worse"

    def _lines(self) -> list[tuple[str, str, str, str]]:
        lines = []
        for name, value in self.differences.items():
            if not np.isnan(value):
                ends = self.intervals.get(name)
                words = "" if ends is None else f"{ends[0]:+.4f} to {ends[1]:+.4f}"
                lines.append((name, f"{value:+.4f}", words, self.verdict(name)))
        return lines

    def __repr__(self) -> str:
        lines = [("metric", "first less second", f"{self.confidence:.0%} interval", "first is"), *self._lines()]
        widths = [max(len(line[k]) for line in lines) for k in range(3)]
        text = (f"  {a:<{widths[0]}}  {b:>{widths[1]}}  {c:<{widths[2]}}  {d}" for a, b, c, d in lines)
        return "\n".join([f"Two models on the same {self.n_rows:,} rows", *text])

    def _repr_html_(self) -> str:
        return html_table(("metric", "first less second", f"{self.confidence:.0%} interval", "first is"), self._lines())

    def to_dict(self) -> dict[str, Any]:
        """In plain values that JSON can hold; NaN is None."""
        return {
            "n_rows": self.n_rows,
            "differences": plain(self.differences),
            "intervals": {name: list(ends) for name, ends in self.intervals.items()},
            "confidence": self.confidence,
        }


def plain(values: Mapping[str, float]) -> dict[str, float | None]:
    """Numbers that JSON can hold."""
    return {name: None if np.isnan(value) else value for name, value in values.items()}
