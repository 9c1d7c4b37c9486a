"""Cross-validation and search where rows and labels stay with their parties: scikit-learn's loops, on folds as rows.

scikit-learn asks of X its length and some of its rows. A federation in folds (`AnyFederation.in_folds`) answers as if
it had one row for each fold: some of its rows are the federation of these folds' rows, by a rule. So scikit-learn's
loops, searches and results are used as they are. What a fold is scored by comes from the label holder's report.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from joblib import parallel_config
from numpy.typing import NDArray
from sklearn.base import is_classifier

from woodlot.exceptions import DataError
from woodlot.metrics.class_numbers import HIGHER_IS_BETTER
from woodlot.metrics.target_numbers import TARGET_METRICS

SCIKIT_LEARNS = {
    "neg_log_loss": "log_loss",
    "neg_brier_score": "brier",
    "neg_root_mean_squared_error": "rmse",
    "neg_mean_absolute_error": "mae",
    "neg_median_absolute_error": "median_absolute_error",
}
"""Scorers of scikit-learn that are a report's metrics with the other sign."""


JOBS_AT_ONCE = 2
"""Folds that are at work at the same time: while one waits for the network, another computes."""


@contextmanager
def several_jobs(n_jobs: int | None) -> Iterator[None]:
    """Have scikit-learn's loops work on several folds at once, in threads: the work is done at the services."""
    with parallel_config("threading", n_jobs=JOBS_AT_ONCE if n_jobs is None else n_jobs):
        yield


def fold_splits(n_folds: int) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """The folds, as scikit-learn names the rows of what has one row for each."""
    every = np.arange(n_folds)
    return [(np.delete(every, k), every[k : k + 1]) for k in every.tolist()]


def metric_scorer(model: Any, names: Sequence[str]) -> Callable[..., dict[str, float]]:
    """Scores a fitted model by metrics of the label holder's report, or by scikit-learn's names of them."""
    known = HIGHER_IS_BETTER if is_classifier(model) else TARGET_METRICS
    own = {name: (SCIKIT_LEARNS.get(name, name), -1 if name in SCIKIT_LEARNS else 1) for name in names}
    for name, (metric, _) in own.items():
        if metric not in known:
            mirrored = [negative for negative, of in SCIKIT_LEARNS.items() if of in known]
            raise ValueError(
                f"{name!r} is not among the metrics that a label holder reports: {[*known, *mirrored]}; other scorers "
                "need the labels, which stay with their party"
            )

    def score(fitted: Any, X: Any, y: Any = None) -> dict[str, float]:
        report = fitted.evaluate(X, n_bootstrap=0)
        for metric, _ in own.values():
            if metric in report.undefined:
                raise DataError(
                    f"{metric} of a fold is not defined: {report.undefined[metric]}; take fewer folds, or another seed"
                )
        return {name: sign * report[metric] for name, (metric, sign) in own.items()}

    return score
