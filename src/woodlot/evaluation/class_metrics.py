"""Metrics of class probabilities: scikit-learn's, which a process that has labels and answers can compute."""

from __future__ import annotations

import warnings

import numpy as np
from numpy.typing import NDArray
from sklearn import metrics
from sklearn.calibration import calibration_curve

from woodlot.metrics.class_numbers import CALIBRATION_BINS, HIGHER_IS_BETTER, TWO_CLASSES, ClassNumbers

__all__ = ["HIGHER_IS_BETTER", "ClassRows"]


class ClassRows(ClassNumbers):
    """As `ClassNumbers`, with scikit-learn's own metrics and curves."""

    def scores(self) -> dict[str, float]:
        """All metrics, as scikit-learn computes them."""
        n, y, p = len(self.classes), self.codes, self.outputs
        binary, all_codes = n == 2, np.arange(n)
        average = {"average": "binary"} if binary else {"average": "macro", "labels": all_codes}
        with warnings.catch_warnings():  # of classes that no row has; `undefined` says so
            warnings.simplefilter("ignore")
            found = {
                "accuracy": metrics.accuracy_score(y, self.predicted),
                "balanced_accuracy": metrics.balanced_accuracy_score(y, self.predicted),
                "log_loss": metrics.log_loss(y, p, labels=all_codes) if n > 1 else np.nan,
                "brier": self._brier(),
                "f1": metrics.f1_score(y, self.predicted, zero_division=0, **average),
            }
            if not self.absent and n > 1:
                of = [(y == k, p[:, k]) for k in self.ranked]
                found["roc_auc"] = np.mean([metrics.roc_auc_score(*pair) for pair in of])
                found["average_precision"] = np.mean([metrics.average_precision_score(*pair) for pair in of])
        ranked = self.rankings[0].scores(np.ones(len(y)))  # what scikit-learn does not have
        found |= {name: ranked[name] for name in TWO_CLASSES} if binary else {}
        undefined = self.undefined()
        return {name: np.nan if name in undefined else float(found.get(name, np.nan)) for name in HIGHER_IS_BETTER}

    def _brier(self) -> float:
        if len(self.classes) == 2:
            return float(metrics.brier_score_loss(self.codes, self.outputs[:, 1], pos_label=1))
        return float(np.mean(self.squared))

    def curves(self) -> dict[str, dict[str, dict[str, NDArray[np.float64]]]]:
        """ROC, precision-recall and calibration curves of the positive class, or of each class against the others."""
        found = {}
        for k in self.ranked:
            positive, p = self.codes == k, self.outputs[:, k]
            if positive.all() or not positive.any():
                continue
            fpr, tpr, threshold = metrics.roc_curve(positive, p)
            precision, recall, _ = metrics.precision_recall_curve(positive, p)
            true, mean = calibration_curve(positive, p, n_bins=CALIBRATION_BINS)
            found[str(self.classes[k])] = {
                "roc": {"fpr": fpr, "tpr": tpr, "threshold": threshold},
                "precision_recall": {"precision": precision, "recall": recall},
                "calibration": {"predicted": mean, "observed": true},
            }
        return found
