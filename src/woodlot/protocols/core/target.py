"""The label holder's labels and weights, checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.exceptions import DataError
from woodlot.protocols.core.forest_parts import ClassName
from woodlot.trees import sampling

REGRESSION_WEIGHT_BITS = 24
RESIDUAL_QUANTILES = 201
UNSCORED_SHARE = 0.01
"""Classes without a scored row may hold this share of the rows; the accuracy is off by at most as much."""
ROUNDING = 1e-9
"""Relative error of means of means, at most."""


@dataclass(frozen=True, eq=False, repr=False)
class Target:
    """Labels in clear, as their holder has them.

    Attributes
    ----------
    classes : tuple
        Names of the classes, ascending; empty for regression.
    numbers : int64 array
        Number of each row's class; empty for regression.
    values : float64 array
        Target of each row; empty for classification.
    weights : float64 array or None
        Weight of each row.
    """

    classes: tuple[ClassName, ...]
    numbers: NDArray[np.int64]
    values: NDArray[np.float64]
    weights: NDArray[np.float64] | None = None

    @classmethod
    def of_classes(cls, y: NDArray[np.generic], weights: NDArray[np.float64] | None = None) -> Target:
        """Class labels of any kind; numbered in ascending order."""
        classes, numbers = np.unique(y, return_inverse=True)
        return cls(tuple(c.item() if hasattr(c, "item") else c for c in classes), numbers.ravel(), np.empty(0), weights)

    @classmethod
    def of_values(cls, y: NDArray[np.float64], weights: NDArray[np.float64] | None = None) -> Target:
        """Targets of a regression."""
        return cls((), np.empty(0, np.int64), y, weights)

    def row_weights(self, balanced: bool, class_weight: tuple[tuple[str, float], ...]) -> NDArray[np.float64]:
        """Weight of each row times weight of its class."""
        weights = np.ones(max(len(self.numbers), len(self.values))) if self.weights is None else self.weights
        if balanced:
            per_class = np.bincount(self.numbers, minlength=len(self.classes))
            weights = weights * (len(self.numbers) / (len(self.classes) * per_class))[self.numbers]
        elif class_weight:
            named = dict(class_weight)
            unknown = set(named) - {str(c) for c in self.classes}
            if unknown:
                raise DataError(f"class_weight names classes that do not occur: {sorted(unknown)}")
            weights = weights * np.array([named.get(str(c), 1.0) for c in self.classes])[self.numbers]
        if not (weights > 0).any():
            raise DataError("all rows have weight zero; give at least one row a positive weight")
        return weights

    def integer_weights(
        self, balanced: bool, class_weight: tuple[tuple[str, float], ...]
    ) -> tuple[NDArray[np.int64] | None, float]:
        """The weights of the rows as integers, and their factor; None where all weigh the same."""
        weights = self.row_weights(balanced, class_weight)
        if (weights == 1.0).all():
            return None, 1.0
        # what weights do not take of a float's 53 bits is left for the targets
        return sampling.integer_weights(weights, sampling.WEIGHT_BITS if self.classes else REGRESSION_WEIGHT_BITS)

    def can_be_answers(self, answers: NDArray[np.float64]) -> bool:
        """Whether a forest of these labels could answer so: a class, or something between two targets."""
        if self.classes:
            return bool((answers < len(self.classes)).all() and (answers >= 0).all())
        low, high = float(self.values.min()), float(self.values.max())
        slack = ROUNDING * max(abs(low), abs(high))  # means are rounded
        return bool(np.isfinite(answers).all() and ((answers >= low - slack) & (answers <= high + slack)).all())

    def summary(
        self, outputs: NDArray[np.float64], since: NDArray[np.integer[Any]], together: int = 1
    ) -> tuple[list[float], NDArray[np.float64]]:
        """Scores of several forests' answers, and quantiles of the last one's residuals; NaN where there is none.

        The quantiles are enough for intervals. The outermost are residuals of single rows, and of few rows all are: who
        chooses the answers would read a target. So they are taken of the means of rows that stand together.

        Parameters
        ----------
        outputs : array, shape (n_forests, n_rows)
            Answers of each.
        since : array, shape (n_rows,)
            The first of the forests for which a row counts.
        together : int
            At least so many rows, neighbours by their residuals, go into each number; fewer in all give none.
        """
        judged = [self.score(output, since <= number) for number, output in enumerate(outputs)]
        scores, residuals = [score for score, _ in judged], judged[-1][1]
        if together > 1:
            groups = np.array_split(np.sort(residuals), len(residuals) // together or 1)
            residuals = np.array([group.mean() for group in groups if len(group) >= together])
        quantiles = np.linspace(0, 1, RESIDUAL_QUANTILES)
        return scores, np.quantile(residuals, quantiles) if len(residuals) else np.empty(0)

    def score(self, output: NDArray[np.float64], counted: NDArray[np.bool_]) -> tuple[float, NDArray[np.float64]]:
        """Accuracy, or R2 and the residuals, of answers for the counted rows."""
        if not counted.any():
            return float("nan"), np.empty(0)
        if self.classes:
            return self._accuracy(output, counted), np.empty(0)
        residuals = self.values[counted] - output[counted]
        spread = ((self.values[counted] - self.values[counted].mean()) ** 2).sum()
        return float(1.0 - (residuals**2).sum() / spread) if spread > 0 else float("nan"), residuals

    def _accuracy(self, output: NDArray[np.float64], counted: NDArray[np.bool_]) -> float:
        """Accuracy in which every class counts by its share of all rows, however many of them are counted.

        Class weights are chances to be drawn: rows of a heavy class are in almost every tree's sample, so few of them
        are out of bag. A plain mean over the counted rows would hardly see that class.
        """
        rows = np.bincount(self.numbers, minlength=len(self.classes))
        numbers = self.numbers[counted]
        scored = np.bincount(numbers, minlength=len(self.classes))
        judged = int(rows[scored > 0].sum())
        if judged < (1 - UNSCORED_SHARE) * len(self.numbers):
            return float("nan")
        right = np.bincount(numbers[output[counted].astype(np.int64) == numbers], minlength=len(self.classes))
        return float((rows * right / np.maximum(scored, 1)).sum() / judged)
