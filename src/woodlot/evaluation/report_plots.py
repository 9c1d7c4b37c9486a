"""Figures of a report, with matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from woodlot.data.extras import need

if TYPE_CHECKING:
    from woodlot.evaluation.reports import ClassificationReport, RegressionReport

_COLOURS = ("#2f7d4f", "#3b6fb5", "#b5693b", "#7d4fa3", "#a3883b", "#3b9ca3", "#b53b6a", "#6b7d2f")
_GUIDE = {"color": "#9aaa9f", "lw": 1, "ls": "--"}


def _figure(rows: int, columns: int) -> tuple[Any, Any]:
    figure, axes = need("matplotlib.pyplot", "plot").subplots(
        rows, columns, figsize=(4.6 * columns, 4.0 * rows), layout="constrained", squeeze=False
    )
    return figure, axes.ravel()


def plot_classes(report: ClassificationReport) -> Any:
    """ROC, precision-recall and calibration curves, and the confusion matrix."""
    figure, (roc, recall, calibration, confusion) = _figure(2, 2)
    for k, (label, curves) in enumerate(report.curves.items()):
        look = {"color": _COLOURS[k % len(_COLOURS)], "label": label}
        roc.plot(curves["roc"]["fpr"], curves["roc"]["tpr"], **look)
        recall.plot(curves["precision_recall"]["recall"], curves["precision_recall"]["precision"], **look)
        calibration.plot(curves["calibration"]["predicted"], curves["calibration"]["observed"], marker="o", **look)
    for axes, across, up in (
        (roc, "false positives", "true positives"),
        (recall, "recall", "precision"),
        (calibration, "predicted probability", "observed share"),
    ):
        axes.set(xlabel=across, ylabel=up, xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
        if report.curves:
            axes.legend(frameon=False)
    for axes in (roc, calibration):
        axes.plot([0, 1], [0, 1], **_GUIDE)
    counts, names = report.confusion, [str(label) for label in report.classes]
    confusion.imshow(counts, cmap="Greens")
    for (row, column), n in np.ndenumerate(counts):
        dark = n > counts.max() / 2
        confusion.text(column, row, f"{n:,}", ha="center", va="center", color="white" if dark else "#1c2620")
    confusion.set(xlabel="predicted", ylabel="class")
    confusion.set_xticks(range(len(names)), names)
    confusion.set_yticks(range(len(names)), names)
    return figure


def plot_targets(report: RegressionReport) -> Any:
    """Predictions against targets, and the errors."""
    figure, (scatter, errors) = _figure(1, 2)
    rows = report.rows
    scatter.plot(rows.predicted, rows.y, ".", color=_COLOURS[0], alpha=0.5)
    ends = [min(rows.y.min(), rows.predicted.min()), max(rows.y.max(), rows.predicted.max())]
    scatter.plot(ends, ends, **_GUIDE)
    scatter.set(xlabel="prediction", ylabel="target")
    errors.hist(rows.errors, bins=30, color=_COLOURS[1])
    errors.set(xlabel="target less prediction", ylabel="rows")
    return figure
