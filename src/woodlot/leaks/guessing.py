"""What an attacker guesses without any message: values and labels from what it has anyway."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from woodlot.leaks import label_attacks as on_labels
from woodlot.leaks.label_attacks import rank_correlation
from woodlot.leaks.value_attacks import ATTACK_TREES

_Matrix = NDArray[np.float64]
_Rows = NDArray[np.int64]


def halves(n_rows: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The rows whose values the baseline is given, and those on which everything is marked."""
    order = np.random.default_rng(1).permutation(n_rows)
    return order[: n_rows // 2], order[n_rows // 2 :]


def regression_with_half(own: NDArray[np.float64], truth: NDArray[np.float64]) -> float:
    """Mean rank correlation of columns with what a regression on one's own columns says that was given half of them.

    It is a forest or a ridge regression of ranks: the one that tells a third of the given half better from the rest.
    """
    given, rest = halves(len(own))
    n_tried = len(given) // 3
    kept, tried = given[n_tried:], given[:n_tried]
    if len(kept) > 1 and len(tried) > 1:
        best = max(REGRESSIONS, key=lambda guess: _mean_rank_correlation(guess(own, truth, kept, tried), truth[tried]))
    else:
        best = _guess_of_forest
    return _mean_rank_correlation(best(own, truth, given, rest), truth[rest])


def _mean_rank_correlation(guess: NDArray[np.float64], truth: NDArray[np.float64]) -> float:
    return float(np.mean([abs(rank_correlation(guess[:, k], truth[:, k])) for k in range(truth.shape[1])]))


def _guess_of_forest(own: _Matrix, truth: _Matrix, given: _Rows, rest: _Rows) -> _Matrix:
    from sklearn.ensemble import RandomForestRegressor

    ranks = _ranks(truth)
    forest = RandomForestRegressor(ATTACK_TREES, max_features=0.3, min_samples_leaf=3, random_state=0)
    wanted = ranks[given] if ranks.shape[1] > 1 else ranks[given, 0]  # scikit-learn warns of one column
    return np.asarray(forest.fit(own[given], wanted).predict(own[rest]).reshape(len(rest), -1), np.float64)


def _guess_of_lines(own: _Matrix, truth: _Matrix, given: _Rows, rest: _Rows) -> _Matrix:
    from sklearn.linear_model import RidgeCV

    columns, wanted = _ranks(own), _ranks(truth)
    lines = RidgeCV(alphas=(0.1, 1.0, 10.0, 100.0), alpha_per_target=wanted.shape[1] > 1)
    return np.asarray(lines.fit(columns[given], wanted[given]).predict(columns[rest]).reshape(len(rest), -1))


REGRESSIONS = (_guess_of_forest, _guess_of_lines)


def _ranks(columns: _Matrix) -> _Matrix:
    return np.column_stack([rankdata(column) for column in columns.T]) / len(columns) - 0.5


def labels_without_messages(
    own: NDArray[np.float64], known: NDArray[np.int64], rest: NDArray[np.int64], numbers: NDArray[np.int64]
) -> float:
    """Labels that the better of a forest and a linear model of own columns reads, given a few labels."""
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.linear_model import LogisticRegression

    if len(np.unique(numbers[known])) == 1:
        return on_labels.share_right(np.full(len(rest), numbers[known[0]]), numbers[rest])
    ranks = _ranks(own)
    forest = RandomForestClassifier(ATTACK_TREES, random_state=0).fit(own[known], numbers[known])
    linear = LogisticRegression(max_iter=500).fit(ranks[known], numbers[known])
    return max(
        on_labels.share_right(forest.predict(own[rest]), numbers[rest]),
        on_labels.share_right(linear.predict(ranks[rest]), numbers[rest]),
    )
