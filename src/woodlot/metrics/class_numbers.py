"""Metrics of class probabilities, under weights, fast enough for a bootstrap.

Positive is the second class, as in scikit-learn. Of more than two classes, each is ranked against the others, and means
are over the classes. Nothing here needs scikit-learn, so that label holders can compute it in their services.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.exceptions import DataError

LIFT_SHARE = 0.1
"""Of the rows with the highest probabilities, how many lift looks at."""
CURVE_POINTS = 20
"""Of a curve that leaves the label holder: each point is at the end of so many equal shares of the rows."""
MIN_CURVE_STEP = 10
"""Counts in such a curve are multiples of this, or of a larger number."""
CALIBRATION_BINS = 10
MIN_BIN_ROWS = 20
"""Fewer rows of a bin would tell single labels to who knows the predictions: such bins are left out."""
HIGHER_IS_BETTER: dict[str, bool | None] = {
    "accuracy": True,
    "balanced_accuracy": True,
    "roc_auc": True,
    "average_precision": True,
    "log_loss": False,
    "brier": False,
    "f1": True,
    "ks": True,
    "lift": True,
}
RANKED = ("roc_auc", "average_precision", "ks", "lift")
TWO_CLASSES = ("ks", "lift")

Weights = NDArray[np.float64]


def curve_step(n_rows: int) -> int:
    """To multiples of what counts in curves are rounded, where they leave the label holder.

    It is a tenth of the rows between two points, or more. Exact ones, on all unions of a few parts of the rows, are so
    many sums of labels that they can be solved: see `woodlot.leaks.evaluation_attacks`.
    """
    return max(MIN_CURVE_STEP, n_rows // (10 * CURVE_POINTS))


def _coarse(counts: NDArray[Any], n_rows: int) -> NDArray[np.float64]:
    """Counts as curves have them."""
    step = curve_step(n_rows)
    return np.asarray(np.round(np.asarray(counts, np.float64) / step) * step)


class Ranking:
    """Rows from the highest probability of a class to the lowest, equal ones together.

    Parameters
    ----------
    positive : array of bool
        Which rows are of the class.
    score : array
        Its probability.
    """

    def __init__(self, positive: NDArray[np.bool_], score: NDArray[np.float64]) -> None:
        self._order = np.argsort(-score, kind="stable")
        falling = score[self._order]
        self._last = np.append(np.flatnonzero(np.diff(falling)), len(score) - 1)  # of each group of equal ones
        self._positive = positive[self._order].astype(np.float64)

    def scores(self, weights: Weights) -> dict[str, float]:
        """Area under the ROC curve, average precision, Kolmogorov-Smirnov distance and lift of weighted rows."""
        own = weights[self._order]
        hits = np.cumsum(own * self._positive)[self._last]
        misses = np.cumsum(own * (1 - self._positive))[self._last]
        if hits[-1] == 0 or misses[-1] == 0:
            return dict.fromkeys(RANKED, np.nan)
        before, wrong = np.append(0.0, hits), np.append(0.0, misses)
        found = hits + misses
        precision = np.divide(hits, found, out=np.zeros_like(hits), where=found > 0)
        looked_at = LIFT_SHARE * found[-1]
        share = np.interp(looked_at, np.append(0.0, found), before) / looked_at
        return {
            "roc_auc": float(np.sum(np.diff(wrong) * (before[1:] + before[:-1])) / 2 / hits[-1] / misses[-1]),
            "average_precision": float(np.sum(np.diff(before) * precision) / hits[-1]),
            "ks": max(0.0, float(np.max(hits / hits[-1] - misses / misses[-1]))),
            "lift": float(share * found[-1] / hits[-1]),
        }

    def coarse_curves(self) -> dict[str, dict[str, list[float]]]:
        """ROC and precision-recall curves at `CURVE_POINTS` shares of the rows, of rounded counts (`curve_step`)."""
        hits = np.cumsum(self._positive)[self._last]
        found = self._last + 1.0
        ends = np.searchsorted(found, found[-1] * np.arange(1, CURVE_POINTS + 1) / CURVE_POINTS)
        at = np.unique(np.minimum(ends, len(found) - 1))
        told = np.clip(_coarse(hits[at], len(self._order)), found[at] - (found[-1] - hits[-1]), found[at])
        told = np.minimum(told, hits[-1])
        told[-1] = hits[-1]
        misses = found[at] - told
        recall, precision = told / hits[-1], told / found[at]
        return {
            "roc": {"fpr": [0.0, *(misses / misses[-1]).tolist()], "tpr": [0.0, *recall.tolist()]},
            "precision_recall": {"precision": precision[::-1].tolist(), "recall": recall[::-1].tolist()},
        }


class ClassNumbers:
    """Rows with their classes and the probabilities that a model gave them.

    Parameters
    ----------
    y : array
        The class of each row.
    outputs : array of shape (n_rows, n_classes)
        Probabilities.
    classes : array
        The classes of the model, in the order of the columns.
    """

    def __init__(self, y: NDArray[Any], outputs: NDArray[np.float64], classes: NDArray[Any]) -> None:
        position = {label: k for k, label in enumerate(classes.tolist())}
        unknown = sorted({str(label) for label in set(np.asarray(y).tolist()) - set(position)})
        if unknown:
            raise DataError(
                f"the rows have classes that the model does not know: {unknown}; it knows {classes.tolist()}"
            )
        self.codes = np.array([position[label] for label in np.asarray(y).tolist()], np.int64)
        self.outputs = np.asarray(outputs, np.float64)
        self.classes = classes
        self.predicted = self.outputs.argmax(axis=1)
        self.ranked: Sequence[int] = [1] if len(classes) == 2 else range(len(classes))
        self.rankings = [Ranking(self.codes == k, self.outputs[:, k]) for k in self.ranked]
        # as scikit-learn: a probability of 0 costs a large number, and not an infinite one
        eps = np.finfo(np.float64).eps
        self.surprise = -np.log(np.clip(self.outputs, eps, 1 - eps)[np.arange(len(self.codes)), self.codes])
        squares = ((self.outputs - np.eye(len(classes))[self.codes]) ** 2).sum(axis=1)
        self.squared = squares / 2 if len(classes) == 2 else squares

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def absent(self) -> list[Any]:
        """Classes of the model that no row has."""
        present = np.bincount(self.codes, minlength=len(self.classes))
        return [label for label, n in zip(self.classes.tolist(), present, strict=True) if n == 0]

    def same_rows(self, other: ClassNumbers) -> bool:
        """Whether another model was asked about rows with the same labels."""
        return bool(np.array_equal(self.classes[self.codes], other.classes[other.codes]))

    def undefined(self) -> dict[str, str]:
        """Metrics that these rows do not have, and why."""
        reasons = {}
        if len(self.classes) > 2:
            reasons = dict.fromkeys(TWO_CLASSES, "it is for two classes")
        if self.absent:
            why = f"no row is of class {self.absent[0]!r}; evaluate rows of every class"
            reasons |= {name: why for name in RANKED if name not in reasons}
        return reasons

    def weighted(self, weights: Weights) -> dict[str, float]:
        """The same where rows count with these weights."""
        n = len(self.classes)
        total = weights.sum()
        # sums of products, not @: small products in many threads cost more than they save
        table = np.bincount(self.codes * n + self.predicted, weights, n * n).reshape(n, n)
        rows, columns, right = table.sum(axis=1), table.sum(axis=0), np.diag(table)
        there = rows > 0
        f1 = np.divide(2 * right, rows + columns, out=np.zeros(n), where=rows + columns > 0)
        ranked = [ranking.scores(weights) for ranking in self.rankings]
        found = {
            "accuracy": right.sum() / total,
            "balanced_accuracy": np.mean(right[there] / rows[there]),
            "log_loss": np.sum(weights * self.surprise) / total,
            "brier": np.sum(weights * self.squared) / total,
            "f1": f1[1] if n == 2 else f1.mean(),
        } | {name: np.mean([one[name] for one in ranked]) for name in RANKED}
        undefined = self.undefined()
        return {name: np.nan if name in undefined else float(found[name]) for name in HIGHER_IS_BETTER}

    def confusion(self) -> NDArray[np.int64]:
        """Rows by their class (down) and the predicted one (across)."""
        n = len(self.classes)
        return np.bincount(self.codes * n + self.predicted, minlength=n * n).reshape(n, n)

    def by_class(self) -> dict[str, dict[str, float]]:
        """Rows, precision, recall, F1, area under the ROC curve and average precision of each class."""
        table = self.confusion()
        rows, found, right = table.sum(axis=1), table.sum(axis=0), np.diag(table)
        told = {}
        for k, label in enumerate(self.classes.tolist()):
            ranked = Ranking(self.codes == k, self.outputs[:, k]).scores(np.ones(len(self)))
            told[str(label)] = {
                "rows": int(rows[k]),
                "precision": float(right[k] / found[k]) if found[k] else 0.0,
                "recall": float(right[k] / rows[k]) if rows[k] else 0.0,
                "f1": float(2 * right[k] / (rows[k] + found[k])) if rows[k] + found[k] else 0.0,
                "roc_auc": ranked["roc_auc"],
                "average_precision": ranked["average_precision"],
            }
        return told

    def coarse_curves(self) -> dict[str, dict[str, dict[str, list[float]]]]:
        """Curves as the label holder tells them: few points, and no bin of few rows."""
        told = {}
        for k, ranking in zip(self.ranked, self.rankings, strict=True):
            positive, p = self.codes == k, self.outputs[:, k]
            if positive.all() or not positive.any():
                continue
            bins = np.minimum((p * CALIBRATION_BINS).astype(np.int64), CALIBRATION_BINS - 1)
            rows = np.bincount(bins, minlength=CALIBRATION_BINS)
            many = rows >= MIN_BIN_ROWS
            hits = np.minimum(_coarse(np.bincount(bins[positive], minlength=CALIBRATION_BINS), len(p)), rows)
            means = (of[many] / rows[many] for of in (np.bincount(bins, p, CALIBRATION_BINS), hits))
            calibration = dict(zip(("predicted", "observed"), (mean.tolist() for mean in means), strict=True))
            told[str(self.classes[k])] = ranking.coarse_curves() | {"calibration": calibration}
        return told
