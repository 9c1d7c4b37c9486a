"""As many trees as it takes: a forest that grows until its out-of-bag score stands still."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.utils import check_random_state

from woodlot.exceptions import DataError

START = 16
"""Trees of the first forest."""


def grow_enough(
    model: Any, X: Any, y: Any = None, *, tolerance: float = 0.002, start: int = START, **fit_params: Any
) -> Any:
    """Fit a forest with as many trees as its out-of-bag score asks for, and no more than ``n_estimators``.

    Forests of ``start``, twice ``start``, four times ``start`` trees are fitted, until one is hardly better than the
    one before. The first trees of a forest are those of a smaller one with the same ``random_state``. So the result is
    what ``fit`` gives with its number of trees, and all fits together cost less than twice the last one.

    Parameters
    ----------
    model : estimator
        A forest with ``oob_score``, such as ``FederatedForestClassifier``; it is not changed.
    X, y
        As for ``fit``.
    tolerance : float, default=0.002
        Stop when twice as many trees gain no more than this in accuracy or R2.
    start : int, default=16
        Trees of the first forest.
    **fit_params
        Further arguments of ``fit``, such as ``features``.

    Returns
    -------
    estimator
        A fitted copy; its ``n_estimators`` is the number of its trees, and ``oob_curve_`` shows why.

    Examples
    --------
    >>> import woodlot as wl
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> model = wl.FederatedForestClassifier(n_estimators=1000, random_state=0)
    >>> wl.grow_enough(model, X, y).n_estimators
    32
    """
    params = model.get_params(deep=False)
    if "oob_score" not in params or "n_estimators" not in params:
        raise DataError(
            f"{type(model).__name__} has no out-of-bag score; give a forest over columns, or a HorizontalForest"
        )
    if not isinstance(start, int) or start < 1:
        raise ValueError(f"start must be a whole number of at least 1, not {start!r}")
    if not tolerance >= 0:
        raise ValueError(f"tolerance must be at least 0, not {tolerance!r}")
    # one seed for all sizes, as a fit would draw it
    state = params["random_state"]
    seed = state if isinstance(state, int) else int(check_random_state(state).randint(np.iinfo(np.int32).max))
    size, before = min(start, params["n_estimators"]), -np.inf
    while True:
        forest = clone(model).set_params(n_estimators=size, oob_score=True, random_state=seed)
        with warnings.catch_warnings():  # few trees leave some rows without an out-of-bag answer; more are on their way
            warnings.filterwarnings("ignore", "Some inputs do not have OOB scores")
            forest.fit(X, y, **fit_params)
        score = float(forest.oob_score_)
        enough = np.isfinite(score) and np.isfinite(before) and score - before <= tolerance
        if enough or size >= params["n_estimators"]:
            return forest
        size, before = min(2 * size, params["n_estimators"]), score
